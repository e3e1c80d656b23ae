#include "base/byte_size.h"

#include <charconv>
#include <limits>

namespace winnow {
namespace {

struct Unit {
  std::string_view name;  // in small letters
  int64_t bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},
    {"b", 1},
    {"kb", 1'000},
    {"mb", 1'000'000},
    {"gb", 1'000'000'000},
    {"tb", 1'000'000'000'000},
    {"kib", int64_t{1} << 10},
    {"mib", int64_t{1} << 20},
    {"gib", int64_t{1} << 30},
    {"tib", int64_t{1} << 40},
};
constexpr size_t kDecimals = 9;  // so that fraction * unit fits 64 bits

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view take_digits(std::string_view* text) {
  size_t n = 0;
  while (n < text->size() && is_digit((*text)[n])) ++n;
  const std::string_view digits = text->substr(0, n);
  text->remove_prefix(n);
  return digits;
}

// Into *to; false: it does not fit.
bool read(std::string_view digits, int64_t* to) {
  const auto [end, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), *to);
  return bad == std::errc{} && end == digits.data() + digits.size();
}

}  // namespace

Result<int64_t> parse_byte_size(std::string_view text) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const auto wrong = [&](std::string_view why) { return Error(fmt::format("'{}' {}", text.substr(0, 40), why), Failure::usage); };
  constexpr std::string_view kNoSize = "is no size in bytes; write e.g. 8GB, 512MiB or 1.5GB";
  std::string_view rest = text;
  const std::string_view whole = take_digits(&rest);
  std::string_view part;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    part = take_digits(&rest);
    if (part.empty()) return wrong(kNoSize);
  }
  if (whole.empty()) return wrong(kNoSize);
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  std::string name(rest);
  for (char& c : name)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  const Unit* unit = nullptr;
  for (const Unit& u : kUnits)
    if (u.name == name) unit = &u;
  if (!unit && name.size() == 1 && std::string_view("kmgt").find(name[0]) != std::string_view::npos) {
    const char letter = static_cast<char>(name[0] - 'a' + 'A');
    return wrong(fmt::format("may mean powers of 1000 or of 1024; write {}B or {}iB", letter == 'K' ? 'k' : letter, letter));
  }
  if (!unit) return wrong(kNoSize);
  if (part.size() > kDecimals) return wrong(fmt::format("has more than {} decimals", kDecimals));
  int64_t n = 0, fraction = 0, scale = 1;
  if (!read(whole, &n) || n > kMost / unit->bytes) return wrong("is more than 2^63 - 1 bytes");
  if (!part.empty() && !read(part, &fraction)) return wrong(kNoSize);
  for (size_t i = 0; i < part.size(); ++i) scale *= 10;
  // unit = quotient * scale + remainder keeps every product within 64 bits.
  const int64_t more = fraction * (unit->bytes / scale) + fraction * (unit->bytes % scale) / scale;
  if (n * unit->bytes > kMost - more) return wrong("is more than 2^63 - 1 bytes");
  return n * unit->bytes + more;
}

}  // namespace winnow
