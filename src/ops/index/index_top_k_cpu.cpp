#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/index/index.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/index/index_top_k_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

using KeyTag = hn::RebindToUnsigned<LaneTag>;

struct Keys {
  hn::Vec<KeyTag> v[kParts];
};

// Unsigned keys that order as the scores do: -0 as 0, NaN as -infinity.
HWY_INLINE Keys keys_of(const Lanes& score) {
  const KeyTag d;
  const Lanes x = add(score, zero());  // -0 + 0 = 0
  Keys k;
  WINNOW_PARTS(i) {
    const auto lowest = hn::Set(LaneTag(), -std::numeric_limits<float>::infinity());
    const auto bits = hn::BitCast(d, hn::IfThenElse(hn::IsNaN(x.v[i]), lowest, x.v[i]));
    const auto negative = hn::BitCast(d, hn::BroadcastSignBit(hn::BitCast(hn::RebindToSigned<LaneTag>(), bits)));
    k.v[i] = hn::Xor(bits, hn::Or(negative, hn::Set(d, 0x80000000u)));
  }
  return k;
}

// f(first, keys, valid) over the scores, sixteen at a time; bit i of valid: lane i is score first + i.
template <class F>
HWY_INLINE void for_each_sixteen(const float* score, int64_t n, F&& f) {
  for (int64_t i = 0; i < n; i += kLanes) f(i, keys_of(load(score + i, n - i)), n - i >= kLanes ? 0xffffu : (1u << (n - i)) - 1u);
}

// Bit i: key i compares true.
template <class C>
HWY_INLINE uint32_t bits_where(const Keys& k, C&& compare) {
  uint32_t bits = 0;
  WINNOW_PARTS(i) {
    uint8_t part[8];
    hn::StoreMaskBits(KeyTag(), compare(k.v[i]), part);
    bits |= (part[0] | (kPartLanes > 8 ? part[1] << 8 : 0u)) << (i * kPartLanes);
  }
  return bits;
}

// The key of the `select`-th best score, and how many of the scores with exactly this key are taken.
struct Threshold {
  uint32_t key;
  int64_t equal;
};

// Of the largest keys counted in bins, the bin that holds the `rank`-th; rank becomes the rank inside it.
int64_t find_bin(const int32_t* bins, int64_t n, int64_t* rank) {
  for (int64_t b = n - 1;; --b) {
    if (*rank <= bins[b] || b == 0) return b;
    *rank -= bins[b];
  }
}

// Smallest and largest key.
std::pair<uint32_t, uint32_t> range_of(const float* score, int64_t n) {
  const KeyTag d;
  auto low = hn::Set(d, ~0u), high = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Keys k = keys_of(load(score + i));
    WINNOW_PARTS(p) {
      low = hn::Min(low, k.v[p]);
      high = hn::Max(high, k.v[p]);
    }
  }
  uint32_t least = hn::GetLane(hn::MinOfLanes(d, low)), most = hn::GetLane(hn::MaxOfLanes(d, high));
  HWY_ALIGN uint32_t lane[kLanes];
  const Keys rest = keys_of(load(score + i, n - i));
  WINNOW_PARTS(p) hn::Store(rest.v[p], d, lane + p * kPartLanes);
  for (int64_t j = 0; j < n - i; ++j) {
    least = std::min(least, lane[j]);
    most = std::max(most, lane[j]);
  }
  return {least, most};
}

// Digits of ten bits, highest first, of the distance from the smallest key: scores lie close together, and counting many in one bin is slow.
Threshold find_threshold(const float* score, int64_t n, int64_t select) {
  constexpr int kBits = 10;
  const KeyTag d;
  const auto [least, most] = range_of(score, n);
  int32_t bins[1 << kBits];
  HWY_ALIGN uint32_t lane[kLanes];
  uint32_t base = least;
  int64_t rank = select;
  for (int width = std::bit_width(most - least); width > 0;) {  // the key is base plus something of `width` bits
    const int shift = std::max(width - kBits, 0);
    const int64_t count = int64_t{1} << (width - shift);
    std::fill_n(bins, count, 0);
    const auto from = hn::Set(d, base), last = hn::Set(d, ~0u >> (32 - width));
    for_each_sixteen(score, n, [&](int64_t, const Keys& k, uint32_t valid) HWY_ATTR {
      uint32_t hits = valid & bits_where(k, [&](auto v) HWY_ATTR { return hn::Not(hn::Gt(hn::Sub(v, from), last)); });
      if (!hits) return;
      WINNOW_PARTS(i) hn::Store(hn::ShiftRightSame(hn::Sub(k.v[i], from), shift), d, lane + i * kPartLanes);
      for (; hits; hits &= hits - 1) ++bins[lane[std::countr_zero(hits)]];
    });
    base += static_cast<uint32_t>(find_bin(bins, count, &rank)) << shift;
    width = shift;
  }
  return {base, rank};
}

void select_row(const float* score, int64_t n, int64_t select, int32_t* out) {
  Threshold t = find_threshold(score, n, select);
  for_each_sixteen(score, n, [&](int64_t first, const Keys& k, uint32_t valid) HWY_ATTR {
    const auto key = hn::Set(KeyTag(), t.key);
    uint32_t reach = valid & bits_where(k, [&](auto v) HWY_ATTR { return hn::Not(hn::Gt(key, v)); });
    if (!reach) return;
    const uint32_t equal = bits_where(k, [&](auto v) HWY_ATTR { return hn::Eq(v, key); });
    for (; reach; reach &= reach - 1) {
      const int i = std::countr_zero(reach);
      if (equal >> i & 1u && t.equal-- <= 0) continue;
      *out++ = static_cast<int32_t>(first + i);
    }
  });
}

void run(Queue& q, Scratch, const IndexTopK::Spec& s, const IndexTopK::Args& a) {
  q.workers().run(a.pools.shape[0], 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t pools = complete_pools(TokenPos(a.rows.position.as<int64_t>()[a.first_row + r]), s.kpool);
      int32_t* out = a.pools.as<int32_t>() + r * s.select;
      const float* score = a.score.as<float>() + r * a.score.stride[0];
      if (pools > s.select && !all_finite(DType::f32, reinterpret_cast<const std::byte*>(score), pools)) flag_row(a.bad, a.first_row + r);
      if (pools > s.select && s.select > 0) select_row(score, pools, s.select, out);
      else
        for (int64_t i = 0; i < s.select; ++i) out[i] = static_cast<int32_t>(i < pools ? i : -1);
    }
  });
}

}  // namespace
void index_top_k(Queue& q, Scratch c, const IndexTopK::Spec& s, const IndexTopK::Args& a) { run(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {

List<IndexTopK> kernels(IndexTopK, Cpu) {
  static constexpr Kernel<IndexTopK> list[] = {
      {.name = "index_top_k.cpu_avx512", .why_not = needs<Isa::avx512, IndexTopK, any_spec>, .run = N_AVX3::index_top_k},
      {.name = "index_top_k.cpu_avx2", .why_not = needs<Isa::avx2, IndexTopK, any_spec>, .run = N_AVX2::index_top_k}};
  return list;
}

}  // namespace winnow::ops
#endif
