// Pools are in the lanes, as in index_score_cpu.cpp, but an instruction adds the products of two channels: keys are transposed in pairs
// of channels, not widened, and a query's pair is broadcast to them. A score is summed over pairs of channels in ascending order, then
// over heads as there. Denormal inputs and results are zero, which is the instruction's nature.
#include <immintrin.h>

#include <cstring>

#include "hwy/base.h"
#include "ops/index/index_score_pairs.h"
#include "ops/index/score_groups.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512bf16,fma,f16c,bmi2")

namespace winnow::ops {
namespace {

constexpr int kLanes = 16, kVectors = 2, kHeads = 8;
constexpr int64_t kTile = kVectors * kLanes, kBlock = 2 * kScoreRun;

int64_t key_bytes(const IndexScore::Spec& s) { return kBlock * s.dim * 2; }

// The first n elements; the others are zero.
inline __m512i load_32(const Bf16* p, int64_t n) { return _mm512_maskz_loadu_epi16(n >= 32 ? 0xffffffffu : (1u << n) - 1, p); }
inline __mmask16 first_16(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1); }

// Lane j of r[i] to lane i of r[j].
inline void transpose(__m512i (&r)[kLanes]) {
  __m512i t[kLanes];
  for (int b = 0; b < kLanes; b += 4) {
    const __m512i low01 = _mm512_unpacklo_epi32(r[b], r[b + 1]), high01 = _mm512_unpackhi_epi32(r[b], r[b + 1]);
    const __m512i low23 = _mm512_unpacklo_epi32(r[b + 2], r[b + 3]), high23 = _mm512_unpackhi_epi32(r[b + 2], r[b + 3]);
    t[b] = _mm512_unpacklo_epi64(low01, low23);
    t[b + 1] = _mm512_unpackhi_epi64(low01, low23);
    t[b + 2] = _mm512_unpacklo_epi64(high01, high23);
    t[b + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512i even01 = _mm512_shuffle_i32x4(t[j], t[j + 4], 0x88), odd01 = _mm512_shuffle_i32x4(t[j], t[j + 4], 0xdd);
    const __m512i even23 = _mm512_shuffle_i32x4(t[j + 8], t[j + 12], 0x88), odd23 = _mm512_shuffle_i32x4(t[j + 8], t[j + 12], 0xdd);
    r[j] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    r[j + 4] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    r[j + 8] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
    r[j + 12] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
  }
}

// Keys of pools [begin, begin + n) to out [tile][dim / 2][kTile], a pair of channels an element; zeros behind them.
void load_keys(const IndexScore::Spec& s, const IndexScore::Args& a, int64_t r, int64_t begin, int64_t n, int32_t* out) {
  const int64_t page_states = a.pages.keys.shape[1], pairs = s.dim / 2;
  const int32_t* table = a.rows.page_table.as<int32_t>() + a.rows.sequence.as<int32_t>()[a.first_row + r] * a.rows.page_table.stride[0];
  for (int64_t first = 0; first < round_up(n, kTile); first += kLanes) {
    const Bf16* key[kLanes] = {};
    for (int64_t i = 0; i < std::min<int64_t>(kLanes, n - first); ++i) {
      const int64_t pool = begin + first + i;
      key[i] = a.pages.keys.as<Bf16>() + table[pool / page_states] * a.pages.keys.stride[0] + pool % page_states * s.dim;
    }
    int32_t* to = out + first / kTile * kTile * pairs + first % kTile;
    for (int64_t p = 0; p < pairs; p += kLanes) {
      __m512i x[kLanes];
      for (int i = 0; i < kLanes; ++i) x[i] = key[i] ? load_32(key[i] + 2 * p, s.dim - 2 * p) : _mm512_setzero_si512();
      transpose(x);
      for (int64_t j = 0; j < std::min<int64_t>(kLanes, pairs - p); ++j) _mm512_storeu_si512(to + (p + j) * kTile, x[j]);
    }
  }
}

// Dots of `heads` <= kHeads heads with a tile of pools.
inline void dot_tile(const Bf16* q, int64_t heads, const int32_t* keys, int64_t dim, __m512 (&out)[kHeads][kVectors]) {
  const Bf16* head[kHeads];  // the last one again for those that do not exist
  for (int h = 0; h < kHeads; ++h) head[h] = q + std::min<int64_t>(h, heads - 1) * dim;
  __m512 sum[kHeads][kVectors];
#pragma GCC unroll 16
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) sum[h][v] = _mm512_setzero_ps();
  for (int64_t p = 0; p < dim / 2; ++p) {
    __m512i key[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) key[v] = _mm512_loadu_si512(keys + p * kTile + v * kLanes);
#pragma GCC unroll 16
    for (int h = 0; h < kHeads; ++h) {
      int32_t pair;
      std::memcpy(&pair, head[h] + 2 * p, sizeof pair);
      const __m512i x = _mm512_set1_epi32(pair);
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sum[h][v] = _mm512_dpbf16_ps(sum[h][v], reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(key[v]));
    }
  }
#pragma GCC unroll 16
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) out[h][v] = sum[h][v];
}

