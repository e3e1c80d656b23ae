#include "weights/fields.h"

#include <boost/json/serialize.hpp>

#include <cmath>

#include "weights/json.h"

namespace winnow::weights {
namespace json = boost::json;
namespace {

// What the file says, short and on one line.
std::string shown(const json::value& v) {
  if (v.is_string()) return quoted(std::string_view(v.get_string()));
  if (v.is_object()) return "an object";
  if (v.is_array()) return "an array";
  return json::serialize(v);
}

}  // namespace

const json::value* Fields::find(std::string_view key) const {
  const json::value* v = object_.if_contains(json::string_view(key.data(), key.size()));
  return v && !v->is_null() ? v : nullptr;
}

bool Fields::is_null(std::string_view key) const {
  const json::value* v = object_.if_contains(json::string_view(key.data(), key.size()));
  return v && v->is_null();
}

std::optional<Fields> Fields::object(std::string_view key) const {
  const json::value* v = find(key);
  if (!v) return std::nullopt;
  if (!v->is_object()) throw wrong(key, fmt::format("is {}, not an object", shown(*v)));
  return Fields(v->get_object(), fmt::format("{}{}.", path_, key));
}

int64_t Fields::whole(std::string_view key, const json::value& v, Range allowed) const {
  if (!v.is_int64() && !v.is_uint64()) throw wrong(key, fmt::format("is {}, not a whole number", shown(v)));
  if (!v.is_int64() || v.get_int64() < allowed.min || v.get_int64() > allowed.max)
    throw wrong(key, fmt::format("is {}; allowed are {} to {}", shown(v), allowed.min, allowed.max));
  return v.get_int64();
}

std::optional<int64_t> Fields::integer(std::string_view key, Range allowed) const {
  const json::value* v = find(key);
  if (!v) return std::nullopt;
  return whole(key, *v, allowed);
}

int64_t Fields::need(std::string_view key, Range allowed) const {
  const auto v = integer(key, allowed);
  if (!v) throw wrong(key, "is missing");
  return *v;
}

std::optional<double> Fields::number(std::string_view key, RealRange allowed) const {
  const json::value* v = find(key);
  if (!v) return std::nullopt;
  if (!v->is_number()) throw wrong(key, fmt::format("is {}, not a number", shown(*v)));
  const double x = v->to_number<double>();
  if (!std::isfinite(x) || x < allowed.min || x > allowed.max)
    throw wrong(key, fmt::format("is {}; allowed are {} to {}", x, allowed.min, allowed.max));
  return x;
}

bool Fields::boolean(std::string_view key, bool otherwise) const {
  const json::value* v = find(key);
  if (!v) return otherwise;
  if (!v->is_bool()) throw wrong(key, fmt::format("is {}, not true or false", shown(*v)));
  return v->get_bool();
}

std::optional<std::string> Fields::text(std::string_view key) const {
  const json::value* v = find(key);
  if (!v) return std::nullopt;
  if (!v->is_string()) throw wrong(key, fmt::format("is {}, not a string", shown(*v)));
  return std::string(v->get_string());
}

std::optional<std::vector<std::string>> Fields::texts(std::string_view key) const {
  const json::value* v = find(key);
  if (!v) return std::nullopt;
  if (!v->is_array()) throw wrong(key, fmt::format("is {}, not an array", shown(*v)));
  std::vector<std::string> all;
  for (const json::value& s : v->get_array()) {
    if (!s.is_string()) throw wrong(key, fmt::format("has the entry {}, not a string", shown(s)));
    all.emplace_back(s.get_string());
  }
  return all;
}

std::vector<int64_t> Fields::integers(std::string_view key, Range allowed) const {
  const json::value* v = find(key);
  if (!v) return {};
  if (!v->is_array()) return {whole(key, *v, allowed)};
  std::vector<int64_t> all;
  for (const json::value& n : v->get_array()) all.push_back(whole(key, n, allowed));
  return all;
}

void Fields::require_text(std::string_view key, std::string_view value) const {
  const auto v = text(key);
  if (v && *v != value) throw wrong(key, fmt::format("is {}, which is not supported; only {} is", quoted(*v), quoted(value)));
}

void Fields::require_flag(std::string_view key, bool value) const {
  if (boolean(key, value) != value) throw wrong(key, fmt::format("is {}, which is not supported", !value));
}

}  // namespace winnow::weights
