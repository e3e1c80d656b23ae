// Pools are in the lanes: a block of keys is widened and transposed once for many rows, and an element of a query is broadcast to its
// pools. Nothing goes across lanes, and none is idle, however many heads there are.
#include <algorithm>

#include "ops/cpu.h"
#include "ops/index/index.h"
#include "ops/index/index_score_pairs.h"
#include "ops/index/score_groups.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/index/index_score_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

constexpr int kVectors = kParts == 1 ? 2 : 1;  // of sixteen pools: a tile
constexpr int kHeads = kParts == 1 ? 8 : 4;    // whose sums over a tile fill the registers
constexpr int64_t kTile = kVectors * kLanes;   // pools
constexpr int64_t kBlock = 2 * kScoreRun;      // pools that are held transposed

struct Buffers {  // of one worker, in floats
  int64_t q, keys;
  explicit Buffers(const IndexScore::Spec& s) : q(round_up(round_up(s.heads, kHeads) * s.dim, kLanes)), keys(kBlock * s.dim) {}
  int64_t all() const { return q + keys; }
};

// Keys of pools [begin, begin + n) to out [tile][dim][kTile]; zeros behind them.
template <class K>
void load_keys(const IndexScore::Spec& s, const IndexScore::Args& a, int64_t r, int64_t begin, int64_t n, float* out) {
  const int64_t page_states = a.pages.keys.shape[1];
  const int32_t* table = a.rows.page_table.as<int32_t>() + a.rows.sequence.as<int32_t>()[a.first_row + r] * a.rows.page_table.stride[0];
  for (int64_t first = 0; first < round_up(n, kTile); first += kLanes) {
    const K* key[kLanes] = {};
    float scale[kLanes];
    for (int64_t i = 0; i < std::min<int64_t>(kLanes, n - first); ++i) {
      const int64_t pool = begin + first + i, page = table[pool / page_states], state = pool % page_states;
      key[i] = a.pages.keys.as<K>() + page * a.pages.keys.stride[0] + state * s.dim;
      if (std::is_same_v<K, E4m3>) scale[i] = a.pages.scales.as<float>()[page * a.pages.scales.stride[0] + state];
    }
    float* to = out + first / kTile * kTile * s.dim + first % kTile;
    for (int64_t d = 0; d < s.dim; d += kLanes) {
      Lanes x[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        x[i] = key[i] ? load(key[i] + d, s.dim - d) : zero();
        if (std::is_same_v<K, E4m3> && key[i]) x[i] = mul(x[i], splat(scale[i]));
      }
      transpose(x);
      for (int64_t j = 0; j < std::min<int64_t>(kLanes, s.dim - d); ++j) store(x[j], to + (d + j) * kTile);
    }
  }
}

// The heads' queries, f32, with heads of zeros up to a multiple of kHeads.
template <class X>
void load_q(const IndexScore::Spec& s, const IndexScore::Args& a, int64_t r, float* q) {
  const int64_t n = s.heads * s.dim;
  const X* from = a.q.as<X>() + (a.first_row + r) * n;
  for (int64_t i = 0; i < n; i += kLanes) store(load(from + i, n - i), q + i);
  std::fill(q + n, q + round_up(s.heads, kHeads) * s.dim, 0.0f);
}

// Sums over d ascending of q[h][d] * keys[d][pool], for kHeads heads and a tile of pools.
HWY_INLINE void dot_tile(const float* HWY_RESTRICT q, const float* HWY_RESTRICT keys, int64_t dim, Lanes (&out)[kHeads][kVectors]) {
  Lanes sum[kHeads][kVectors];
#pragma GCC unroll 16
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[h][v] = zero();
  for (int64_t d = 0; d < dim; ++d) {
    Lanes key[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) key[v] = load(keys + d * kTile + v * kLanes);
#pragma GCC unroll 16
    for (int h = 0; h < kHeads; ++h) {
      const Lanes x = splat(q[h * dim + d]);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[h][v] = fma(x, key[v], sum[h][v]);
    }
  }
#pragma GCC unroll 16
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) out[h][v] = sum[h][v];
}

