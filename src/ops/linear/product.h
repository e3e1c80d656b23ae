// The products behind linear, head_linear and experts: y[t, i] = sum over j of x[t, j] * w[i, j] for one worker's rows
// and outputs, in one of the arithmetics that the CPU has, and the split of the work over workers.
//
// A Product is one arithmetic: one order of the sum, whatever the number of rows. `lanes` is that of the contract and has
// the same bits with AVX2 and AVX-512; `dot` (AVX-512-BF16) and `tiles` (AMX) take only bf16 rows.
#pragma once

#include <algorithm>
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
  T* at(int64_t t, int64_t i) const {
    return reinterpret_cast<T*>(data + (t - first_row) * stride_bytes) + (i - first_out);
  }
};
inline RowsIn rows_of(In v) { return {v.data, v.dtype, bytes_of(v.dtype, v.stride[0])}; }
inline RowsOut rows_of(Out v) { return {v.data, v.dtype, bytes_of(v.dtype, v.stride[0])}; }

inline constexpr int64_t kOutUnit = 16;    // outputs are split between workers in units of this many
inline constexpr int64_t kDirectRows = 4;  // so few rows are split over workers by outputs only

struct Product {
  int64_t (*scratch_bytes)(int64_t k);  // of one worker, a multiple of 64
  // Rows [t0, t1), outputs [begin, end); begin is a multiple of kOutUnit.
  void (*run)(std::byte* scratch, const RowsIn& x, int64_t t0, int64_t t1, const Matrix& w, int64_t begin, int64_t end, const RowsOut& y);
};
extern const Product lanes_avx512, lanes_avx2, dot_bf16, tiles_bf16;

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
    if (r == 1 || cost < best_cost) {
      best = g;
      best_cost = cost;
    }
  }
  return best;
}
// Part p of n items cut into `parts` at multiples of `unit`.
struct Range {
  int64_t begin, end;
};
inline Range part_of(int64_t n, int64_t unit, int64_t parts, int64_t p) {
  const int64_t units = ceil_div(n, unit);
  return {std::min(n, units * p / parts * unit), std::min(n, units * (p + 1) / parts * unit)};
}

}  // namespace winnow::ops
