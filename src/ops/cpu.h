// What the CPU kernels share besides lanes-inl.h: choice of instruction set, and storage types as template arguments.
#pragma once

#include <cmath>

#include "ops/op.h"

namespace winnow::ops {

inline bool is_f32_or_bf16(DType t) { return t == DType::f32 || t == DType::bf16; }

constexpr const char* lacks(Isa isa) {
  switch (isa) {
    case Isa::avx2: return "needs AVX2";
    case Isa::avx512: return "needs AVX-512 (F, BW, CD, DQ, VL)";
    case Isa::avx512_bf16: return "needs AVX-512-BF16";
    case Isa::amx: return "needs AMX tiles with BF16";
    case Isa::baseline: break;
  }
  return nullptr;
}

inline constexpr auto any_spec = [](const auto&) -> const char* { return nullptr; };

// why_not of a kernel that needs an instruction set and whatever `spec_why_not` asks of the spec.
template <Isa isa, class O, auto spec_why_not>
const char* needs(const Caps& c, const typename O::Spec& s) {
  return c.isa < isa ? lacks(isa) : spec_why_not(s);
}

// f(T{}) with T the storage type, f32 or bf16.
template <class F>
void with_float(DType t, F&& f) {
  if (t == DType::f32) f(float{});
  else f(Bf16{});
}

}  // namespace winnow::ops
