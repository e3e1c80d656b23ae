#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/layer_norm/layer_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/layer_norm/layer_norm_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

// x - mean over the first n lanes, zero beyond.
template <class X>
Lanes centred(const X* x, int64_t n, const Lanes& mean) {
  return first(sub(load(x, n), mean), n, zero());
}

template <class X, class Y>
void norm_row(Y* y, const X* x, const float* w, const float* b, int64_t n, float eps) {
  Lanes total = zero(), squares = zero();
  for (int64_t i = 0; i < n; i += kLanes) total = add(total, load(x + i, n - i));
  const Lanes mean = splat(sum(total) / static_cast<float>(n));
  for (int64_t i = 0; i < n; i += kLanes) {
    const Lanes c = centred(x + i, n - i, mean);
    squares = fma(c, c, squares);
  }
  const Lanes scale = splat(1.0f / std::sqrt(sum(squares) / static_cast<float>(n) + eps));
  for (int64_t i = 0; i < n; i += kLanes) {
    const Lanes normal = mul(centred(x + i, n - i, mean), scale);
    store(fma(load(w + i, n - i), normal, load(b + i, n - i)), y + i, n - i);
  }
}

void run(Queue& q, Scratch, const LayerNorm::Spec& s, const LayerNorm::Args& a) {
  with_float(s.x, [&]<class X>(X) {
    with_float(s.y, [&]<class Y>(Y) {
      q.workers().run(a.x.shape[0], 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t)
          norm_row(a.y.as<Y>() + t * s.hidden, a.x.as<X>() + t * s.hidden, a.w.as<float>(), a.b.as<float>(), s.hidden, a.eps);
      });
    });
  });
}

}  // namespace
void layer_norm(Queue& q, Scratch c, const LayerNorm::Spec& s, const LayerNorm::Args& a) { run(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const LayerNorm::Spec& s) { return is_f32_or_bf16(s.x) && is_f32_or_bf16(s.y) ? nullptr : "only f32 and bf16"; }

}  // namespace

List<LayerNorm> kernels(LayerNorm, Cpu) {
  static constexpr Kernel<LayerNorm> list[] = {
      {.name = "layer_norm.cpu_avx512", .why_not = needs<Isa::avx512, LayerNorm, why_not>, .run = N_AVX3::layer_norm},
      {.name = "layer_norm.cpu_avx2", .why_not = needs<Isa::avx2, LayerNorm, why_not>, .run = N_AVX2::layer_norm}};
  return list;
}

}  // namespace winnow::ops
#endif
