#include "text/tool_calls.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <utility>

#include "base/json_writer.h"

namespace winnow::text {
namespace {

namespace json = boost::json;
using Set = ToolTypes::Set;

constexpr int kDeepest = 8, kMostSchemas = 20000;  // of one request's; what lies behind allows any type
constexpr size_t kValueDepth = 64;

std::string_view trimmed(std::string_view s) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = s.find_first_not_of(kSpace);
  if (first == s.npos) return {};
  return s.substr(first, s.find_last_not_of(kSpace) - first + 1);
}

std::string quoted(std::string_view text) {
  JsonWriter w;
  w.value(text);
  return w.take();
}

Set type_of(const json::value& v) {
  switch (v.kind()) {
    case json::kind::null: return ToolTypes::kNull;
    case json::kind::bool_: return ToolTypes::kBoolean;
    case json::kind::int64:
    case json::kind::uint64: return ToolTypes::kInteger | ToolTypes::kNumber;
    case json::kind::double_: {
      const double d = v.get_double();
      return std::trunc(d) == d && std::isfinite(d) ? ToolTypes::kInteger | ToolTypes::kNumber : ToolTypes::kNumber;
    }
    case json::kind::string: return ToolTypes::kString;
    case json::kind::array: return ToolTypes::kArray;
    case json::kind::object: return ToolTypes::kObject;
  }
  return ToolTypes::kAny;
}

Set type_named(std::string_view name) {
  constexpr std::pair<std::string_view, Set> kNames[] = {{"null", ToolTypes::kNull},       {"boolean", ToolTypes::kBoolean},
                                                         {"integer", ToolTypes::kInteger}, {"number", ToolTypes::kNumber | ToolTypes::kInteger},
                                                         {"string", ToolTypes::kString},   {"array", ToolTypes::kArray},
                                                         {"object", ToolTypes::kObject}};
  for (const auto& [known, set] : kNames)
    if (known == name) return set;
  return ToolTypes::kAny;
}

// What a schema allows, its own references followed.
class Schemas {
 public:
  explicit Schemas(int* left) : left_(left) {}
  Set allowed(const json::value& schema, const json::value& root, int depth = 0) {
    const json::object* o = schema.if_object();
    if (!o || depth > kDeepest || --*left_ < 0) return ToolTypes::kAny;
    Set set = ToolTypes::kAny;
    if (const json::value* ref = o->if_contains("$ref"); ref && ref->is_string() && std::string_view(ref->get_string()).starts_with("#/")) {
      json::error_code bad;
      const json::value* at = root.find_pointer(std::string_view(ref->get_string()).substr(1), bad);
      if (at && !bad) set &= allowed(*at, root, depth + 1);
    }
    if (const json::value* type = o->if_contains("type")) set &= of_type(*type);
    if (const json::value* one = o->if_contains("const")) set &= type_of(*one);
    if (const json::value* some = o->if_contains("enum"); some && some->is_array()) {
      Set any = 0;
      for (const json::value& v : some->get_array()) any |= type_of(v);
      set &= any;
    }
    for (std::string_view key : {"anyOf", "oneOf"}) {
      const json::value* branches = o->if_contains(key);
      if (!branches || !branches->is_array()) continue;
      Set any = 0;
      for (const json::value& b : branches->get_array()) any |= allowed(b, root, depth + 1);
      set &= any;
    }
    if (const json::value* all = o->if_contains("allOf"); all && all->is_array())
      for (const json::value& b : all->get_array()) set &= allowed(b, root, depth + 1);
    return set ? set : ToolTypes::kAny;
  }

 private:
  static Set of_type(const json::value& type) {
    if (type.is_string()) return type_named(type.get_string());
    Set any = 0;
    if (type.is_array())
      for (const json::value& t : type.get_array())
        if (t.is_string()) any |= type_named(t.get_string());
    return any ? any : ToolTypes::kAny;
  }
  int* left_;
};

}  // namespace

void push(AnswerParts* to, AnswerPart::Kind kind, std::string text) {
  using Kind = AnswerPart::Kind;
  const bool joins = kind == Kind::reasoning || kind == Kind::content || kind == Kind::arguments;
  if (joins && text.empty()) return;
  if (joins && !to->empty() && to->back().kind == kind) to->back().text += text;
  else to->push_back({kind, std::move(text)});
}

std::string text_of(const AnswerParts& parts, AnswerPart::Kind kind) {
  std::string out;
  for (const AnswerPart& p : parts)
    if (p.kind == kind) out += p.text;
  return out;
}

ToolTypes::ToolTypes(const json::array& tools) {
  int left = kMostSchemas;
  Schemas schemas(&left);
  for (const json::value& tool : tools) {
    const json::object* o = tool.if_object();
    const json::value* fn = o ? o->if_contains("function") : nullptr;
    if (fn) o = fn->if_object();
    const json::value* name = o ? o->if_contains("name") : nullptr;
    const json::value* parameters = o ? o->if_contains("parameters") : nullptr;
    if (!name || !name->is_string() || !parameters || !parameters->is_object()) continue;
    const json::value* properties = parameters->get_object().if_contains("properties");
    if (!properties || !properties->is_object()) continue;
    auto& known = types_[std::string(name->get_string())];
    for (const auto& [key, schema] : properties->get_object()) known[std::string(trimmed(key))] = schemas.allowed(schema, *parameters);
  }
}

