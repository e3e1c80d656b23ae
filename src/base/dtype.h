// Element types of tensors and how their values are read and written one at a time.
//
// The conversions here are the meaning; kernels use vector forms that must give the same bits.
// e4m3: OCP FP8 "E4M3FN": no infinities, NaN = 0x7F and 0xFF, largest value 448.
// e8m0: a power of two, 2^(byte - 127), 0xFF = NaN (OCP Microscaling). e2m1: FP4, two codes a byte, low nibble first.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace winnow {

enum class DType : uint8_t { f32, bf16, f16, e4m3, e8m0, e2m1, i64, i32, i16, i8, u8 };

// Bits of one element; e2m1 is the only type that does not fill a byte.
constexpr int bits_of(DType t) {
  switch (t) {
    case DType::i64: return 64;
    case DType::f32:
    case DType::i32: return 32;
    case DType::bf16:
    case DType::f16:
    case DType::i16: return 16;
    case DType::e4m3:
    case DType::e8m0:
    case DType::i8:
    case DType::u8: return 8;
    case DType::e2m1: return 4;
  }
  return 0;
}

// Bytes of n elements (n even for e2m1).
constexpr int64_t bytes_of(DType t, int64_t n) { return n * bits_of(t) / 8; }

constexpr std::string_view name_of(DType t) {
  switch (t) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::e4m3: return "e4m3";
    case DType::e8m0: return "e8m0";
    case DType::e2m1: return "e2m1";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::i16: return "i16";
    case DType::i8: return "i8";
    case DType::u8: return "u8";
  }
  return "?";
}

// Storage types, so that as<T>() can tell a bf16 from any other 16 bits.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};
struct E8m0 {
  uint8_t bits;
};

constexpr float to_float(Bf16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }
float to_float(F16 v);
float to_float(E4m3 v);
float to_float(E8m0 v);
float e2m1_to_float(uint8_t code);  // the low four bits

// Round to nearest even; a NaN stays a NaN.
constexpr Bf16 to_bf16(float v) {
  uint32_t u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
E4m3 to_e4m3(float v);  // round to nearest even, saturates at +-448; NaN -> 0x7F

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<Bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<F16> {
  static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<E4m3> {
  static constexpr DType value = DType::e4m3;
};
template <>
struct DTypeOf<E8m0> {
  static constexpr DType value = DType::e8m0;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::i16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::u8;
};

}  // namespace winnow
