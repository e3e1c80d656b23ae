#include "models/random_source.h"

#include <cmath>
#include <string_view>

#include "base/units.h"
#include "device/cpu/workers.h"

namespace winnow::models {
namespace {

uint64_t splitmix(uint64_t x) {  // Steele, Lea, Flood: Fast splittable pseudorandom number generators
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Exponent of a power of two near 1 / sqrt(k), so that outputs keep the size of inputs.
int unit_exponent(int64_t k) { return -static_cast<int>(std::lround(std::log2(std::sqrt(static_cast<double>(k))))); }

}  // namespace

DType RandomSource::type_of(const std::string& name) const {
  if (!config_.block_fp8) return DType::bf16;
  const std::string_view n(name);
  const auto has = [n](std::string_view part) { return n.find(part) != n.npos; };
  if (has(".mlp.") && !has("mlp.gate.")) return DType::e4m3;
  const bool mla = has("q_a_proj") || has("q_b_proj") || has("kv_a_proj_with_mqa");
  if (mla) return DType::e4m3;
  if (has("self_attn.o_proj")) {
    const size_t layer = static_cast<size_t>(std::stoll(name.substr(name.find('.') + 1)));
    return config_.layers[layer].mixer == weights::Mixer::mla ? DType::e4m3 : DType::bf16;
  }
  return DType::bf16;
}

std::byte* RandomSource::take(int64_t bytes) {
  memory_.push_back(device_.allocate("weights", round_up(bytes, 64)));
  return memory_.back().data();
}

// Eight random bytes at a time: (random & keep) | set.
void RandomSource::fill(std::byte* to, int64_t words, uint64_t keep, uint64_t set) {
  uint64_t* p = reinterpret_cast<uint64_t*>(to);
  const uint64_t seed = splitmix(seed_ += 0x51ed27);
  device_.queue().workers().run(words, 4096, [=](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) p[i] = (splitmix(seed ^ static_cast<uint64_t>(i)) & keep) | set;
  });
}

void RandomSource::matrix(Matrix* to, const std::string& name, int64_t n, int64_t k) {
  const DType type = type_of(name);
  std::byte* data = take(bytes_of(type, n * k));
  const int64_t words = ceil_div(bytes_of(type, n * k), 8);
  if (type == DType::e4m3) {
    fill(data, words, 0x8787878787878787u, 0x3838383838383838u);  // sign and mantissa random, exponent 0: +-[1, 2)
    const int64_t blocks = ceil_div(n, kFp8Block) * ceil_div(k, kFp8Block);
    float* scale = reinterpret_cast<float*>(take(blocks * 4));
    for (int64_t i = 0; i < blocks; ++i) scale[i] = std::ldexp(1.0f, unit_exponent(k));
    to->scale = ConstTensorView(reinterpret_cast<std::byte*>(scale), DType::f32, {ceil_div(n, kFp8Block), ceil_div(k, kFp8Block)});
  } else {
    const uint64_t exponent = static_cast<uint64_t>(127 + unit_exponent(k)) << 7;
    fill(data, words, 0x807f807f807f807fu, exponent * 0x0001000100010001u);
  }
  to->data = ConstTensorView(data, type, {n, k});
}

void RandomSource::f32(ConstTensorView* to, const std::string&, std::vector<int64_t> shape) {
  ConstTensorView v;
  v.dtype = DType::f32;
  v.rank = static_cast<int>(shape.size());
  int64_t elements = 1;
  for (int i = v.rank - 1; i >= 0; --i) {
    v.shape[static_cast<size_t>(i)] = shape[static_cast<size_t>(i)];
    v.stride[static_cast<size_t>(i)] = elements;
    elements *= shape[static_cast<size_t>(i)];
  }
  float* data = reinterpret_cast<float*>(take(elements * 4));
  const uint64_t seed = splitmix(seed_ += 0x51ed27);
  for (int64_t i = 0; i < elements; ++i) data[i] = 0.5f + static_cast<float>(splitmix(seed ^ static_cast<uint64_t>(i)) >> 40) * 0x1p-25f;
  v.data = reinterpret_cast<std::byte*>(data);
  *to = v;
}

void RandomSource::visit(const std::string&, int64_t n, int64_t k, std::function<void(ConstTensorView)> use) {
  std::vector<float> values(static_cast<size_t>(n * k));
  const float size = std::ldexp(1.0f, unit_exponent(k));
  for (size_t i = 0; i < values.size(); ++i) values[i] = size * (static_cast<float>(splitmix(seed_ ^ i) >> 40) * 0x1p-23f - 1.0f);
  use(ConstTensorView(reinterpret_cast<const std::byte*>(values.data()), DType::f32, {n, k}));
}

}  // namespace winnow::models
