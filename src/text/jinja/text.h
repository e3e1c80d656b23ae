// A string that knows for each of its bytes whether the template wrote it (trusted) or the context did. All operations on
// strings keep that knowledge byte for byte. Always well-formed UTF-8; runs end between code points.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace winnow::text::jinja {

class Text {
 public:
  Text() = default;
  Text(std::string bytes, bool trusted) : bytes_(std::move(bytes)) {
    if (!bytes_.empty()) runs_.push_back({bytes_.size(), trusted});
  }
  const std::string& bytes() const { return bytes_; }
  const Runs& runs() const { return runs_; }  // none empty, neighbours differ
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  void append(std::string_view bytes, bool trusted);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, size_t begin, size_t end);  // bytes [begin, end) of it
  Text part(size_t begin, size_t end) const;
  bool trusted_at(size_t byte) const;

  friend bool operator==(const Text& a, const Text& b) { return a.bytes_ == b.bytes_; }

 private:
  std::string bytes_;
  Runs runs_;
};

// What Python's str does, by code point.
std::vector<size_t> code_points(std::string_view s);  // where each begins, and the end
size_t count_code_points(std::string_view s);
enum class Side { left, right, both };
Text strip(const Text& s, Side side, const Text* characters);                 // null: white space
std::vector<Text> split(const Text& s, const Text* separator, int64_t most);  // null: white space; most < 0: no limit
Text replace(const Text& s, const Text& from, const Text& to, int64_t most);
Text upper(const Text& s);
Text lower(const Text& s);
Text capitalize(const Text& s);
bool is_printable(char32_t c);
char32_t code_point_at(std::string_view s, size_t& at);  // moves `at` past it

}  // namespace winnow::text::jinja
