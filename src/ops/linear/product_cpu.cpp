// The product in the lanes of the contract (ops/linear/linear.h): lane j % 16 in ascending j, then a fold of the lanes in halves.
//
// Everything here keeps that order and differs only in what is kept close. Few rows: `direct`, a tile of accumulators
// runs along whole weight rows. Many rows: `panels`, with the accumulators parked in memory between blocks of columns.
#include "ops/linear/product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/product_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

// None of these sizes changes a result: they say in which order whole sums are computed, never how one is added up.
// Up to kDirectRows rows read the weights straight from memory. More rows, kBlockRows at a time, go through panels: the
// rows' f32 copies of kPanelColumns columns and the accumulators (16 lanes a result) of kPanelOuts outputs share a
// second-level cache; the weights of kGroupOuts outputs, widened to f32 once for all rows of the block, stay in the first.
constexpr int64_t kBlockRows = 72, kPanelOuts = 64, kPanelColumns = 512, kGroupOuts = 8;

// One worker's part of the scratch.
struct ProductScratch {
  float* rows;          // [kBlockRows, k] f32 copies of rows
  float* weights;       // [kGroupOuts, kPanelColumns]
  float* accumulators;  // [kBlockRows, kPanelOuts, 16]
};
int64_t product_scratch_bytes(int64_t k) { return 4 * (kBlockRows * round_up(k, 16) + kGroupOuts * kPanelColumns + kBlockRows * kPanelOuts * 16); }
ProductScratch product_scratch(std::byte* base, int64_t k) {
  float* rows = reinterpret_cast<float*>(base);
  float* weights = rows + kBlockRows * round_up(k, 16);
  return {rows, weights, weights + kGroupOuts * kPanelColumns};
}

// Outputs of a tile of accumulators in registers. With AVX2 a tile holds one half of the lanes and runs twice.
constexpr int kTileOuts = kParts == 1 ? 4 : 2;

// A weight is its stored value times a scale: f32 and bf16 have none. The scale of e4m3 contains the power of two that
// load_scaled leaves out, so value times scale is rounded once, as the contract has it.
struct NoScale {};
template <class W>
HWY_INLINE Lanes load_weight(const W* p, NoScale) {
  return load(p);
}
template <class W>
HWY_INLINE Lanes load_weight(const W* p, int64_t n, NoScale) {
  return load(p, n);
}
HWY_INLINE Lanes load_weight(const E4m3* p, const Lanes& scale) { return mul(load_scaled(p), scale); }
HWY_INLINE Lanes load_weight(const E4m3* p, int64_t n, const Lanes& scale) {
  if (n >= kLanes) return load_weight(p, scale);
  E4m3 padded[kLanes] = {};
  std::memcpy(padded, p, static_cast<size_t>(n));
  return load_weight(padded, scale);
}

// Weights p[0 .. 16) and p[16 .. 32). One wide step unpacks 32 codes of e4m3.
struct Pair {
  Lanes a, b;
};
template <class W>
HWY_INLINE Pair load_pair(const W* p, NoScale) {
  return {load(p), load(p + kLanes)};
}
HWY_INLINE Pair load_pair(const E4m3* p, const Lanes& scale) {
  const hn::CappedTag<int16_t, 2 * kPartLanes> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  const hn::Half<decltype(d16)> half16;
  const hn::Rebind<hwy::float16_t, decltype(half16)> df16;
  LaneVec v[2 * kParts];
  WINNOW_PARTS(i) {
    const auto code = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p) + i * 2 * kPartLanes));
    const auto half = hn::And(hn::ShiftLeft<7>(code), hn::Set(d16, static_cast<int16_t>(0xBF80)));
    v[2 * i] = hn::PromoteTo(LaneTag(), hn::BitCast(df16, hn::LowerHalf(half16, half)));
    v[2 * i + 1] = hn::PromoteTo(LaneTag(), hn::BitCast(df16, hn::UpperHalf(half16, half)));
  }
  Pair r;
  WINNOW_PARTS(i) {
    r.a.v[i] = hn::Mul(v[i], scale.v[i]);
    r.b.v[i] = hn::Mul(v[kParts + i], scale.v[i]);
  }
  return r;
}

