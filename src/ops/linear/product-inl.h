// y[t, i] = sum over j of x[t, j] * w[i, j] for one worker's rows and outputs, as ops/linear/linear.h defines the order
// of the sum: lane j % 16 in ascending j (with e4m3, in blocks of 128 columns), then a fold of the lanes in halves.
//
// Everything here keeps that order and differs only in what is kept close. Few rows: `direct`, a tile of accumulators
// runs along whole weight rows. Many rows: `panels`, with the accumulators parked in memory between blocks of columns.
#if defined(WINNOW_OPS_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WINNOW_OPS_PRODUCT_INL_H_
#undef WINNOW_OPS_PRODUCT_INL_H_
#else
#define WINNOW_OPS_PRODUCT_INL_H_
#endif

#include "ops/lanes-inl.h"
#include "ops/linear/product.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {

// A tile of 4 x 4 accumulators is half of the registers of AVX-512. With AVX2 a tile holds one half of the lanes and
// runs twice.
constexpr int kTileRows = 4;
constexpr int kTileOuts = kParts == 1 ? 4 : 2;
// Rows of the f32 weights and of the copied rows that stay in the first-level cache while the weights pass.
constexpr int64_t kGroupRows = 12;

template <class W> HWY_INLINE Lanes load_weight(const W* p) { return load(p); }
HWY_INLINE Lanes load_weight(const E4m3* p) { return load_scaled(p); }
template <class W> HWY_INLINE Lanes load_weight(const W* p, int64_t n) { return load(p, n); }
HWY_INLINE Lanes load_weight(const E4m3* p, int64_t n) {
  if (n >= kLanes) return load_scaled(p);
  E4m3 padded[kLanes] = {};
  std::memcpy(padded, p, static_cast<size_t>(n));
  return load_scaled(padded);
}

template <class W> struct Weights {
  static constexpr bool kScaled = std::is_same_v<W, E4m3>;
  const W* data;
  int64_t k;
  const float* scale;
  int64_t scale_stride;
  const W* row(int64_t i) const { return data + i * k; }
  // Of the block of 128 columns at column j, with the power of two that load_weight leaves out.
  float scale_at(int64_t i, int64_t j) const { return scale[i / kFp8Block * scale_stride + j / kFp8Block] * kE4m3Scale; }
};

// ---- rows in, results out

template <class T>
HWY_INLINE void copy_row(const T* from, int64_t n, float* to) {
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) store(load_weight(from + j), to + j);
  if (j < n) store(load_weight(from + j, n - j), to + j);
}
// Columns [first, first + n) of row t as f32, zeros up to a multiple of 16.
inline void copy_row(const RowsIn& x, int64_t t, int64_t first, int64_t n, float* to) {
  if (x.type == DType::f32) copy_row(reinterpret_cast<const float*>(x.row(t)) + first, n, to);
  else copy_row(reinterpret_cast<const Bf16*>(x.row(t)) + first, n, to);
}
HWY_INLINE void put(const RowsOut& y, int64_t t, int64_t i, const Lanes& v, int64_t n) {
  if (y.type == DType::f32) store(v, y.at<float>(t, i), n);
  else store(v, y.at<Bf16>(t, i), n);
}

// ---- the fold

using Part = LaneVec;
// Four vectors of four lanes a block (in each block the lanes of another sum) -> their sums, one lane each.
HWY_INLINE Part fold_blocks(Part a, Part b, Part c, Part d) {
  const LaneTag f;
  const hn::RepartitionToWide<LaneTag> f64;
  auto halves = [&](Part u, Part v) HWY_ATTR {  // lanes i and i + 2
    const auto u2 = hn::BitCast(f64, u), v2 = hn::BitCast(f64, v);
    return hn::Add(hn::BitCast(f, hn::InterleaveLower(f64, u2, v2)), hn::BitCast(f, hn::InterleaveUpper(f64, u2, v2)));
  };
  const Part r = halves(a, c), s = halves(b, d);
  return hn::Add(hn::OddEven(s, r), hn::Shuffle2301(hn::OddEven(r, s)));  // lanes i and i + 1
}
// Blocks 2i and 2i + 1 of a and of b, added: a, b, a, b, ...
HWY_INLINE Part fold_pairs(Part a, Part b) {
  return hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
}
// sums[i] = the fold of the 16 lanes at lanes + 16 i, as sum(Lanes) adds them, i < 16.
HWY_INLINE Lanes fold_16(const float* lanes) {
  const LaneTag f;
  Lanes sums;
  WINNOW_PARTS(p) {
    const float* at = lanes + 16 * kPartLanes * p;
    auto halves = [&](int i) HWY_ATTR {  // lanes l and l + 8; with AVX-512 of the sums i and i + 8
      if constexpr (kParts == 1) {
        const Part a = hn::Load(f, at + 16 * i), b = hn::Load(f, at + 16 * (i + 8));
        return hn::Add(hn::ConcatLowerLower(f, b, a), hn::ConcatUpperUpper(f, b, a));
      } else {
        return hn::Add(hn::Load(f, at + 16 * i), hn::Load(f, at + 16 * i + kPartLanes));
      }
    };
    auto quads = [&](int i) HWY_ATTR { return fold_pairs(halves(i), halves(i + 4)); };
    sums.v[p] = fold_blocks(quads(0), quads(1), quads(2), quads(3));
  }
  return sums;
}

