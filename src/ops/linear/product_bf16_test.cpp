// The bf16 products with their instructions replaced by obvious loops, so that everything around the instructions is
// tested on machines that lack them. On machines that have them, linear_test.cpp runs the real ones as well.
#include <immintrin.h>

#include "hwy/base.h"
#include "ops/conformance.h"
#include "ops/linear/linear.h"
#include "ops/linear/product.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,fma,f16c,bmi2")
namespace winnow::ops::test {
namespace {

#include "ops/linear/bf16-inl.h"
#include "ops/linear/dot_bf16-inl.h"
#include "ops/linear/tiles_bf16-inl.h"

float flushed(float v) { return std::abs(v) < 1.17549435e-38f ? 0.0f : v; }
// sum + a[0] b[0] + a[1] b[1], denormals as zero.
float add_pair(float sum, const uint16_t* a, const uint16_t* b) {
  for (int i = 0; i < 2; ++i) sum = flushed(std::fma(flushed(to_float(Bf16{a[i]})), flushed(to_float(Bf16{b[i]})), sum));
  return sum;
}

struct ObviousDot {
  static __m512 dot(__m512 acc, __m512i a, __m512i b) {
    alignas(64) float sums[16];
    alignas(64) uint16_t x[32], y[32];
    _mm512_store_ps(sums, acc);
    _mm512_store_si512(x, a);
    _mm512_store_si512(y, b);
    for (int l = 0; l < 16; ++l) sums[l] = add_pair(sums[l], x + 2 * l, y + 2 * l);
    return _mm512_load_ps(sums);
  }
};

struct ObviousTiles {
  inline static std::byte tiles[8][16][64];
  inline static bool configured = false;
  static void begin() { configured = true; }
  static void end() { configured = false; }
  template <int tile>
  static void zero() {
    std::memset(tiles[tile], 0, 1024);
  }
  template <int tile>
  static void load(const void* p, int64_t stride_bytes) {
    check(configured, "tiles used without a configuration");
    for (int r = 0; r < 16; ++r) std::memcpy(tiles[tile][r], static_cast<const std::byte*>(p) + r * stride_bytes, 64);
  }
  template <int tile>
  static void store(float* p) {
    std::memcpy(p, tiles[tile], 1024);
  }
  template <int sum, int w, int x>
  static void multiply() {
    for (int m = 0; m < 16; ++m)
      for (int k = 0; k < 16; ++k)
        for (int n = 0; n < 16; ++n) {
          float s;
          uint16_t a[2], b[2];
          std::memcpy(&s, tiles[sum][m] + 4 * n, 4);
          std::memcpy(a, tiles[w][m] + 4 * k, 4);
          std::memcpy(b, tiles[x][k] + 4 * n, 4);
          s = add_pair(s, a, b);
          std::memcpy(tiles[sum][m] + 4 * n, &s, 4);
        }
  }
};

constexpr Product kObvious[] = {{.scratch_bytes = dot_scratch_bytes, .run = dot_product<ObviousDot>},
                                {.scratch_bytes = tile_scratch_bytes, .run = tile_product<ObviousTiles>}};

void expect_codes_exact() {
  for (int first = 0; first < 256; first += 32) {
    uint8_t codes[32];
    uint16_t bits[32];
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(first + i);
    _mm512_storeu_si512(bits, bf16_of_e4m3(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes))));
    for (int i = 0; i < 32; ++i) {
      if ((codes[i] & 0x7f) == 0x7f) continue;  // NaN: refused when weights are loaded
      EXPECT_EQ(bits[i], to_bf16(to_float(E4m3{codes[i]})).bits) << "code " << first + i;
    }
  }
}

}  // namespace
}  // namespace winnow::ops::test
HWY_POP_ATTRIBUTES

namespace winnow::ops::test {
namespace {

bool machine_has_avx512() { return device::detect_isa() >= Isa::avx512; }

TEST(ProductBf16, WidensEveryE4m3CodeExactly) {
  if (!machine_has_avx512()) GTEST_SKIP() << "needs AVX-512";
  expect_codes_exact();
}

struct Operands {
  Operands(const Linear::Spec& spec, int64_t tokens)
      : s(spec), w(random_tensor(s.w, {s.n, s.k}, 1, s.w == DType::e4m3 ? 40 : 0.5f)), x(random_tensor(s.x, {tokens, s.k}, 2)) {
    if (s.w != DType::e4m3) return;
    scale = random_tensor(DType::f32, {ceil_div(s.n, kFp8Block), ceil_div(s.k, kFp8Block)}, 3, 0.01f);
    for (int64_t i = 0; i < s.n * s.k; i += 5) w.as<E4m3>()[i].bits &= 0x87;
  }
  Matrix matrix() const { return {w, scale}; }
  Linear::Spec s;
  Tensor w, x, scale;
};

Tensor run_product(const Product& p, const Operands& o, int64_t t0, int64_t t1, int64_t begin) {
  Tensor y(o.s.y, {o.x.view.shape[0], o.s.n}), scratch(DType::u8, {p.scratch_bytes(o.s.k)});
  p.run(scratch.view.data, rows_of(static_cast<In>(o.x.view)), t0, t1, o.matrix(), begin, o.s.n, rows_of(y.view));
  EXPECT_TRUE(scratch.canaries_intact());
  EXPECT_TRUE(y.canaries_intact());
  return y;
}

void conform(const Linear::Spec& s, int64_t tokens) {
  SCOPED_TRACE(fmt::format("w {} y {}, {} x {} x {}", winnow::name_of(s.w), winnow::name_of(s.y), tokens, s.n, s.k));
  const Operands o(s, tokens);
  const Tensor want(s.y, {tokens, s.n});
  run_reference<Linear>(s, {want, o.x, o.matrix()});
  for (const Product& p : kObvious) {
    SCOPED_TRACE(&p == kObvious ? "dot" : "tiles");
    const Tensor y = run_product(p, o, 0, tokens, 0);
    expect_close(y, want, 4e-7 * (4 + std::sqrt(static_cast<double>(s.k))) + (s.y == DType::bf16 ? 1.0 / 256 : 0));
    const int64_t t = tokens / 2, begin = s.n > kOutUnit ? kOutUnit : 0;  // a part of it, as another worker would compute it
    const Tensor part = run_product(p, o, t, t + 1, begin);
    for (int64_t i = 0; i < tokens * s.n; ++i) {
      const bool mine = i / s.n == t && i % s.n >= begin;
      const float got = ref::get(part, i);
      if (mine) EXPECT_EQ(got, ref::get(y, i)) << "element " << i << " depends on its company";
      else EXPECT_TRUE(std::isnan(got)) << "wrote element " << i << ", which is another's";
    }
  }
}

TEST(ProductBf16, ConformsWithObviousInstructions) {
  if (!machine_has_avx512()) GTEST_SKIP() << "needs AVX-512";
  for (DType w : {DType::bf16, DType::e4m3})
    for (int64_t tokens : {1, 3, 16, 18, 33, 70})
      for (auto [n, k] : {std::pair{1, 1}, {16, 32}, {17, 33}, {31, 127}, {32, 128}, {32, 70}, {150, 300}})
        for (DType y : {DType::f32, DType::bf16}) conform({w, DType::bf16, y, n, k}, tokens);
}

}  // namespace
}  // namespace winnow::ops::test
