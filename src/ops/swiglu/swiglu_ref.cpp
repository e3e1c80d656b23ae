#include <algorithm>
#include <cmath>

#include "ops/ref.h"
#include "ops/swiglu/swiglu.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const SwiGlu::Spec& s, const SwiGlu::Args& a) {
  for (int64_t t = 0; t < a.gate.shape[0]; ++t) {
    for (int64_t i = 0; i < s.n; ++i) {
      double gate = ref::get(a.gate, t, i), up = ref::get(a.up, t, i);
      if (s.limit > 0) {
        gate = gate > s.limit ? s.limit : gate;
        up = up > s.limit ? s.limit : up < -s.limit ? -s.limit : up;
      }
      ref::set(a.y, t, i, static_cast<float>(gate / (1 + std::exp(-gate)) * up));
    }
  }
}

}  // namespace

List<SwiGlu> kernels(SwiGlu, Ref) {
  static constexpr Kernel<SwiGlu> list[] = {{.name = "swiglu.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
