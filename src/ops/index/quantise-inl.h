// Rotation and quantisation of one row of fp8 index keys or queries (index.h, IndexWrite). All sets give equal bits:
// nothing here but single additions, products and roundings of elements.
#if defined(WINNOW_OPS_INDEX_QUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WINNOW_OPS_INDEX_QUANTISE_INL_H_
#undef WINNOW_OPS_INDEX_QUANTISE_INL_H_
#else
#define WINNOW_OPS_INDEX_QUANTISE_INL_H_
#endif

#include <bit>
#include <cmath>
#include <limits>

#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {

// |v| <= 448, round to nearest even.
HWY_INLINE uint8_t e4m3_code(float v) {
  const uint32_t bits = std::bit_cast<uint32_t>(v), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  // Below 2^-6 codes count steps of 2^-9, which is the spacing of floats at 2^14.
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 16384.0f) - std::bit_cast<uint32_t>(16384.0f);
  return static_cast<uint8_t>((magnitude < 0x3c800000u ? small : normal) | ((bits >> 24) & 0x80u));
}

// x [n], n = 2^k, is overwritten. Returns the scale.
HWY_INLINE float rotate_and_quantise(float* x, int64_t n, E4m3* codes) {
  for (int64_t i = 0; i < n; ++i) x[i] = to_float(to_bf16(x[i]));
  for (int64_t stride = 1; stride < n; stride *= 2)
    for (int64_t base = 0; base < n; base += 2 * stride)
      for (int64_t i = base; i < base + stride; ++i) {
        const float low = x[i], high = x[i + stride];
        x[i] = low + high;
        x[i + stride] = low - high;
      }
  const float norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  uint32_t largest = std::bit_cast<uint32_t>(1e-4f);  // bits of non-negative floats order as the floats do, NaN above all
  for (int64_t i = 0; i < n; ++i) {
    x[i] = to_float(to_bf16(x[i] * norm));
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest >= 0x7f800000u) {
    for (int64_t i = 0; i < n; ++i) codes[i] = {0x7f};
    return std::numeric_limits<float>::quiet_NaN();
  }
  // Up to the next power of two: a carry out of the mantissa, unless it is zero.
  const uint32_t quotient = std::bit_cast<uint32_t>(std::bit_cast<float>(largest) / 448.0f);
  const float scale = std::bit_cast<float>((quotient + 0x7fffffu) & 0x7f800000u);
  const float inverse = 1.0f / scale;  // exact
  for (int64_t i = 0; i < n; ++i) {
    const float v = x[i] * inverse;
    codes[i] = {e4m3_code(v > 448.0f ? 448.0f : v < -448.0f ? -448.0f : v)};
  }
  return scale;
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#endif  // include guard
