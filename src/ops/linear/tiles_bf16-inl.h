// The product with AMX tiles: a tile of 16 outputs x 16 rows adds 32 columns an instruction, for ascending columns; with
// e4m3 weights each 128 columns are summed from zero and enter the sum times their scale. The same for one row as for
// many: a row is a column of the tile, and columns do not meet. Denormal inputs and results are zero.
//
// Weights are the first operand as they lie in memory (row-major), rows of x the second, packed in pairs of columns.
// Hw supplies the instructions, so that a test can run this with others. Included like bf16-inl.h.
//
// Tiles: 0-3 sums [weights half * 2 + rows half], 4-5 weights, 6-7 rows.

constexpr int64_t kTile = 16, kTileColumns = 32, kTileBytes = 1024;
constexpr int64_t kTileRowsOfX = 64;  // rows of x in hand: packed once for all outputs
constexpr int64_t kTileBlock = 2 * kTile;

struct TileScratch {
  Bf16* x;        // [kTileRowsOfX / 16, k / 32, 16 pairs, 16 rows, 2]
  Bf16* w;        // [2, 128 / 32, 16 outputs, 32]: what cannot be read in place
  float* sums;    // [kTileRowsOfX / 16, 2, 16 outputs, 16 rows]
  float* result;  // [4, 16 outputs, 16 rows]
};
inline int64_t tile_scratch_bytes(int64_t k) {
  return kTileRowsOfX * round_up(k, kTileColumns) * 2 + 8 * kTileBytes + kTileRowsOfX / kTile * 2 * kTileBytes + 4 * kTileBytes;
}
inline TileScratch tile_scratch(std::byte* base, int64_t k) {
  std::byte* w = base + kTileRowsOfX * round_up(k, kTileColumns) * 2;
  std::byte* sums = w + 8 * kTileBytes;
  return {reinterpret_cast<Bf16*>(base), reinterpret_cast<Bf16*>(w), reinterpret_cast<float*>(sums),
          reinterpret_cast<float*>(sums + kTileRowsOfX / kTile * 2 * kTileBytes)};
}

// Rows [t, t + rows) as second operands; missing rows and columns are zero.
inline void pack_rows(const RowsIn& x, int64_t t, int64_t rows, int64_t k, Bf16* to) {
  const int64_t chunks = ceil_div(k, kTileColumns);
  for (int64_t r = 0; r < round_up(rows, kTile); ++r) {
    for (int64_t c = 0; c < chunks; ++c) {
      alignas(64) uint32_t pairs[16] = {};
      if (r < rows) _mm512_store_si512(pairs, load_32(reinterpret_cast<const Bf16*>(x.row(t + r)) + c * kTileColumns, k - c * kTileColumns));
      Bf16* tile = to + (r / kTile * chunks + c) * (kTileBytes / 2) + r % kTile * 2;
      for (int p = 0; p < 16; ++p) std::memcpy(tile + p * 2 * kTile, &pairs[p], 4);
    }
  }
}

// 16 outputs from `first` on (rows past `last` are zero), 32 columns from j on, as a tile that lies packed.
template <class W>
void copy_weights(const W* data, int64_t k, int64_t first, int64_t last, int64_t j, Bf16* to) {
  for (int64_t o = 0; o < kTile; ++o)
    _mm512_storeu_si512(to + o * kTileColumns, first + o <= last ? load_32(data + (first + o) * k + j, k - j) : _mm512_setzero_si512());
}

// One chunk: the weights tiles 4 (and 5) times the rows tiles 6 (and 7).
template <class Hw>
void multiply_tiles(const void* w0, const void* w1, int64_t w_stride, const Bf16* x0, const Bf16* x1) {
  Hw::template load<4>(w0, w_stride);
  Hw::template load<6>(x0, 64);
  Hw::template multiply<0, 4, 6>();
  if (x1) {
    Hw::template load<7>(x1, 64);
    Hw::template multiply<1, 4, 7>();
  }
  if (!w1) return;
  Hw::template load<5>(w1, w_stride);
  Hw::template multiply<2, 5, 6>();
  if (x1) Hw::template multiply<3, 5, 7>();
}
template <class Hw>
void clear_sums() {
  Hw::template zero<0>();
  Hw::template zero<1>();
  Hw::template zero<2>();
  Hw::template zero<3>();
}
template <class Hw>
void store_sums(float* to) {
  Hw::template store<0>(to);
  Hw::template store<1>(to + 256);
  Hw::template store<2>(to + 512);
  Hw::template store<3>(to + 768);
}

// A tile [outputs, rows] into y; outputs [i, i + outs), rows [t, t + rows).
inline void put_tile(const RowsOut& y, int64_t t, int64_t rows, int64_t i, int64_t outs, const float* tile) {
  const __m512i at = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(16));
  for (int64_t r = 0; r < rows; ++r) put_16(y, t + r, i, _mm512_i32gather_ps(at, tile + r, 4), outs);
}
inline void put_tiles(const RowsOut& y, int64_t t, int64_t rows, int64_t i, int64_t end, const float* tiles, int64_t w_half, int64_t x_half) {
  const int64_t outs = std::min(kTile, end - i - w_half * kTile), n = std::min(kTile, rows - x_half * kTile);
  if (outs > 0 && n > 0) put_tile(y, t + x_half * kTile, n, i + w_half * kTile, outs, tiles);
}

