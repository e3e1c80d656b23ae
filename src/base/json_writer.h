// Writes JSON text as Python's json.dumps does: shortest numbers that read back as the same value, its separators if
// asked for, its escapes. NaN and infinities have no JSON form and become null; bytes that are not UTF-8 become U+FFFD.
// Calls must nest as JSON does; a mistake aborts.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace winnow {

struct JsonStyle {
  bool ensure_ascii = false;  // everything beyond ASCII as \uXXXX
  bool spaced = false;        // Python's default separators ", " and ": "
};

class JsonWriter {
 public:
  explicit JsonWriter(JsonStyle style = {}) : style_(style) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(std::same_as<bool> auto b) { return raw(b ? "true" : "false"); }
  JsonWriter& value(std::integral auto n)
    requires(!std::same_as<decltype(n), bool>)
  {
    return raw(std::to_string(n));
  }
  JsonWriter& value(double v);
  JsonWriter& value(float v);  // the shortest digits of a float, not of the double that it widens to
  JsonWriter& null() { return raw("null"); }
  JsonWriter& raw(std::string_view json);  // a finished value

  // key and value in one
  template <class T>
  JsonWriter& field(std::string_view name, const T& v) {
    return key(name).value(v);
  }

  const std::string& text() const {
    check(open_.empty(), "JSON is not finished");
    return text_;
  }
  std::string take() {
    check(open_.empty(), "JSON is not finished");
    return std::move(text_);
  }

 private:
  struct Level {
    char close;
    bool empty = true;
  };
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void before_value();
  void quote(std::string_view text);

  JsonStyle style_;
  std::string text_;
  std::vector<Level> open_;
  bool after_key_ = false;
};

}  // namespace winnow
