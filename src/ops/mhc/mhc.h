// Manifold-constrained hyper-connections: the residual is n streams that are mixed before and after every sublayer
// (transformers, models/glm5_next/modular_glm5_next.py; arXiv 2512.24880).
#pragma once

#include "ops/op.h"

namespace winnow::ops {

// One site before a sublayer, per token, all arithmetic in f32; M = (2 + n) * n:
//   x^ = flatten(x) / sqrt(mean(flatten(x)^2) + norm_eps)          stream-major: element (s, d) at s * hidden + d
//   m  = fn . x^                                                   [M] = pre [n] | post [n] | comb [n, n] row-major
//   pre_s  = sigmoid(m_pre,s * scale[0] + base[s]) + hc_eps
//   post_s = 2 * sigmoid(m_post,s * scale[1] + base[n + s])
//   L[i,j] = m_comb[i,j] * scale[2] + base[2n + i * n + j]
//   comb   = softmax over j of L, plus hc_eps; columns divided by (their sum + hc_eps); then `iterations` - 1 times:
//            rows divided by (their sum + hc_eps), then columns
//   u      = sum over s of pre_s * x_s
//   y      = u * norm_w / sqrt(mean(u^2) + norm_eps)               the sublayer's norm, from the unrounded u
struct MhcPre {
  static constexpr std::string_view name = "mhc_pre";
  struct Spec {
    DType x, fn, y;
    int64_t streams, hidden;
    int iterations;
  };  // x, y: f32, bf16; fn: f32, bf16; 1 <= streams <= 8
  struct Args {
    Out y;      // [tokens, hidden]
    Out post;   // [tokens, streams] f32
    Out comb;   // [tokens, streams, streams] f32
    In x;       // [tokens, streams, hidden]
    In fn;      // [(2 + streams) * streams, streams * hidden]
    In base;    // [(2 + streams) * streams] f32
    In scale;   // [3] f32
    In norm_w;  // [hidden] f32
    float norm_eps, hc_eps;
  };
  static Writes writes(const Args& a) { return {{"y", a.y}, {"post", a.post}, {"comb", a.comb}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    const int64_t m = (2 + s.streams) * s.streams;
    expect("x", a.x, s.x, {tokens, s.streams, s.hidden});
    expect("fn", a.fn, s.fn, {m, s.streams * s.hidden});
    expect("base", a.base, DType::f32, {m});
    expect("scale", a.scale, DType::f32, {int64_t{3}});
    expect("norm_w", a.norm_w, DType::f32, {s.hidden});
    expect("y", a.y, s.y, {tokens, s.hidden});
    expect("post", a.post, DType::f32, {tokens, s.streams});
    expect("comb", a.comb, DType::f32, {tokens, s.streams, s.streams});
  }
  static Cost cost(const Spec& s, const Args& a) {
    const double m = static_cast<double>((2 + s.streams) * s.streams), width = static_cast<double>(s.streams * s.hidden);
    return {.bytes = m * width * bits_of(s.fn) / 8, .flops = 2 * m * width * static_cast<double>(a.x.shape[0])};
  }
};
List<MhcPre> kernels(MhcPre, Ref);
List<MhcPre> kernels(MhcPre, Cpu);

// After the sublayer, in place: x'[t, j, d] = post[t, j] * y[t, d] + sum over i of comb[t, i, j] * x[t, i, d]
// (comb is applied transposed). f32 sums in the order written, rounded once.
struct MhcPost {
  static constexpr std::string_view name = "mhc_post";
  struct Spec {
    DType x, y;
    int64_t streams, hidden;
  };  // f32, bf16; 1 <= streams <= 8
  struct Args {
    Out x;    // [tokens, streams, hidden], read and written
    In y;     // [tokens, hidden]
    In post;  // [tokens, streams] f32
    In comb;  // [tokens, streams, streams] f32
  };
  static Writes writes(const Args& a) { return {{"x", a.x}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    expect("x", a.x, s.x, {tokens, s.streams, s.hidden});
    expect("y", a.y, s.y, {tokens, s.hidden});
    expect("post", a.post, DType::f32, {tokens, s.streams});
    expect("comb", a.comb, DType::f32, {tokens, s.streams, s.streams});
  }
};
List<MhcPost> kernels(MhcPost, Ref);
List<MhcPost> kernels(MhcPost, Cpu);

// After the last layer, for chosen rows: u = mean over streams of x[rows[r]]; y[r] = u * w / sqrt(mean(u^2) + eps).
struct MhcHead {
  static constexpr std::string_view name = "mhc_head";
  struct Spec {
    DType x, y;
    int64_t streams, hidden;
  };  // f32, bf16
  struct Args {
    Out y;    // [chosen, hidden]
    In x;     // [tokens, streams, hidden]
    In rows;  // [chosen] int32: rows of x
    In w;     // [hidden] f32
    float eps;
  };
  static Writes writes(const Args& a) { return {{"y", a.y}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"}, chosen{"chosen"};
    expect("x", a.x, s.x, {tokens, s.streams, s.hidden});
    expect("rows", a.rows, DType::i32, {chosen});
    expect("w", a.w, DType::f32, {s.hidden});
    expect("y", a.y, s.y, {chosen, s.hidden});
  }
};
List<MhcHead> kernels(MhcHead, Ref);
List<MhcHead> kernels(MhcHead, Cpu);

}  // namespace winnow::ops