// Outputs [i, min(i + 32, end)) of the rows in hand; weights in bf16.
template <class Hw>
void tiles_of_bf16(const TileScratch& c, int64_t t, int64_t rows, const Matrix& w, int64_t i, int64_t end, const RowsOut& y) {
  const int64_t k = w.data.shape[1], chunks = ceil_div(k, kTileColumns);
  const Bf16* data = w.data.as<Bf16>();
  const bool two = end - i > kTile, whole = end - i >= kTileBlock || end - i == kTile;
  for (int64_t b = 0; b < rows; b += kTileBlock) {
    clear_sums<Hw>();
    const Bf16* x0 = c.x + b / kTile * chunks * (kTileBytes / 2);
    const Bf16* x1 = rows - b > kTile ? x0 + chunks * (kTileBytes / 2) : nullptr;
    for (int64_t n = 0; n < chunks; ++n) {
      const int64_t j = n * kTileColumns;
      const Bf16 *w0 = data + i * k + j, *w1 = two ? w0 + kTile * k : nullptr;
      int64_t stride = 2 * k;
      if (!whole || j + kTileColumns > k) {  // the edge of the matrix: nothing beyond it may be read
        copy_weights(data, k, i, end - 1, j, c.w);
        if (two) copy_weights(data, k, i + kTile, end - 1, j, c.w + kTileBytes / 2);
        w0 = c.w;
        w1 = two ? c.w + kTileBytes / 2 : nullptr;
        stride = 64;
      }
      multiply_tiles<Hw>(w0, w1, stride, x0 + n * (kTileBytes / 2), x1 ? x1 + n * (kTileBytes / 2) : nullptr);
    }
    store_sums<Hw>(c.result);
    for (int64_t h = 0; h < 4; ++h) put_tiles(y, t + b, rows - b, i, end, c.result + h * 256, h / 2, h % 2);
  }
}

// The same with weights in e4m3: each 128 columns are widened once for all rows in hand.
template <class Hw>
void tiles_of_e4m3(const TileScratch& c, int64_t t, int64_t rows, const Matrix& w, int64_t i, int64_t end, const RowsOut& y) {
  const int64_t k = w.data.shape[1], chunks = ceil_div(k, kTileColumns), halves = end - i > kTile ? 2 : 1;
  const float* scales = w.scale.as<float>() + i / kFp8Block * w.scale.stride[0];
  std::memset(c.sums, 0, static_cast<size_t>(round_up(rows, kTileBlock) / kTile * 2 * kTileBytes));
  for (int64_t j = 0; j < k; j += kFp8Block) {
    const int64_t count = ceil_div(std::min(kFp8Block, k - j), kTileColumns);
    for (int64_t h = 0; h < halves; ++h)
      for (int64_t n = 0; n < count; ++n)
        copy_weights(w.data.as<E4m3>(), k, i + h * kTile, end - 1, j + n * kTileColumns, c.w + (h * 4 + n) * (kTileBytes / 2));
    for (int64_t b = 0; b < rows; b += kTileBlock) {
      clear_sums<Hw>();
      const Bf16* x0 = c.x + (b / kTile * chunks + j / kTileColumns) * (kTileBytes / 2);
      const Bf16* x1 = rows - b > kTile ? x0 + chunks * (kTileBytes / 2) : nullptr;
      for (int64_t n = 0; n < count; ++n)
        multiply_tiles<Hw>(c.w + n * (kTileBytes / 2), halves == 2 ? c.w + (4 + n) * (kTileBytes / 2) : nullptr, 64, x0 + n * (kTileBytes / 2),
                           x1 ? x1 + n * (kTileBytes / 2) : nullptr);
      store_sums<Hw>(c.result);
      const __m512 scale = _mm512_set1_ps(scales[j / kFp8Block]);
      float* sums = c.sums + b / kTile * 2 * 256;
      for (int64_t e = 0; e < 4 * 256; e += 16)
        _mm512_storeu_ps(sums + e, _mm512_fmadd_ps(_mm512_loadu_ps(c.result + e), scale, _mm512_loadu_ps(sums + e)));
    }
  }
  for (int64_t b = 0; b < rows; b += kTileBlock)
    for (int64_t h = 0; h < 4; ++h) put_tiles(y, t + b, rows - b, i, end, c.sums + b / kTile * 2 * 256 + h * 256, h / 2, h % 2);
}

template <class Hw>
void tile_product(std::byte* scratch, const RowsIn& x, int64_t t0, int64_t t1, const Matrix& w, int64_t begin, int64_t end, const RowsOut& y) {
  const int64_t k = w.data.shape[1];
  const TileScratch c = tile_scratch(scratch, k);
  Hw::begin();
  for (int64_t t = t0; t < t1; t += kTileRowsOfX) {
    const int64_t rows = std::min(kTileRowsOfX, t1 - t);
    pack_rows(x, t, rows, k, c.x);
    for (int64_t i = begin, next; i < end; i = next) {
      next = std::min(end, (i / kTileBlock + 1) * kTileBlock);  // a block of outputs lies in one row of scales
      if (w.data.dtype == DType::bf16) tiles_of_bf16<Hw>(c, t, rows, w, i, next, y);
      else tiles_of_e4m3<Hw>(c, t, rows, w, i, next, y);
    }
  }
  Hw::end();
}
