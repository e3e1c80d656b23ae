// Reading and writing single elements whatever their type, for references. Never in a kernel.
#pragma once

#include <cstring>

#include "base/view.h"

namespace winnow::ops::ref {

inline float get(ConstTensorView v, int64_t i) {  // element i counted in storage from data
  switch (v.dtype) {
    case DType::f32: return v.as<float>()[i];
    case DType::bf16: return to_float(v.as<Bf16>()[i]);
    case DType::f16: return to_float(v.as<F16>()[i]);
    case DType::e4m3: return to_float(v.as<E4m3>()[i]);
    default: check(false, "not a float type"); return 0;
  }
}
inline float get(ConstTensorView v, int64_t i, int64_t j) { return get(v, i * v.stride[0] + j * v.stride[1]); }
inline float get(ConstTensorView v, int64_t i, int64_t j, int64_t k) { return get(v, i * v.stride[0] + j * v.stride[1] + k * v.stride[2]); }
inline void set(TensorView v, int64_t i, float x) {
  switch (v.dtype) {
    case DType::f32: v.as<float>()[i] = x; return;
    case DType::bf16: v.as<Bf16>()[i] = to_bf16(x); return;
    case DType::e4m3: v.as<E4m3>()[i] = to_e4m3(x); return;
    default: check(false, "not a float type");
  }
}
inline void set(TensorView v, int64_t i, int64_t j, float x) { set(v, i * v.stride[0] + j * v.stride[1], x); }
inline void set(TensorView v, int64_t i, int64_t j, int64_t k, float x) { set(v, i * v.stride[0] + j * v.stride[1] + k * v.stride[2], x); }
// Record `from` of [records, ...] over record `to`.
inline void copy_record(TensorView v, int64_t from, int64_t to) {
  const auto bytes = static_cast<size_t>(v.stride[0] * bits_of(v.dtype) / 8);
  std::memcpy(v.data + static_cast<size_t>(to) * bytes, v.data + static_cast<size_t>(from) * bytes, bytes);
}
inline float get(const Matrix& m, int64_t i, int64_t j) {
  const float q = get(m.data, i, j);
  return m.scale ? q * get(m.scale, i / kFp8Block, j / kFp8Block) : q;
}

}  // namespace winnow::ops::ref
