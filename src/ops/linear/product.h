// What the products of linear, head_linear and experts share outside the instruction sets: how rows come and go, the
// sizes of the blocks, the scratch of one worker, and the split over workers.
//
// None of the sizes changes a result: they say in which order whole sums are computed, never how one is added up.
#pragma once

#include <cstddef>

#include "ops/op.h"

namespace winnow::ops {

// Row t of the input is at data + (index ? index[t] : t) * stride_bytes.
struct RowsIn {
  const std::byte* data;
  DType type;  // f32 or bf16
  int64_t stride_bytes;
  const int32_t* index = nullptr;
  const std::byte* row(int64_t t) const { return data + (index ? index[t] : t) * stride_bytes; }
};
// Output i of row t is at data + (t - first_row) * stride_bytes, (i - first_out) elements in.
struct RowsOut {
  std::byte* data;
  DType type;  // f32 or bf16
  int64_t stride_bytes;
  int64_t first_row = 0, first_out = 0;
  template <class T>
  T* at(int64_t t, int64_t i) const { return reinterpret_cast<T*>(data + (t - first_row) * stride_bytes) + (i - first_out); }
};
inline RowsIn rows_of(In v) { return {v.data, v.dtype, bytes_of(v.dtype, v.stride[0])}; }
inline RowsOut rows_of(Out v) { return {v.data, v.dtype, bytes_of(v.dtype, v.stride[0])}; }

// Up to kDirectRows rows read the weights straight from memory. More rows, kBlockRows at a time, go through panels: the
// rows' f32 copies of kPanelColumns columns and the accumulators (16 lanes a result) of kPanelOuts outputs share a
// second-level cache; the weights of kGroupOuts outputs, widened to f32 once for all rows of the block, stay in the first.
inline constexpr int64_t kDirectRows = 4;
inline constexpr int64_t kBlockRows = 72, kPanelOuts = 64, kPanelColumns = 512, kGroupOuts = 8;
inline constexpr int64_t kOutUnit = 16;  // outputs are split between workers, and folded, in units of this many

// One worker's part of the scratch.
struct ProductScratch {
  float* rows;          // [kBlockRows, k] f32 copies of rows
  float* weights;       // [kGroupOuts, kPanelColumns]
  float* accumulators;  // [kBlockRows, kPanelOuts, 16]
};
inline int64_t product_scratch_bytes(int64_t k) {
  return 4 * (kBlockRows * round_up(k, 16) + kGroupOuts * kPanelColumns + kBlockRows * kPanelOuts * 16);
}
inline ProductScratch product_scratch(std::byte* base, int64_t k) {
  float* rows = reinterpret_cast<float*>(base);
  float* weights = rows + kBlockRows * round_up(k, 16);
  return {rows, weights, weights + kGroupOuts * kPanelColumns};
}

// A grid of at most `workers` tiles over rows and outputs.
struct Grid {
  int64_t row_parts = 1, out_parts = 1;
  int64_t tiles() const { return row_parts * out_parts; }
};
// The grid whose largest tile costs least. Splitting outputs makes each worker read all rows, splitting rows makes each
// worker read all weights; the weights of `few` rows are never read twice.
inline Grid choose_grid(int64_t workers, int64_t rows, int64_t outs) {
  Grid best;
  double best_cost = 0;
  for (int64_t r = 1; r <= workers && (r == 1 || rows >= r * 2 * kDirectRows); ++r) {
    const Grid g{r, std::max<int64_t>(1, std::min(workers / r, ceil_div(outs, kOutUnit)))};
    const double tile_rows = static_cast<double>(ceil_div(rows, g.row_parts));
    const double tile_outs = static_cast<double>(ceil_div(ceil_div(outs, kOutUnit), g.out_parts) * kOutUnit);
    const double cost = tile_rows * tile_outs + 8 * tile_outs + 4 * tile_rows;
    if (r == 1 || cost < best_cost) { best = g; best_cost = cost; }
  }
  return best;
}
// Part p of n items cut into `parts` at multiples of `unit`.
struct Range { int64_t begin, end; };
inline Range part_of(int64_t n, int64_t unit, int64_t parts, int64_t p) {
  const int64_t units = ceil_div(n, unit);
  return {std::min(n, units * p / parts * unit), std::min(n, units * (p + 1) / parts * unit)};
}

}  // namespace winnow::ops
