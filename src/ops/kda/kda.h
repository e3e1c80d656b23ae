// Kimi Delta Attention (arXiv 2510.26692; transformers, models/glm5_next/modular_glm5_next.py).
#pragma once

#include "ops/bad.h"
#include "ops/rows.h"

namespace winnow::ops {

// From the convolved projections and the raw gates, all in f32, per head h and key channel i:
//   q = q / sqrt(sum q^2 + 1e-6) * key_dim^-1/2      k = k / sqrt(sum k^2 + 1e-6)      v = v
//   g = lower_bound * sigmoid(exp(a_log[h]) * (f + dt_bias[h * key_dim + i]))          (lower_bound < 0 is a scale, not a clamp)
//   g = -exp(a_log[h]) * softplus(f + dt_bias)       when lower_bound is 0: the config has none; softplus(x) = x above 20
//   beta = sigmoid(b)
struct KdaGate {
  static constexpr std::string_view name = "kda_gate";
  struct Spec {
    DType x;
    int64_t heads, key_dim, value_dim;
  };  // x: type of qkv, f, b: f32, bf16
  struct Args {
    Out q, k;    // [tokens, heads, key_dim] f32
    Out v;       // [tokens, heads, value_dim] f32
    Out g;       // [tokens, heads, key_dim] f32, log decay, <= 0
    Out beta;    // [tokens, heads] f32
    In qkv;      // [tokens, heads * (2 * key_dim + value_dim)]: all q, then all k, then all v
    In f;        // [tokens, heads * key_dim]
    In b;        // [tokens, heads]
    In a_log;    // [heads] f32
    In dt_bias;  // [heads * key_dim] f32
    float lower_bound;
  };
  static Writes writes(const Args& a) { return {{"q", a.q}, {"k", a.k}, {"v", a.v}, {"g", a.g}, {"beta", a.beta}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    expect("qkv", a.qkv, s.x, {tokens, s.heads * (2 * s.key_dim + s.value_dim)});
    expect("f", a.f, s.x, {tokens, s.heads * s.key_dim});
    expect("b", a.b, s.x, {tokens, s.heads});
    expect("a_log", a.a_log, DType::f32, {s.heads});
    expect("dt_bias", a.dt_bias, DType::f32, {s.heads * s.key_dim});
    for (auto [n, o] : {std::pair{"q", a.q}, {"k", a.k}, {"g", a.g}}) expect(n, o, DType::f32, {tokens, s.heads, s.key_dim});
    expect("v", a.v, DType::f32, {tokens, s.heads, s.value_dim});
    expect("beta", a.beta, DType::f32, {tokens, s.heads});
  }
};
List<KdaGate> kernels(KdaGate, Ref);
List<KdaGate> kernels(KdaGate, Cpu);

// The gated delta rule over a recurrent state S [key_dim, value_dim] a head, S = 0 before position 0. Meaning, per token:
//   S <- diag(e^g) S;  u = beta * (v - S^T k);  S <- S + k u^T;  o = S^T q
//
// Row form. S holds the first `folded` tokens (rows.folded); later tokens are ring rows (k, u, G), G = sum of g since
// `folded`. For token t, t0 = folded, all factors e^(G_t - G_s) <= 1:
//   u_t = beta_t * (v_t - S^T (e^G_t * k_t) - sum over t0 <= s < t of ((e^(G_t - G_s) * k_s) . k_t) u_s)
//   o_t = S^T (e^G_t * q_t) + sum over t0 <= s <= t of ((e^(G_t - G_s) * k_s) . q_t) u_s
// Before a token whose group is full (t - folded = kKdaGroup) the group is folded:
//   S <- e^G_e * S + sum over s of (e^(G_e - G_s) * k_s) u_s^T,     folded <- folded + kKdaGroup
// The fold is lazy: a group that becomes full in this step waits for the next token (rows.h, folded_after).
// S^T a sums over key channels in ascending order, each dot over key channels in lane order, sums over s ascending.
// A decode step (a verify step: one accepted row, then drafts; at most kKdaGroup rows) writes at most one fold, of the
// group that was full before it; rows beyond the next boundary are computed from a fold that is not written, and their
// G counts from that boundary. So before a step up to 2 * kKdaGroup - 1 rows may wait in the ring.
// After a step the ring holds its rows from folded_after on; a kernel need not write those that S holds.
//
// Chunked form (spec.chunked; never for decode rows): whole 64-token chunks at absolute multiples of 64 of a prefill
// sequence are computed by the WY form in sub-blocks of 16 rows and leave S at the chunk's end; the rest of a prefill
// chunk uses the row form.
// An S that holds no token (folded = 0, so every sequence that begins at position 0) is taken as zero, whatever its
// bytes (a select). No two sequences of a step share a state. S and waiting rows are read from the sequence's source
// (rows.h); if that is another record, S is written in any case and rows that still wait are carried over.
// bad[t] = 1 for the last row t of a sequence of which a folded S that is written holds a NaN or an infinity: no later row of this step
// need read it.
struct Kda {
  static constexpr std::string_view name = "kda";
  struct Spec {
    int64_t heads, key_dim, value_dim;
    bool chunked;
  };
  struct Args {
    Out o;               // [tokens, heads, value_dim] f32
    Out state;           // [states, heads, key_dim, value_dim] f32
    Out ring_k, ring_g;  // [states, ring_rows, heads, key_dim] f32; row = position % ring_rows
    Out ring_u;          // [states, ring_rows, heads, value_dim] f32
    In q, k, g;          // [tokens, heads, key_dim] f32
    In v;                // [tokens, heads, value_dim] f32
    In beta;             // [tokens, heads] f32
    Rows rows;
    Out bad;  // bad.h
  };
  static Writes writes(const Args& a) {
    return {{"o", a.o}, {"state", a.state}, {"ring_k", a.ring_k}, {"ring_g", a.ring_g}, {"ring_u", a.ring_u}, {"bad", a.bad}};
  }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"}, states{"states"}, ring_rows{"ring_rows"};
    expect(a.rows);
    tokens.bind(a.rows.tokens());
    for (auto [n, o] : {std::pair{"q", a.q}, {"k", a.k}, {"g", a.g}}) expect(n, o, DType::f32, {tokens, s.heads, s.key_dim});
    expect("v", a.v, DType::f32, {tokens, s.heads, s.value_dim});
    expect("beta", a.beta, DType::f32, {tokens, s.heads});
    expect("o", a.o, DType::f32, {tokens, s.heads, s.value_dim});
    expect("state", a.state, DType::f32, {states, s.heads, s.key_dim, s.value_dim});
    expect("ring_k", a.ring_k, DType::f32, {states, ring_rows, s.heads, s.key_dim});
    expect("ring_g", a.ring_g, DType::f32, {states, ring_rows, s.heads, s.key_dim});
    expect("ring_u", a.ring_u, DType::f32, {states, ring_rows, s.heads, s.value_dim});
    expect_flags(a.bad, tokens.value());
    winnow::check(ring_rows.value() > kKdaGroup, "kda: the ring is shorter than a group and a row");
  }
  // A sequence reads S once and writes it once a group; a row's products with S.
  static Cost cost(const Spec& s, const Args& a) {
    const double state = static_cast<double>(s.heads * s.key_dim * s.value_dim);
    return {.bytes = 4 * state * (1.0 + 1.0 / kKdaGroup) * static_cast<double>(a.rows.sequences()),
            .flops = 4 * state * static_cast<double>(a.rows.tokens())};
  }
};
List<Kda> kernels(Kda, Ref);
List<Kda> kernels(Kda, Cpu);

// The KDA output norm: y[t, h, d] = o[t, h, d] * w[d] / sqrt(mean over d of o^2 + eps) * sigmoid(z[t, h, d]), in f32.
struct GatedNorm {
  static constexpr std::string_view name = "gated_norm";
  struct Spec {
    DType z, y;
    int64_t heads, dim;
  };  // f32, bf16
  struct Args {
    Out y;  // [tokens, heads, dim]
    In o;   // [tokens, heads, dim] f32
    In z;   // [tokens, heads, dim]
    In w;   // [dim] f32
    float eps;
  };
  static Writes writes(const Args& a) { return {{"y", a.y}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    expect("o", a.o, DType::f32, {tokens, s.heads, s.dim});
    expect("z", a.z, s.z, {tokens, s.heads, s.dim});
    expect("w", a.w, DType::f32, {s.dim});
    expect("y", a.y, s.y, {tokens, s.heads, s.dim});
  }
};
List<GatedNorm> kernels(GatedNorm, Ref);
List<GatedNorm> kernels(GatedNorm, Cpu);

}  // namespace winnow::ops