template <class W>
struct Weights {
  static constexpr bool kScaled = std::is_same_v<W, E4m3>;
  const W* data;
  int64_t k;
  const float* scale;
  int64_t scale_stride;
  const W* row(int64_t i) const { return data + i * k; }
  // Of output i's columns [j, j + 128), j a multiple of 128.
  HWY_INLINE auto scale_at(int64_t i, int64_t j) const {
    if constexpr (kScaled) return splat(scale[i / kFp8Block * scale_stride + j / kFp8Block] * kE4m3Scale);
    else return NoScale{};
  }
};

// ---- rows in, results out

// n columns of a row as f32, each 16 of them m * 16 places after the ones before, zeros up to a multiple of 16.
template <int m, class T, class Scale = NoScale>
HWY_INLINE void spread_row(const T* from, int64_t n, float* to, const Scale& scale = {}) {
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    const Pair v = load_pair(from + j, scale);
    store(v.a, to + j * m);
    store(v.b, to + (j + kLanes) * m);
  }
  for (; j + kLanes <= n; j += kLanes) store(load_weight(from + j, scale), to + j * m);
  if (j < n) store(load_weight(from + j, n - j, scale), to + j * m);
}
// Columns [first, first + n) of row t.
template <int m>
void spread_row(const RowsIn& x, int64_t t, int64_t first, int64_t n, float* to) {
  if (x.type == DType::f32) spread_row<m>(reinterpret_cast<const float*>(x.row(t)) + first, n, to);
  else spread_row<m>(reinterpret_cast<const Bf16*>(x.row(t)) + first, n, to);
}
template <int m>
void clear_row(int64_t n, float* to) {
  for (int64_t j = 0; j < n; j += kLanes) store(zero(), to + j * m);
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
HWY_INLINE Part fold_pairs(Part a, Part b) { return hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b))); }
// sums[i] = the fold of the 16 lanes of sum i, as sum(Lanes) adds them, i < 16. A tile's kTileOuts sums lie together,
// tiles are `stride` floats apart.
HWY_INLINE Lanes fold_16(const float* lanes, int64_t stride) {
  const LaneTag f;
  Lanes sums;
  WINNOW_PARTS(p) {
    auto at = [&](int i) HWY_ATTR { return lanes + i / kTileOuts * stride + i % kTileOuts * kLanes; };
    auto halves = [&](int i) HWY_ATTR {  // lanes l and l + 8; with AVX-512 of the sums i and i + 8
      if constexpr (kParts == 1) {
        const Part a = hn::Load(f, at(i)), b = hn::Load(f, at(i + 8));
        return hn::Add(hn::ConcatLowerLower(f, b, a), hn::ConcatUpperUpper(f, b, a));
      } else {
        return hn::Add(hn::Load(f, at(8 * p + i)), hn::Load(f, at(8 * p + i) + kPartLanes));
      }
    };
    auto quads = [&](int i) HWY_ATTR { return fold_pairs(halves(i), halves(i + 4)); };
    sums.v[p] = fold_blocks(quads(0), quads(1), quads(2), quads(3));
  }
  return sums;
}

// ---- few rows

// Adds columns [begin, end) of R rows times O weight rows into `acc`.
template <int R, int O, class W, class Scale>
HWY_INLINE void add_columns(Lanes (&acc)[R][O], const float* x, int64_t x_stride, const W* const (&w)[O], const Scale (&scale)[O], int64_t begin,
                            int64_t end) {
  int64_t j = begin;
  for (; j + 2 * kLanes <= end; j += 2 * kLanes) {
    for (int o = 0; o < O; ++o) {
      const Pair v = load_pair(w[o] + j, scale[o]);
      for (int r = 0; r < R; ++r) acc[r][o] = fma(load(x + r * x_stride + j), v.a, acc[r][o]);
      for (int r = 0; r < R; ++r) acc[r][o] = fma(load(x + r * x_stride + j + kLanes), v.b, acc[r][o]);
    }
  }
  for (; j < end; j += kLanes) {
    for (int o = 0; o < O; ++o) {
      const Lanes v = load_weight(w[o] + j, end - j, scale[o]);
      for (int r = 0; r < R; ++r) acc[r][o] = fma(load(x + r * x_stride + j), v, acc[r][o]);
    }
  }
}

