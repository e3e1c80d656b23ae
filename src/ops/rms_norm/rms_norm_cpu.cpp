#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/rms_norm/rms_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rms_norm/rms_norm_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

template <class X, class Y>
void norm_row(Y* y, const X* x, const float* w, int64_t n, float eps) {
  const Lanes scale = splat(1.0f / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps));
  for (int64_t i = 0; i < n; i += kLanes) store(mul(mul(load(x + i, n - i), scale), load(w + i, n - i)), y + i, n - i);
}

void run(Queue& q, Scratch, const RmsNorm::Spec& s, const RmsNorm::Args& a) {
  with_float(s.x, [&]<class X>(X) {
    with_float(s.y, [&]<class Y>(Y) {
      q.workers().run(a.x.shape[0], 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) norm_row(a.y.as<Y>() + t * s.hidden, a.x.as<X>() + t * a.x.stride[0], a.w.as<float>(), s.hidden, a.eps);
      });
    });
  });
}

}  // namespace
void rms_norm(Queue& q, Scratch c, const RmsNorm::Spec& s, const RmsNorm::Args& a) { run(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const RmsNorm::Spec& s) { return is_f32_or_bf16(s.x) && is_f32_or_bf16(s.y) ? nullptr : "only f32 and bf16"; }

}  // namespace

List<RmsNorm> kernels(RmsNorm, Cpu) {
  static constexpr Kernel<RmsNorm> list[] = {
      {.name = "rms_norm.cpu_avx512", .why_not = needs<Isa::avx512, RmsNorm, why_not>, .run = N_AVX3::rms_norm},
      {.name = "rms_norm.cpu_avx2", .why_not = needs<Isa::avx2, RmsNorm, why_not>, .run = N_AVX2::rms_norm}};
  return list;
}

}  // namespace winnow::ops
#endif
