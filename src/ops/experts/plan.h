// Which rows go to which expert, in one step. Shared by the kernels of experts; lives in their scratch.
//
// A pair is one (token, rank); pairs are numbered token * top_k + rank and sorted by expert, ties by number, so a step's
// plan is a function of its ids alone. Thread: made by the caller of run() before the workers start, then only read.
#pragma once

#include <algorithm>
#include <utility>

#include "ops/experts/experts.h"
#include "ops/linear/product.h"

namespace winnow::ops {

struct ExpertPlan {
  int64_t pairs;
  int32_t* first;      // [experts + 1] expert e has the sorted pairs [first[e], first[e + 1])
  int32_t* token;      // [pairs] by sorted place
  int32_t* place;      // [pairs] by pair number: its sorted place
  std::byte* inner;    // [pairs, inter] of the type of x, by sorted place: swiglu(gate, up)
  float* out;          // [pairs, hidden] by sorted place
  std::byte* workers;  // [workers] of worker_bytes each

  int64_t rows(int64_t e) const { return first[e + 1] - first[e]; }
};

inline int64_t plan_bytes(const Experts::Spec& s, int64_t pairs) {
  return round_up(4 * (s.experts + 1), 64) + 2 * round_up(4 * pairs, 64) + round_up(bytes_of(s.x, pairs * s.inter), 64) +
         round_up(4 * pairs * s.hidden, 64);
}

// One worker's part of the scratch: that of its products, then the gate and up results of the rows and outputs in hand.
// Few rows keep all outputs in hand, so that a product sees them in one call; more rows some of each.
inline constexpr int64_t kRowsInHand = 72, kOutsInHand = 64;
inline int64_t product_bytes(const Product& product, const Experts::Spec& s) { return product.scratch_bytes(std::max(s.hidden, s.inter)); }
inline int64_t worker_bytes(const Product& product, const Experts::Spec& s) {
  return product_bytes(product, s) + 2 * 4 * std::max(kDirectRows * round_up(s.inter, kOutUnit), kRowsInHand * kOutsInHand);
}

inline ExpertPlan make_plan(const Experts::Spec& s, const Experts::Args& a, Scratch c) {
  ExpertPlan p{};
  p.pairs = a.x.shape[0] * s.top_k;
  std::byte* at = c.data;
  auto take = [&](int64_t bytes) { return std::exchange(at, at + round_up(bytes, 64)); };
  p.first = reinterpret_cast<int32_t*>(take(4 * (s.experts + 1)));
  p.token = reinterpret_cast<int32_t*>(take(4 * p.pairs));
  p.place = reinterpret_cast<int32_t*>(take(4 * p.pairs));
  p.inner = take(bytes_of(s.x, p.pairs * s.inter));
  p.out = reinterpret_cast<float*>(take(4 * p.pairs * s.hidden));
  p.workers = at;

  const int32_t* ids = a.ids.as<int32_t>();
  std::fill(p.first, p.first + s.experts + 1, 0);
  for (int64_t i = 0; i < p.pairs; ++i) {
    check(ids[i] >= 0 && ids[i] < s.experts, "experts: an id is out of range");
    ++p.first[ids[i] + 1];
  }
  for (int64_t e = 0; e < s.experts; ++e) p.first[e + 1] += p.first[e];
  for (int64_t i = 0; i < p.pairs; ++i) {  // first[e] runs to the end of e, which is the start of e + 1
    p.place[i] = p.first[ids[i]]++;
    p.token[p.place[i]] = static_cast<int32_t>(i / s.top_k);
  }
  for (int64_t e = s.experts; e > 0; --e) p.first[e] = p.first[e - 1];
  p.first[0] = 0;
  return p;
}

// fn(expert, begin, end) for worker w's share of the outputs [0, n) of every expert that has rows, in units of `unit`.
// A unit costs what its weights and its rows cost: with few rows the weights' bytes, later the products.
template <class F>
void for_share(const ExpertPlan& p, int64_t experts, int64_t n, int64_t unit, int64_t workers, int64_t w, F&& fn) {
  constexpr int64_t kWeightsCost = 16;  // reading a weight from memory, in multiplications
  const int64_t units = ceil_div(n, unit);
  int64_t total = 0;
  for (int64_t e = 0; e < experts; ++e)
    if (p.rows(e)) total += units * (kWeightsCost + p.rows(e));
  const int64_t begin = total * w / workers, end = total * (w + 1) / workers;
  int64_t before = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (!p.rows(e)) continue;
    const int64_t cost = kWeightsCost + p.rows(e);
    const int64_t first = std::clamp(ceil_div(std::max<int64_t>(begin - before, 0), cost), int64_t{0}, units);
    const int64_t last = std::clamp(ceil_div(std::max<int64_t>(end - before, 0), cost), int64_t{0}, units);
    before += units * cost;
    if (first < last) fn(e, first * unit, std::min(last * unit, n));
  }
}

}  // namespace winnow::ops
