#include "base/json_writer.h"

#include <unicode/utf8.h>

#include <charconv>
#include <cmath>

namespace winnow {
namespace {

// Python's repr of a float: fixed notation for exponents from -4 to 15, else one digit, the rest, e+XX.
template <class T>
std::string number(T v) {
  if (!std::isfinite(v)) return "null";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::scientific).ptr;
  std::string_view text(buffer, end - buffer);
  const std::string_view sign = text.front() == '-' ? "-" : "";
  text.remove_prefix(sign.size());
  const size_t e = text.find('e');
  int exponent = 0;
  const std::string_view written = text.substr(e + 1);
  std::from_chars(written.data() + (written.front() == '+'), written.data() + written.size(), exponent);
  const std::string digits = fmt::format("{}{}", text[0], e > 2 ? text.substr(2, e - 2) : "");
  const int n = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}{}{}{}e{}{:02}", sign, digits[0], n > 1 ? "." : "", digits.substr(1), exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return fmt::format("{}0.{}{}", sign, std::string(-exponent - 1, '0'), digits);
  if (n <= exponent + 1) return fmt::format("{}{}{}.0", sign, digits, std::string(exponent + 1 - n, '0'));
  return fmt::format("{}{}.{}", sign, digits.substr(0, exponent + 1), digits.substr(exponent + 1));
}

}  // namespace

JsonWriter& JsonWriter::value(double v) { return raw(number(v)); }
JsonWriter& JsonWriter::value(float v) { return raw(number(v)); }

void JsonWriter::before_value() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (open_.empty()) {
    check(text_.empty(), "JSON has one value at the top");
    return;
  }
  check(open_.back().close == ']', "a value in a JSON object needs a key");
  if (!open_.back().empty) text_ += style_.spaced ? ", " : ",";
  open_.back().empty = false;
}

JsonWriter& JsonWriter::open(char bracket) {
  before_value();
  text_ += bracket;
  open_.push_back({bracket == '{' ? '}' : ']'});
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  check(!open_.empty() && open_.back().close == bracket && !after_key_, "JSON brackets do not match");
  open_.pop_back();
  text_ += bracket;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  check(!open_.empty() && open_.back().close == '}' && !after_key_, "a JSON key outside an object");
  if (!open_.back().empty) text_ += style_.spaced ? ", " : ",";
  open_.back().empty = false;
  quote(name);
  text_ += style_.spaced ? ": " : ":";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  before_value();
  quote(text);
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  before_value();
  text_ += json;
  return *this;
}

void JsonWriter::quote(std::string_view text) {
  text_ += '"';
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    char32_t c = 0;
    U8_NEXT_OR_FFFD(bytes, i, text.size(), c);
    switch (c) {
      case '"': text_ += "\\\""; continue;
      case '\\': text_ += "\\\\"; continue;
      case '\n': text_ += "\\n"; continue;
      case '\r': text_ += "\\r"; continue;
      case '\t': text_ += "\\t"; continue;
      case '\b': text_ += "\\b"; continue;
      case '\f': text_ += "\\f"; continue;
      default: break;
    }
    if (c < 0x20 || (style_.ensure_ascii && c >= 0x7f && c < 0x10000)) {
      text_ += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else if (style_.ensure_ascii && c >= 0x10000) {
      const uint32_t v = static_cast<uint32_t>(c) - 0x10000;
      text_ += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (v >> 10), 0xdc00 + (v & 0x3ff));
    } else if (c == 0xfffd) {
      text_ += "\xef\xbf\xbd";
    } else {
      text_.append(text, start, i - start);
    }
  }
  text_ += '"';
}

}  // namespace winnow
