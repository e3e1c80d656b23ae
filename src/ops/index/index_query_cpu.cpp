#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/index/index.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/index/index_query_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/index/quantise-inl.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

void run(Queue& q, Scratch scratch, const IndexQuery::Spec& s, const IndexQuery::Args& a) {
  const int64_t x_floats = round_up(s.dim, kLanes);
  with_float(s.x, [&]<class X>(X) {
    q.workers().run(a.w.elements(), 8, [&](int64_t begin, int64_t end, int worker) {
      float* x = reinterpret_cast<float*>(scratch.data) + worker * x_floats;
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t c = 0; c < s.dim; c += kLanes) store(load(a.q.as<X>() + i * s.dim + c, s.dim - c), x + c);
        a.w8.as<float>()[i] = a.w.as<float>()[i] * rotate_and_quantise(x, s.dim, a.q8.as<E4m3>() + i * s.dim);
      }
    });
  });
}

}  // namespace
void index_query(Queue& q, Scratch c, const IndexQuery::Spec& s, const IndexQuery::Args& a) { run(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const IndexQuery::Spec& s) { return is_f32_or_bf16(s.x) ? rotation_why_not(true, s.dim) : "only f32 and bf16"; }
int64_t scratch_bytes(const IndexQuery::Spec& s, const Limits& l) { return l.workers * round_up(s.dim, 16) * 4; }

}  // namespace

List<IndexQuery> kernels(IndexQuery, Cpu) {
  static constexpr Kernel<IndexQuery> list[] = {
      {.name = "index_query.cpu_avx512",
       .why_not = needs<Isa::avx512, IndexQuery, why_not>,
       .scratch_bytes = scratch_bytes,
       .run = N_AVX3::index_query},
      {.name = "index_query.cpu_avx2", .why_not = needs<Isa::avx2, IndexQuery, why_not>, .scratch_bytes = scratch_bytes, .run = N_AVX2::index_query}};
  return list;
}

}  // namespace winnow::ops
#endif
