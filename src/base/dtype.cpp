#include "base/dtype.h"

#include <cmath>
#include <limits>

namespace winnow {

float to_float(F16 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
  const uint32_t exponent = (v.bits >> 10) & 31u, mantissa = v.bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

float to_float(E4m3 v) {
  const int exponent = (v.bits >> 3) & 15, mantissa = v.bits & 7;
  float magnitude;
  if (exponent == 15 && mantissa == 7) magnitude = std::numeric_limits<float>::quiet_NaN();
  else if (exponent == 0) magnitude = std::ldexp(static_cast<float>(mantissa), -9);
  else magnitude = std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (v.bits & 0x80) ? -magnitude : magnitude;
}

float to_float(E8m0 v) { return v.bits == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, v.bits - 127); }

float e2m1_to_float(uint8_t code) {
  constexpr float kMagnitude[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kMagnitude[code & 7];
  return (code & 8) ? -magnitude : magnitude;
}

E4m3 to_e4m3(float v) {
  const uint8_t sign = std::signbit(v) ? 0x80 : 0;
  if (std::isnan(v)) return {0x7f};
  const float a = std::fabs(v);
  if (a >= 448.0f) return {static_cast<uint8_t>(sign | 0x7e)};
  // The spacing of e4m3 at a: 2^(floor(log2 a) - 3), and 2^-9 below the smallest normal value 2^-6.
  int e = 0;
  std::frexp(a, &e);  // a = f * 2^e with f in [0.5, 1)
  const int step = std::max(e - 4, -9);
  const float steps = std::nearbyint(std::ldexp(a, -step));  // exact scaling; ties to even
  const float rounded = std::ldexp(steps, step);
  if (rounded == 0.0f) return {sign};
  std::frexp(rounded, &e);
  if (e - 1 < -6) return {static_cast<uint8_t>(sign | static_cast<int>(std::ldexp(rounded, 9)))};
  const int mantissa = static_cast<int>(std::ldexp(rounded, 4 - e)) - 8;
  return {static_cast<uint8_t>(sign | ((e - 1 + 7) << 3) | mantissa)};
}

}  // namespace winnow
