// Multi-head latent attention over the tokens that the indexer selected, no position encoding.
#pragma once

#include "ops/rows.h"

namespace winnow::ops {

// Absorbed form. c_u = latent row of token u of the row's sequence, in its page: pages[page_table[seq, u / page_tokens], u % page_tokens].
//   p = softmax over u in selected(t) of (scale * q[t, h] . c_u);   out[t, h] = sum over u of p_u * c_u
// f32 throughout. The list ascends; it is cut into segments of kSegment entries from its start, each with its own maximum
// m_i, sum l_i and vector a_i, merged in ascending order by the usual rescaling. A row that selects nothing gives zeros.
struct SparseMla {
  static constexpr std::string_view name = "sparse_mla";
  static constexpr int64_t kSegment = 64;
  struct Spec {
    DType q, latent, y;
    int64_t heads, dim;
  };  // f32, bf16; dim = kv_lora_rank (+ rope)
  struct Args {
    Out y;              // [count, heads, dim]
    In q;               // [count, heads, dim], absorbed
    In pages;           // [pages, page_tokens, dim]
    In selected;        // [count, width] int32 token positions, ascending, -1 beyond a row's count
    In count;           // [count] int32
    int64_t first_row;  // row r of y, q, selected and count is row first_row + r of the step
    float scale;        // (nope + rope head dim)^-1/2, the dim before absorption
    Rows rows;
  };
  static Writes writes(const Args& a) { return {{"y", a.y}}; }
  static void check(const Spec& s, const Args& a) {
    Dim count{"count"}, pages{"pages"}, width{"width"};
    expect(a.rows);
    expect("q", a.q, s.q, {count, s.heads, s.dim});
    expect_rows("pages", a.pages, s.latent, {pages, a.rows.page_tokens, s.dim});
    expect("selected", a.selected, DType::i32, {count, width});
    expect("count", a.count, DType::i32, {count});
    expect("y", a.y, s.y, {count, s.heads, s.dim});
    winnow::check(a.first_row >= 0 && a.first_row + count.value() <= a.rows.tokens(), "sparse_mla: rows out of range");
  }
  // A row reads its keys once and makes a score and a sum of each for each head.
  static Cost cost(const Spec& s, const Args& a) {
    double keys = 0;
    for (int64_t t = 0; t < a.count.shape[0]; ++t) keys += a.count.as<int32_t>()[t];
    return {.bytes = keys * static_cast<double>(s.dim) * bits_of(s.latent) / 8, .flops = 4 * keys * static_cast<double>(s.heads * s.dim)};
  }
};
List<SparseMla> kernels(SparseMla, Ref);
List<SparseMla> kernels(SparseMla, Cpu);

}  // namespace winnow::ops
