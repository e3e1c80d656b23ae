#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/embedding/embedding.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/embedding/embedding_cpu.cpp"
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

void run(Queue& q, Scratch, const Embedding::Spec& s, const Embedding::Args& a) {
  with_float(s.table, [&]<class From>(From) {
    with_float(s.y, [&]<class To>(To) {
      q.workers().run(a.ids.shape[0], 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t t = begin; t < end; ++t) {
          const int64_t id = a.ids.as<int32_t>()[t];
          winnow::check(id >= 0 && id < s.vocab, "embedding: a token id is outside the vocabulary");
          To* y = a.y.as<To>() + t * s.streams * s.hidden;
          convert(y, a.table.as<From>() + id * s.hidden, s.hidden);
          for (int64_t stream = 1; stream < s.streams; ++stream) std::memcpy(y + stream * s.hidden, y, static_cast<size_t>(s.hidden) * sizeof(To));
        }
      });
    });
  });
}

}  // namespace
void embedding(Queue& q, Scratch c, const Embedding::Spec& s, const Embedding::Args& a) { run(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const Embedding::Spec& s) { return is_f32_or_bf16(s.table) && is_f32_or_bf16(s.y) ? nullptr : "only f32 and bf16"; }

}  // namespace

List<Embedding> kernels(Embedding, Cpu) {
  static constexpr Kernel<Embedding> list[] = {
      {.name = "embedding.cpu_avx512", .why_not = needs<Isa::avx512, Embedding, why_not>, .run = N_AVX3::embedding},
      {.name = "embedding.cpu_avx2", .why_not = needs<Isa::avx2, Embedding, why_not>, .run = N_AVX2::embedding}};
  return list;
}

}  // namespace winnow::ops
#endif
