// One pass over the recurrent state of a head: S is folded and applied to vectors while each part of it is in the
// first-level cache, so a step reads S once. Each result is one chain of fused multiply-adds in a fixed order (folded
// rows ascending; key channels ascending), so the tiling below never changes a bit.
#if defined(WINNOW_OPS_KDA_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WINNOW_OPS_KDA_PASS_INL_H_
#undef WINNOW_OPS_KDA_PASS_INL_H_
#else
#define WINNOW_OPS_KDA_PASS_INL_H_
#endif

#include "hwy/cache_control.h"
#include "ops/kda/kda_cpu.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {

struct Pass {
  const float* from = nullptr;  // S [key_dim, value_dim]; null: zero
  float* to = nullptr;          // where the folded S goes; may be `from`
  int64_t fold_rows = 0;        // S <- decay_fold * S + sum of weight_fold_s u_fold_s^T when there are any
  int64_t apply_rows = 0;       // seen_r = S^T a_r; even
};

// S rows i .. i + I - 1, columns j .. j + 16 J - 1.
template <int I, int J>
HWY_INLINE void fold_tile(const Pass& p, const KdaScratch& x, int64_t value_dim, int64_t i, int64_t j) {
  Lanes s[I][J];
  for (int r = 0; r < I; ++r)
    for (int c = 0; c < J; ++c) s[r][c] = p.from ? mul(splat(x.decay_fold[i + r]), load(p.from + (i + r) * value_dim + j + c * kLanes)) : zero();
  const float *w = x.weight_fold + i, *u = x.u_fold + j;
  for (int64_t t = 0; t < p.fold_rows; ++t, w += x.key_pad, u += x.value_pad)
    for (int c = 0; c < J; ++c) {
      const Lanes ut = load(u + c * kLanes);
      for (int r = 0; r < I; ++r) s[r][c] = fma(splat(w[r]), ut, s[r][c]);
    }
  for (int r = 0; r < I; ++r)
    for (int c = 0; c < J; ++c) store(s[r][c], p.to + (i + r) * value_dim + j + c * kLanes);
}
// One S row, the last n < 16 columns.
HWY_INLINE void fold_tail(const Pass& p, const KdaScratch& x, int64_t value_dim, int64_t i, int64_t j, int64_t n) {
  Lanes s = p.from ? mul(splat(x.decay_fold[i]), load(p.from + i * value_dim + j, n)) : zero();
  for (int64_t t = 0; t < p.fold_rows; ++t) s = fma(splat(x.weight_fold[t * x.key_pad + i]), load(x.u_fold + t * x.value_pad + j), s);
  store(s, p.to + i * value_dim + j, n);
}

// Vectors r .. r + R - 1, S rows [begin, end), columns j .. j + 16 J - 1.
template <int R, int J>
HWY_INLINE void apply_tile(const float* state, const KdaScratch& x, int64_t value_dim, int64_t r, int64_t begin, int64_t end, int64_t j) {
  Lanes sum[R][J];
  float* seen = x.seen + r * x.value_pad + j;
  for (int y = 0; y < R; ++y)
    for (int c = 0; c < J; ++c) sum[y][c] = begin ? load(seen + y * x.value_pad + c * kLanes) : zero();
  const float *s = state + begin * value_dim + j, *a = x.a + r * x.key_pad;
  for (int64_t i = begin; i < end; ++i, s += value_dim) {
    Lanes si[J];
    for (int c = 0; c < J; ++c) si[c] = load(s + c * kLanes);
    for (int y = 0; y < R; ++y) {
      const Lanes ay = splat(a[y * x.key_pad + i]);
      for (int c = 0; c < J; ++c) sum[y][c] = fma(ay, si[c], sum[y][c]);
    }
  }
  for (int y = 0; y < R; ++y)
    for (int c = 0; c < J; ++c) store(sum[y][c], seen + y * x.value_pad + c * kLanes);
}
HWY_INLINE void apply_tail(const float* state, const KdaScratch& x, int64_t value_dim, int64_t r, int64_t begin, int64_t end, int64_t j, int64_t n) {
  float* seen = x.seen + r * x.value_pad + j;
  Lanes sum = begin ? load(seen) : zero();
  for (int64_t i = begin; i < end; ++i) sum = fma(splat(x.a[r * x.key_pad + i]), load(state + i * value_dim + j, n), sum);
  store(sum, seen);
}

