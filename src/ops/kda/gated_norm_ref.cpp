#include <cmath>

#include "ops/kda/kda.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const GatedNorm::Spec& s, const GatedNorm::Args& a) {
  for (int64_t t = 0; t < a.o.shape[0]; ++t) {
    for (int64_t h = 0; h < s.heads; ++h) {
      double squares = 0;
      for (int64_t d = 0; d < s.dim; ++d) squares += std::pow(double{ref::get(a.o, t, h, d)}, 2);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(s.dim) + a.eps);
      for (int64_t d = 0; d < s.dim; ++d) {
        const double gate = 1 / (1 + std::exp(-double{ref::get(a.z, t, h, d)}));
        ref::set(a.y, t, h, d, static_cast<float>(ref::get(a.o, t, h, d) * scale * ref::get(a.w, d) * gate));
      }
    }
  }
}

}  // namespace

List<GatedNorm> kernels(GatedNorm, Ref) {
  static constexpr Kernel<GatedNorm> list[] = {{.name = "gated_norm.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
