#include <cmath>

#include "ops/finite/finite.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const Finite::Spec& s, const Finite::Args& a) {
  for (int64_t t = 0; t < a.x.shape[0]; ++t)
    for (int64_t i = 0; i < s.n; ++i)
      if (!std::isfinite(ref::get(a.x, t, i))) flag_row(a.bad, t);
}

}  // namespace

List<Finite> kernels(Finite, Ref) {
  static constexpr Kernel<Finite> list[] = {{.name = "finite.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
