#include <cstring>

#include "ops/take_rows/take_rows.h"

namespace winnow::ops {
namespace {

// By one worker: where y is x, a row may be written only after it was read.
void run(Queue&, Scratch, const TakeRows::Spec&, const TakeRows::Args& a) {
  const int64_t bytes = bytes_of(a.x.dtype, a.x.stride[0]);
  for (int64_t i = 0; i < a.rows.shape[0]; ++i) {
    const int64_t row = a.rows.as<int32_t>()[i];
    winnow::check(row >= 0 && row < a.x.shape[0], "take_rows: a row is outside the step");
    std::memmove(a.y.data + i * bytes, a.x.data + row * bytes, static_cast<size_t>(bytes));
  }
}

}  // namespace

List<TakeRows> kernels(TakeRows, Cpu) {
  static constexpr Kernel<TakeRows> list[] = {{.name = "take_rows.cpu", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