// ---- few rows

constexpr int64_t kPrefetchBytes = 1024;
HWY_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// Adds columns [begin, end) of R rows times O weight rows into `acc`.
template <int R, int O, class W>
HWY_INLINE void add_columns(Lanes (&acc)[R][O], const float* x, int64_t x_stride, const W* const (&w)[O], int64_t begin, int64_t end) {
  int64_t j = begin;
  for (; j + kLanes <= end; j += kLanes) {
    Lanes v[O];
    for (int o = 0; o < O; ++o) {
      prefetch(reinterpret_cast<const std::byte*>(w[o] + j) + kPrefetchBytes);
      v[o] = load_weight(w[o] + j);
    }
    for (int r = 0; r < R; ++r) {
      const Lanes xr = load(x + r * x_stride + j);
      for (int o = 0; o < O; ++o) acc[r][o] = fma(xr, v[o], acc[r][o]);
    }
  }
  if (j == end) return;
  for (int o = 0; o < O; ++o) {
    const Lanes v = load_weight(w[o] + j, end - j);
    for (int r = 0; r < R; ++r) acc[r][o] = fma(load(x + r * x_stride + j), v, acc[r][o]);
  }
}

template <int R, int O, class W>
HWY_INLINE void direct_tile(const float* x, int64_t x_stride, const Weights<W>& w, int64_t first, int64_t last, float* out) {
  const W* rows[O];
  for (int o = 0; o < O; ++o) rows[o] = w.row(std::min(first + o, last));
  Lanes acc[R][O];
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < O; ++o) acc[r][o] = zero();
  if constexpr (Weights<W>::kScaled) {
    for (int64_t j = 0; j < w.k; j += kFp8Block) {
      Lanes block[R][O];
      for (int r = 0; r < R; ++r)
        for (int o = 0; o < O; ++o) block[r][o] = zero();
      add_columns(block, x, x_stride, rows, j, std::min(j + kFp8Block, w.k));
      for (int o = 0; o < O; ++o) {
        const Lanes scale = splat(w.scale_at(std::min(first + o, last), j));
        for (int r = 0; r < R; ++r) acc[r][o] = fma(block[r][o], scale, acc[r][o]);
      }
    }
  } else {
    add_columns(acc, x, x_stride, rows, 0, w.k);
  }
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < O; ++o) store(acc[r][o], out + (r * kOutUnit + o) * kLanes);
}

// R rows from t on, outputs [begin, end).
template <int R, class W>
void direct(const ProductScratch& c, const RowsIn& x, int64_t t, const Weights<W>& w, int64_t begin, int64_t end, const RowsOut& y) {
  const int64_t stride = round_up(w.k, kLanes);
  for (int r = 0; r < R; ++r) copy_row(x, t + r, 0, w.k, c.rows + r * stride);
  HWY_ALIGN float lanes[R * kOutUnit * kLanes];
  for (int64_t i = begin; i < end; i += kOutUnit) {
    const int64_t n = std::min(kOutUnit, end - i);
    for (int64_t o = 0; o < n; o += kTileOuts) direct_tile<R, kTileOuts>(c.rows, stride, w, i + o, end - 1, lanes + o * kLanes);
    for (int r = 0; r < R; ++r) put(y, t + r, i, fold_16(lanes + r * kOutUnit * kLanes), n);
  }
}

