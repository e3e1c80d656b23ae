// What the products of bf16 pairs share: reading bf16 and e4m3 weights as bf16, and writing f32 results. AVX-512 (F, BW,
// DQ, VL). Included inside an unnamed namespace and a target region of whoever includes it, after <immintrin.h>.

// e4m3 is exact in bf16. Codes of normal numbers only need another exponent bias; of the 8 denormals (and zero) a table
// has the bits: the hardware's bf16 products read denormals as zero, so they must become normal numbers here.
inline __m512i bf16_of_e4m3(__m256i codes) {
  alignas(64) static constexpr uint16_t kSmall[32] = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};  // m * 2^-9
  const __m512i code = _mm512_cvtepi8_epi16(codes);
  const __m512i sign = _mm512_and_si512(code, _mm512_set1_epi16(static_cast<int16_t>(0x8000)));
  const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi16(0x7f));
  const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
  const __mmask32 small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
  return _mm512_or_si512(sign, _mm512_mask_permutexvar_epi16(normal, small, magnitude, _mm512_load_si512(kSmall)));
}

inline __mmask32 first_32(int64_t n) { return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1; }
inline __m512i load_32(const Bf16* p, int64_t n) { return _mm512_maskz_loadu_epi16(first_32(n), p); }
inline __m512i load_32(const E4m3* p, int64_t n) { return bf16_of_e4m3(_mm256_maskz_loadu_epi8(first_32(n), p)); }

// Results i .. i + n of row t (n <= 16), rounded to nearest even into bf16.
inline void put_16(const RowsOut& y, int64_t t, int64_t i, __m512 v, int64_t n) {
  const __mmask16 mask = static_cast<__mmask16>(first_32(n));
  if (y.type == DType::f32) return _mm512_mask_storeu_ps(y.at<float>(t, i), mask, v);
  const __m512i u = _mm512_castps_si512(v), high = _mm512_srli_epi32(u, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i bits = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
  _mm256_mask_storeu_epi16(y.at<Bf16>(t, i), mask, _mm512_cvtepi32_epi16(bits));
}
