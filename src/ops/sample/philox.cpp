#include "ops/sample/sample.h"

namespace winnow::ops {

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b), static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1],
         static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;  // golden ratio
    key[1] += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return c;
}

std::array<uint32_t, 4> noise_words(uint64_t seed, uint32_t choice, TokenPos position, Purpose purpose, uint32_t block) {
  const uint64_t pos = static_cast<uint64_t>(position.value);
  return philox({block, static_cast<uint32_t>(pos), choice, static_cast<uint32_t>(purpose) + (static_cast<uint32_t>(pos >> 32) << 8)},
                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

double uniform(uint64_t seed, uint32_t choice, TokenPos position, Purpose purpose, uint32_t token) {
  return (noise_words(seed, choice, position, purpose, token / 4)[token % 4] + 0.5) * 0x1p-32;
}

}  // namespace winnow::ops
