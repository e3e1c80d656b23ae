// bad[t] = 1 if any of x[t, ...] is NaN or infinite; else bad[t] stays (bad.h). Most of what goes wrong in a layer stays in the residual
// streams, so over the last ones this tells which rows of a step, with the caches they wrote, must reach nobody.
#pragma once

#include "ops/bad.h"

namespace winnow::ops {

struct Finite {
  static constexpr std::string_view name = "finite";
  struct Spec {
    DType x;    // f32, bf16
    int64_t n;  // elements of a row
  };
  struct Args {
    Out bad;  // [tokens] i32
    In x;     // [tokens, n]
  };
  static Writes writes(const Args& a) { return {{"bad", a.bad}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    expect("x", a.x, s.x, {tokens, s.n});
    expect("bad", a.bad, DType::i32, {tokens});
  }
};
List<Finite> kernels(Finite, Ref);
List<Finite> kernels(Finite, Cpu);

}  // namespace winnow::ops
