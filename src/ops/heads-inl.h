// Dot products of sixteen queries in the lanes with keys: heads of a row in sparse attention, rows of a head in dense attention. One
// key element is broadcast to all of them, so nothing is summed across lanes, and a key is loaded once for sixteen queries.
#if defined(WINNOW_OPS_HEADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WINNOW_OPS_HEADS_INL_H_
#undef WINNOW_OPS_HEADS_INL_H_
#else
#define WINNOW_OPS_HEADS_INL_H_
#endif

#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {

// Keys whose sums fill the registers.
constexpr int kKeyTile = kParts == 1 ? 12 : 6;

// q [heads <= 16, dim], heads `stride` apart, to out [dim][16]; the lanes of missing heads are zero.
template <class Q>
HWY_INLINE void heads_to_lanes(const Q* q, int64_t stride, int64_t heads, int64_t dim, float* out) {
  HWY_ALIGN float tile[kLanes][kLanes] = {};
  for (int64_t d = 0; d < dim; d += kLanes) {
    for (int64_t h = 0; h < heads; ++h) store(load(q + h * stride + d, dim - d), tile[h]);
    const int64_t n = dim - d < kLanes ? dim - d : kLanes;
    for (int64_t j = 0; j < n; ++j)
      for (int h = 0; h < kLanes; ++h) out[(d + j) * kLanes + h] = tile[h][j];
  }
}

// out[i] = sum over d ascending of q[d][lanes] * key i [d], for kKeyTile packed keys that are `stride` apart.
HWY_INLINE void dot_keys(const float* HWY_RESTRICT q, const float* HWY_RESTRICT keys, int64_t stride, int64_t dim, Lanes* HWY_RESTRICT out) {
  Lanes sum[kKeyTile];
#pragma GCC unroll 16
  for (int i = 0; i < kKeyTile; ++i) sum[i] = zero();
  for (int64_t d = 0; d < dim; ++d) {
    const Lanes x = load(q + d * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kKeyTile; ++i) sum[i] = fma(x, splat(keys[i * stride + d]), sum[i]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < kKeyTile; ++i) out[i] = sum[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#endif  // include guard
