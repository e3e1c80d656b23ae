#include "device/cpu/peaks.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>

#include "device/cpu/workers.h"

namespace winnow::device {
namespace {

template <class F>
double seconds_of(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Keeps a value alive without storing it.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

// Four streams a worker, as a product over rows of weights reads them: one stream alone does not fill the memory channels.
constexpr int kStreams = 4;

__attribute__((target("avx512f"))) void read_avx512(const std::byte* p, int64_t bytes) {
  __m512i a[kStreams] = {};
  const int64_t part = bytes / kStreams / 64 * 64;
  for (int64_t i = 0; i < part; i += 64)
#pragma GCC unroll 4
    for (int j = 0; j < kStreams; ++j) {
      _mm_prefetch(reinterpret_cast<const char*>(p + j * part + i + 1024), _MM_HINT_T0);
      a[j] = _mm512_xor_si512(a[j], _mm512_load_si512(p + j * part + i));
    }
  keep(a);
}

__attribute__((target("avx2"))) void read_avx2(const std::byte* p, int64_t bytes) {
  __m256i a[kStreams] = {};
  const int64_t part = bytes / kStreams / 64 * 64;
  for (int64_t i = 0; i < part; i += 64)
#pragma GCC unroll 4
    for (int j = 0; j < kStreams; ++j) {
      const __m256i* q = reinterpret_cast<const __m256i*>(p + j * part + i);
      _mm_prefetch(reinterpret_cast<const char*>(q) + 1024, _MM_HINT_T0);
      a[j] = _mm256_xor_si256(a[j], _mm256_xor_si256(_mm256_load_si256(q), _mm256_load_si256(q + 1)));
    }
  keep(a);
}

constexpr int kChains = 12;  // independent accumulators: latency 4 on two ports needs 8
constexpr int64_t kRounds = 2'000'000;

__attribute__((target("avx512f"))) double fma_avx512() {
  __m512 a[kChains];
#pragma GCC unroll 16
  for (int j = 0; j < kChains; ++j) a[j] = _mm512_set1_ps(static_cast<float>(j));
  const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
  for (int64_t i = 0; i < kRounds; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) a[j] = _mm512_fmadd_ps(a[j], x, y);
  keep(a);
  return 2.0 * 16 * kChains * kRounds;
}

__attribute__((target("avx2,fma"))) double fma_avx2() {
  __m256 a[kChains];
#pragma GCC unroll 16
  for (int j = 0; j < kChains; ++j) a[j] = _mm256_set1_ps(static_cast<float>(j));
  const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
  for (int64_t i = 0; i < kRounds; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) a[j] = _mm256_fmadd_ps(a[j], x, y);
  keep(a);
  return 2.0 * 8 * kChains * kRounds;
}

__attribute__((target("avx512f,avx512bf16"))) double dot_bf16() {
  __m512 a[kChains];
#pragma GCC unroll 16
  for (int j = 0; j < kChains; ++j) a[j] = _mm512_set1_ps(static_cast<float>(j));
  const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3c003c00), y = (__m512bh)_mm512_set1_epi32(0x3c013c01);
  for (int64_t i = 0; i < kRounds; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) a[j] = _mm512_dpbf16_ps(a[j], x, y);
  keep(a);
  return 2.0 * 32 * kChains * kRounds;
}

// Two by two tiles of 16 x 16 sums, as a blocked product uses them.
__attribute__((target("amx-tile,amx-bf16"))) double tiles_bf16() {
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } const config;
  alignas(64) static const std::byte zeros[1024] = {};
  keep(config);  // the intrinsic says of eight bytes only that it reads them
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  _tile_loadd(6, zeros, 64);
  _tile_loadd(7, zeros, 64);
  constexpr int64_t kTileRounds = kRounds / 8;
  for (int64_t i = 0; i < kTileRounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 2.0 * 16 * 16 * 32 * 4 * kTileRounds;
}

}  // namespace

Peaks measure_peaks(Device& device) {
  Workers& workers = device.queue().workers();
  const Isa isa = device.caps().isa;
  Peaks peaks;
  if (isa < Isa::avx2) return peaks;
  constexpr int64_t kBytes = int64_t{1} << 30, kPasses = 8;
  {
    const Buffer memory = device.allocate("benchmark", kBytes + 8192);
    std::fill_n(memory.data(), kBytes, std::byte{1});
    for (int64_t pass = 0; pass < kPasses; ++pass) {
      const double s = seconds_of([&] {
        workers.run(kBytes, 1 << 20, [&](int64_t begin, int64_t end, int) {
          if (isa >= Isa::avx512) read_avx512(memory.data() + begin, end - begin);
          else read_avx2(memory.data() + begin, end - begin);
        });
      });
      peaks.read_gb_s = std::max(peaks.read_gb_s, kBytes / s * 1e-9);
    }
  }
  auto peak = [&](double (*f)()) {
    double best = 0;
    for (int pass = 0; pass < 3; ++pass) {
      double flops = 0;
      const double s = seconds_of([&] {
        workers.run(workers.count(), 1, [&](int64_t, int64_t, int worker) {
          const double mine = f();
          if (worker == 0) flops = mine * workers.count();
        });
      });
      best = std::max(best, flops / s * 1e-9);
    }
    return best;
  };
  peaks.f32_gflops = peak(isa >= Isa::avx512 ? fma_avx512 : fma_avx2);
  if (isa >= Isa::avx512_bf16) peaks.bf16_gflops = peak(dot_bf16);
  if (isa >= Isa::amx) peaks.bf16_gflops = std::max(peaks.bf16_gflops, peak(tiles_bf16));
  return peaks;
}

}  // namespace winnow::device
