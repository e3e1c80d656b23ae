#include "ops/linear/linear.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const Linear::Spec& s, const Linear::Args& a) {
  for (int64_t t = 0; t < a.x.shape[0]; ++t) {
    for (int64_t i = 0; i < s.n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < s.k; ++j) sum += double{ref::get(a.x, t, j)} * ref::get(a.w, i, j);
      ref::set(a.y, t, i, static_cast<float>(sum));
    }
  }
}

void run_heads(Queue&, Scratch, const HeadLinear::Spec& s, const HeadLinear::Args& a) {
  for (int64_t t = 0; t < a.x.shape[0]; ++t) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t i = 0; i < s.n; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < s.k; ++j) sum += double{ref::get(a.x, t, h, j)} * ref::get(a.w, h, i, j);
        ref::set(a.y, t, h, i, static_cast<float>(sum));
      }
    }
  }
}

}  // namespace

List<Linear> kernels(Linear, Ref) {
  static constexpr Kernel<Linear> list[] = {{.name = "linear.ref", .why_not = always, .run = run}};
  return list;
}
List<HeadLinear> kernels(HeadLinear, Ref) {
  static constexpr Kernel<HeadLinear> list[] = {{.name = "head_linear.ref", .why_not = always, .run = run_heads}};
  return list;
}

}  // namespace winnow::ops
