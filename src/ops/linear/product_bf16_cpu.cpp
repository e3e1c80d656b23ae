// The products on AVX-512-BF16 and AMX. Highway has no such targets; target regions of this file do.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "hwy/base.h"
#include "ops/linear/product.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512bf16,fma,f16c,bmi2,amx-tile,amx-bf16")

namespace winnow::ops {
namespace {

#include "ops/linear/bf16-inl.h"
#include "ops/linear/dot_bf16-inl.h"
#include "ops/linear/tiles_bf16-inl.h"

struct DotInstruction {
  static __m512 dot(__m512 acc, __m512i a, __m512i b) { return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)); }
};

// Tile numbers are part of the instruction, hence literals. The intrinsics do not say that they read and write memory.
struct TileInstructions {
  static void begin() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 8; ++i) {
      config.bytes[i] = 64;
      config.rows[i] = 16;
    }
    asm volatile("" : : "m"(config) : "memory");  // the intrinsic says of eight bytes only that it reads them
    _tile_loadconfig(&config);
  }
  static void end() { _tile_release(); }
  static void fence() { asm volatile("" ::: "memory"); }
  template <int tile>
  static void zero() {
    if constexpr (tile == 0) _tile_zero(0);
    else if constexpr (tile == 1) _tile_zero(1);
    else if constexpr (tile == 2) _tile_zero(2);
    else _tile_zero(3);
  }
  template <int tile>
  static void load(const void* p, int64_t stride_bytes) {
    fence();
    if constexpr (tile == 4) _tile_loadd(4, p, stride_bytes);
    else if constexpr (tile == 5) _tile_loadd(5, p, stride_bytes);
    else if constexpr (tile == 6) _tile_loadd(6, p, stride_bytes);
    else _tile_loadd(7, p, stride_bytes);
  }
  template <int sum, int w, int x>
  static void multiply() {
    if constexpr (sum == 0) _tile_dpbf16ps(0, 4, 6);
    else if constexpr (sum == 1) _tile_dpbf16ps(1, 4, 7);
    else if constexpr (sum == 2) _tile_dpbf16ps(2, 5, 6);
    else _tile_dpbf16ps(3, 5, 7);
  }
  template <int tile>
  static void store(float* p) {
    if constexpr (tile == 0) _tile_stored(0, p, 64);
    else if constexpr (tile == 1) _tile_stored(1, p, 64);
    else if constexpr (tile == 2) _tile_stored(2, p, 64);
    else _tile_stored(3, p, 64);
    fence();
  }
};

}  // namespace

const Product dot_bf16{.scratch_bytes = dot_scratch_bytes, .run = dot_product<DotInstruction>};
const Product tiles_bf16{.scratch_bytes = tile_scratch_bytes, .run = tile_product<TileInstructions>};

}  // namespace winnow::ops
HWY_POP_ATTRIBUTES