Set ToolTypes::of(std::string_view tool, std::string_view parameter) const {
  const auto t = types_.find(tool);
  if (t == types_.end()) return kAny;
  const auto p = t->second.find(parameter);
  return p == t->second.end() ? kAny : p->second;
}

std::string typed_value(std::string_view text, Set allowed) {
  if (allowed == ToolTypes::kString) return quoted(text);
  const std::string_view inner = trimmed(text);
  json::error_code bad;
  json::parse_options options;
  options.max_depth = kValueDepth;
  const json::value v = json::parse(inner, bad, {}, options);
  if (!bad && ((type_of(v) & allowed) || !(allowed & ToolTypes::kString))) return std::string(inner);
  // What models write that saw much Python.
  if (bad && (allowed & ToolTypes::kBoolean) && (inner == "True" || inner == "False")) return inner == "True" ? "true" : "false";
  if (bad && (allowed & ToolTypes::kNull) && inner == "None") return "null";
  return quoted(text);
}

ToolCallReader::ToolCallReader(const Tokenizer& tokenizer)
    : tags_{tokenizer.find("<tool_call>"), tokenizer.find("</tool_call>"), tokenizer.find("<arg_key>"),
            tokenizer.find("</arg_key>"),  tokenizer.find("<arg_value>"),  tokenizer.find("</arg_value>")},
      tokenizer_(tokenizer) {}

bool ToolCallReader::can_read() const {
  return std::all_of(std::begin(tags_), std::end(tags_), [](Token id) { return id >= 0; });
}

bool ToolCallReader::is_tag(Token id) const { return std::find(std::begin(tags_), std::end(tags_), id) != std::end(tags_); }

// A tag that is missing is taken as written where the next one shows it; one that means nothing in its place is dropped,
// within a value it is text.
void ToolCallReader::tag(Token id, const ToolTypes& types, AnswerParts* to) {
  const auto which = static_cast<Tag>(std::find(std::begin(tags_), std::end(tags_), id) - std::begin(tags_));
  if (state_ == State::value && (which == kValue || which == kEndKey)) return append(tokenizer_.bytes(id), to);
  if (state_ == State::value) end_value(to);
  if (state_ == State::name && (which == kKey || which == kClose)) begin_call(to);
  switch (which) {
    case kOpen:
      if (state_ != State::outside && state_ != State::name) end_call(to);
      state_ = State::name;
      name_.clear();
      return;
    case kClose:
      if (state_ != State::outside) end_call(to);
      return;
    case kKey:
      if (state_ == State::outside) return;
      key_.clear();
      state_ = State::key;
      return;
    case kEndKey:
      if (state_ == State::key) state_ = State::after_key;
      return;
    case kValue:
      if (state_ == State::key || state_ == State::after_key) begin_value(types, to);
      return;
    case kEndValue:
    case kTags: return;
  }
}

void ToolCallReader::append(std::string_view text, AnswerParts* to) {
  if (state_ == State::name) name_ += text;
  if (state_ == State::key) key_ += text;
  if (state_ != State::value) return;
  if (allowed_ != ToolTypes::kString) {
    value_ += text;
    return;
  }
  const std::string q = quoted(text);
  if (named_) push(to, AnswerPart::Kind::arguments, q.substr(1, q.size() - 2));
}

void ToolCallReader::begin_call(AnswerParts* to) {
  name_ = std::string(trimmed(name_));
  named_ = !name_.empty();
  arguments_ = 0;
  if (named_) push(to, AnswerPart::Kind::call, name_);
  state_ = State::between;
}

void ToolCallReader::end_call(AnswerParts* to) {
  state_ = State::outside;
  if (!std::exchange(named_, false)) return;
  push(to, AnswerPart::Kind::arguments, arguments_ > 0 ? "}" : "{}");
  push(to, AnswerPart::Kind::call_end, {});
  ++calls_;
}

void ToolCallReader::begin_value(const ToolTypes& types, AnswerParts* to) {
  const std::string_view key = trimmed(key_);
  allowed_ = types.of(name_, key);
  value_.clear();
  state_ = State::value;
  if (!named_) return;
  push(to, AnswerPart::Kind::arguments, fmt::format("{}{}: {}", arguments_++ ? ", " : "{", quoted(key), allowed_ == ToolTypes::kString ? "\"" : ""));
}

void ToolCallReader::end_value(AnswerParts* to) {
  state_ = State::between;
  if (named_) push(to, AnswerPart::Kind::arguments, allowed_ == ToolTypes::kString ? "\"" : typed_value(value_, allowed_));
}

}  // namespace winnow::text
