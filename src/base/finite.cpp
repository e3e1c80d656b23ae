#include "base/finite.h"

#include <cstring>

namespace winnow {
namespace {

// One stream alone does not fill the memory channels, and the processor's own prefetch ends with a page: the values are read as
// four streams, each asked for ahead. Sixteen bytes at a time keep up with memory.
constexpr int64_t kStreams = 4, kLine = 64, kPrefetch = 1024;

// Whether some value has all bits of `mask`.
template <class T>
bool any_has(const std::byte* v, int64_t n, T mask) {
  using Vec __attribute__((vector_size(16))) = T;
  const int64_t bytes = n * static_cast<int64_t>(sizeof(T)), part = bytes / kStreams / kLine * kLine;
  Vec bad[kStreams] = {};
  for (int64_t i = 0; i < part; i += kLine)
    for (int64_t s = 0; s < kStreams; ++s) {
      const std::byte* line = v + s * part + i;
      __builtin_prefetch(line + kPrefetch);
      for (int64_t at = 0; at < kLine; at += static_cast<int64_t>(sizeof(Vec))) {
        Vec x;
        std::memcpy(&x, line + at, sizeof x);
        bad[s] |= reinterpret_cast<Vec>((x & mask) == mask);
      }
    }
  T any = 0;
  for (const Vec& b : bad)
    for (size_t i = 0; i < sizeof(Vec) / sizeof(T); ++i) any |= b[i];
  for (int64_t i = part * kStreams; i < bytes; i += static_cast<int64_t>(sizeof(T))) {
    T x;
    std::memcpy(&x, v + i, sizeof x);
    any |= static_cast<T>((x & mask) == mask);
  }
  return any != 0;
}

}  // namespace

bool all_finite(DType type, const std::byte* v, int64_t n) {
  switch (type) {
    case DType::e4m3: return !any_has(v, n, uint8_t{0x7f});  // NaN; there are no infinities
    case DType::bf16: return !any_has(v, n, uint16_t{0x7f80});
    case DType::f16: return !any_has(v, n, uint16_t{0x7c00});
    case DType::f32: return !any_has(v, n, uint32_t{0x7f800000});
    default: return true;
  }
}

}  // namespace winnow
