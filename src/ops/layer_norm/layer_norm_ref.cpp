#include <cmath>

#include "ops/layer_norm/layer_norm.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const LayerNorm::Spec& s, const LayerNorm::Args& a) {
  const double n = static_cast<double>(s.hidden);
  for (int64_t t = 0; t < a.x.shape[0]; ++t) {
    double mean = 0, variance = 0;
    for (int64_t d = 0; d < s.hidden; ++d) mean += ref::get(a.x, t, d) / n;
    for (int64_t d = 0; d < s.hidden; ++d) variance += std::pow(ref::get(a.x, t, d) - mean, 2) / n;
    for (int64_t d = 0; d < s.hidden; ++d) {
      const double normal = (ref::get(a.x, t, d) - mean) / std::sqrt(variance + a.eps);
      ref::set(a.y, t, d, static_cast<float>(ref::get(a.w, d) * normal + ref::get(a.b, d)));
    }
  }
}

}  // namespace

List<LayerNorm> kernels(LayerNorm, Ref) {
  static constexpr Kernel<LayerNorm> list[] = {{.name = "layer_norm.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
