// Rotation and quantisation of one row of fp8 index keys or queries, the plain way.
#pragma once

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/index/index.h"

namespace winnow::ops::ref {

struct Quantised {
  std::vector<E4m3> codes;
  float scale;
};

inline Quantised rotate_and_quantise(std::vector<float> x) {
  const size_t n = x.size();
  for (float& v : x) v = to_float(to_bf16(v));
  for (size_t stride = 1; stride < n; stride *= 2)
    for (size_t i = 0; i < n; ++i)
      if (!(i & stride)) {
        const float low = x[i], high = x[i + stride];
        x[i] = low + high;
        x[i + stride] = low - high;
      }
  bool finite = true;
  float largest = 1e-4f;
  for (float& v : x) {
    v = to_float(to_bf16(v * static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)))));
    finite = finite && std::isfinite(v);
    largest = std::max(largest, std::abs(v));
  }
  Quantised r{std::vector<E4m3>(n, E4m3{0x7f}), std::numeric_limits<float>::quiet_NaN()};
  if (!finite) return r;
  r.scale = std::ldexp(1.0f, static_cast<int>((std::bit_cast<uint32_t>(largest / 448) + 0x7fffffu) >> 23) - 127);
  for (size_t i = 0; i < n; ++i) r.codes[i] = to_e4m3(std::fmin(std::fmax(x[i] / r.scale, -448.0f), 448.0f));
  return r;
}

}  // namespace winnow::ops::ref
