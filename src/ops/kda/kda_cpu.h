// What the CPU kernels of kda share: one head of one sequence in a step, and a worker's scratch.
#pragma once

#include <algorithm>
#include <utility>

#include "ops/kda/kda.h"

namespace winnow::ops {

// Sub-block of the chunked form, and the most rows that a pass over S folds or applies.
inline constexpr int64_t kKdaBlock = 16;
static_assert(kKdaGroup <= kKdaBlock && kChunkGrid % kKdaBlock == 0);

// Pointers are to this head of the sequence's first row, or of its record.
struct KdaHead {
  const float *q, *k, *g, *v, *beta;
  float *o, *state, *ring_k, *ring_g, *ring_u;
  const float *from_state, *from_k, *from_g, *from_u;  // of the record that is read
  int64_t heads, key_dim, value_dim, ring_rows;
  int64_t position, count, folded, folded_after;
  bool decode, chunked;
  Out bad;           // the step's flags
  int64_t last_row;  // of the sequence in the step

  int64_t key_row(int64_t row) const { return row * heads * key_dim; }  // offset of a step's row or a ring's row
  int64_t value_row(int64_t row) const { return row * heads * value_dim; }
  int64_t ring_key(int64_t t) const { return key_row(t % ring_rows); }
  int64_t ring_value(int64_t t) const { return value_row(t % ring_rows); }
};

// One worker's scratch, for a head at a time. Rows are padded to whole vectors, the padding is zero.
struct KdaScratch {
  int64_t key_pad, value_pad;   // padded key_dim, value_dim
  float* k;                     // [kKdaBlock, key_pad] rows of the group
  float* g;                     // [kKdaBlock, key_pad] their cumulative gates
  float *weight, *weight_fold;  // [kKdaBlock, key_pad] what a fold multiplies u with: e^(G_e - G_s) * k_s
  float *decay, *decay_fold;    // [key_pad] e^G_e
  float* a;                     // [2 * kKdaBlock, key_pad] what S is applied to: e^G * k and e^G * q of each row
  float *u, *u_fold;            // [kKdaBlock, value_pad] rows of the group; of the one before, which waits to be folded
  float* seen;                  // [2 * kKdaBlock, value_pad] S^T a
  float* dots;                  // [2, kKdaBlock, kKdaBlock] of k and of q with the group's k
  float* state;                 // [key_dim, value_dim] a fold that is not written

  static int64_t pad(int64_t n) { return round_up(n, 16); }
  static int64_t floats(const Kda::Spec& s) {
    return kKdaBlock * (6 * pad(s.key_dim) + 4 * pad(s.value_dim)) + 2 * pad(s.key_dim) + 2 * kKdaBlock * kKdaBlock + pad(s.key_dim * s.value_dim);
  }
  KdaScratch(const Kda::Spec& s, float* p) : key_pad(pad(s.key_dim)), value_pad(pad(s.value_dim)) {
    const auto take = [&p](int64_t n) { return std::exchange(p, p + n); };
    k = take(kKdaBlock * key_pad);
    g = take(kKdaBlock * key_pad);
    weight = take(kKdaBlock * key_pad);
    weight_fold = take(kKdaBlock * key_pad);
    decay = take(key_pad);
    decay_fold = take(key_pad);
    a = take(2 * kKdaBlock * key_pad);
    u = take(kKdaBlock * value_pad);
    u_fold = take(kKdaBlock * value_pad);
    seen = take(2 * kKdaBlock * value_pad);
    dots = take(2 * kKdaBlock * kKdaBlock);
    state = take(pad(s.key_dim * s.value_dim));
  }
  void swap_fold() {
    std::swap(weight, weight_fold);
    std::swap(decay, decay_fold);
    std::swap(u, u_fold);
  }
};

}  // namespace winnow::ops
