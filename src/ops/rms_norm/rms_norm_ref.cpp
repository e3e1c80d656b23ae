#include <cmath>

#include "ops/ref.h"
#include "ops/rms_norm/rms_norm.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const RmsNorm::Spec& s, const RmsNorm::Args& a) {
  for (int64_t t = 0; t < a.x.shape[0]; ++t) {
    double squares = 0;
    for (int64_t d = 0; d < s.hidden; ++d) squares += std::pow(double{ref::get(a.x, t, d)}, 2);
    const double r = 1.0 / std::sqrt(squares / static_cast<double>(s.hidden) + a.eps);
    for (int64_t d = 0; d < s.hidden; ++d) ref::set(a.y, t, d, static_cast<float>(ref::get(a.x, t, d) * r * ref::get(a.w, d)));
  }
}

}  // namespace

List<RmsNorm> kernels(RmsNorm, Ref) {
  static constexpr Kernel<RmsNorm> list[] = {{.name = "rms_norm.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
