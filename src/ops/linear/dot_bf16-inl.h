// The product with vdpbf16ps: lane l of 16 adds the pair of columns (32 c + 2 l, 32 c + 2 l + 1) for ascending c; with
// e4m3 weights each 128 columns are summed from zero and enter the lanes times their scale. The lanes are folded by
// halves. Denormal inputs and results are zero, which is the instruction's nature.
//
// Hw supplies the instruction, so that a test can run this with another. Included like bf16-inl.h.

constexpr int64_t kDotRows = 4, kDotOuts = 4;  // sixteen accumulators, eight operands for sixteen instructions

template <class Hw, int R, int O>
inline void dot_columns(__m512 (&acc)[R][O], const Bf16* const (&x)[R], const Bf16* const (&w)[O], int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; j += 32) {
    __m512i v[O];
    for (int o = 0; o < O; ++o) v[o] = load_32(w[o] + j, end - j);
    for (int r = 0; r < R; ++r) {
      const __m512i xr = load_32(x[r] + j, end - j);
      for (int o = 0; o < O; ++o) acc[r][o] = Hw::dot(acc[r][o], xr, v[o]);
    }
  }
}

// scale: null, or one a block of 128 columns for all O outputs.
template <class Hw, int R, int O>
inline void dot_tile(const Bf16* const (&x)[R], const Bf16* const (&w)[O], int64_t k, const float* scale, float (&sums)[R][16], int at) {
  __m512 acc[R][O];
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < O; ++o) acc[r][o] = _mm512_setzero_ps();
  if (!scale) dot_columns<Hw>(acc, x, w, 0, k);
  for (int64_t j = 0; scale && j < k; j += kFp8Block) {
    __m512 block[R][O];
    for (int r = 0; r < R; ++r)
      for (int o = 0; o < O; ++o) block[r][o] = _mm512_setzero_ps();
    dot_columns<Hw>(block, x, w, j, std::min(j + kFp8Block, k));
    const __m512 s = _mm512_set1_ps(scale[j / kFp8Block]);
    for (int r = 0; r < R; ++r)
      for (int o = 0; o < O; ++o) acc[r][o] = _mm512_fmadd_ps(block[r][o], s, acc[r][o]);
  }
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < O; ++o) sums[r][at + o] = _mm512_reduce_add_ps(acc[r][o]);
}

template <class Hw, int R>
inline void dot_rows(const RowsIn& x, int64_t t, const Bf16* const (&w)[kDotOuts], int64_t k, const float* scale, float (&sums)[kDotRows][16],
                     int at) {
  const Bf16* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = reinterpret_cast<const Bf16*>(x.row(t + r));
  dot_tile<Hw, R, kDotOuts>(rows, w, k, scale, reinterpret_cast<float(&)[R][16]>(sums), at);
}

// Four weight rows as bf16: where they are, or widened into scratch once for all rows of x.
inline void bf16_rows(const Matrix& w, int64_t first, int64_t last, Bf16* scratch, const Bf16* (&rows)[kDotOuts]) {
  const int64_t k = w.data.shape[1];
  for (int64_t o = 0; o < kDotOuts; ++o) {
    const int64_t i = std::min(first + o, last);
    if (w.data.dtype == DType::bf16) {
      rows[o] = w.data.as<Bf16>() + i * k;
      continue;
    }
    Bf16* to = scratch + o * round_up(k, 32);
    for (int64_t j = 0; j < k; j += 32) _mm512_storeu_si512(to + j, load_32(w.data.as<E4m3>() + i * k + j, k - j));
    rows[o] = to;
  }
}

inline int64_t dot_scratch_bytes(int64_t k) { return round_up(2 * kDotOuts * round_up(k, 32), 64); }

template <class Hw>
void dot_product(std::byte* scratch, const RowsIn& x, int64_t t0, int64_t t1, const Matrix& w, int64_t begin, int64_t end, const RowsOut& y) {
  const int64_t k = w.data.shape[1];
  for (int64_t i = begin; i < end; i += kDotOuts) {
    const Bf16* rows[kDotOuts];
    bf16_rows(w, i, end - 1, reinterpret_cast<Bf16*>(scratch), rows);
    const float* scale = w.scale ? w.scale.as<float>() + i / kFp8Block * w.scale.stride[0] : nullptr;
    for (int64_t t = t0; t < t1; t += kDotRows) {
      float sums[kDotRows][16];
      const int64_t n = std::min(kDotRows, t1 - t);
      switch (n) {
        case 1: dot_rows<Hw, 1>(x, t, rows, k, scale, sums, 0); break;
        case 2: dot_rows<Hw, 2>(x, t, rows, k, scale, sums, 0); break;
        case 3: dot_rows<Hw, 3>(x, t, rows, k, scale, sums, 0); break;
        default: dot_rows<Hw, 4>(x, t, rows, k, scale, sums, 0); break;
      }
      for (int64_t r = 0; r < n; ++r) put_16(y, t + r, i, _mm512_loadu_ps(sums[r]), std::min(kDotOuts, end - i));
    }
  }
}
