#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/swiglu/swiglu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/swiglu/swiglu_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

// min and max return their second operand when one is a NaN, so the bound comes first and a NaN passes through.
template <bool kClamp, class X, class Y>
void activate(Y* y, const X* gate, const X* up, int64_t n, float limit) {
  const Lanes most = splat(limit), least = splat(-limit);
  for (int64_t i = 0; i < n; i += kLanes) {
    Lanes g = load(gate + i, n - i), u = load(up + i, n - i);
    if constexpr (kClamp) {
      g = min(most, g);
      u = max(least, min(most, u));
    }
    store(mul(silu(g), u), y + i, n - i);
  }
}

void run(Queue& q, Scratch, const SwiGlu::Spec& s, const SwiGlu::Args& a) {
  with_float(s.x, [&]<class X>(X) {
    with_float(s.y, [&]<class Y>(Y) {
      q.workers().run(a.gate.elements(), 512, [&](int64_t begin, int64_t end, int) {
        const auto f = s.limit > 0 ? activate<true, X, Y> : activate<false, X, Y>;
        f(a.y.as<Y>() + begin, a.gate.as<X>() + begin, a.up.as<X>() + begin, end - begin, s.limit);
      });
    });
  });
}

}  // namespace
void swiglu(Queue& q, Scratch c, const SwiGlu::Spec& s, const SwiGlu::Args& a) { run(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const SwiGlu::Spec& s) { return is_f32_or_bf16(s.x) && is_f32_or_bf16(s.y) ? nullptr : "only f32 and bf16"; }

}  // namespace

List<SwiGlu> kernels(SwiGlu, Cpu) {
  static constexpr Kernel<SwiGlu> list[] = {{.name = "swiglu.cpu_avx512", .why_not = needs<Isa::avx512, SwiGlu, why_not>, .run = N_AVX3::swiglu},
                                            {.name = "swiglu.cpu_avx2", .why_not = needs<Isa::avx2, SwiGlu, why_not>, .run = N_AVX2::swiglu}};
  return list;
}

}  // namespace winnow::ops
#endif
