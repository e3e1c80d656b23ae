#include <algorithm>
#include <cmath>

#include "ops/conv/conv.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const Conv::Spec& s, const Conv::Args& a) {
  const int64_t ring_rows = a.ring.shape[1];
  for (int64_t q = 0; q < a.rows.sequences(); ++q) {
    const int64_t first = a.rows.first_row.as<int32_t>()[q], end = a.rows.first_row.as<int32_t>()[q + 1];
    if (first == end) continue;
    const int64_t begin_position = a.rows.position.as<int64_t>()[first], state = a.rows.state.as<int32_t>()[q],
                  source = a.rows.source.as<int32_t>()[q];
    winnow::check(state >= 0 && state < a.ring.shape[0] && source >= 0 && source < a.ring.shape[0], "conv: a state is outside the ring");
    if (source != state && begin_position > 0) ref::copy_record(a.ring, source, state);
    auto in = [&](int64_t p, int64_t c) -> double {
      if (p < 0) return 0;
      return p >= begin_position ? ref::get(a.x, first + p - begin_position, c) : ref::get(a.ring, state, p % ring_rows, c);
    };
    for (int64_t t = first; t < end; ++t) {
      const int64_t p = begin_position + t - first;
      for (int64_t c = 0; c < s.channels; ++c) {
        double sum = 0;
        for (int64_t j = 0; j < s.taps; ++j) sum += ref::get(a.w, c, j) * in(p - s.taps + 1 + j, c);
        ref::set(a.y, t, c, static_cast<float>(sum / (1 + std::exp(-sum))));
      }
    }
    for (int64_t t = std::max(first, end - ring_rows); t < end; ++t)
      for (int64_t c = 0; c < s.channels; ++c) ref::set(a.ring, state, (begin_position + t - first) % ring_rows, c, ref::get(a.x, t, c));
  }
}

}  // namespace

List<Conv> kernels(Conv, Ref) {
  static constexpr Kernel<Conv> list[] = {{.name = "conv.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
