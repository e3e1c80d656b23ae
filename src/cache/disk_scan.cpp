#include "cache/disk_scan.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "base/error.h"

namespace winnow::cache {
namespace {

constexpr std::string_view kUnfinished = ".part";

std::vector<DiskFiles::Listed> list(const DiskFiles& files, const std::string& folder) {
  std::vector<DiskFiles::Listed> found;
  if (const int e = files.list(folder, &found))
    throw error("--cache-dir: {} cannot be listed: {}; name a folder that winnow may read and write", folder, describe_file_error(e));
  return found;
}

void look_at(const DiskFiles& files, const std::string& folder, const DiskFormat& format, const std::string& name, const DiskFiles::Listed& file,
             DiskScan* scan) {
  const std::string path = folder + "/" + name;
  if (name.ends_with(kUnfinished) && id_of_file_name(std::string_view(name).substr(0, name.size() - kUnfinished.size()))) {
    files.remove(path);
    return;
  }
  const auto id = id_of_file_name(name);
  if (!id) return;
  std::vector<std::byte> start(static_cast<size_t>(std::min(file.bytes, format.header_bytes())));
  const std::span<std::byte> parts[] = {start};
  DiskHeader header;
  // What cannot be read is not known to be damaged.
  Verdict verdict = files.read(path, parts) == 0 ? parse_header(format, start, file.bytes, &header) : Verdict::foreign;
  if (verdict == Verdict::good && RecordId{header.record.kind, header.record.key} != *id) verdict = Verdict::damaged;
  if (verdict == Verdict::good) {
    header.record.used_s = file.changed_s;
    scan->own.push_back({std::move(header.record), header.hash});
  } else if (verdict == Verdict::foreign) {
    scan->foreign.push_back({*id, file.bytes, file.changed_s});
  } else {
    files.remove(path);
    ++scan->damaged;
  }
}

// Keeps records[i] where keep[i], deletes the files of the others and returns their number.
int64_t keep_only(const DiskFiles& files, const std::string& folder, const std::vector<bool>& keep, std::vector<DiskScan::Own>* records) {
  std::vector<DiskScan::Own> kept;
  for (size_t i = 0; i < records->size(); ++i) {
    const DiskRecord& r = (*records)[i].record;
    if (keep[i]) kept.push_back(std::move((*records)[i]));
    else files.remove(folder + "/" + file_name({r.kind, r.key}));
  }
  const auto gone = static_cast<int64_t>(records->size() - kept.size());
  *records = std::move(kept);
  return gone;
}

using PageAt = std::unordered_map<PrefixKey, size_t, PrefixKeyHash>;
constexpr size_t kRoot = SIZE_MAX, kNowhere = SIZE_MAX - 1;

// The page that `d` hangs on: the one before a page, the own one of a snapshot; kNowhere if it is not there.
size_t above(const std::vector<DiskScan::Own>& records, const PageAt& pages, const DiskRecord& d) {
  const bool page = d.kind == RecordKind::page;
  if (page && d.depth == 1) return kRoot;
  const auto found = pages.find(page ? d.parent : d.key);
  if (found == pages.end()) return kNowhere;
  const DiskRecord& p = records[found->second].record;
  const bool fits = page ? p.depth + 1 == d.depth : p.depth == d.depth && p.parent == d.parent && p.tokens == d.tokens;
  return fits && p.salt == d.salt ? found->second : kNowhere;
}

// Which of records, parents first, are reached from the root.
std::vector<bool> reached(const std::vector<DiskScan::Own>& records) {
  std::vector<bool> keep(records.size());
  PageAt pages;
  for (size_t i = 0; i < records.size(); ++i) {
    const DiskRecord& d = records[i].record;
    keep[i] = above(records, pages, d) != kNowhere;
    if (keep[i] && d.kind == RecordKind::page) pages.emplace(d.key, i);
  }
  return keep;
}

// Which of records, parents first and all reached, fit into limit_bytes: snapshots used last, with the pages before them, and then
// other pages likewise, with which nobody can begin yet.
std::vector<bool> within(const std::vector<DiskScan::Own>& records, const DiskFormat& format, int64_t limit_bytes) {
  PageAt pages;
  std::vector<int64_t> used_s(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    used_s[i] = records[i].record.used_s;
    if (records[i].record.kind == RecordKind::page) pages.emplace(records[i].record.key, i);
  }
  std::vector<size_t> up(records.size());
  for (size_t i = records.size(); i-- > 0;) {  // a page is as young as the youngest behind it
    up[i] = above(records, pages, records[i].record);
    if (up[i] != kRoot) used_s[up[i]] = std::max(used_s[up[i]], used_s[i]);
  }
  std::vector<size_t> order(records.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return used_s[a] > used_s[b]; });  // parents stay first
  std::vector<bool> keep(records.size());
  int64_t bytes = 0;
  for (RecordKind kind : {RecordKind::snapshot, RecordKind::page})
    for (size_t i : order) {
      if (records[i].record.kind != kind) continue;
      int64_t more = 0;
      for (size_t a = i; a != kRoot && !keep[a]; a = up[a]) more += format.file_bytes(records[a].record.kind);
      if (bytes + more > limit_bytes) continue;
      bytes += more;
      for (size_t a = i; a != kRoot && !keep[a]; a = up[a]) keep[a] = true;
    }
  return keep;
}

}  // namespace

std::string unfinished(const std::string& path) { return path + std::string(kUnfinished); }

DiskScan scan_folder(const DiskFiles& files, const std::string& folder, const DiskFormat& format, int64_t limit_bytes) {
  DiskScan scan;
  for (const auto& sub : list(files, folder)) {
    if (!sub.folder || sub.name.size() != 2) continue;
    for (const auto& file : list(files, folder + "/" + sub.name))
      if (!file.folder) look_at(files, folder, format, sub.name + "/" + file.name, file, &scan);
  }
  std::ranges::stable_sort(scan.own, [](const DiskScan::Own& a, const DiskScan::Own& b) {
    return std::pair(a.record.depth, a.record.kind) < std::pair(b.record.depth, b.record.kind);
  });
  std::ranges::stable_sort(scan.foreign, [](const auto& a, const auto& b) { return a.used_s > b.used_s; });
  scan.orphaned = keep_only(files, folder, reached(scan.own), &scan.own);
  scan.beyond_limit = keep_only(files, folder, within(scan.own, format, limit_bytes), &scan.own);
  return scan;
}

}  // namespace winnow::cache
