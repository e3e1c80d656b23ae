#include "weights/checkpoint.h"

#include <boost/json/value.hpp>

#include <dirent.h>

#include <algorithm>
#include <set>

#include "base/file.h"
#include "weights/json.h"

namespace winnow::weights {

std::string_view name_of(Residence r) { return r == Residence::map ? "map" : "copy"; }

Result<Residence> parse_residence(std::string_view name) {
  for (Residence r : {Residence::copy, Residence::map})
    if (name == name_of(r)) return r;
  return error("unknown '{}' (known: copy, map)", name);
}

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = 256 << 20;
constexpr size_t kMaxShards = 10000;

using WeightMap = std::map<std::string, std::string, std::less<>>;  // tensor -> file name

// A shard is named, not located: an index may not lead out of its folder.
std::optional<Error> check_shard_name(std::string_view name, std::string_view tensor, const std::string& where) {
  const std::string at = fmt::format("{}: weight_map of {}", where, quoted(tensor));
  if (name.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos || name == "." || name == "..")
    return error("{} is {}, which leads out of the folder; only a file name is allowed", at, quoted(name));
  if (!name.ends_with(".safetensors") || name == ".safetensors") return error("{} is {}, not the name of a .safetensors file", at, quoted(name));
  return std::nullopt;
}

Result<WeightMap> read_index(const std::string& path) {
  auto text = read_text(path, kMaxIndexBytes);
  if (!text) return text.error();
  auto root = parse_json(*text, path);
  if (!root) return root.error();
  const auto* object = root->if_object();
  const auto* found = object ? object->if_contains("weight_map") : nullptr;
  const auto* map = found ? found->if_object() : nullptr;
  if (!map) return error("{}: weight_map is missing or not an object", path);
  if (map->empty()) return error("{}: weight_map is empty", path);
  WeightMap weights;
  for (const auto& [key, value] : *map) {
    const std::string_view tensor(key.data(), key.size());
    if (!value.is_string()) return error("{}: weight_map of {} is not a file name", path, quoted(tensor));
    const std::string_view file(value.get_string().data(), value.get_string().size());
    if (auto e = check_shard_name(file, tensor, path)) return *e;
    weights.emplace(tensor, file);
  }
  return weights;
}

// Some safetensors file of the folder, for the message that an index is missing.
std::string any_shard(const std::string& dir) {
  std::set<std::string> names;
  if (DIR* d = ::opendir(dir.c_str())) {
    while (const dirent* e = ::readdir(d))
      if (std::string_view(e->d_name).ends_with(".safetensors") && std::string_view(e->d_name).starts_with("model")) names.insert(e->d_name);
    ::closedir(d);
  }
  return names.empty() ? "" : *names.begin();
}

struct Files {
  std::vector<std::string> names;
  WeightMap weights;  // empty: a single file without an index
};

Result<Files> list_files(const std::string& dir) {
  const bool single = exists(dir + "/" + kSingle), index = exists(dir + "/" + kIndex);
  if (!index && single) return Files{{kSingle}, {}};
  if (!index) {
    const std::string shard = any_shard(dir);
    if (!shard.empty()) return error("{}/{}: is missing, but there is {}: a checkpoint in shards needs its index", dir, kIndex, quoted(shard));
    return error("{}: holds no checkpoint: neither {} nor {}", dir, kSingle, kIndex);
  }
  auto weights = read_index(dir + "/" + kIndex);
  if (!weights) return weights.error();
  std::set<std::string> names;
  for (const auto& [tensor, file] : *weights) names.insert(file);
  if (names.size() > kMaxShards) return error("{}/{}: names {} files; at most {} are read", dir, kIndex, names.size(), kMaxShards);
  if (single && !names.contains(kSingle)) return error("{}: has both {} and {}, which does not name it; remove one of them", dir, kSingle, kIndex);
  for (const std::string& n : names)
    if (!exists(dir + "/" + n))
      return error("{}/{}: is missing, but {} names it for {}", dir, n, kIndex,
                   quoted(std::find_if(weights->begin(), weights->end(), [&](auto& w) { return w.second == n; })->first));
  return Files{{names.begin(), names.end()}, *std::move(weights)};
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& path) {
  std::string dir = path;
  while (dir.size() > 1 && dir.ends_with('/')) dir.pop_back();
  Checkpoint c;
  c.dir_ = dir;
  auto config = read_config(dir);
  if (!config) return config.error();
  c.config_ = *std::move(config);
  auto list = list_files(dir);
  if (!list) return list.error();
  c.files_.reserve(list->names.size());  // entries point into it
  for (const std::string& name : list->names) {
    auto f = SafetensorsFile::open(dir + "/" + name);
    if (!f) return f.error();
    c.files_.push_back(*std::move(f));
    const SafetensorsFile& file = c.files_.back();
    for (const auto& [tensor, info] : file.tensors()) {
      if (!list->weights.empty()) {
        const auto w = list->weights.find(tensor);
        if (w == list->weights.end()) return error("{}/{}: has tensor {}, which {} does not list", dir, name, quoted(tensor), kIndex);
        if (w->second != name) return error("{}/{}: has tensor {}, which {} places in {}", dir, name, quoted(tensor), kIndex, quoted(w->second));
      }
      c.tensors_.emplace(tensor, Entry{&file, &info});
      c.total_bytes_ += info.bytes;
    }
  }
  for (const auto& [tensor, file] : list->weights)
    if (!c.tensors_.contains(tensor)) return error("{}/{}: has no tensor {}, which {} places there", dir, file, quoted(tensor), kIndex);
  if (c.tensors_.empty()) return error("{}: the checkpoint has no tensors", dir);
  return c;
}

}  // namespace winnow::weights
