// y[t, i] = silu(min(gate[t, i], limit)) * clamp(up[t, i], -limit, limit), in f32. The gate has only an upper bound.
// limit <= 0: no clamp.
#pragma once

#include "ops/op.h"

namespace winnow::ops {

struct SwiGlu {
  static constexpr std::string_view name = "swiglu";
  struct Spec {
    DType x, y;
    int64_t n;
    float limit;
  };  // f32, bf16
  struct Args {
    Out y;        // [tokens, n]
    In gate, up;  // [tokens, n]
  };
  static Writes writes(const Args& a) { return {{"y", a.y}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    expect("gate", a.gate, s.x, {tokens, s.n});
    expect("up", a.up, s.x, {tokens, s.n});
    expect("y", a.y, s.y, {tokens, s.n});
  }
};
List<SwiGlu> kernels(SwiGlu, Ref);
List<SwiGlu> kernels(SwiGlu, Cpu);

}  // namespace winnow::ops
