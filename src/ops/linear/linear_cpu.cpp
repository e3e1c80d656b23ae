#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/linear/linear.h"
#include "ops/linear/product.h"

namespace winnow::ops {
namespace {

template <const Product& product>
int64_t scratch_bytes(const auto& s, const Limits& l) {
  return l.workers * product.scratch_bytes(s.k);
}

template <const Product& product>
void linear(Queue& q, Scratch c, const Linear::Spec& s, const Linear::Args& a) {
  const int64_t rows = a.x.shape[0];
  if (rows == 0) return;
  const Grid g = choose_grid(q.workers().count(), rows, s.n);
  q.workers().run(g.tiles(), 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const Range t = part_of(rows, kDirectRows, g.row_parts, tile / g.out_parts);
      const Range i = part_of(s.n, kOutUnit, g.out_parts, tile % g.out_parts);
      product.run(c.data + worker * product.scratch_bytes(s.k), rows_of(a.x), t.begin, t.end, a.w, i.begin, i.end, rows_of(a.y));
    }
  });
}

// Outputs of all heads, each head's rounded up to units, are one long dimension to split.
template <const Product& product>
void head_linear(Queue& q, Scratch c, const HeadLinear::Spec& s, const HeadLinear::Args& a) {
  const int64_t rows = a.x.shape[0], units = ceil_div(s.n, kOutUnit);
  if (rows == 0) return;
  const int64_t x_bytes = bytes_of(s.x, s.k), y_bytes = bytes_of(s.y, s.n), w_bytes = bytes_of(s.w, s.n * s.k);
  q.workers().run(s.heads * units, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t h = begin / units; h * units < end; ++h) {
      const int64_t first = std::max(begin - h * units, int64_t{0}) * kOutUnit;
      const int64_t last = std::min(std::min(end - h * units, units) * kOutUnit, s.n);
      const Matrix w{{a.w.data + h * w_bytes, s.w, {s.n, s.k}}, {}};
      product.run(c.data + worker * product.scratch_bytes(s.k), {a.x.data + h * x_bytes, s.x, s.heads * x_bytes}, 0, rows, w, first, last,
                  {a.y.data + h * y_bytes, s.y, s.heads * y_bytes});
    }
  });
}

const char* why_not(const Linear::Spec& s) {
  if (!is_f32_or_bf16(s.w) && s.w != DType::e4m3) return "weights only in f32, bf16 and e4m3";
  return is_f32_or_bf16(s.x) && is_f32_or_bf16(s.y) ? nullptr : "rows only in f32 and bf16";
}
const char* why_not_bf16(const Linear::Spec& s) {
  if (s.x != DType::bf16) return "rows only in bf16";
  return s.w != DType::f32 ? why_not(s) : "weights only in bf16 and e4m3";
}
const char* why_not_heads(const HeadLinear::Spec& s) {
  return is_f32_or_bf16(s.w) && is_f32_or_bf16(s.x) && is_f32_or_bf16(s.y) ? nullptr : "only f32 and bf16";
}
const char* why_not_heads_bf16(const HeadLinear::Spec& s) {
  return s.x == DType::bf16 && s.w == DType::bf16 ? why_not_heads(s) : "rows and weights only in bf16";
}

template <const Product& p, Isa isa, auto why>
constexpr Kernel<Linear> linear_kernel(std::string_view name) {
  return {.name = name, .why_not = needs<isa, Linear, why>, .scratch_bytes = scratch_bytes<p>, .run = linear<p>};
}
template <const Product& p, Isa isa, auto why>
constexpr Kernel<HeadLinear> head_kernel(std::string_view name) {
  return {.name = name, .why_not = needs<isa, HeadLinear, why>, .scratch_bytes = scratch_bytes<p>, .run = head_linear<p>};
}

}  // namespace

List<Linear> kernels(Linear, Cpu) {
  static constexpr Kernel<Linear> list[] = {linear_kernel<tiles_bf16, Isa::amx, why_not_bf16>("linear.cpu_amx"),
                                            linear_kernel<dot_bf16, Isa::avx512_bf16, why_not_bf16>("linear.cpu_avx512_bf16"),
                                            linear_kernel<lanes_avx512, Isa::avx512, why_not>("linear.cpu_avx512"),
                                            linear_kernel<lanes_avx2, Isa::avx2, why_not>("linear.cpu_avx2")};
  return list;
}
List<HeadLinear> kernels(HeadLinear, Cpu) {
  static constexpr Kernel<HeadLinear> list[] = {head_kernel<tiles_bf16, Isa::amx, why_not_heads_bf16>("head_linear.cpu_amx"),
                                                head_kernel<dot_bf16, Isa::avx512_bf16, why_not_heads_bf16>("head_linear.cpu_avx512_bf16"),
                                                head_kernel<lanes_avx512, Isa::avx512, why_not_heads>("head_linear.cpu_avx512"),
                                                head_kernel<lanes_avx2, Isa::avx2, why_not_heads>("head_linear.cpu_avx2")};
  return list;
}

}  // namespace winnow::ops
