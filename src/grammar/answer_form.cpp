#include "grammar/answer_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>

#include "grammar/schema.h"
#include "text/tool_calls.h"

namespace winnow::grammar {
namespace {

namespace json = boost::json;
using std::string_view;
using text::ToolTypes;

// --- formats of structural tags -----------------------------------------------------------------------------------------

json::object token(text::Token id) { return {{"type", "token"}, {"token", id}}; }
json::object literal(string_view text) { return {{"type", "const_string"}, {"value", text}}; }
json::object any_text() { return {{"type", "any_text"}}; }
json::object regex(string_view pattern) { return {{"type", "regex"}, {"pattern", pattern}}; }
json::object optional(json::object content) { return {{"type", "optional"}, {"content", std::move(content)}}; }
json::object plus(json::object content) { return {{"type", "plus"}, {"content", std::move(content)}}; }
json::object star(json::object content) { return {{"type", "star"}, {"content", std::move(content)}}; }
json::object sequence(json::array elements) { return {{"type", "sequence"}, {"elements", std::move(elements)}}; }
json::object one_of(json::array elements) {
  if (elements.size() == 1) return elements.front().get_object();
  return {{"type", "or"}, {"elements", std::move(elements)}};
}
json::object json_text(json::value schema) { return {{"type", "json_schema"}, {"json_schema", std::move(schema)}, {"max_whitespace_cnt", 1}}; }
json::object any_tokens(json::array but, std::optional<int64_t> most = {}) {
  json::object out{{"type", "any_tokens"}, {"exclude_tokens", std::move(but)}};
  if (most) out["max_tokens"] = std::min<int64_t>(*most, INT32_MAX);
  return out;
}

// --- values of arguments ------------------------------------------------------------------------------------------------

constexpr int kDeepest = 8;
// Counting a string's characters costs seconds of compilation from here on; a schema that is not strict does without.
constexpr double kLongestCounted = 64;

// One of some texts. An empty format stands for the empty text: structural tags have no other.
json::object one_of_texts(const json::array& values) {
  json::array texts;
  bool empty = false;
  for (const json::value& v : values) {
    if (v.is_null()) texts.push_back(literal("null"));
    else if (v.get_string().empty()) empty = true;
    else texts.push_back(literal(v.get_string()));
  }
  if (texts.empty()) return {};
  json::object some = one_of(std::move(texts));
  return empty ? optional(std::move(some)) : some;
}

// A string as it is written in an argument: without quotes. Nothing if it cannot be held to that way.
std::optional<json::object> raw_string(const json::value& schema, const json::value& root, bool strict, int depth = 0) {
  const json::object* o = schema.if_object();
  if (!o || depth > kDeepest) return {};
  if (const json::value* ref = o->if_contains("$ref")) {
    json::error_code bad;
    const string_view uri = ref->get_string();
    const json::value* at = uri.starts_with("#/") ? root.find_pointer(uri.substr(1), bad) : nullptr;
    return at && !bad ? raw_string(*at, root, strict, depth + 1) : std::nullopt;
  }
  if (o->contains("const") || o->contains("enum")) {
    const json::array values = o->contains("const") ? json::array{o->at("const")} : o->at("enum").get_array();
    if (!std::ranges::all_of(values, [](const json::value& v) { return v.is_null() || v.is_string(); })) return {};
    return one_of_texts(values);
  }
  for (string_view key : {"anyOf", "oneOf"}) {
    const json::value* branches = o->if_contains(key);
    if (!branches) continue;
    json::array texts;
    bool empty = false;
    for (const json::value& b : branches->get_array()) {
      std::optional<json::object> text = raw_string(b, root, strict, depth + 1);
      if (!text) return {};
      if (text->empty()) empty = true;
      else texts.push_back(std::move(*text));
    }
    if (texts.empty()) return json::object();
    json::object some = one_of(std::move(texts));
    return empty ? optional(std::move(some)) : some;
  }
  const json::value* type = o->if_contains("type");
  if (!type) return {};
  if (*type == "null") return literal("null");
  const bool nullable = *type == json::array{"string", "null"} || *type == json::array{"null", "string"};
  if (*type != "string" && *type != json::array{"string"} && !nullable) return {};
  if (const json::value* pattern = o->if_contains("pattern")) {
    if (nullable) return {};  // text that matches could be read as JSON
    return regex(pattern->get_string());
  }
  const auto length = [&](string_view key) {  // -1: not held to
    const double n = o->contains(key) ? o->at(key).to_number<double>() : -1;
    return strict || n <= kLongestCounted ? n : -1;
  };
  const double least = length("minLength"), most = length("maxLength");
  if (least <= 0 && most < 0) return any_text();
  if (nullable) return {};
  if (most == 0) return json::object();
  return regex(most < 0 ? fmt::format("[\\s\\S]{{{},}}", least) : fmt::format("[\\s\\S]{{{},{}}}", std::max(least, 0.0), most));
}

bool refers(const json::value& schema) {
  if (const json::array* a = schema.if_array()) return std::ranges::any_of(*a, refers);
  const json::object* o = schema.if_object();
  return o && (o->contains("$ref") || std::ranges::any_of(*o, [](const auto& member) { return refers(member.value()); }));
}

// The schema of a property as one of its own. Where it refers to other places, all of them come along: beside $ref nothing else counts.
json::value property_schema(string_view key, const json::value& schema, const json::object& root) {
  if (!refers(schema)) return schema;
  json::object out = root;
  out["$ref"] = fmt::format("#/properties/{}", key);
  return out;
}

// Drops counts of characters that cost too much.
void forget_long_counts(json::value* v) {
  if (json::array* a = v->if_array())
    for (json::value& x : *a) forget_long_counts(&x);
  json::object* o = v->if_object();
  if (!o) return;
  for (string_view key : {"minLength", "maxLength"})
    if (const json::value* n = o->if_contains(key); n && n->is_number() && n->to_number<double>() > kLongestCounted) o->erase(key);
  for (auto& member : *o) forget_long_counts(&member.value());
}

// --- calls --------------------------------------------------------------------------------------------------------------

struct Tags {
  text::Token think, end_think, call, end_call, key, end_key, value, end_value;
  explicit Tags(const text::Tokenizer& t)
      : think(t.find("<think>")),
        end_think(t.find("</think>")),
        call(t.find("<tool_call>")),
        end_call(t.find("</tool_call>")),
        key(t.find("<arg_key>")),
        end_key(t.find("</arg_key>")),
        value(t.find("<arg_value>")),
        end_value(t.find("</arg_value>")) {}
  bool can_reason() const { return think >= 0 && end_think >= 0; }
  bool can_call() const { return std::min({call, end_call, key, end_key, value, end_value}) >= 0; }
  json::array all() const {  // that there are
    json::array out;
    for (const text::Token id : {think, end_think, call, end_call, key, end_key, value, end_value})
      if (id >= 0) out.push_back(id);
    return out;
  }
};

json::object argument(const Tags& tags, json::object key, json::object value) {
  json::array elements{token(tags.key), std::move(key), token(tags.end_key), token(tags.value)};
  if (!value.empty()) elements.push_back(std::move(value));
  elements.push_back(token(tags.end_value));
  return sequence(std::move(elements));
}

// Nothing if a schema that is strict cannot be held to.
std::optional<json::object> value_of(string_view key, const json::value& schema, const json::object& root, ToolTypes::Set allowed, bool strict) {
  if ((allowed & ~ToolTypes::kNull) == ToolTypes::kString) {
    if (std::optional<json::object> raw = raw_string(schema, root, strict)) return raw;
    if (allowed == ToolTypes::kString) return strict ? std::nullopt : std::optional(any_text());  // JSON would be taken for its text
  }
  json::value own = property_schema(key, schema, root);
  if (!strict) forget_long_counts(&own);
  return json_text(std::move(own));
}

// Behind <tool_call>, before </tool_call>.
json::object call_of(const Tags& tags, const json::object& function, const ToolTypes& types) {
  const string_view name = function.at("name").get_string();
  json::array elements{literal(name)};
  const json::value* given = function.if_contains("parameters");
  if (!given || !given->is_object()) return sequence(std::move(elements));
  const bool strict = function.contains("strict") && function.at("strict") == true;
  const json::value normal = read_schema(*given).normal;
  const json::object& schema = normal.get_object();
  const json::value* properties = schema.if_contains("properties");
  if (!properties || properties->get_object().empty()) {
    const bool closed = schema.contains("additionalProperties") && schema.at("additionalProperties") == false;
    if (!closed) elements.push_back(star(argument(tags, regex("[^\\s]([^\\r\\n]*[^\\s])?"), any_text())));
    return sequence(std::move(elements));
  }
  const json::value* required = schema.if_contains("required");
  for (const auto& [key, value] : properties->get_object()) {
    json::object a = argument(tags, literal(key), value_of(key, value, schema, types.of(name, key), strict).value());
    const bool needed = required && std::ranges::find(required->get_array(), json::value(key)) != required->get_array().end();
    elements.push_back(needed ? std::move(a) : optional(std::move(a)));
  }
  return sequence(std::move(elements));
}

json::object output_format(const OutputForm& form) {
  switch (form.kind) {
    case OutputForm::Kind::text: return any_text();
    case OutputForm::Kind::json_schema: {
      json::value schema = read_schema(form.schema).normal;
      if (form.strictness == Strictness::lenient) forget_long_counts(&schema);
      return json_text(std::move(schema));
    }
    case OutputForm::Kind::regex: return regex(form.source);
    case OutputForm::Kind::choice: {
      json::array choices;
      for (const std::string& c : form.choices) choices.push_back(literal(c));
      return one_of(std::move(choices));
    }
    case OutputForm::Kind::ebnf: return {{"type", "grammar"}, {"grammar", form.source}};
  }
  return any_text();
}

std::optional<FormError> check_schema(const json::value& schema, bool strict, const std::string& field, const FormLimits& limits) {
  const size_t bytes = json::serialize(schema).size();
  if (bytes > limits.schema_bytes) return FormError{field, fmt::format("a schema has at most {} bytes (it has {})", limits.schema_bytes, bytes)};
  const ReadSchema read = read_schema(schema);
  if (read.wrong) return FormError{field, "is no JSON schema: " + *read.wrong};
  if (read.schemas > limits.schemas)
    return FormError{field, fmt::format("a schema holds at most {} schemas (it holds {})", limits.schemas, read.schemas)};
  if (strict && read.unsupported) return FormError{field, *read.unsupported};
  return {};
}

}  // namespace

std::optional<FormError> check_parameters(const json::value& schema, bool strict, const std::string& field, const FormLimits& limits) {
  if (std::optional<FormError> wrong = check_schema(schema, strict, field, limits)) return wrong;
  const json::object* o = schema.if_object();
  const json::value* type = o ? o->if_contains("type") : nullptr;
  if (!o || (type && *type != "object")) return FormError{field, "the parameters of a tool are an object: its schema must have type \"object\""};
  if (!strict) return {};
  for (string_view key : {"$ref", "anyOf", "oneOf", "allOf", "patternProperties", "minProperties", "maxProperties", "propertyNames"})
    if (o->contains(key)) return FormError{field, fmt::format("#: {} cannot be held to here, only within a property", key)};
  const json::object normal = read_schema(schema).normal.get_object();
  const ToolTypes types(json::array{json::object{{"name", "f"}, {"parameters", schema}}});
  if (const json::value* properties = normal.if_contains("properties"))
    for (const auto& [key, value] : properties->get_object())
      if (!value_of(key, value, normal, types.of("f", key), true))
        return FormError{field, fmt::format("#/properties/{}: a string like this cannot be held to", string_view(key))};
  return {};
}

std::optional<FormError> check_output(const OutputForm& form, const FormLimits& limits) {
  switch (form.kind) {
    case OutputForm::Kind::text: return {};
    case OutputForm::Kind::json_schema: return check_schema(form.schema, form.strictness == Strictness::exact, form.field, limits);
    case OutputForm::Kind::regex:
    case OutputForm::Kind::ebnf:
      if (form.source.empty()) return FormError{form.field, "must not be empty"};
      if (form.source.size() > limits.source_bytes) return FormError{form.field, fmt::format("has at most {} bytes", limits.source_bytes)};
      return {};
    case OutputForm::Kind::choice:
      if (form.choices.empty() || form.choices.size() > limits.choices) return FormError{form.field, fmt::format("1 to {} choices", limits.choices)};
      for (const std::string& c : form.choices)
        if (c.empty() || c.size() > limits.choice_bytes) return FormError{form.field, fmt::format("a choice has 1 to {} bytes", limits.choice_bytes)};
      return {};
  }
  return {};
}

bool can_call(const text::Tokenizer& tokenizer) { return Tags(tokenizer).can_call(); }

std::optional<AnswerForm> answer_form(const AnswerRules& rules, const text::Tokenizer& tokenizer) {
  const Tags tags(tokenizer);
  const bool thinks = rules.starts_in_reasoning && tags.can_reason();
  const bool calls = rules.tools && !rules.tools->empty() && tags.can_call();
  const bool formed = rules.output && rules.output->kind != OutputForm::Kind::text;
  if (!calls && !formed && !(thinks && rules.reasoning_tokens)) return {};

  AnswerForm form;
  json::array parts;
  if (thinks) {
    json::array but{tags.think, tags.end_think};
    if (calls) but.push_back(tags.call);
    parts.push_back(any_tokens(std::move(but), rules.reasoning_tokens));
    parts.push_back(token(tags.end_think));
  }

  json::object call;
  if (calls) {
    const ToolTypes types(*rules.tools);
    json::array tools;
    for (const json::value& tool : *rules.tools) {
      const json::object& function = tool.at("function").get_object();
      const string_view name = function.at("name").get_string();
      const auto& allowed = rules.calls.allowed;
      if (!allowed.empty() && std::ranges::find(allowed, name) == allowed.end()) continue;
      if (!function.contains("strict") || function.at("strict") != true) form.strictness = Strictness::lenient;
      tools.push_back(call_of(tags, function, types));
    }
    call = {{"type", "tag"}, {"begin", token(tags.call)}, {"content", one_of(std::move(tools))}, {"end", token(tags.end_call)}};
  }
  if (formed && rules.output->strictness == Strictness::lenient) form.strictness = Strictness::lenient;

  if (calls && (rules.calls.required || formed)) {
    json::object some = rules.calls.parallel ? plus(call) : call;
    parts.push_back(rules.calls.required ? some : one_of({std::move(some), output_format(*rules.output)}));
  } else if (calls) {
    // Free text may close a thought again: one that was cut goes on there, and its end is what leads the model to the answer.
    json::array but;
    for (json::value& id : tags.all())
      if (id != tags.call && id != tags.end_think) but.push_back(std::move(id));
    parts.push_back(json::object{{"type", "token_triggered_tags"},
                                 {"trigger_tokens", json::array{tags.call}},
                                 {"tags", json::array{std::move(call)}},
                                 {"exclude_tokens", std::move(but)},
                                 {"stop_after_first", !rules.calls.parallel}});
  } else {
    parts.push_back(formed ? output_format(*rules.output) : any_tokens({tags.think}));
  }
  form.structural_tag = json::serialize(json::object{{"type", "structural_tag"}, {"format", sequence(std::move(parts))}});
  return form;
}

}  // namespace winnow::grammar
