// y[t, d] = x[t, d] * w[d] / sqrt(mean over d of x[t, d]^2 + eps)
// The sum and the quotient are f32 whatever the storage types. y may be x if the types are equal.
#pragma once

#include "ops/op.h"

namespace winnow::ops {

struct RmsNorm {
  static constexpr std::string_view name = "rms_norm";
  struct Spec {
    DType x, y;
    int64_t hidden;
  };  // f32 or bf16
  struct Args {
    Out y;  // [tokens, hidden]
    In x;   // [tokens, hidden], rows may be strided
    In w;   // [hidden] f32
    float eps;
  };
  static Writes writes(const Args& a) { return {{"y", a.y}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    expect_rows("x", a.x, s.x, {tokens, s.hidden});
    expect("w", a.w, DType::f32, {s.hidden});
    expect("y", a.y, s.y, {tokens, s.hidden});
  }
};
List<RmsNorm> kernels(RmsNorm, Ref);
List<RmsNorm> kernels(RmsNorm, Cpu);

}  // namespace winnow::ops
