// Depthwise causal convolution and SiLU, streaming:
//   y[t, c] = silu(sum over j < taps of w[c, j] * in(pos(t) - taps + 1 + j, c)),  in(p, c) = 0 for p < 0
// in(p) is row p of the same sequence in x when the step holds it, else the ring row p % ring_rows of its state; then
// the step's last min(count, ring_rows) rows are written to the ring. f32 sum in ascending j.
// A ring row of a position < 0 is never read: a fresh state holds stale bytes. Ring rows are read from the sequence's source
// (rows.h); if that is another record, those that the step did not overwrite are carried over.
#pragma once

#include "ops/rows.h"

namespace winnow::ops {

struct Conv {
  static constexpr std::string_view name = "conv";
  struct Spec {
    DType x, y;
    int64_t channels, taps;
  };  // f32, bf16; the ring has the type of x
  struct Args {
    Out y;     // [tokens, channels]
    Out ring;  // [states, ring_rows, channels], ring_rows >= taps
    In x;      // [tokens, channels]
    In w;      // [channels, taps] f32
    Rows rows;
  };
  static Writes writes(const Args& a) { return {{"y", a.y}, {"ring", a.ring}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"}, states{"states"}, ring_rows{"ring_rows"};
    expect(a.rows);
    tokens.bind(a.rows.tokens());
    expect("x", a.x, s.x, {tokens, s.channels});
    expect("w", a.w, DType::f32, {s.channels, s.taps});
    expect("ring", a.ring, s.x, {states, ring_rows, s.channels});
    winnow::check(ring_rows.value() >= s.taps, "conv: the ring is shorter than the taps");
    expect("y", a.y, s.y, {tokens, s.channels});
  }
};
List<Conv> kernels(Conv, Ref);
List<Conv> kernels(Conv, Cpu);

}  // namespace winnow::ops
