// y[i, ...] = x[rows[i], ...]: the rows of a step that go on where the others have nothing more to give. `rows` ascends, and no row
// comes twice. y may be the first rows of x.
#pragma once

#include "ops/op.h"

namespace winnow::ops {

struct TakeRows {
  static constexpr std::string_view name = "take_rows";
  struct Spec {};  // rows of any type and shape
  struct Args {
    Out y;    // [count, ...]
    In x;     // [tokens, ...]
    In rows;  // [count] int32
  };
  static Writes writes(const Args& a) { return {{"y", a.y}}; }
  static void check(const Spec&, const Args& a) {
    Dim count{"count"};
    expect("rows", a.rows, DType::i32, {count});
    winnow::check(a.y.dtype == a.x.dtype && a.y.rank == a.x.rank && a.y.rank >= 1 && a.y.packed() && a.x.packed(), "take_rows: y and x differ");
    winnow::check(a.y.shape[0] == count.value(), "take_rows: y has another number of rows");
    for (int i = 1; i < a.x.rank; ++i) winnow::check(a.y.shape[i] == a.x.shape[i], "take_rows: rows of y and x differ");
  }
};
List<TakeRows> kernels(TakeRows, Ref);
List<TakeRows> kernels(TakeRows, Cpu);

}  // namespace winnow::ops
