#include "models/random_source.h"

#include <algorithm>
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

std::vector<device::Buffer> RandomSource::load(const weights::Progress& progress) {
  int64_t total = 0, done = 0;
  for (const Wish& w : wishes_) total += round_up(w.bytes, 64);
  std::vector<device::Buffer> memory;
  memory.push_back(device_.allocate("weights", total));
  if (device_.caps().plans_only) return memory;
  for (const Wish& w : wishes_) {
    w.fill(memory[0].data() + done);
    done += round_up(w.bytes, 64);
    if (progress) progress(done, total);
  }
  return memory;
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
  const int64_t codes = round_up(bytes_of(type, n * k), 64), words = ceil_div(bytes_of(type, n * k), 8);
  if (type == DType::e4m3) {
    const int64_t rows = ceil_div(n, kFp8Block), columns = ceil_div(k, kFp8Block);
    wishes_.push_back({codes + rows * columns * 4, [=, this](std::byte* data) {
                         // Sign and mantissa random, exponent 0: +-[1, 2).
                         fill(data, words, 0x8787878787878787u, 0x3838383838383838u);
                         std::fill_n(reinterpret_cast<float*>(data + codes), rows * columns, std::ldexp(1.0f, unit_exponent(k)));
                         to->data = ConstTensorView(data, type, {n, k});
                         to->scale = ConstTensorView(data + codes, DType::f32, {rows, columns});
                       }});
    return;
  }
  wishes_.push_back({codes, [=, this](std::byte* data) {
                       const uint64_t exponent = static_cast<uint64_t>(127 + unit_exponent(k)) << 7;
                       fill(data, words, 0x807f807f807f807fu, exponent * 0x0001000100010001u);
                       to->data = ConstTensorView(data, type, {n, k});
                     }});
}

void RandomSource::f32(ConstTensorView* to, const std::string&, std::vector<int64_t> shape) {
  ConstTensorView v;
  v.dtype = DType::f32;
  v.rank = static_cast<int>(shape.size());
  int64_t elements = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    v.shape[i] = shape[i];
    v.stride[i] = elements;
    elements *= shape[i];
  }
  wishes_.push_back({elements * 4, [=, this](std::byte* data) {
                       const uint64_t seed = splitmix(seed_ += 0x51ed27);
                       for (int64_t i = 0; i < elements; ++i)
                         reinterpret_cast<float*>(data)[i] = 0.5f + static_cast<float>(splitmix(seed ^ static_cast<uint64_t>(i)) >> 40) * 0x1p-25f;
                       *to = v;
                       to->data = data;
                     }});
}

void RandomSource::visit(const std::string&, int64_t n, int64_t k, std::function<void(ConstTensorView)> use) {
  wishes_.push_back({0, [=, this](std::byte*) {
                       std::vector<float> values(static_cast<size_t>(n * k));
                       const float size = std::ldexp(1.0f, unit_exponent(k));
                       for (size_t i = 0; i < values.size(); ++i)
                         values[i] = size * (static_cast<float>(splitmix(seed_ ^ i) >> 40) * 0x1p-23f - 1.0f);
                       use(ConstTensorView(reinterpret_cast<const std::byte*>(values.data()), DType::f32, {n, k}));
                     }});
}

}  // namespace winnow::models
