#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/kda/kda.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kda/kda_gate_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

// y = x * factor / sqrt(sum x^2 + 1e-6)
template <class X>
void unit(float* y, const X* x, int64_t n, float factor) {
  const Lanes scale = splat(factor / std::sqrt(dot(x, x, n) + 1e-6f));
  for (int64_t i = 0; i < n; i += kLanes) store(mul(load(x + i, n - i), scale), y + i, n - i);
}

// The log decay of one head.
template <class X>
void decay(float* g, const X* f, const float* bias, int64_t n, float a_log, float lower_bound) {
  const float rate = exp(a_log);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Lanes x = add(load(f + i, n - i), load(bias + i, n - i));
    const Lanes y = lower_bound != 0 ? mul(splat(lower_bound), sigmoid(mul(splat(rate), x))) : mul(splat(-rate), softplus(x));
    store(y, g + i, n - i);
  }
}

template <class X>
void run_head(const KdaGate::Spec& s, const KdaGate::Args& a, int64_t t, int64_t h) {
  const int64_t keys = s.heads * s.key_dim, head = t * s.heads + h;
  const X* qkv = a.qkv.as<X>() + t * s.heads * (2 * s.key_dim + s.value_dim);
  unit(a.q.as<float>() + head * s.key_dim, qkv + h * s.key_dim, s.key_dim, 1.0f / std::sqrt(static_cast<float>(s.key_dim)));
  unit(a.k.as<float>() + head * s.key_dim, qkv + keys + h * s.key_dim, s.key_dim, 1.0f);
  const X* v = qkv + 2 * keys + h * s.value_dim;
  float* to = a.v.as<float>() + head * s.value_dim;
  for (int64_t i = 0; i < s.value_dim; i += kLanes) store(load(v + i, s.value_dim - i), to + i, s.value_dim - i);
  decay(a.g.as<float>() + head * s.key_dim, a.f.as<X>() + head * s.key_dim, a.dt_bias.as<float>() + h * s.key_dim, s.key_dim, a.a_log.as<float>()[h],
        a.lower_bound);
  a.beta.as<float>()[head] = first_lane(sigmoid(load(a.b.as<X>() + head, 1)));
}

void run(Queue& q, Scratch, const KdaGate::Spec& s, const KdaGate::Args& a) {
  with_float(s.x, [&]<class X>(X) {
    q.workers().run(a.qkv.shape[0] * s.heads, 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) run_head<X>(s, a, i / s.heads, i % s.heads);
    });
  });
}

}  // namespace
void kda_gate(Queue& q, Scratch c, const KdaGate::Spec& s, const KdaGate::Args& a) { run(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const KdaGate::Spec& s) { return is_f32_or_bf16(s.x) ? nullptr : "only f32 and bf16"; }

}  // namespace

List<KdaGate> kernels(KdaGate, Cpu) {
  static constexpr Kernel<KdaGate> list[] = {
      {.name = "kda_gate.cpu_avx512", .why_not = needs<Isa::avx512, KdaGate, why_not>, .run = N_AVX3::kda_gate},
      {.name = "kda_gate.cpu_avx2", .why_not = needs<Isa::avx2, KdaGate, why_not>, .run = N_AVX2::kda_gate}};
  return list;
}

}  // namespace winnow::ops
#endif
