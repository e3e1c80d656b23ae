// Sixteen float lanes, whatever the instruction set: one register with AVX-512, two with AVX2. A sum over n elements
// adds element i into lane i % 16 in ascending order and then folds the lanes 16 -> 8 -> 4 -> 2 -> 1. So every x86
// instruction set gives the same bits, for any number of rows and threads (docs/architecture.md, Arithmetic).
//
// For a file x_cpu.cpp, which Highway compiles once for each instruction set:
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "ops/x/x_cpu.cpp"
//   #include "hwy/foreach_target.h"
//   #include "ops/lanes-inl.h"
//   HWY_BEFORE_NAMESPACE();
//   namespace winnow::ops { namespace HWY_NAMESPACE { namespace { ... kernel bodies, void run(...) ... } } }
//   HWY_AFTER_NAMESPACE();
//   #if HWY_ONCE
//   namespace winnow::ops { List<X> kernels(X, Cpu) { ... N_AVX3::run, N_AVX2::run ... } }
//   #endif
#if defined(WINNOW_OPS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WINNOW_OPS_LANES_INL_H_
#undef WINNOW_OPS_LANES_INL_H_
#else
#define WINNOW_OPS_LANES_INL_H_
#endif

#include <cstring>

#include "base/dtype.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using LaneTag = hn::CappedTag<float, 16>;
using LaneVec = hn::Vec<LaneTag>;
constexpr int kLanes = 16;
constexpr int kPartLanes = HWY_MAX_BYTES / 4 < 16 ? HWY_MAX_BYTES / 4 : 16;
constexpr int kParts = kLanes / kPartLanes;

struct Lanes {
  LaneVec v[kParts];
};

// f over the parts; the compiler unrolls it.
#define WINNOW_PARTS(i) for (int i = 0; i < kParts; ++i)

HWY_INLINE Lanes splat(float x) {
  Lanes r;
  WINNOW_PARTS(i) r.v[i] = hn::Set(LaneTag(), x);
  return r;
}
HWY_INLINE Lanes zero() { return splat(0.0f); }
HWY_INLINE Lanes add(const Lanes& a, const Lanes& b) {
  Lanes r;
  WINNOW_PARTS(i) r.v[i] = hn::Add(a.v[i], b.v[i]);
  return r;
}
HWY_INLINE Lanes sub(const Lanes& a, const Lanes& b) {
  Lanes r;
  WINNOW_PARTS(i) r.v[i] = hn::Sub(a.v[i], b.v[i]);
  return r;
}
HWY_INLINE Lanes mul(const Lanes& a, const Lanes& b) {
  Lanes r;
  WINNOW_PARTS(i) r.v[i] = hn::Mul(a.v[i], b.v[i]);
  return r;
}
HWY_INLINE Lanes div(const Lanes& a, const Lanes& b) {
  Lanes r;
  WINNOW_PARTS(i) r.v[i] = hn::Div(a.v[i], b.v[i]);
  return r;
}
HWY_INLINE Lanes max(const Lanes& a, const Lanes& b) {
  Lanes r;
  WINNOW_PARTS(i) r.v[i] = hn::Max(a.v[i], b.v[i]);
  return r;
}
HWY_INLINE Lanes min(const Lanes& a, const Lanes& b) {
  Lanes r;
  WINNOW_PARTS(i) r.v[i] = hn::Min(a.v[i], b.v[i]);
  return r;
}
// a * b + c, rounded once.
HWY_INLINE Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
  Lanes r;
  WINNOW_PARTS(i) r.v[i] = hn::MulAdd(a.v[i], b.v[i], c.v[i]);
  return r;
}
HWY_INLINE Lanes sqrt(const Lanes& a) {
  Lanes r;
  WINNOW_PARTS(i) r.v[i] = hn::Sqrt(a.v[i]);
  return r;
}
// e^x: infinite from 89 on, NaN for NaN. Highway's Exp shifts by the exponent unchecked, so far above the range of a
// float it returns anything, and it takes NaN for something very negative.
HWY_INLINE Lanes exp(const Lanes& a) {
  Lanes r;
  WINNOW_PARTS(i) {
    const auto e = hn::Exp(LaneTag(), hn::Min(a.v[i], hn::Set(LaneTag(), 104.0f)));
    r.v[i] = hn::IfThenElse(hn::IsNaN(a.v[i]), a.v[i], e);
  }
  return r;
}
// log(1 + e^x); x itself above 20, where the difference is below half a unit in the last place.
HWY_INLINE Lanes softplus(const Lanes& x) {
  const Lanes e = exp(x);
  Lanes r;
  WINNOW_PARTS(i) {
    const auto above = hn::Gt(x.v[i], hn::Set(LaneTag(), 20.0f));
    r.v[i] = hn::IfThenElse(above, x.v[i], hn::Log1p(LaneTag(), e.v[i]));
  }
  return r;
}
// 1 / (1 + e^-x)
HWY_INLINE Lanes sigmoid(const Lanes& x) { return div(splat(1.0f), add(splat(1.0f), exp(sub(zero(), x)))); }
HWY_INLINE Lanes silu(const Lanes& x) { return mul(x, sigmoid(x)); }

