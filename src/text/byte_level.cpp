#include "text/byte_level.h"

#include <unicode/utf8.h>

#include <array>
#include <cstdint>

namespace winnow::text {
namespace {

// Printable bytes of Latin-1 stand for themselves; the others, in order, for U+0100 and on.
constexpr bool stands_for_itself(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE; }

constexpr std::array<int16_t, 0x144> byte_of_character() {
  std::array<int16_t, 0x144> table{};
  for (int16_t& entry : table) entry = -1;
  size_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) table[stands_for_itself(byte) ? static_cast<size_t>(byte) : next++] = static_cast<int16_t>(byte);
  return table;
}

constexpr auto kByteOf = byte_of_character();

}  // namespace

std::optional<std::string> bytes_of_symbols(std::string_view entry) {
  std::string bytes;
  for (int64_t i = 0, n = static_cast<int64_t>(entry.size()); i < n;) {
    UChar32 c;
    U8_NEXT(entry.data(), i, n, c);
    if (c < 0 || c >= static_cast<UChar32>(kByteOf.size()) || kByteOf[static_cast<size_t>(c)] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOf[static_cast<size_t>(c)]);
  }
  return bytes;
}

}  // namespace winnow::text
