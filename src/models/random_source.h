// Random weights of a config's shapes in the types of the published checkpoint: routed and shared experts, dense MLPs and
// four of the MLA matrices in block FP8, the rest bf16 or f32. For benchmarks: speed does not depend on the values as long
// as they are not all zero. Private to models/; the interface is that of weights::Loader: wishes first, then load() takes
// all the memory at once, so that what does not fit is refused before anything is filled.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/device.h"
#include "weights/checkpoint.h"
#include "weights/config.h"

namespace winnow::models {

class RandomSource {
 public:
  RandomSource(const weights::Config& config, device::Device& device, uint64_t seed) : config_(config), device_(device), seed_(seed) {}
  DType type_of(const std::string& name) const;
  void matrix(Matrix* to, const std::string& name, int64_t n, int64_t k);
  void f32(ConstTensorView* to, const std::string& name, std::vector<int64_t> shape);
  void visit(const std::string& name, int64_t n, int64_t k, std::function<void(ConstTensorView)> use);
  std::vector<device::Buffer> load(const weights::Progress& progress);

 private:
  struct Wish {
    int64_t bytes;
    std::function<void(std::byte*)> fill;
  };
  void fill(std::byte* to, int64_t words, uint64_t keep, uint64_t set);

  const weights::Config& config_;
  device::Device& device_;
  uint64_t seed_;
  std::vector<Wish> wishes_;
};

}  // namespace winnow::models
