#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/linear/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/linear_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/linear/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {

void linear(Queue& q, Scratch c, const Linear::Spec& s, const Linear::Args& a) {
  const int64_t rows = a.x.shape[0];
  if (rows == 0) return;
  const Grid g = choose_grid(q.workers().count(), rows, s.n);
  q.workers().run(g.tiles(), 1, [&](int64_t begin, int64_t end, int worker) {
    const ProductScratch mine = product_scratch(c.data + worker * product_scratch_bytes(s.k), s.k);
    for (int64_t tile = begin; tile < end; ++tile) {
      const Range t = part_of(rows, kDirectRows, g.row_parts, tile / g.out_parts);
      const Range i = part_of(s.n, kOutUnit, g.out_parts, tile % g.out_parts);
      product(mine, rows_of(a.x), t.begin, t.end, a.w, i.begin, i.end, rows_of(a.y));
    }
  });
}

// Outputs of all heads, each head's rounded up to units, are one long dimension to split.
void head_linear(Queue& q, Scratch c, const HeadLinear::Spec& s, const HeadLinear::Args& a) {
  const int64_t rows = a.x.shape[0], units = ceil_div(s.n, kOutUnit);
  if (rows == 0) return;
  const int64_t x_bytes = bytes_of(s.x, s.k), y_bytes = bytes_of(s.y, s.n), w_bytes = bytes_of(s.w, s.n * s.k);
  q.workers().run(s.heads * units, 1, [&](int64_t begin, int64_t end, int worker) {
    const ProductScratch mine = product_scratch(c.data + worker * product_scratch_bytes(s.k), s.k);
    for (int64_t h = begin / units; h * units < end; ++h) {
      const int64_t first = std::max(begin - h * units, int64_t{0}) * kOutUnit;
      const int64_t last = std::min(std::min(end - h * units, units) * kOutUnit, s.n);
      const Matrix w{{a.w.data + h * w_bytes, s.w, {s.n, s.k}}, {}};
      product(mine, {a.x.data + h * x_bytes, s.x, s.heads * x_bytes}, 0, rows, w, first, last, {a.y.data + h * y_bytes, s.y, s.heads * y_bytes});
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const Linear::Spec& s) {
  if (!is_f32_or_bf16(s.w) && s.w != DType::e4m3) return "weights only in f32, bf16 and e4m3";
  return is_f32_or_bf16(s.x) && is_f32_or_bf16(s.y) ? nullptr : "rows only in f32 and bf16";
}
const char* why_not_heads(const HeadLinear::Spec& s) {
  return is_f32_or_bf16(s.w) && is_f32_or_bf16(s.x) && is_f32_or_bf16(s.y) ? nullptr : "only f32 and bf16";
}
int64_t scratch_bytes(const auto& s, const Limits& l) { return l.workers * product_scratch_bytes(s.k); }

}  // namespace

List<Linear> kernels(Linear, Cpu) {
  static constexpr Kernel<Linear> list[] = {
      {.name = "linear.cpu_avx512", .why_not = needs<Isa::avx512, Linear, why_not>, .scratch_bytes = scratch_bytes, .run = N_AVX3::linear},
      {.name = "linear.cpu_avx2", .why_not = needs<Isa::avx2, Linear, why_not>, .scratch_bytes = scratch_bytes, .run = N_AVX2::linear}};
  return list;
}
List<HeadLinear> kernels(HeadLinear, Cpu) {
  static constexpr Kernel<HeadLinear> list[] = {
      {.name = "head_linear.cpu_avx512", .why_not = needs<Isa::avx512, HeadLinear, why_not_heads>, .scratch_bytes = scratch_bytes, .run = N_AVX3::head_linear},
      {.name = "head_linear.cpu_avx2", .why_not = needs<Isa::avx2, HeadLinear, why_not_heads>, .scratch_bytes = scratch_bytes, .run = N_AVX2::head_linear}};
  return list;
}

}  // namespace winnow::ops
#endif
