// Typed access to the fields of a JSON object. Every accessor throws an Error that names file, field, the value found and
// the values allowed; null counts as absent, as it does for the classes that write these files.
#pragma once

#include <boost/json/value.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace winnow::weights {

struct Range {
  int64_t min, max;
};
struct RealRange {
  double min, max;
};

class Fields {
 public:
  // `path` begins every message: "DIR/config.json: text_config."
  Fields(const boost::json::object& object, std::string path) : object_(object), path_(std::move(path)) {}

  bool has(std::string_view key) const { return find(key); }  // present and not null
  bool is_null(std::string_view key) const;                   // present and null
  std::optional<Fields> object(std::string_view key) const;
  std::optional<int64_t> integer(std::string_view key, Range allowed) const;
  int64_t need(std::string_view key, Range allowed) const;
  std::optional<double> number(std::string_view key, RealRange allowed) const;
  bool boolean(std::string_view key, bool otherwise) const;
  std::optional<std::string> text(std::string_view key) const;
  std::optional<std::vector<std::string>> texts(std::string_view key) const;
  std::vector<int64_t> integers(std::string_view key, Range allowed) const;  // a number, an array or nothing
  // The field must be absent or have this value.
  void require_text(std::string_view key, std::string_view value) const;
  void require_flag(std::string_view key, bool value) const;

  Error wrong(std::string_view key, std::string_view what) const { return error("{}{} {}", path_, key, what); }
  const boost::json::value* find(std::string_view key) const;  // null: absent or null

 private:
  int64_t whole(std::string_view key, const boost::json::value& v, Range allowed) const;

  const boost::json::object& object_;
  std::string path_;
};

}  // namespace winnow::weights
