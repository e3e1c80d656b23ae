#include "weights/json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>

#include <optional>
#include <unordered_set>
#include <vector>

namespace winnow::weights {
namespace json = boost::json;
namespace {

constexpr size_t kMaxDepth = 32;

// Walks the text once and remembers the keys of the objects that are open.
struct KeyWatch {
  static constexpr size_t max_object_size = SIZE_MAX, max_array_size = SIZE_MAX, max_key_size = SIZE_MAX, max_string_size = SIZE_MAX;
  std::vector<std::unordered_set<std::string>> open;
  std::string part;
  std::optional<std::string> repeated;

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) {
    open.emplace_back();
    return true;
  }
  bool on_object_end(size_t, json::error_code&) {
    open.pop_back();
    return true;
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t, json::error_code&) { return true; }
  bool on_key_part(json::string_view s, size_t, json::error_code&) {
    part.append(s.data(), s.size());
    return true;
  }
  bool on_key(json::string_view s, size_t, json::error_code& ec) {
    part.append(s.data(), s.size());
    if (!open.back().insert(part).second) {
      repeated = part;
      ec = json::error::syntax;
      return false;
    }
    part.clear();
    return true;
  }
  bool on_string_part(json::string_view, size_t, json::error_code&) { return true; }
  bool on_string(json::string_view, size_t, json::error_code&) { return true; }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t, json::string_view, json::error_code&) { return true; }
  bool on_uint64(uint64_t, json::string_view, json::error_code&) { return true; }
  bool on_double(double, json::string_view, json::error_code&) { return true; }
  bool on_bool(bool, json::error_code&) { return true; }
  bool on_null(json::error_code&) { return true; }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }
};

}  // namespace

std::string quoted(std::string_view name) {
  constexpr size_t kShown = 160;
  std::string s = "\"";
  for (char c : name.substr(0, kShown)) {
    const auto u = static_cast<unsigned char>(c);
    if (u < 0x20 || u == 0x7f) s += fmt::format("\\x{:02x}", u);
    else s += c;
  }
  return s + (name.size() > kShown ? "...\"" : "\"");
}

Result<json::value> parse_json(std::string_view text, std::string_view where) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::basic_parser<KeyWatch> watch(options);
  json::error_code ec;
  const size_t used = watch.write_some(false, text.data(), text.size(), ec);
  if (const auto& key = watch.handler().repeated) return error("{}: the key {} appears twice", where, quoted(*key));
  json::value v;
  if (!ec) v = json::parse(json::string_view(text.data(), text.size()), ec, {}, options);
  if (ec) return error("{}: not valid JSON at byte {}: {}", where, used, ec.message());
  return v;
}

}  // namespace winnow::weights
