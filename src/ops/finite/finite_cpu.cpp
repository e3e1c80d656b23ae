#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/finite/finite.h"

namespace winnow::ops {
namespace {

void run(Queue& q, Scratch, const Finite::Spec& s, const Finite::Args& a) {
  const int64_t row = bytes_of(s.x, s.n);
  q.workers().run(a.x.shape[0], 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t)
      if (!all_finite(s.x, a.x.data + t * row, s.n)) flag_row(a.bad, t);
  });
}

const char* why_not(const Caps&, const Finite::Spec& s) { return is_f32_or_bf16(s.x) ? nullptr : "only f32 and bf16"; }

}  // namespace

List<Finite> kernels(Finite, Cpu) {
  static constexpr Kernel<Finite> list[] = {{.name = "finite.cpu", .why_not = why_not, .run = run}};
  return list;
}

}  // namespace winnow::ops
