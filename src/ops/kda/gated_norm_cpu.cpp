#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/kda/kda.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kda/gated_norm_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

template <class Z, class Y>
void norm_head(Y* y, const float* o, const Z* z, const float* w, int64_t n, float eps) {
  const Lanes scale = splat(1.0f / std::sqrt(dot(o, o, n) / static_cast<float>(n) + eps));
  for (int64_t i = 0; i < n; i += kLanes) {
    const Lanes normal = mul(mul(load(o + i, n - i), scale), load(w + i, n - i));
    store(mul(normal, sigmoid(load(z + i, n - i))), y + i, n - i);
  }
}

void run(Queue& q, Scratch, const GatedNorm::Spec& s, const GatedNorm::Args& a) {
  with_float(s.z, [&]<class Z>(Z) {
    with_float(s.y, [&]<class Y>(Y) {
      q.workers().run(a.o.shape[0] * s.heads, 8, [&](int64_t begin, int64_t end, int) {
        for (int64_t h = begin; h < end; ++h)
          norm_head(a.y.as<Y>() + h * s.dim, a.o.as<float>() + h * s.dim, a.z.as<Z>() + h * s.dim, a.w.as<float>(), s.dim, a.eps);
      });
    });
  });
}

}  // namespace
void gated_norm(Queue& q, Scratch c, const GatedNorm::Spec& s, const GatedNorm::Args& a) { run(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const GatedNorm::Spec& s) { return is_f32_or_bf16(s.z) && is_f32_or_bf16(s.y) ? nullptr : "only f32 and bf16"; }

}  // namespace

List<GatedNorm> kernels(GatedNorm, Cpu) {
  static constexpr Kernel<GatedNorm> list[] = {
      {.name = "gated_norm.cpu_avx512", .why_not = needs<Isa::avx512, GatedNorm, why_not>, .run = N_AVX3::gated_norm},
      {.name = "gated_norm.cpu_avx2", .why_not = needs<Isa::avx2, GatedNorm, why_not>, .run = N_AVX2::gated_norm}};
  return list;
}

}  // namespace winnow::ops
#endif
