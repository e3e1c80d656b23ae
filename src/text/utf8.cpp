#include "text/utf8.h"

#include <unicode/utf8.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace winnow::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// First position at or after `i` where eight bytes are not all ASCII (or fewer than eight are left).
size_t skip_ascii(std::string_view s, size_t i) {
  for (; i + 8 <= s.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, s.data() + i, 8);
    if (word & 0x8080808080808080u) break;
  }
  return i;
}

// Moves `i` past one code point or one maximal ill-formed part; false for the latter.
bool step(std::string_view s, size_t& i) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(s.data());
  UChar32 c;
  U8_NEXT(bytes, i, s.size(), c);
  return c >= 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (size_t i = skip_ascii(text, 0); i < text.size(); i = skip_ascii(text, i))
    if (!step(text, i)) return false;
  return true;
}

std::string replace_ill_formed(std::string_view text) {
  if (is_utf8(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    out += step(text, i) ? text.substr(begin, i - begin) : kReplacement;
  }
  return out;
}

void replace_ill_formed(std::string& text, Runs& runs) {
  bool intact = is_utf8(text);
  for (const Run& run : runs) intact = intact && (run.end >= text.size() || !U8_IS_TRAIL(static_cast<uint8_t>(text[run.end])));
  if (intact) return;
  std::string out;
  size_t run = 0, last_end = 0;
  const auto close = [&](size_t end) { runs[run++].end = last_end = std::max(last_end, end); };
  for (size_t i = 0; i < text.size();) {
    while (run < runs.size() && runs[run].end == i) close(out.size());
    const size_t begin = i, out_begin = out.size();
    out += step(text, i) ? std::string_view(text).substr(begin, i - begin) : kReplacement;
    while (run < runs.size() && runs[run].end < i) close(runs[run].trusted ? out_begin : out.size());
  }
  while (run < runs.size()) close(out.size());
  text = std::move(out);
}

size_t complete_length(std::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  int64_t length = static_cast<int64_t>(text.size());
  U8_TRUNCATE_IF_INCOMPLETE(bytes, 0, length);
  return static_cast<size_t>(length);
}

}  // namespace winnow::text