template <int R, int O, class W>
HWY_INLINE void direct_tile(const float* x, int64_t x_stride, const Weights<W>& w, int64_t first, int64_t last, float* out) {
  const W* rows[O];
  for (int o = 0; o < O; ++o) rows[o] = w.row(std::min(first + o, last));
  Lanes acc[R][O];
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < O; ++o) acc[r][o] = zero();
  const int64_t step = Weights<W>::kScaled ? kFp8Block : w.k;
  for (int64_t j = 0; j < w.k; j += step) {
    decltype(w.scale_at(0, 0)) scale[O];
    for (int o = 0; o < O; ++o) scale[o] = w.scale_at(std::min(first + o, last), j);
    add_columns(acc, x, x_stride, rows, scale, j, std::min(j + step, w.k));
  }
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < O; ++o) store(acc[r][o], out + (r * kOutUnit + o) * kLanes);
}

// R rows from t on, outputs [begin, end).
template <int R, class W>
void direct(const ProductScratch& c, const RowsIn& x, int64_t t, const Weights<W>& w, int64_t begin, int64_t end, const RowsOut& y) {
  const int64_t stride = round_up(w.k, kLanes);
  for (int r = 0; r < R; ++r) spread_row<1>(x, t + r, 0, w.k, c.rows + r * stride);
  HWY_ALIGN float lanes[R * kOutUnit * kLanes];
  for (int64_t i = begin; i < end; i += kOutUnit) {
    const int64_t n = std::min(kOutUnit, end - i);
    for (int64_t o = 0; o < n; o += kTileOuts) direct_tile<R, kTileOuts>(c.rows, stride, w, i + o, end - 1, lanes + o * kLanes);
    for (int r = 0; r < R; ++r) put(y, t + r, i, fold_16(lanes + r * kOutUnit * kLanes, kTileOuts * kLanes), n);
  }
}

// ---- many rows

// Outputs [first, first + outs), columns [column, column + columns).
struct Panel {
  int64_t first, outs, column, columns;
};

// The cache lines of a panel's weights, to ask for while something else is computed.
struct Ahead {
  const std::byte* row = nullptr;
  int64_t stride_bytes = 0, lines = 0, rows = 0, line = 0;  // lines a row; rows left; the next line of this row
  void next(int64_t n) {
    for (; n > 0 && rows > 0; --n) {
      __builtin_prefetch(row + line * 64);
      if (++line < lines) continue;
      row += stride_bytes;
      line = 0;
      --rows;
    }
  }
};
template <class W>
Ahead ahead_of(const Weights<W>& w, const Panel& p) {
  const int64_t size = sizeof(W);
  return {reinterpret_cast<const std::byte*>(w.row(p.first) + p.column), w.k * size, ceil_div(p.columns * size, 64), p.outs};
}

// Tiles of R rows and kTileOuts outputs over columns [0, n), n a multiple of 16. Rows and weights lie in the order in which
// they are read: [column / 16, row or output of the tile, 16]; accumulators: [R, kTileOuts, 16].
// Loads are the scarce thing: each operand is loaded once into a register (`pin`), where compilers like to give every
// multiply-add a memory operand of its own.
HWY_INLINE Part pin(Part v) {
  asm("" : "+v"(v.raw));
  return v;
}
template <int R>
HWY_INLINE void add_products(Part (&s)[R][kTileOuts], const float* x, const float* w, int64_t n) {
  const LaneTag f;
  for (int64_t j = 0; j < n; j += kLanes, x += R * kLanes, w += kTileOuts * kLanes) {
    Part v[kTileOuts];
    for (int o = 0; o < kTileOuts; ++o) v[o] = pin(hn::Load(f, w + o * kLanes));
    for (int r = 0; r < R; ++r) {
      const Part xr = pin(hn::Load(f, x + r * kLanes));
      for (int o = 0; o < kTileOuts; ++o) s[r][o] = hn::MulAdd(xr, v[o], s[r][o]);
    }
  }
}
template <int R>
HWY_INLINE void panel_tile(const float* x, const float* w, int64_t columns, float* acc) {
  const LaneTag f;
  WINNOW_PARTS(p) {
    float* to = acc + p * kPartLanes;
    Part s[R][kTileOuts];
    for (int r = 0; r < R; ++r)
      for (int o = 0; o < kTileOuts; ++o) s[r][o] = hn::Load(f, to + (r * kTileOuts + o) * kLanes);
    add_products<R>(s, x + p * kPartLanes, w + p * kPartLanes, columns);
    for (int r = 0; r < R; ++r)
      for (int o = 0; o < kTileOuts; ++o) hn::Store(s[r][o], f, to + (r * kTileOuts + o) * kLanes);
  }
}

