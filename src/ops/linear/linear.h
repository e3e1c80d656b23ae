// y[t, i] = sum over j of x[t, j] * w[i, j]      (w as the checkpoint stores it: docs, Matrix)
//
// f32 accumulation. One order for every row, whatever the number of rows: element j of a row goes to lane j % 16 in
// ascending order, the 16 lanes are folded in halves. An e4m3 weight is its code times its block's scale, rounded to f32;
// with f32 and bf16 weights alike it enters by one fused multiply-add. Kernels that use bf16 products with pairwise sums (AVX-512-BF16,
// AMX) have another order, again the same for every number of rows: each 128 columns of e4m3 are summed from zero and enter
// times the block's scale. They fit only bf16 x.
#pragma once

#include "ops/op.h"

namespace winnow::ops {

struct Linear {
  static constexpr std::string_view name = "linear";
  struct Spec {
    DType w, x, y;
    int64_t n, k;
  };  // w: f32, bf16, e4m3; x, y: f32, bf16
  struct Args {
    Out y;     // [tokens, n], rows may be strided
    In x;      // [tokens, k], rows may be strided
    Matrix w;  // [n, k]
  };
  static Writes writes(const Args& a) { return {{"y", a.y}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    expect_rows("x", a.x, s.x, {tokens, s.k});
    expect("w", a.w, s.w, s.n, s.k);
    expect_rows("y", a.y, s.y, {tokens, s.n});
  }
  static std::string label(const Spec& s) { return fmt::format("{}x{} {}", s.n, s.k, winnow::name_of(s.w)); }
  static Cost cost(const Spec& s, const Args& a) {
    return {.bytes = static_cast<double>(bytes_of(s.w, s.n * s.k)), .flops = 2.0 * static_cast<double>(a.x.shape[0] * s.n * s.k)};
  }
};
List<Linear> kernels(Linear, Ref);
List<Linear> kernels(Linear, Cpu);

// The same for each head with a matrix of its own: y[t, h, i] = sum over j of x[t, h, j] * w[h, i, j].
// Absorbs kv_b into queries (w = W_k transposed) and expands latents into values (w = W_v).
struct HeadLinear {
  static constexpr std::string_view name = "head_linear";
  struct Spec {
    DType w, x, y;
    int64_t heads, n, k;
  };  // w, x, y: f32, bf16
  struct Args {
    Out y;  // [tokens, heads, n]
    In x;   // [tokens, heads, k]
    In w;   // [heads, n, k]
  };
  static Writes writes(const Args& a) { return {{"y", a.y}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    expect("x", a.x, s.x, {tokens, s.heads, s.k});
    expect("w", a.w, s.w, {s.heads, s.n, s.k});
    expect("y", a.y, s.y, {tokens, s.heads, s.n});
  }
  static std::string label(const Spec& s) { return fmt::format("{}x{}x{} {}", s.heads, s.n, s.k, winnow::name_of(s.w)); }
  static Cost cost(const Spec& s, const Args& a) {
    return {.bytes = static_cast<double>(bytes_of(s.w, s.heads * s.n * s.k)), .flops = 2.0 * static_cast<double>(a.x.shape[0] * s.heads * s.n * s.k)};
  }
};
List<HeadLinear> kernels(HeadLinear, Ref);
List<HeadLinear> kernels(HeadLinear, Cpu);

}  // namespace winnow::ops
