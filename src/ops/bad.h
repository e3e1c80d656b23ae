// The flags of a step's rows, i32 [tokens]: 1 where something that the row computed is NaN or infinite. The model zeroes them once a
// step and hands them, as the last operand `bad`, to the ops after which a bad value may no longer show in the residual streams: those
// that store for later steps, and those that choose by comparing, where NaN ranks last. Ops only ever set a flag. An empty view: nobody asks.
#pragma once

#include <atomic>

#include "base/finite.h"
#include "ops/op.h"

namespace winnow::ops {

// Several workers may flag one row.
inline void flag_row(const Out& bad, int64_t row) {
  if (bad) std::atomic_ref(bad.as<int32_t>()[row]).store(1, std::memory_order_relaxed);
}

inline void expect_flags(const Out& bad, int64_t tokens) {
  if (bad) expect("bad", bad, DType::i32, {tokens});
}

}  // namespace winnow::ops
