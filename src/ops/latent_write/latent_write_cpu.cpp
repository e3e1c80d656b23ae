#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/latent_write/latent_write.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/latent_write/latent_write_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

template <class From, class To>
void convert(To* to, const From* from, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store(load(from + i, n - i), to + i, n - i);
}

void run(Queue& q, Scratch, const LatentWrite::Spec& s, const LatentWrite::Args& a) {
  with_float(s.x, [&]<class From>(From) {
    with_float(s.pages, [&]<class To>(To) {
      q.workers().run(a.x.shape[0], 8, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          const int64_t slot = a.rows.slot.as<int64_t>()[t], page = slot / a.rows.page_tokens;
          winnow::check(slot >= 0 && page < a.pages.shape[0], "latent_write: a slot is outside the pages");
          To* to = a.pages.as<To>() + page * a.pages.stride[0] + slot % a.rows.page_tokens * s.dim;
          convert(to, a.x.as<From>() + t * s.dim, s.dim);
          if (!all_finite(s.pages, reinterpret_cast<const std::byte*>(to), s.dim)) flag_row(a.bad, t);
        }
      });
    });
  });
}

}  // namespace
void latent_write(Queue& q, Scratch c, const LatentWrite::Spec& s, const LatentWrite::Args& a) { run(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const LatentWrite::Spec& s) { return is_f32_or_bf16(s.x) && is_f32_or_bf16(s.pages) ? nullptr : "only f32 and bf16"; }

}  // namespace

List<LatentWrite> kernels(LatentWrite, Cpu) {
  static constexpr Kernel<LatentWrite> list[] = {
      {.name = "latent_write.cpu_avx512", .why_not = needs<Isa::avx512, LatentWrite, why_not>, .run = N_AVX3::latent_write},
      {.name = "latent_write.cpu_avx2", .why_not = needs<Isa::avx2, LatentWrite, why_not>, .run = N_AVX2::latent_write}};
  return list;
}

}  // namespace winnow::ops
#endif
