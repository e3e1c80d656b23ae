// The lightning indexer with pooled keys: every kpool tokens leave one key; a token scores the complete pools before it
// and attends to the tokens of the best ones (transformers, models/glm5_next/modular_glm5_next.py; DeepSeek-V3.2 report).
// Index writes of a step precede its reads: a token's own just-completed pool is a candidate for that token.
#pragma once

#include "base/kv.h"
#include "ops/bad.h"
#include "ops/rows.h"

namespace winnow::ops {

// Why fp8 keys or queries of this dimension cannot be rotated; null if they can.
constexpr const char* rotation_why_not(bool fp8, int64_t dim) { return fp8 && (dim & (dim - 1)) ? "fp8 keys need a power of two" : nullptr; }

// Why a kernel that knows one layout only passes another over; null if it fits.
constexpr const char* only_plain(IndexLayout l) { return l == IndexLayout::plain ? nullptr : "knows the index layout plain only, not shuffled"; }

// Appends each row's raw key and gate to the pool ring and completes pools. For the token at pos with
// pos % kpool = kpool - 1, over the window s = 0 .. kpool - 1 of positions pos - kpool + 1 + s, per channel c:
//   a_s = softmax over s of (gate[s, c] + ape[s, c])  (f32, maximum subtracted);   z[c] = sum over s of a_s * key[s, c]
// stored at row (pos / kpool) % page_states of the page that holds pos, in the pages' layout (base/kv.h):
//   f32: z.  bf16: z rounded.
//   fp8: z rounded to bf16, Hadamard-rotated in f32 (natural order, butterflies of stride 1, 2, 4, ..., then times dim^-1/2),
//        rounded to bf16 = y; m = max(max |y|, 1e-4); scale = 2^ceil(log2(m / 448)), its exponent taken from the float's bits;
//        key = e4m3(clamp(y / scale, +-448)); needs dim = 2^n (else no kernel fits, "fp8 keys need a power of two").
//        A row with a y that is not finite gets the scale NaN and the codes 0x7F.
// bad[t] = 1 for the row t that completes a pool of which a stored value, or the scale, is NaN or infinite.
// A window row comes from this step's rows of the same sequence, or else from the ring row position % ring_rows; ring
// rows are read before they are written. Never from another sequence. All bits equal for prefill and decode. Ring rows are
// read from the sequence's source (rows.h); if that is another record, those that the step did not overwrite are carried over.
struct IndexWrite {
  static constexpr std::string_view name = "index_write";
  struct Spec {
    IndexKeys keys;
    DType x;
    int64_t dim, kpool;
    IndexLayout layout = IndexLayout::plain;
  };  // x: f32, bf16
  struct Args {
    IndexPages pages;  // written
    Out ring;          // [states, ring_rows, 2, dim] f32: key, gate; ring_rows >= kpool
    In key;            // [tokens, dim], after its layer norm
    In gate;           // [tokens, dim]
    In ape;            // [kpool, dim] f32: position bias inside a pool
    Rows rows;
    Out bad;  // bad.h
  };
  static Writes writes(const Args& a) { return {{"keys", a.pages.keys}, {"scales", a.pages.scales}, {"ring", a.ring}, {"bad", a.bad}}; }
  static void check(const Spec& s, const Args& a);
};
List<IndexWrite> kernels(IndexWrite, Ref);
List<IndexWrite> kernels(IndexWrite, Cpu);

// fp8 keys only: queries for them. Each [dim] row of q is rounded to bf16, rotated as above, rounded to bf16, quantised
// with a power-of-two scale as above, and its scale is multiplied into the head's weight (the score gets no query scale):
//   q8 = e4m3(y / scale);  w8[t, h] = w[t, h] * scale
struct IndexQuery {
  static constexpr std::string_view name = "index_query";
  struct Spec {
    DType x;
    int64_t heads, dim;
  };  // x: f32, bf16
  struct Args {
    Out q8;  // [tokens, heads, dim] e4m3
    Out w8;  // [tokens, heads] f32
    In q;    // [tokens, heads, dim]
    In w;    // [tokens, heads] f32
  };
  static Writes writes(const Args& a) { return {{"q8", a.q8}, {"w8", a.w8}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    expect("q", a.q, s.x, {tokens, s.heads, s.dim});
    expect("w", a.w, DType::f32, {tokens, s.heads});
    expect("q8", a.q8, DType::e4m3, {tokens, s.heads, s.dim});
    expect("w8", a.w8, DType::f32, {tokens, s.heads});
  }
};
List<IndexQuery> kernels(IndexQuery, Ref);
List<IndexQuery> kernels(IndexQuery, Cpu);

// score[r, p] = factor * sum over heads h of w[t, h] * max(0, q[t, h] . K_p),  K_p = key * its scale, for the rows
// t = first_row + r and pools p < complete_pools(pos(t)); columns beyond are not written. Rows that see at most `select`
// pools are skipped whole: they select everything (IndexTopK). w may be negative. The ReLU is part of the meaning.
struct IndexScore {
  static constexpr std::string_view name = "index_score";
  struct Spec {
    IndexKeys keys;
    DType q;
    int64_t heads, dim, kpool, select;
    IndexLayout layout = IndexLayout::plain;
  };  // q: f32, bf16, or e4m3 with fp8 keys
  struct Args {
    Out score;         // [count, max_pools] f32, rows may be strided
    In q;              // [tokens, heads, dim]
    In w;              // [tokens, heads] f32
    IndexPages pages;  // read
    int64_t first_row;
    float factor;  // (dim * heads)^-1/2
    Rows rows;
  };
  static Writes writes(const Args& a) { return {{"score", a.score}}; }
  static void check(const Spec& s, const Args& a);
  // Pools that the rows score, each read once a row.
  static Cost cost(const Spec& s, const Args& a) {
    double pools = 0;
    for (int64_t r = 0; r < a.score.shape[0]; ++r) {
      const int64_t seen = complete_pools(TokenPos(a.rows.position.as<int64_t>()[a.first_row + r]), s.kpool);
      if (seen > s.select) pools += static_cast<double>(seen);
    }
    const int64_t bits = s.keys == IndexKeys::f32 ? 32 : s.keys == IndexKeys::bf16 ? 16 : 8;
    return {.bytes = pools * static_cast<double>(s.dim * bits) / 8, .flops = 2 * pools * static_cast<double>(s.heads * s.dim)};
  }
};
List<IndexScore> kernels(IndexScore, Ref);
List<IndexScore> kernels(IndexScore, Cpu);

// The `select` best pools of each row, as ids in ascending order, -1 beyond their number. Total order: score descending
// (NaN as -infinity, -0 equal to 0), then the lower pool. Rows with at most `select` complete pools get 0, 1, ... without a
// look at score. bad[t] = 1 for a row t with a score among its pools that is NaN or infinite, since the choice then means nothing.
struct IndexTopK {
  static constexpr std::string_view name = "index_top_k";
  struct Spec {
    int64_t kpool, select;
  };
  struct Args {
    Out pools;          // [count, select] int32
    In score;           // [count, max_pools] f32, rows may be strided
    int64_t first_row;  // row r of score and pools is row first_row + r of the step
    Rows rows;
    Out bad;  // bad.h
  };
  static Writes writes(const Args& a) { return {{"pools", a.pools}, {"bad", a.bad}}; }
  static void check(const Spec& s, const Args& a) {
    Dim count{"count"}, max_pools{"max_pools"};
    expect(a.rows);
    expect_rows("score", a.score, DType::f32, {count, max_pools});
    expect("pools", a.pools, DType::i32, {count, s.select});
    expect_flags(a.bad, a.rows.tokens());
    winnow::check(a.first_row >= 0 && a.first_row + count.value() <= a.rows.tokens(), "index_top_k: rows out of range");
  }
};
List<IndexTopK> kernels(IndexTopK, Ref);
List<IndexTopK> kernels(IndexTopK, Cpu);

// Tokens that each row attends to, ascending and contiguous from column 0: the kpool tokens of each pool id (ids < 0 or
// beyond the row's complete pools are dropped), then, if `tail`, the tokens after its last complete pool up to itself.
// -1 beyond count[r]. A token appears once.
struct PoolExpand {
  static constexpr std::string_view name = "pool_expand";
  struct Spec {
    int64_t kpool, select;
    bool tail;
    int64_t width() const { return select * kpool + (tail ? kpool - 1 : 0); }
  };
  struct Args {
    Out tokens;  // [count, width] int32
    Out count;   // [count] int32
    In pools;    // [count, select] int32, ascending
    int64_t first_row;
    Rows rows;
  };
  static Writes writes(const Args& a) { return {{"tokens", a.tokens}, {"count", a.count}}; }
  static void check(const Spec& s, const Args& a) {
    Dim count{"count"};
    expect(a.rows);
    expect("pools", a.pools, DType::i32, {count, s.select});
    expect("tokens", a.tokens, DType::i32, {count, s.width()});
    expect("count", a.count, DType::i32, {count});
    winnow::check(a.first_row >= 0 && a.first_row + count.value() <= a.rows.tokens(), "pool_expand: rows out of range");
  }
};
List<PoolExpand> kernels(PoolExpand, Ref);
List<PoolExpand> kernels(PoolExpand, Cpu);

}  // namespace winnow::ops