// The weights of a group of outputs as f32, outputs of zeros up to a whole tile.
template <class W>
void widen(const Weights<W>& w, const Panel& p, float* to) {
  const int64_t step = Weights<W>::kScaled ? kFp8Block : p.columns;
  for (int64_t o = 0; o < round_up(p.outs, kTileOuts); ++o) {
    float* at = to + o / kTileOuts * kTileOuts * kPanelColumns + o % kTileOuts * kLanes;
    if (o >= p.outs) clear_row<kTileOuts>(p.columns, at);
    else
      for (int64_t j = 0; j < p.columns; j += step)
        spread_row<kTileOuts>(w.row(p.first + o) + p.column + j, std::min(step, p.columns - j), at + j * kTileOuts,
                              w.scale_at(p.first + o, p.column + j));
  }
}
// Rows of a block as f32, [row / R, column / 16, row % R, 16], rows of zeros up to a whole tile.
template <int R>
void copy_rows(const RowsIn& x, int64_t t, int64_t rows, int64_t k, float* to) {
  for (int64_t r = 0; r < round_up(rows, R); ++r) {
    float* at = to + r / R * R * round_up(k, kLanes) + r % R * kLanes;
    if (r < rows) spread_row<R>(x, t + r, 0, k, at);
    else clear_row<R>(k, at);
  }
}

// All rows of a block times one group of outputs of a panel. acc: [output tile, row tile, a tile's].
template <int R, class W>
void multiply_group(const ProductScratch& c, const Weights<W>& w, const Panel& p, int64_t row_tiles, float* acc, Ahead& ahead) {
  const int64_t columns = round_up(p.columns, kLanes), out_tiles = ceil_div(p.outs, kTileOuts);
  widen(w, p, c.weights);
  const int64_t lines = ceil_div(ahead.lines * ahead.rows, out_tiles * row_tiles);
  for (int64_t t = 0; t < row_tiles; ++t)
    for (int64_t o = 0; o < out_tiles; ++o) {
      ahead.next(lines);
      panel_tile<R>(c.rows + t * R * round_up(w.k, kLanes) + p.column * R, c.weights + o * kTileOuts * kPanelColumns, columns,
                    acc + (o * row_tiles + t) * R * kTileOuts * kLanes);
    }
}

// The group of outputs that follows p among those of `panel`: the next outputs, the next columns, or the next panel.
template <class W>
Panel after(const Weights<W>& w, const Panel& panel, const Panel& p, int64_t end) {
  Panel n = p;
  n.first += p.outs;
  if (n.first == panel.first + panel.outs && p.column + kPanelColumns < w.k) {
    n.first = panel.first;
    n.column += kPanelColumns;
  } else if (n.first == panel.first + panel.outs) {
    n.column = 0;
  }
  n.columns = std::min(kPanelColumns, w.k - n.column);
  n.outs = std::min(kGroupOuts, (n.first < panel.first + panel.outs ? panel.first + panel.outs : end) - n.first);
  return n;
}

