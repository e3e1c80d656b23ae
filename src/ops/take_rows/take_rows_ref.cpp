#include "ops/ref.h"
#include "ops/take_rows/take_rows.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const TakeRows::Spec&, const TakeRows::Args& a) {
  const int64_t bytes = bytes_of(a.x.dtype, a.x.stride[0]);
  for (int64_t i = 0; i < a.rows.shape[0]; ++i) {
    const int64_t row = a.rows.as<int32_t>()[i];
    winnow::check(row >= 0 && row < a.x.shape[0], "take_rows: a row is outside the step");
    for (int64_t b = 0; b < bytes; ++b) a.y.data[i * bytes + b] = a.x.data[row * bytes + b];
  }
}

}  // namespace

List<TakeRows> kernels(TakeRows, Ref) {
  static constexpr Kernel<TakeRows> list[] = {{.name = "take_rows.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
