// What a checkpoint is and what is in it, without loading it: headers are read and every tensor that the config asks for
// (trunk, MTP layer, image tower) is checked by name, shape and type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weights/checkpoint.h"
#include "weights/inventory.h"

namespace winnow::weights {

// A kind of parameters: "routed experts".
struct Share {
  std::string what;
  int64_t tensors = 0, parameters = 0, bytes = 0;  // bytes with the scales of block FP8; parameters without
};

struct TypeShare {
  DType type = DType::f32;
  int64_t tensors = 0, bytes = 0;
};

struct PartSummary {
  Part part = Part::trunk;
  bool expected = false, present = false;  // expected: the config speaks of it
  int64_t tensors = 0, parameters = 0, bytes = 0;
};

struct Description {
  std::string dir;
  std::optional<Config> config;    // nothing if config.json itself is refused
  std::string quantisation;        // "block FP8 (e4m3, 128 x 128)" or "none"
  std::vector<PartSummary> parts;  // trunk, MTP, vision
  std::vector<Share> shares;       // of the trunk's parameters, largest first; then "MTP layer", "image tower"
  std::vector<TypeShare> types;    // of all stored tensors, most bytes first
  int64_t files = 0, tensors = 0, bytes = 0;
  int64_t parameters = 0;         // of all parts, scales not counted
  int64_t active_parameters = 0;  // of the trunk, what one token uses: its experts only
  // One line each: why winnow would refuse to load this. Empty: it loads, as far as names, shapes and types tell
  // (values are looked at while loading).
  std::vector<std::string> refused;
  int64_t refused_count = 0;  // at least refused.size()
  bool accepted() const { return refused_count == 0; }
};

// Never fails: what cannot be read is in `refused`. At most `most` lines are kept.
Description describe(const std::string& dir, size_t most = 1000);

}  // namespace winnow::weights
