// MhcPre is two passes. First the products with fn, cut into segments of kSegment inputs (by the shape alone, so the sums
// do not depend on company): one worker takes a segment of some tokens, and a segment of fn stays in its cache while the
// tokens go by, so fn is read once a step and a single token still spreads over the workers. Then, a token a time: the
// segments are added in ascending order, the coefficients follow, and the streams are collapsed and normalised.
#include <limits>

#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/mhc/mhc.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/mhc/mhc_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kMaxStreams = 8;
constexpr int64_t kSegment = 1024;
static_assert(kSegment % kLanes == 0);
// Tokens and rows of fn whose sums are in registers at once. Each sum is a chain of its own, so this moves no bit.
constexpr int kTokens = kParts == 1 ? 4 : 2;
constexpr int rows_at_once(int tokens) { return (kParts == 1 ? 4 : 2) * (tokens == 1 ? 2 : 1); }

int64_t outputs(const MhcPre::Spec& s) { return (2 + s.streams) * s.streams; }
int64_t segments(const MhcPre::Spec& s) { return ceil_div(s.streams * s.hidden, kSegment); }
int64_t partials(const MhcPre::Spec& s) { return outputs(s) + 1; }  // of one token and segment: products, then the squares

// One step of products(): the first n lanes at fn and x.
template <int R, int B, class X, class F>
HWY_INLINE void multiply(Lanes (&acc)[R][B], const F* fn, const X* x, int64_t width, int64_t n) {
  Lanes f[R];
  for (int r = 0; r < R; ++r) f[r] = load(fn + r * width, n);
  for (int b = 0; b < B; ++b) {
    const Lanes v = load(x + b * width, n);
    for (int r = 0; r < R; ++r) acc[r][b] = fma(f[r], v, acc[r][b]);
  }
}

// out[t * out_stride + r] = sum over i < n of fn[r * width + i] * x[t * width + i] for R rows and B tokens.
template <int R, int B, class X, class F>
void products(float* out, int64_t out_stride, const F* fn, const X* x, int64_t width, int64_t n) {
  Lanes acc[R][B];
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b) acc[r][b] = zero();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) multiply(acc, fn + i, x + i, width, kLanes);
  if (i < n) multiply(acc, fn + i, x + i, width, n - i);
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b) out[b * out_stride + r] = sum(acc[r][b]);
}

// out[t * out_stride] = sum over i < n of x[t * width + i]^2 for B tokens.
template <int B, class X>
void squares(float* out, int64_t out_stride, const X* x, int64_t width, int64_t n) {
  Lanes acc[B];
  for (int b = 0; b < B; ++b) acc[b] = zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    for (int b = 0; b < B; ++b) {
      const Lanes v = load(x + b * width + i, n - i);
      acc[b] = fma(v, v, acc[b]);
    }
  }
  for (int b = 0; b < B; ++b) out[b * out_stride] = sum(acc[b]);
}

// All sums of one segment for B tokens.
template <int B, class X, class F>
void segment(float* out, int64_t out_stride, const F* fn, const X* x, int64_t width, int64_t n, int64_t m) {
  constexpr int kRows = rows_at_once(B);
  int64_t r = 0;
  for (; r + kRows <= m; r += kRows) products<kRows, B>(out + r, out_stride, fn + r * width, x, width, n);
  for (; r < m; ++r) products<1, B>(out + r, out_stride, fn + r * width, x, width, n);
  squares<B>(out + m, out_stride, x, width, n);
}

// Items [begin, end) of segments x tokens, tokens fastest; sums: [segments, tokens, partials].
template <class X, class F>
void project(const MhcPre::Spec& s, const MhcPre::Args& a, float* sums, int64_t begin, int64_t end) {
  const int64_t tokens = a.x.shape[0], width = s.streams * s.hidden, m = outputs(s), stride = partials(s);
  for (int64_t item = begin; item < end;) {
    const int64_t g = item / tokens, t = item % tokens, n = std::min(kSegment, width - g * kSegment);
    const int64_t left = std::min(end - item, tokens - t);
    const F* fn = a.fn.as<F>() + g * kSegment;
    const X* x = a.x.as<X>() + t * width + g * kSegment;
    if (left >= kTokens) segment<kTokens>(sums + item * stride, stride, fn, x, width, n, m);
    else segment<1>(sums + item * stride, stride, fn, x, width, n, m);
    item += left >= kTokens ? kTokens : 1;
  }
}

// comb: n x n logits in, nearly doubly stochastic out.
void sinkhorn(float* comb, int64_t n, int iterations, float eps) {
  float logits[kMaxStreams * kMaxStreams];
  for (int64_t i = 0; i < n; ++i) {
    float largest = comb[i * n];
    for (int64_t j = 1; j < n; ++j) largest = comb[i * n + j] > largest ? comb[i * n + j] : largest;
    for (int64_t j = 0; j < n; ++j) logits[i * n + j] = comb[i * n + j] - largest;
  }
  for (int64_t i = 0; i < n * n; i += kLanes) store(exp(load(logits + i, n * n - i)), comb + i, n * n - i);
  for (int k = 0; k < std::max(1, iterations); ++k) {
    for (int64_t i = 0; i < n; ++i) {
      float total = 0;
      for (int64_t j = 0; j < n; ++j) total += comb[i * n + j];
      if (k == 0) {  // the softmax
        for (int64_t j = 0; j < n; ++j) comb[i * n + j] = comb[i * n + j] / total + eps;
      } else {
        for (int64_t j = 0; j < n; ++j) comb[i * n + j] /= total + eps;
      }
    }
    float totals[kMaxStreams] = {};
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) totals[j] += comb[i * n + j];
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) comb[i * n + j] /= totals[j] + eps;
  }
}