HWY_INLINE Lanes load(const float* p) {
  Lanes r;
  WINNOW_PARTS(i) r.v[i] = hn::LoadU(LaneTag(), p + i * kPartLanes);
  return r;
}
HWY_INLINE Lanes load(const Bf16* p) {
  const hn::Rebind<uint16_t, LaneTag> d16;
  const hn::Rebind<uint32_t, LaneTag> d32;
  Lanes r;
  WINNOW_PARTS(i) {
    const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p) + i * kPartLanes);
    r.v[i] = hn::BitCast(LaneTag(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
  }
  return r;
}
// e4m3 times 2^-8: shifted into an f16 with the same mantissa and an exponent bias that is 8 larger; denormals included.
// The caller multiplies by kE4m3Scale (a power of two, so it may be folded into any later factor). NaN codes are
// refused when weights are loaded; here they would read as +-480.
constexpr float kE4m3Scale = 256.0f;
HWY_INLINE Lanes load_scaled(const E4m3* p) {
  const hn::Rebind<int8_t, LaneTag> d8;
  const hn::Rebind<int16_t, LaneTag> d16;
  const hn::Rebind<hwy::float16_t, LaneTag> df16;
  Lanes r;
  WINNOW_PARTS(i) {
    const auto code = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p) + i * kPartLanes));
    const auto half = hn::And(hn::ShiftLeft<7>(code), hn::Set(d16, static_cast<int16_t>(0xBF80)));
    r.v[i] = hn::PromoteTo(LaneTag(), hn::BitCast(df16, half));
  }
  return r;
}
HWY_INLINE Lanes load(const E4m3* p) { return mul(load_scaled(p), splat(kE4m3Scale)); }

// The first n elements (n may be 16 or more); the other lanes are zero.
template <class T>
HWY_INLINE Lanes load(const T* p, int64_t n) {
  if (n >= kLanes) return load(p);
  T padded[kLanes] = {};
  std::memcpy(padded, p, static_cast<size_t>(n > 0 ? n : 0) * sizeof(T));
  return load(padded);
}

HWY_INLINE void store(const Lanes& a, float* p) { WINNOW_PARTS(i) hn::StoreU(a.v[i], LaneTag(), p + i * kPartLanes); }
// Round to nearest even; NaN stays NaN.
HWY_INLINE void store(const Lanes& a, Bf16* p) {
  const hn::Rebind<uint16_t, LaneTag> d16;
  const hn::Rebind<uint32_t, LaneTag> d32;
  WINNOW_PARTS(i) {
    const auto u = hn::BitCast(d32, a.v[i]);
    const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(d32, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(d32, 0x7fffu))));
    const auto nan = hn::Or(hn::ShiftRight<16>(u), hn::Set(d32, 0x40u));
    const auto is_nan = hn::RebindMask(d32, hn::IsNaN(a.v[i]));
    hn::StoreU(hn::TruncateTo(d16, hn::IfThenElse(is_nan, nan, rounded)), d16, reinterpret_cast<uint16_t*>(p) + i * kPartLanes);
  }
}
template <class T>
HWY_INLINE void store(const Lanes& a, T* p, int64_t n) {
  if (n >= kLanes) return store(a, p);
  T padded[kLanes];
  store(a, padded);
  std::memcpy(p, padded, static_cast<size_t>(n > 0 ? n : 0) * sizeof(T));
}
// `a` in the first n lanes, `other` in the rest.
HWY_INLINE Lanes first(const Lanes& a, int64_t n, const Lanes& other) {
  Lanes r;
  WINNOW_PARTS(i) {
    const int64_t left = n - i * kPartLanes;
    const auto mask = hn::FirstN(LaneTag(), static_cast<size_t>(left < 0 ? 0 : left > kPartLanes ? kPartLanes : left));
    r.v[i] = hn::IfThenElse(mask, a.v[i], other.v[i]);
  }
  return r;
}

