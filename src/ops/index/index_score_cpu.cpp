#include <algorithm>

#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/index/index.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/index/index_score_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/heads-inl.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

// Work is split into runs of this many pools, whatever row they belong to: one row's pools occupy all workers.
constexpr int64_t kRun = 48;

struct Buffers {  // of one worker, in floats
  int64_t q, w, keys;
  explicit Buffers(const IndexScore::Spec& s)
      : q(round_up(s.heads, kLanes) * s.dim), w(round_up(s.heads, kLanes)), keys(kKeyTile * round_up(s.dim, kLanes)) {}
  int64_t all() const { return q + w + keys; }
};

int64_t pools_to_score(const IndexScore::Spec& s, const IndexScore::Args& a, int64_t r) {
  const int64_t pools = complete_pools(TokenPos(a.rows.position.as<int64_t>()[a.first_row + r]), s.kpool);
  return pools <= s.select ? 0 : pools;
}

template <class K>
HWY_INLINE void decode(const K* key, float scale, int64_t dim, float* out) {
  for (int64_t c = 0; c < dim; c += kLanes) {
    const Lanes x = load(key + c, dim - c);
    store(std::is_same_v<K, E4m3> ? mul(x, splat(scale)) : x, out + c);
  }
}

// Scores of row r's pools [begin, end).
template <class K>
void score_pools(const IndexScore::Spec& s, const IndexScore::Args& a, int64_t r, int64_t begin, int64_t end, const float* q, const float* w,
                 float* keys) {
  const int64_t page_states = a.pages.keys.shape[1], groups = ceil_div(s.heads, kLanes), width = round_up(s.dim, kLanes);
  const int32_t* table = a.rows.page_table.as<int32_t>() + a.rows.sequence.as<int32_t>()[a.first_row + r] * a.rows.page_table.stride[0];
  float* score = a.score.as<float>() + r * a.score.stride[0];
  for (int64_t p = begin; p < end; p += kKeyTile) {
    const int64_t n = std::min<int64_t>(kKeyTile, end - p);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t page = table[(p + i) / page_states], state = (p + i) % page_states;
      const float scale = std::is_same_v<K, E4m3> ? a.pages.scales.as<float>()[page * a.pages.scales.stride[0] + state] : 1.0f;
      decode(a.pages.keys.as<K>() + page * a.pages.keys.stride[0] + state * s.dim, scale, s.dim, keys + i * width);
    }
    Lanes total[kKeyTile], dots[kKeyTile];
    for (int i = 0; i < kKeyTile; ++i) total[i] = zero();
    for (int64_t g = 0; g < groups; ++g) {
      dot_keys(q + g * s.dim * kLanes, keys, width, s.dim, dots);
      for (int i = 0; i < kKeyTile; ++i) total[i] = fma(load(w + g * kLanes), max(zero(), dots[i]), total[i]);
    }
    for (int64_t i = 0; i < n; ++i) score[p + i] = sum(total[i]) * a.factor;
  }
}

template <class X>
void load_row(const IndexScore::Spec& s, const IndexScore::Args& a, int64_t t, float* q, float* w) {
  for (int64_t h = 0; h < s.heads; h += kLanes) {
    heads_to_lanes(a.q.as<X>() + (t * s.heads + h) * s.dim, s.dim, std::min<int64_t>(kLanes, s.heads - h), s.dim, q + h * s.dim);
    store(load(a.w.as<float>() + t * s.heads + h, s.heads - h), w + h);
  }
}

template <class X, class K>
void run(Queue& queue, Scratch scratch, const IndexScore::Spec& s, const IndexScore::Args& a) {
  const Buffers size(s);
  const int64_t count = a.score.shape[0];
  int64_t runs = 0;
  for (int64_t r = 0; r < count; ++r) runs += ceil_div(pools_to_score(s, a, r), kRun);
  queue.workers().run(runs, 1, [&](int64_t begin, int64_t end, int worker) {
    float* q = reinterpret_cast<float*>(scratch.data) + worker * size.all();
    float* w = q + size.q;
    float* keys = w + size.w;
    int64_t before = 0;  // runs of earlier rows
    for (int64_t r = 0; r < count && before < end; ++r) {
      const int64_t pools = pools_to_score(s, a, r), here = ceil_div(pools, kRun);
      const int64_t first = std::max(begin - before, int64_t{0}), last = std::min(end - before, here);
      before += here;
      if (first >= last) continue;
      load_row<X>(s, a, a.first_row + r, q, w);
      score_pools<K>(s, a, r, first * kRun, std::min(last * kRun, pools), q, w, keys);
    }
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
  static constexpr Kernel<IndexScore> list[] = {{.name = "index_score.cpu_avx512",
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
