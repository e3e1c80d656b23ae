// y[t, d] = w[d] * (x[t, d] - mean) / sqrt(variance + eps) + b[d], biased variance, in f32. Normalises the indexer's keys.
#pragma once

#include "ops/op.h"

namespace winnow::ops {

struct LayerNorm {
  static constexpr std::string_view name = "layer_norm";
  struct Spec {
    DType x, y;
    int64_t hidden;
  };  // f32, bf16
  struct Args {
    Out y;    // [tokens, hidden]
    In x;     // [tokens, hidden]
    In w, b;  // [hidden] f32
    float eps;
  };
  static Writes writes(const Args& a) { return {{"y", a.y}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    expect("x", a.x, s.x, {tokens, s.hidden});
    expect("w", a.w, DType::f32, {s.hidden});
    expect("b", a.b, DType::f32, {s.hidden});
    expect("y", a.y, s.y, {tokens, s.hidden});
  }
};
List<LayerNorm> kernels(LayerNorm, Ref);
List<LayerNorm> kernels(LayerNorm, Cpu);

}  // namespace winnow::ops