template <int R, int J>
HWY_INLINE int64_t apply_columns(const float* state, const KdaScratch& x, int64_t value_dim, int64_t r, int64_t begin, int64_t end) {
  const int64_t whole = value_dim / kLanes * kLanes;
  int64_t j = 0;
  for (; j + J * kLanes <= whole; j += J * kLanes) apply_tile<R, J>(state, x, value_dim, r, begin, end, j);
  for (; j < whole; j += kLanes) apply_tile<R, 1>(state, x, value_dim, r, begin, end, j);
  if (j < value_dim)
    for (int y = 0; y < R; ++y) apply_tail(state, x, value_dim, r + y, begin, end, j, value_dim - j);
  return R;
}

inline void fold_part(const Pass& p, const KdaScratch& x, int64_t value_dim, int64_t begin, int64_t end) {
  constexpr int kRows = 4, kColumns = kParts == 1 ? 4 : 1;  // as many registers as the set has
  const int64_t whole = value_dim / kLanes * kLanes;
  int64_t i = begin;
  for (; i + kRows <= end; i += kRows) {
    int64_t j = 0;
    for (; j + kColumns * kLanes <= whole; j += kColumns * kLanes) fold_tile<kRows, kColumns>(p, x, value_dim, i, j);
    for (; j < whole; j += kLanes) fold_tile<kRows, 1>(p, x, value_dim, i, j);
  }
  for (; i < end; ++i)
    for (int64_t j = 0; j < whole; j += kLanes) fold_tile<1, 1>(p, x, value_dim, i, j);
  if (whole < value_dim)
    for (i = begin; i < end; ++i) fold_tail(p, x, value_dim, i, whole, value_dim - whole);
}

inline void apply_part(const float* state, const KdaScratch& x, int64_t value_dim, int64_t rows, int64_t begin, int64_t end) {
  int64_t r = 0;
  while (r < rows) {
    if (kParts == 1 && r + 8 <= rows) r += apply_columns<8, 2>(state, x, value_dim, r, begin, end);
    else if (r + 4 <= rows) r += apply_columns < 4, kParts == 1 ? 4 : 1 > (state, x, value_dim, r, begin, end);
    else r += apply_columns < 2, kParts == 1 ? 4 : 2 > (state, x, value_dim, r, begin, end);
  }
}

inline void run_pass(const Pass& p, const KdaScratch& x, int64_t key_dim, int64_t value_dim) {
  if (!p.from && !p.fold_rows) {
    std::fill_n(x.seen, p.apply_rows * x.value_pad, 0.0f);
    return;
  }
  constexpr int64_t kPart = 32;  // rows of S, 16 KB at 128 columns: fits the first-level cache with the vectors
  for (int64_t begin = 0; begin < key_dim; begin += kPart) {
    const int64_t end = std::min(begin + kPart, key_dim);
    if (p.fold_rows) fold_part(p, x, value_dim, begin, end);
    apply_part(p.fold_rows ? p.to : p.from, x, value_dim, p.apply_rows, begin, end);
  }
}

// Rows of a head lie a whole token apart, which no processor foresees, so they are asked for ahead. Not far ahead: that
// distance is a power of two at the usual sizes, so rows compete for few places in a cache.
inline void prefetch_keys(const KdaHead& h, int64_t row) {
  constexpr int64_t kAhead = 4;
  if (row + kAhead >= h.count) return;
  for (int64_t i = 0; i < h.key_dim; i += kLanes)
    for (const float* p : {h.q, h.k, h.g}) hwy::Prefetch(p + h.key_row(row + kAhead) + i);
}
inline void prefetch_values(const KdaHead& h, int64_t row, int64_t rows) {
  for (int64_t r = row; r < row + rows; ++r)
    for (int64_t j = 0; j < h.value_dim; j += kLanes) hwy::Prefetch(h.v + h.value_row(r) + j);
}

// A row into padded scratch.
HWY_INLINE void copy_row(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store(load(from + i, n - i), to + i);
}
HWY_INLINE void copy_out(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store(load(from + i), to + i, n - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#endif  // include guard
