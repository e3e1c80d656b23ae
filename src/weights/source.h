// Where the values of a tensor lie in a checkpoint. Models ask by official name; the same values may be stored under
// transformers' module names, fused with others or apart (docs/model.md, Names), and block FP8 brings scales along.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "weights/checkpoint.h"
#include "weights/inventory.h"

namespace winnow::weights {

// Consecutive elements of one stored tensor.
struct Piece {
  const std::string* name;  // as stored
  Checkpoint::Entry entry;
  int64_t first = 0, count = 0;
};

// In order, the pieces make the packed tensor. `scale` is not empty exactly if the values are e4m3.
struct Source {
  std::vector<Piece> data, scale;
  bool found() const { return !data.empty(); }
};

// What is wrong with a checkpoint's tensors: all of it counted, the first of it told.
class Problems {
 public:
  explicit Problems(size_t told = 20) : most_(told) {}
  void missing(const std::string& name) { add_once("missing " + name); }
  void wrong(const std::string& what) { add_once(what); }
  int64_t count() const { return static_cast<int64_t>(seen_.size()); }
  const std::vector<std::string>& told() const { return told_; }
  // "DIR: 3 problems with the tensors: missing a.weight; ...; and 2 more"
  Error error(const std::string& dir) const;

 private:
  void add_once(std::string what);
  size_t most_;
  std::set<size_t> seen_;  // hashes: fused tensors come up once an expert
  std::vector<std::string> told_;
};

// Finds the values of official name `name`, checks shapes, types and scales, and reports what is wrong. Names of the
// tensors it draws on are added to `used`.
class Finder {
 public:
  Finder(const Checkpoint& checkpoint, Problems& problems) : c_(checkpoint), problems_(problems) {}
  Source find(const std::string& name, std::span<const int64_t> shape);
  const std::unordered_set<std::string_view>& used() const { return used_; }
  // Storage type of the first piece; nothing if there is none. Reports nothing.
  std::optional<DType> type_of(const std::string& name) const;

 private:
  using Stored = const std::pair<const std::string, Checkpoint::Entry>*;
  Stored stored(std::string_view name) const;  // by that name or its other style
  Source whole(Stored t, std::span<const int64_t> stored_shape);
  Source convolutions(const std::string& name, std::span<const int64_t> shape);
  Source expert(const std::string& name, std::span<const int64_t> shape);
  void attach_scale(Source& s, Stored t, std::span<const int64_t> stored_shape, int64_t first_row, int64_t rows, int64_t index);
  bool expect_shape(Stored t, std::span<const int64_t> shape);

  const Checkpoint& c_;
  Problems& problems_;
  std::unordered_set<std::string_view> used_;
};

// Checks the parts that nobody asks for against the config, if they are there at all, and reports every tensor that no
// part has. Call it after all find()s.
void check_rest(const Checkpoint& checkpoint, const std::set<Part>& asked, Finder& finder, Problems& problems);

// Official name of what a model calls "layers.3.input_layernorm.weight".
std::string official_name(const std::string& name);

}  // namespace winnow::weights