// The block's rows [t, t + rows), whose copies lie in c.rows.
template <int R, class W>
void multiply_block(const ProductScratch& c, int64_t t, int64_t rows, const Weights<W>& w, int64_t begin, int64_t end, const RowsOut& y) {
  constexpr int64_t kTileFloats = R * kTileOuts * kLanes;
  const int64_t row_tiles = ceil_div(rows, R), out_floats = row_tiles * R * kLanes;
  for (int64_t first = begin; first < end; first += kPanelOuts) {
    const Panel panel{first, std::min(kPanelOuts, end - first), 0, w.k};
    std::memset(c.accumulators, 0, sizeof(float) * static_cast<size_t>(round_up(panel.outs, kTileOuts) * out_floats));
    Panel p{first, std::min(kGroupOuts, panel.outs), 0, std::min(kPanelColumns, w.k)};
    for (int64_t group = ceil_div(panel.outs, kGroupOuts) * ceil_div(w.k, kPanelColumns); group > 0; --group) {
      const Panel next = after(w, panel, p, end);
      Ahead ahead = ahead_of(w, next);
      multiply_group<R>(c, w, p, row_tiles, c.accumulators + (p.first - first) * out_floats, ahead);
      p = next;
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t o = 0; o < panel.outs; o += kOutUnit) {
        const float* lanes = c.accumulators + o * out_floats + r / R * kTileFloats + r % R * kTileOuts * kLanes;
        put(y, t + r, first + o, fold_16(lanes, row_tiles * kTileFloats), std::min(kOutUnit, panel.outs - o));
      }
  }
}

// Rows of a block's tiles. A larger tile loads less for each product, but its empty rows cost as much as full ones.
int64_t tile_rows(int64_t rows) {
  constexpr int64_t kFewRows = 24;  // with more, the empty ones hardly count
  int64_t best = 6;
  for (int64_t r : {5, 4})
    if (rows <= kFewRows && round_up(rows, r) < round_up(rows, best)) best = r;
  return best;
}
template <class W>
void panels(const ProductScratch& c, const RowsIn& x, int64_t t0, int64_t t1, const Weights<W>& w, int64_t begin, int64_t end, const RowsOut& y) {
  auto block = [&]<int R>(std::integral_constant<int, R>, int64_t t, int64_t rows) {
    copy_rows<R>(x, t, rows, w.k, c.rows);
    multiply_block<R>(c, t, rows, w, begin, end, y);
  };
  for (int64_t t = t0; t < t1; t += kBlockRows) {
    const int64_t rows = std::min(kBlockRows, t1 - t);
    switch (tile_rows(rows)) {
      case 4: block(std::integral_constant<int, 4>(), t, rows); break;
      case 5: block(std::integral_constant<int, 5>(), t, rows); break;
      default: block(std::integral_constant<int, 6>(), t, rows);
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
    case 3:
      if constexpr (kDirect > 2) return direct<3>(c, x, t0, w, begin, end, y);
      break;
    case 4:
      if constexpr (kDirect > 2) return direct<4>(c, x, t0, w, begin, end, y);
      break;
    default: return panels(c, x, t0, t1, w, begin, end, y);
  }
}

}  // namespace

void run_product(std::byte* scratch, const RowsIn& x, int64_t t0, int64_t t1, const Matrix& w, int64_t begin, int64_t end, const RowsOut& y) {
  const int64_t k = w.data.shape[1];
  const ProductScratch c = product_scratch(scratch, k);
  switch (w.data.dtype) {
    case DType::f32: return product(c, x, t0, t1, Weights<float>{w.data.as<float>(), k, nullptr, 0}, begin, end, y);
    case DType::bf16: return product(c, x, t0, t1, Weights<Bf16>{w.data.as<Bf16>(), k, nullptr, 0}, begin, end, y);
    default: return product(c, x, t0, t1, Weights<E4m3>{w.data.as<E4m3>(), k, w.scale.as<float>(), w.scale.stride[0]}, begin, end, y);
  }
}
int64_t scratch_of_product(int64_t k) { return product_scratch_bytes(k); }

}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {

const Product lanes_avx512{.scratch_bytes = N_AVX3::scratch_of_product, .run = N_AVX3::run_product};
const Product lanes_avx2{.scratch_bytes = N_AVX2::scratch_of_product, .run = N_AVX2::run_product};

}  // namespace winnow::ops
#endif