// Collapse weights, and post and comb of token t, from its sums.
void coefficients(const MhcPre::Spec& s, const MhcPre::Args& a, const float* sums, int64_t t, float* pre) {
  const int64_t n = s.streams, m = outputs(s), tokens = a.x.shape[0];
  float total[(2 + kMaxStreams) * kMaxStreams + 1] = {};
  for (int64_t g = 0; g < segments(s); ++g)
    for (int64_t r = 0; r <= m; ++r) total[r] += sums[(g * tokens + t) * (m + 1) + r];
  const float scale = 1.0f / std::sqrt(total[m] / static_cast<float>(n * s.hidden) + a.norm_eps);
  for (int64_t r = 0; r < m; ++r) total[r] = total[r] * scale * a.scale.as<float>()[r < n ? 0 : r < 2 * n ? 1 : 2] + a.base.as<float>()[r];
  float gates[2 * kMaxStreams];
  for (int64_t i = 0; i < 2 * n; i += kLanes) store(sigmoid(load(total + i, 2 * n - i)), gates + i, 2 * n - i);
  for (int64_t i = 0; i < n; ++i) pre[i] = gates[i] + a.hc_eps;
  for (int64_t i = 0; i < n; ++i) a.post.as<float>()[t * n + i] = 2.0f * gates[n + i];
  sinkhorn(total + 2 * n, n, s.iterations, a.hc_eps);
  std::memcpy(a.comb.as<float>() + t * n * n, total + 2 * n, static_cast<size_t>(n * n) * sizeof(float));
}

// u[d] = sum over s of weight[s] * x[s, d]; returns the sum of u^2.
template <class X>
float collapse(float* u, const X* x, const float* weight, int64_t n, int64_t hidden) {
  Lanes total = zero();
  for (int64_t d = 0; d < hidden; d += kLanes) {
    Lanes v = zero();
    for (int64_t s = 0; s < n; ++s) v = fma(splat(weight[s]), load(x + s * hidden + d, hidden - d), v);
    store(v, u + d, hidden - d);
    total = fma(v, v, total);
  }
  return sum(total);
}

template <class Y>
void scale_row(Y* y, const float* u, const float* w, float total, int64_t n, float eps) {
  const Lanes scale = splat(1.0f / std::sqrt(total / static_cast<float>(n) + eps));
  for (int64_t d = 0; d < n; d += kLanes) store(mul(mul(load(u + d, n - d), scale), load(w + d, n - d)), y + d, n - d);
}

void run_pre(Queue& q, Scratch scratch, const MhcPre::Spec& s, const MhcPre::Args& a) {
  const int64_t tokens = a.x.shape[0];
  if (tokens == 0) return;
  float* sums = reinterpret_cast<float*>(scratch.data);
  float* rows = sums + round_up(segments(s) * tokens * partials(s), kLanes);
  with_float(s.x, [&]<class X>(X) {
    with_float(s.fn, [&]<class F>(F) {
      q.workers().run(segments(s) * tokens, std::min<int64_t>(tokens, kTokens),
                      [&](int64_t begin, int64_t end, int) { project<X, F>(s, a, sums, begin, end); });
    });
    with_float(s.y, [&]<class Y>(Y) {
      q.workers().run(tokens, 1, [&](int64_t begin, int64_t end, int worker) {
        float* u = rows + worker * round_up(s.hidden, kLanes);
        for (int64_t t = begin; t < end; ++t) {
          float pre[kMaxStreams];
          coefficients(s, a, sums, t, pre);
          const float total = collapse(u, a.x.as<X>() + t * s.streams * s.hidden, pre, s.streams, s.hidden);
          scale_row(a.y.as<Y>() + t * s.hidden, u, a.norm_w.as<float>(), total, s.hidden, a.norm_eps);
        }
      });
    });
  });
}

constexpr int64_t kColumns = 512;  // of one item of MhcPost

// Columns [d, d + n) of one token. Every stream of a column is read before one is written.
template <class X, class Y>
void mix(X* x, const Y* y, const float* post, const float* comb, int64_t streams, int64_t hidden, int64_t n) {
  for (int64_t d = 0; d < n; d += kLanes) {
    const Lanes out = load(y + d, n - d);
    Lanes in[kMaxStreams];
    for (int64_t i = 0; i < streams; ++i) in[i] = load(x + i * hidden + d, n - d);
    for (int64_t j = 0; j < streams; ++j) {
      Lanes v = mul(splat(post[j]), out);
      for (int64_t i = 0; i < streams; ++i) v = fma(splat(comb[i * streams + j]), in[i], v);
      store(v, x + j * hidden + d, n - d);
    }
  }
}

