// Multi-head latent attention of the first rows of a prompt over all tokens up to them, with keys and values expanded from
// the latents: fewer operations than SparseMla as long as no key is expanded twice.
//
// In multiply-adds of one head, with C = dim and K = nope + v: a row absorbed costs K * C and 2 * C a key; expanded it costs K * C for its
// own key and value and K a key, so it saves 2 * C - K a key. A chunk that starts at c > 0 would also expand the c keys before it again, K * C
// each, which at the sizes in use no chunk of a few hundred rows saves. The form of a row must not depend on how its prompt is cut, so
// only the rows that every chunk grid leaves in one chunk are expanded.
#pragma once

#include "base/units.h"
#include "ops/rows.h"

namespace winnow::ops {

// For prefill rows at positions < limit; y of all others is left untouched. c_u = latent row of token u as in SparseMla.
//   k_u = w_k[h] c_u;  v_u = w_v[h] c_u    rounded to f32 (their sums as in HeadLinear)
//   p = softmax over u <= position(t) of (scale * q[t, h] . k_u);   y[t, h] = sum over u of p_u * v_u
// f32 throughout, tokens in ascending order; p is divided by its sum last. Tokens after a row are no part of its arithmetic, not
// even times zero.
struct DenseMla {
  static constexpr std::string_view name = "dense_mla";
  static constexpr int64_t kTokens = kChunkGrid;  // no limit is larger
  struct Spec {
    DType q, latent, w, y;
    int64_t heads, dim, nope, v, limit;
  };  // f32, bf16
  struct Args {
    Out y;     // [tokens, heads, v]
    In q;      // [tokens, heads, nope]
    In pages;  // [pages, page_tokens, dim]
    In w_k;    // [heads, nope, dim]
    In w_v;    // [heads, v, dim]
    float scale;
    Rows rows;
  };
  static Writes writes(const Args& a) { return {{"y", a.y}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"}, pages{"pages"};
    winnow::check(s.limit <= kTokens, "dense_mla: limit beyond kTokens");
    expect(a.rows);
    tokens.bind(a.rows.tokens());
    expect("q", a.q, s.q, {tokens, s.heads, s.nope});
    expect_rows("pages", a.pages, s.latent, {pages, a.rows.page_tokens, s.dim});
    expect("w_k", a.w_k, s.w, {s.heads, s.nope, s.dim});
    expect("w_v", a.w_v, s.w, {s.heads, s.v, s.dim});
    expect("y", a.y, s.y, {tokens, s.heads, s.v});
  }
  // Positions below this are expanded. `everything`: positions below which a row attends to all tokens up to itself.
  static constexpr int64_t limit_for(int64_t dim, int64_t nope, int64_t v, int64_t everything) {
    return nope + v < 2 * dim ? std::min(everything, kTokens) : 0;
  }
  // How many of a sequence's rows in a step are expanded: the first ones, from `position` on.
  static constexpr int64_t expanded_rows(int64_t position, int64_t count, bool decode, int64_t limit) {
    return decode ? 0 : std::clamp<int64_t>(limit - position, 0, count);
  }
  static int64_t rows_of_sequence(const Spec& s, const Rows& rows, int64_t sequence) {
    const int32_t* first = rows.first_row.as<int32_t>() + sequence;
    const int64_t count = first[1] - first[0];
    return count == 0 ? 0 : expanded_rows(rows.position.as<int64_t>()[first[0]], count, rows.decode.as<int32_t>()[sequence], s.limit);
  }
  // A key is expanded once for each head; a row makes a score and a sum of each of its keys.
  static Cost cost(const Spec& s, const Args& a) {
    double expanded = 0, pairs = 0;
    for (int64_t i = 0; i < a.rows.sequences(); ++i) {
      const double n = static_cast<double>(rows_of_sequence(s, a.rows, i));
      if (n == 0) continue;
      const double position = static_cast<double>(a.rows.position.as<int64_t>()[a.rows.first_row.as<int32_t>()[i]]);
      expanded += position + n;
      pairs += n * position + n * (n + 1) / 2;
    }
    const int64_t width = s.heads * (s.nope + s.v);
    return {.bytes = expanded > 0 ? static_cast<double>(bytes_of(s.w, width * s.dim)) : 0,
            .flops = 2 * static_cast<double>(width) * (expanded * static_cast<double>(s.dim) + pairs)};
  }
};
List<DenseMla> kernels(DenseMla, Ref);
List<DenseMla> kernels(DenseMla, Cpu);

}  // namespace winnow::ops