// Scores of a tile's first n pools. Heads are added as in index_score_cpu.cpp: head h into part h % 16, parts by halves.
void score_tile(const IndexScore::Spec& s, float factor, const Bf16* q, const float* w, const int32_t* keys, int64_t n, float* score) {
  __m512 total[kLanes][kVectors], dots[kHeads][kVectors];
  for (auto& part : total)
    for (__m512& x : part) x = _mm512_setzero_ps();
  for (int64_t first = 0; first < s.heads; first += kHeads) {
    const int64_t heads = std::min<int64_t>(kHeads, s.heads - first);
    dot_tile(q + first * s.dim, heads, keys, s.dim, dots);
    for (int64_t h = 0; h < heads; ++h)
      for (int v = 0; v < kVectors; ++v) {
        __m512& x = total[(first + h) % kLanes][v];
        x = _mm512_fmadd_ps(_mm512_set1_ps(w[first + h]), _mm512_max_ps(_mm512_setzero_ps(), dots[h][v]), x);
      }
  }
  for (int v = 0; v < kVectors; ++v) {
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) total[i][v] = _mm512_add_ps(total[i][v], total[i + half][v]);
    const __mmask16 seen = first_16(n - v * kLanes);
    _mm512_mask_storeu_ps(score + v * kLanes, seen, _mm512_mul_ps(total[0][v], _mm512_set1_ps(factor)));
  }
}

// Scores of a group's pools [begin, end), as far as its rows see them.
void score_group(const IndexScore::Spec& s, const IndexScore::Args& a, const ScoreGroup& g, int64_t begin, int64_t end, int32_t* keys) {
  for (int64_t p = begin; p < end; p += kBlock) {
    const int64_t block_end = std::min(p + kBlock, end);
    load_keys(s, a, g.first, p, block_end - p, keys);
    for (int64_t r = g.first; r < g.end; ++r) {
      const int64_t seen = std::min(pools_to_score(s, a, r), block_end), row = a.first_row + r;
      const Bf16* q = a.q.as<Bf16>() + row * s.heads * s.dim;
      float* score = a.score.as<float>() + r * a.score.stride[0];
      for (int64_t t = p; t < seen; t += kTile)
        score_tile(s, a.factor, q, a.w.as<float>() + row * s.heads, keys + (t - p) * s.dim / 2, seen - t, score + t);
    }
  }
}

}  // namespace

void index_score_pairs(Queue& queue, Scratch scratch, const IndexScore::Spec& s, const IndexScore::Args& a) {
  for_each_group(queue, s, a, [&](const ScoreGroup& g, int64_t begin, int64_t end, int worker) {
    score_group(s, a, g, begin, end, reinterpret_cast<int32_t*>(scratch.data + worker * key_bytes(s)));
  });
}
int64_t index_score_pairs_scratch(const IndexScore::Spec& s, const Limits& l) { return l.workers * key_bytes(s); }

}  // namespace winnow::ops
HWY_POP_ATTRIBUTES