void run_post(Queue& q, Scratch, const MhcPost::Spec& s, const MhcPost::Args& a) {
  const int64_t blocks = ceil_div(s.hidden, kColumns);
  with_float(s.x, [&]<class X>(X) {
    with_float(s.y, [&]<class Y>(Y) {
      q.workers().run(a.y.shape[0] * blocks, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t t = i / blocks, d = i % blocks * kColumns;
          mix(a.x.as<X>() + t * s.streams * s.hidden + d, a.y.as<Y>() + t * s.hidden + d, a.post.as<float>() + t * s.streams,
              a.comb.as<float>() + t * s.streams * s.streams, s.streams, s.hidden, std::min(kColumns, s.hidden - d));
        }
      });
    });
  });
}

void run_head(Queue& q, Scratch scratch, const MhcHead::Spec& s, const MhcHead::Args& a) {
  with_float(s.x, [&]<class X>(X) {
    with_float(s.y, [&]<class Y>(Y) {
      q.workers().run(a.rows.shape[0], 1, [&](int64_t begin, int64_t end, int worker) {
        float* u = reinterpret_cast<float*>(scratch.data) + worker * round_up(s.hidden, kLanes);
        float mean[kMaxStreams];
        for (float& m : mean) m = 1.0f / static_cast<float>(s.streams);
        for (int64_t r = begin; r < end; ++r) {
          const int64_t t = a.rows.as<int32_t>()[r];
          winnow::check(t >= 0 && t < a.x.shape[0], "mhc_head: a chosen row is outside the step");
          const float total = collapse(u, a.x.as<X>() + t * s.streams * s.hidden, mean, s.streams, s.hidden);
          scale_row(a.y.as<Y>() + r * s.hidden, u, a.w.as<float>(), total, s.hidden, a.eps);
        }
      });
    });
  });
}

}  // namespace
int64_t mhc_pre_scratch(const MhcPre::Spec& s, const Limits& l) {
  return 4 * (round_up(segments(s) * l.max_rows * partials(s), kLanes) + l.workers * round_up(s.hidden, kLanes));
}
void mhc_pre(Queue& q, Scratch c, const MhcPre::Spec& s, const MhcPre::Args& a) { run_pre(q, c, s, a); }
void mhc_post(Queue& q, Scratch c, const MhcPost::Spec& s, const MhcPost::Args& a) { run_post(q, c, s, a); }
void mhc_head(Queue& q, Scratch c, const MhcHead::Spec& s, const MhcHead::Args& a) { run_head(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* types(int64_t streams, std::initializer_list<DType> list) {
  if (streams < 1 || streams > 8) return "1 to 8 streams";
  return std::all_of(list.begin(), list.end(), is_f32_or_bf16) ? nullptr : "only f32 and bf16";
}
const char* pre_why_not(const MhcPre::Spec& s) { return types(s.streams, {s.x, s.fn, s.y}); }
const char* post_why_not(const MhcPost::Spec& s) { return types(s.streams, {s.x, s.y}); }
const char* head_why_not(const MhcHead::Spec& s) { return types(s.streams, {s.x, s.y}); }
int64_t head_scratch(const MhcHead::Spec& s, const Limits& l) { return 4 * l.workers * round_up(s.hidden, 16); }

}  // namespace

List<MhcPre> kernels(MhcPre, Cpu) {
  static constexpr Kernel<MhcPre> list[] = {{.name = "mhc_pre.cpu_avx512",
                                             .why_not = needs<Isa::avx512, MhcPre, pre_why_not>,
                                             .scratch_bytes = N_AVX3::mhc_pre_scratch,
                                             .run = N_AVX3::mhc_pre},
                                            {.name = "mhc_pre.cpu_avx2",
                                             .why_not = needs<Isa::avx2, MhcPre, pre_why_not>,
                                             .scratch_bytes = N_AVX2::mhc_pre_scratch,
                                             .run = N_AVX2::mhc_pre}};
  return list;
}
List<MhcPost> kernels(MhcPost, Cpu) {
  static constexpr Kernel<MhcPost> list[] = {
      {.name = "mhc_post.cpu_avx512", .why_not = needs<Isa::avx512, MhcPost, post_why_not>, .run = N_AVX3::mhc_post},
      {.name = "mhc_post.cpu_avx2", .why_not = needs<Isa::avx2, MhcPost, post_why_not>, .run = N_AVX2::mhc_post}};
  return list;
}
List<MhcHead> kernels(MhcHead, Cpu) {
  static constexpr Kernel<MhcHead> list[] = {
      {.name = "mhc_head.cpu_avx512", .why_not = needs<Isa::avx512, MhcHead, head_why_not>, .scratch_bytes = head_scratch, .run = N_AVX3::mhc_head},
      {.name = "mhc_head.cpu_avx2", .why_not = needs<Isa::avx2, MhcHead, head_why_not>, .scratch_bytes = head_scratch, .run = N_AVX2::mhc_head}};
  return list;
}

}  // namespace winnow::ops
#endif