// ---- many rows

// Cache lines to ask for while something else is computed: `rows` rows of `lines` lines, `stride_bytes` apart.
struct Ahead {
  const std::byte* data = nullptr;
  int64_t stride_bytes = 0, lines = 0, count = 0, at = 0;
  void next(int64_t n) {
    for (; n > 0 && at < count; --n, ++at) prefetch_l2(data + at / lines * stride_bytes + at % lines * 64);
  }
  static void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }
};

// What the rows of a panel are multiplied with: outputs [first, first + outs), columns [column, column + columns).
struct Panel {
  int64_t first, outs, column, columns;
};

// Four rows times kTileOuts outputs over the columns of a panel, into accumulators [row, kPanelOuts, 16].
// scale: [kTileOuts, kPanelColumns / 128] for blocks of 128 columns; null: one sum over all columns.
template <bool kScaled>
HWY_INLINE void panel_tile(const float* x, const float* w, int64_t columns, const float* scale, float* acc) {
  const LaneTag f;
  constexpr int64_t kRowStride = kPanelOuts * kLanes;
  WINNOW_PARTS(p) {
    const float* xp = x + p * kPartLanes;
    const float* wp = w + p * kPartLanes;
    float* ap = acc + p * kPartLanes;
    const int64_t step = kScaled ? kFp8Block : columns;
    for (int64_t first = 0; first < columns; first += step) {
      Part s[kTileRows][kTileOuts];
      for (int r = 0; r < kTileRows; ++r)
        for (int o = 0; o < kTileOuts; ++o) s[r][o] = kScaled ? hn::Zero(f) : hn::Load(f, ap + r * kRowStride + o * kLanes);
      const int64_t end = std::min(first + step, columns);
      for (int64_t j = first; j < end; j += kLanes) {
        Part v[kTileOuts];
        for (int o = 0; o < kTileOuts; ++o) v[o] = hn::Load(f, wp + o * kPanelColumns + j);
        for (int r = 0; r < kTileRows; ++r) {
          const Part xr = hn::Load(f, xp + r * kPanelColumns + j);
          for (int o = 0; o < kTileOuts; ++o) s[r][o] = hn::MulAdd(xr, v[o], s[r][o]);
        }
      }
      for (int r = 0; r < kTileRows; ++r) {
        for (int o = 0; o < kTileOuts; ++o) {
          float* to = ap + r * kRowStride + o * kLanes;
          if constexpr (kScaled)
            s[r][o] = hn::MulAdd(s[r][o], hn::Set(f, scale[o * (kPanelColumns / kFp8Block) + first / kFp8Block]), hn::Load(f, to));
          hn::Store(s[r][o], f, to);
        }
      }
    }
  }
}

template <class W>
void multiply_panel(const ProductScratch& c, const Weights<W>& w, const Panel& p, int64_t rows, Ahead& ahead) {
  constexpr int64_t kBlocks = kPanelColumns / kFp8Block;
  float scale[kPanelOuts * kBlocks] = {};
  if constexpr (Weights<W>::kScaled)
    for (int64_t o = 0; o < p.outs; ++o)
      for (int64_t b = 0; b < ceil_div(p.columns, kFp8Block); ++b) scale[o * kBlocks + b] = w.scale_at(p.first + o, p.column + b * kFp8Block);
  const int64_t columns = round_up(p.columns, kLanes), outs = round_up(p.outs, kTileOuts);
  const int64_t tiles = ceil_div(rows, kTileRows) * (outs / kTileOuts);
  const int64_t lines = ceil_div(ahead.count, tiles);
  for (int64_t group = 0; group < rows; group += kGroupRows)
    for (int64_t o = 0; o < outs; o += kTileOuts)
      for (int64_t t = group; t < std::min(group + kGroupRows, rows); t += kTileRows) {
        ahead.next(lines);
        panel_tile<Weights<W>::kScaled>(c.rows + t * kPanelColumns, c.weights + o * kPanelColumns, columns, scale + o * kBlocks,
                                        c.accumulators + (t * kPanelOuts + o) * kLanes);
      }
}

