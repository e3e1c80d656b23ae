#include "device/cpu/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace winnow::device {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The number behind `key` in lines of "key number"; with an empty key, the number that the file begins with.
std::optional<int64_t> number_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t n = 0;
    if (!key.empty() && (!(words >> word) || word != key)) continue;
    if (words >> n) return n;
    return std::nullopt;  // "max"
  }
  return std::nullopt;
}

// What one control group leaves. Its page cache is given back when memory is asked for.
int64_t left_in_group(const std::string& folder) {
  const auto most = number_in(folder + "/memory.max", "");
  if (!most) return kNoLimit;
  const int64_t used = number_in(folder + "/memory.current", "").value_or(0);
  const int64_t cache =
      number_in(folder + "/memory.stat", "inactive_file").value_or(0) + number_in(folder + "/memory.stat", "active_file").value_or(0);
  return std::max<int64_t>(*most - used + cache, 0);
}

// The process's group in the unified hierarchy: the line "0::/path".
std::string group_of_process(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("0::/")) return line.substr(3);
  return "/";
}

}  // namespace

int64_t available_memory(const std::string& root) {
  int64_t left = kNoLimit;
  if (const auto kib = number_in(root + "/proc/meminfo", "MemAvailable:")) left = *kib * 1024;
  std::string group = group_of_process(root);
  for (;;) {  // every group above limits it too
    left = std::min(left, left_in_group(root + "/sys/fs/cgroup" + group));
    if (group.empty()) return left;
    group.resize(group.rfind('/'));
  }
}

}  // namespace winnow::device