// Sixteen lanes to eight: f(lane i, lane i + 8), from one register or two.
template <class V, class F>
HWY_INLINE auto fold_once(const V (&v)[1], F& f) {
  const hn::Half<hn::DFromV<V>> d;
  return f(hn::LowerHalf(d, v[0]), hn::UpperHalf(d, v[0]));
}
template <class V, class F>
HWY_INLINE auto fold_once(const V (&v)[2], F& f) {
  return f(v[0], v[1]);
}
// 16 -> 8 -> 4 -> 2 -> 1: lane i takes f(lane i, lane i + half).
template <class F>
HWY_INLINE float fold_lanes(const Lanes& a, F&& f) {
  const hn::CappedTag<float, 4> d4;
  const auto eight = fold_once(a.v, f);
  auto four = f(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
  four = f(four, hn::Shuffle1032(four));
  return hn::GetLane(f(four, hn::Shuffle2301(four)));
}
HWY_INLINE float sum(const Lanes& a) {
  return fold_lanes(a, [](auto x, auto y) HWY_ATTR { return hn::Add(x, y); });
}
HWY_INLINE float max_lane(const Lanes& a) {
  return fold_lanes(a, [](auto x, auto y) HWY_ATTR { return hn::Max(x, y); });
}

// Rows of four times four lanes: the j-th four of row i to the i-th four of row j.
template <class V>
HWY_INLINE void transpose_fours(V (&a)[1], V (&b)[1], V (&c)[1], V (&e)[1]) {
  const LaneTag d;
  const V ab_even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(b[0]), a[0]), ab_odd = hn::OddEvenBlocks(b[0], hn::SwapAdjacentBlocks(a[0]));
  const V ce_even = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(e[0]), c[0]), ce_odd = hn::OddEvenBlocks(e[0], hn::SwapAdjacentBlocks(c[0]));
  a[0] = hn::ConcatLowerLower(d, ce_even, ab_even);
  b[0] = hn::ConcatLowerLower(d, ce_odd, ab_odd);
  c[0] = hn::ConcatUpperUpper(d, ce_even, ab_even);
  e[0] = hn::ConcatUpperUpper(d, ce_odd, ab_odd);
}
template <class V>
HWY_INLINE void transpose_fours(V (&a)[2], V (&b)[2], V (&c)[2], V (&e)[2]) {
  const LaneTag d;
  const V ab[4] = {hn::ConcatLowerLower(d, b[0], a[0]), hn::ConcatUpperUpper(d, b[0], a[0]), hn::ConcatLowerLower(d, b[1], a[1]),
                   hn::ConcatUpperUpper(d, b[1], a[1])};
  const V ce[4] = {hn::ConcatLowerLower(d, e[0], c[0]), hn::ConcatUpperUpper(d, e[0], c[0]), hn::ConcatLowerLower(d, e[1], c[1]),
                   hn::ConcatUpperUpper(d, e[1], c[1])};
  a[0] = ab[0], a[1] = ce[0];
  b[0] = ab[1], b[1] = ce[1];
  c[0] = ab[2], c[1] = ce[2];
  e[0] = ab[3], e[1] = ce[3];
}
// Lane j of r[i] to lane i of r[j]. First inside every four lanes of four rows; then whole fours change places.
HWY_INLINE void transpose(Lanes (&r)[kLanes]) {
  const LaneTag d;
#pragma GCC unroll 16
  for (int b = 0; b < kLanes; b += 4) WINNOW_PARTS(i) {
      const auto low02 = hn::InterleaveLower(d, r[b].v[i], r[b + 2].v[i]), low13 = hn::InterleaveLower(d, r[b + 1].v[i], r[b + 3].v[i]);
      const auto high02 = hn::InterleaveUpper(d, r[b].v[i], r[b + 2].v[i]), high13 = hn::InterleaveUpper(d, r[b + 1].v[i], r[b + 3].v[i]);
      r[b].v[i] = hn::InterleaveLower(d, low02, low13);
      r[b + 1].v[i] = hn::InterleaveUpper(d, low02, low13);
      r[b + 2].v[i] = hn::InterleaveLower(d, high02, high13);
      r[b + 3].v[i] = hn::InterleaveUpper(d, high02, high13);
    }
#pragma GCC unroll 16
  for (int j = 0; j < 4; ++j) transpose_fours(r[j].v, r[j + 4].v, r[j + 8].v, r[j + 12].v);
}

// Scalar forms of the same functions, for values that stand alone.
HWY_INLINE float first_lane(const Lanes& a) { return hn::GetLane(a.v[0]); }
HWY_INLINE float exp(float x) { return first_lane(exp(splat(x))); }
HWY_INLINE float sigmoid(float x) { return first_lane(sigmoid(splat(x))); }

// Sum of a[i] * b[i], i < n.
template <class A, class B>
HWY_INLINE float dot(const A* a, const B* b, int64_t n) {
  Lanes acc = zero();
  for (int64_t i = 0; i < n; i += kLanes) acc = fma(load(a + i, n - i), load(b + i, n - i), acc);
  return sum(acc);
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#endif  // include guard