// Copies rows of the panel's columns to f32, rows of zeros up to a whole tile.
inline void copy_rows(const RowsIn& x, int64_t t, int64_t rows, const Panel& p, float* to) {
  for (int64_t r = 0; r < rows; ++r) copy_row(x, t + r, p.column, p.columns, to + r * kPanelColumns);
  for (int64_t r = rows; r < round_up(rows, kTileRows); ++r) std::memset(to + r * kPanelColumns, 0, sizeof(float) * kPanelColumns);
}
template <class W>
void widen(const Weights<W>& w, const Panel& p, float* to) {
  for (int64_t o = 0; o < p.outs; ++o) copy_row(w.row(p.first + o) + p.column, p.columns, to + o * kPanelColumns);
  for (int64_t o = p.outs; o < round_up(p.outs, kTileOuts); ++o) std::memset(to + o * kPanelColumns, 0, sizeof(float) * kPanelColumns);
}
// The weights that follow panel p: the next columns, or the first ones of the next outputs.
template <class W>
Ahead after(const Weights<W>& w, const Panel& p, int64_t end) {
  const bool same_outs = p.column + kPanelColumns < w.k;
  const int64_t first = same_outs ? p.first : p.first + p.outs, column = same_outs ? p.column + kPanelColumns : 0;
  const int64_t outs = same_outs ? p.outs : std::min(kPanelOuts, end - first);
  if (outs <= 0) return {};
  const int64_t lines = ceil_div(std::min(kPanelColumns, w.k - column) * static_cast<int64_t>(sizeof(W)), 64);
  return {reinterpret_cast<const std::byte*>(w.row(first) + column), w.k * static_cast<int64_t>(sizeof(W)), lines, lines * outs, 0};
}

template <class W>
void panels(const ProductScratch& c, const RowsIn& x, int64_t t0, int64_t t1, const Weights<W>& w, int64_t begin, int64_t end, const RowsOut& y) {
  for (int64_t first = begin; first < end; first += kPanelOuts) {
    for (int64_t t = t0; t < t1; t += kPanelRows) {
      const int64_t rows = std::min(kPanelRows, t1 - t), outs = std::min(kPanelOuts, end - first);
      std::memset(c.accumulators, 0, sizeof(float) * static_cast<size_t>(round_up(rows, kTileRows) * kPanelOuts * kLanes));
      for (int64_t column = 0; column < w.k; column += kPanelColumns) {
        const Panel p{first, outs, column, std::min(kPanelColumns, w.k - column)};
        widen(w, p, c.weights);
        copy_rows(x, t, rows, p, c.rows);
        Ahead ahead = after(w, p, end);
        multiply_panel(c, w, p, rows, ahead);
      }
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t o = 0; o < outs; o += kOutUnit)
          put(y, t + r, first + o, fold_16(c.accumulators + (r * kPanelOuts + o) * kLanes), std::min(kOutUnit, outs - o));
    }
  }
}

// ---- one worker's product: rows [t0, t1), outputs [begin, end)

template <class W>
void product(const ProductScratch& c, const RowsIn& x, int64_t t0, int64_t t1, const Weights<W>& w, int64_t begin, int64_t end, const RowsOut& y) {
  constexpr int64_t kDirect = kParts == 1 ? kDirectRows : kDirectRows / 2;
  static_assert(kDirect <= 4);
  switch (t1 - t0 <= kDirect ? t1 - t0 : 0) {
    case 1: return direct<1>(c, x, t0, w, begin, end, y);
    case 2: return direct<2>(c, x, t0, w, begin, end, y);
    case 3: if constexpr (kDirect > 2) return direct<3>(c, x, t0, w, begin, end, y); break;
    case 4: if constexpr (kDirect > 2) return direct<4>(c, x, t0, w, begin, end, y); break;
    default: return panels(c, x, t0, t1, w, begin, end, y);
  }
}
inline void product(const ProductScratch& c, const RowsIn& x, int64_t t0, int64_t t1, const Matrix& w, int64_t begin, int64_t end, const RowsOut& y) {
  const int64_t k = w.data.shape[1];
  switch (w.data.dtype) {
    case DType::f32: return product(c, x, t0, t1, Weights<float>{w.data.as<float>(), k, nullptr, 0}, begin, end, y);
    case DType::bf16: return product(c, x, t0, t1, Weights<Bf16>{w.data.as<Bf16>(), k, nullptr, 0}, begin, end, y);
    default: return product(c, x, t0, t1, Weights<E4m3>{w.data.as<E4m3>(), k, w.scale.as<float>(), w.scale.stride[0]}, begin, end, y);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#endif  // include guard