// Scores of a tile's first n pools. The order is that of sum() with head h in lane h % 16.
void score_tile(const IndexScore::Spec& s, float factor, const float* q, const float* w, const float* keys, int64_t n, float* score) {
  Lanes total[kLanes][kVectors], dots[kHeads][kVectors];
  for (auto& lane : total)
    for (Lanes& x : lane) x = zero();
  for (int64_t first = 0; first < s.heads; first += kHeads) {
    dot_tile(q + first * s.dim, keys, s.dim, dots);
    for (int64_t h = first; h < std::min(first + kHeads, s.heads); ++h)
      for (int v = 0; v < kVectors; ++v) {
        Lanes& x = total[h % kLanes][v];
        x = fma(splat(w[h]), max(zero(), dots[h - first][v]), x);
      }
  }
  for (int v = 0; v < kVectors; ++v) {
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) total[i][v] = add(total[i][v], total[i + half][v]);
    store(mul(total[0][v], splat(factor)), score + v * kLanes, n - v * kLanes);
  }
}

// Scores of a group's pools [begin, end), as far as its rows see them.
template <class X, class K>
void score_group(const IndexScore::Spec& s, const IndexScore::Args& a, const ScoreGroup& g, int64_t begin, int64_t end, float* q, float* keys) {
  for (int64_t p = begin; p < end; p += kBlock) {
    const int64_t block_end = std::min(p + kBlock, end);
    load_keys<K>(s, a, g.first, p, block_end - p, keys);
    for (int64_t r = g.first; r < g.end; ++r) {
      const int64_t seen = std::min(pools_to_score(s, a, r), block_end);
      if (seen <= p) continue;
      load_q<X>(s, a, r, q);
      const float* w = a.w.as<float>() + (a.first_row + r) * s.heads;
      float* score = a.score.as<float>() + r * a.score.stride[0];
      for (int64_t t = p; t < seen; t += kTile) score_tile(s, a.factor, q, w, keys + (t - p) * s.dim, seen - t, score + t);
    }
  }
}

template <class X, class K>
void run(Queue& queue, Scratch scratch, const IndexScore::Spec& s, const IndexScore::Args& a) {
  const Buffers size(s);
  for_each_group(queue, s, a, [&](const ScoreGroup& g, int64_t begin, int64_t end, int worker) {
    float* q = reinterpret_cast<float*>(scratch.data) + worker * size.all();
    score_group<X, K>(s, a, g, begin, end, q, q + size.q);
  });
}

void run(Queue& q, Scratch c, const IndexScore::Spec& s, const IndexScore::Args& a) {
  if (s.q == DType::e4m3) return run<E4m3, E4m3>(q, c, s, a);
  with_float(s.q, [&]<class X>(X) {
    if (s.keys == IndexKeys::fp8) run<X, E4m3>(q, c, s, a);
    else if (s.keys == IndexKeys::bf16) run<X, Bf16>(q, c, s, a);
    else run<X, float>(q, c, s, a);
  });
}

}  // namespace
void index_score(Queue& q, Scratch c, const IndexScore::Spec& s, const IndexScore::Args& a) { run(q, c, s, a); }
int64_t index_score_scratch(const IndexScore::Spec& s, const Limits& l) { return l.workers * Buffers(s).all() * 4; }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const IndexScore::Spec& s) {
  if (const char* why = only_plain(s.layout)) return why;
  if (s.q == DType::e4m3) return s.keys == IndexKeys::fp8 ? nullptr : "e4m3 queries go with fp8 keys";
  return is_f32_or_bf16(s.q) ? nullptr : "only f32, bf16 and e4m3";
}

}  // namespace

List<IndexScore> kernels(IndexScore, Cpu) {
  static constexpr Kernel<IndexScore> list[] = {kIndexScorePairs,
                                                {.name = "index_score.cpu_avx512",
                                                 .why_not = needs<Isa::avx512, IndexScore, why_not>,
                                                 .scratch_bytes = N_AVX3::index_score_scratch,
                                                 .run = N_AVX3::index_score},
                                                {.name = "index_score.cpu_avx2",
                                                 .why_not = needs<Isa::avx2, IndexScore, why_not>,
                                                 .scratch_bytes = N_AVX2::index_score_scratch,
                                                 .run = N_AVX2::index_score}};
  return list;
}

}  // namespace winnow::ops
#endif
