#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/experts/experts.h"
#include "ops/experts/plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/experts/experts_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

// The limit is the first operand of min and max: x86 returns the second when one is NaN, so a NaN passes.
template <class X>
HWY_INLINE void swiglu_row(const float* gate, const float* up, int64_t n, float limit, X* y) {
  const Lanes most = splat(limit > 0 ? limit : INFINITY), least = splat(limit > 0 ? -limit : -INFINITY);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Lanes g = min(most, load(gate + i)), u = max(least, min(most, load(up + i)));
    store(mul(silu(g), u), y + i, n - i);
  }
}

// inner[pair, begin .. end) of one expert.
void gate_and_up(const Product& product, const Experts::Spec& s, const Experts::Args& a, const ExpertPlan& p, int64_t e, int64_t begin, int64_t end,
                 std::byte* scratch) {
  const int64_t rows = p.rows(e), first = p.first[e];
  float* gate = reinterpret_cast<float*>(scratch + product_bytes(product, s));
  const bool few = rows <= kDirectRows;
  const int64_t some_rows = few ? rows : kRowsInHand, some_outs = few ? round_up(end - begin, kOutUnit) : kOutsInHand;
  float* up = gate + some_rows * some_outs;
  RowsIn x = rows_of(a.x);
  x.index = p.token + first;
  for (int64_t i = begin; i < end; i += some_outs) {
    const int64_t outs = std::min(some_outs, end - i);
    for (int64_t t = 0; t < rows; t += some_rows) {
      const int64_t n = std::min(some_rows, rows - t);
      for (auto [matrix, to] : {std::pair{&a.experts[e].gate, gate}, {&a.experts[e].up, up}})
        product.run(scratch, x, t, t + n, *matrix, i, i + outs, {reinterpret_cast<std::byte*>(to), DType::f32, 4 * some_outs, t, i});
      for (int64_t r = 0; r < n; ++r) {
        const int64_t at = (first + t + r) * s.inter + i;
        if (s.x == DType::f32) swiglu_row(gate + r * some_outs, up + r * some_outs, outs, s.limit, reinterpret_cast<float*>(p.inner) + at);
        else swiglu_row(gate + r * some_outs, up + r * some_outs, outs, s.limit, reinterpret_cast<Bf16*>(p.inner) + at);
      }
    }
  }
}

// y[t, begin .. end): the ranks in ascending order, then `add`.
template <class Y>
void combine(const Experts::Spec& s, const Experts::Args& a, const ExpertPlan& p, int64_t t, int64_t begin, int64_t end) {
  const float* weights = a.weights.as<float>() + t * s.top_k;
  for (int64_t d = begin; d < end; d += kLanes) {
    Lanes sum = zero();
    for (int64_t r = 0; r < s.top_k; ++r) sum = fma(splat(weights[r]), load(p.out + p.place[t * s.top_k + r] * s.hidden + d, end - d), sum);
    if (a.add) sum = add(sum, load(a.add.as<float>() + t * s.hidden + d, end - d));
    store(sum, a.y.as<Y>() + t * s.hidden + d, end - d);
  }
}

}  // namespace

void experts(const Product& product, Queue& q, Scratch c, const Experts::Spec& s, const Experts::Args& a) {
  const int64_t tokens = a.x.shape[0], workers = q.workers().count(), bytes_each = worker_bytes(product, s);
  if (tokens == 0) return;
  const ExpertPlan p = make_plan(s, a, c);
  q.workers().run(workers, 1, [&](int64_t w, int64_t, int worker) {
    for_share(p, s.experts, s.inter, kOutUnit, workers, w,
              [&](int64_t e, int64_t begin, int64_t end) { gate_and_up(product, s, a, p, e, begin, end, p.workers + worker * bytes_each); });
  });
  q.workers().run(workers, 1, [&](int64_t w, int64_t, int worker) {
    const int64_t row_bytes = bytes_of(s.x, s.inter);
    for_share(p, s.experts, s.hidden, kOutUnit, workers, w, [&](int64_t e, int64_t begin, int64_t end) {
      product.run(p.workers + worker * bytes_each, {p.inner + p.first[e] * row_bytes, s.x, row_bytes}, 0, p.rows(e), a.experts[e].down, begin, end,
                  {reinterpret_cast<std::byte*>(p.out + p.first[e] * s.hidden), DType::f32, 4 * s.hidden});
    });
  });
  constexpr int64_t kColumns = 512;
  const int64_t blocks = ceil_div(s.hidden, kColumns);
  q.workers().run(tokens * blocks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / blocks, d = i % blocks * kColumns, last = std::min(d + kColumns, s.hidden);
      if (s.y == DType::f32) combine<float>(s, a, p, t, d, last);
      else combine<Bf16>(s, a, p, t, d, last);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const Experts::Spec& s) {
  if (!is_f32_or_bf16(s.w) && s.w != DType::e4m3) return "weights only in f32, bf16 and e4m3";
  return is_f32_or_bf16(s.x) && is_f32_or_bf16(s.y) ? nullptr : "rows only in f32 and bf16";
}
const char* why_not_bf16(const Experts::Spec& s) {
  if (s.x != DType::bf16) return "rows only in bf16";
  return s.w != DType::f32 ? why_not(s) : "weights only in bf16 and e4m3";
}

template <const Product& product>
int64_t scratch_bytes(const Experts::Spec& s, const Limits& l) {
  return plan_bytes(s, l.max_rows * s.top_k) + l.workers * worker_bytes(product, s);
}
using Driver = void (*)(const Product&, Queue&, Scratch, const Experts::Spec&, const Experts::Args&);
template <const Product& product, Driver driver>
void run(Queue& q, Scratch c, const Experts::Spec& s, const Experts::Args& a) {
  driver(product, q, c, s, a);
}

template <const Product& p, Isa isa, auto why>
constexpr Kernel<Experts> kernel(std::string_view name) {
  constexpr Driver driver = isa == Isa::avx2 ? N_AVX2::experts : N_AVX3::experts;
  return {.name = name, .why_not = needs<isa, Experts, why>, .scratch_bytes = scratch_bytes<p>, .run = run<p, driver>};
}

}  // namespace

List<Experts> kernels(Experts, Cpu) {
  static constexpr Kernel<Experts> list[] = {
      kernel<tiles_bf16, Isa::amx, why_not_bf16>("experts.cpu_amx"), kernel<dot_bf16, Isa::avx512_bf16, why_not_bf16>("experts.cpu_avx512_bf16"),
      kernel<lanes_avx512, Isa::avx512, why_not>("experts.cpu_avx512"), kernel<lanes_avx2, Isa::avx2, why_not>("experts.cpu_avx2")};
  return list;
}

}  // namespace winnow::ops
#endif
