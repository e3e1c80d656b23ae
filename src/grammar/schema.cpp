#include "grammar/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <string_view>

namespace winnow::grammar {
namespace {

namespace json = boost::json;
using std::string_view;

constexpr string_view kCombiners[] = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};  // in the order in which XGrammar looks for them
constexpr string_view kNever[] = {"not",         "if",       "then",        "else",        "dependentRequired", "dependentSchemas", "dependencies",
                                  "$dynamicRef", "contains", "minContains", "maxContains", "additionalItems",   "$recursiveRef"};
constexpr string_view kString[] = {"pattern", "format", "minLength", "maxLength"};
constexpr string_view kNumber[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
constexpr string_view kArray[] = {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"};
constexpr string_view kObject[] = {"properties",    "required",      "additionalProperties", "patternProperties",
                                   "propertyNames", "minProperties", "maxProperties",        "unevaluatedProperties"};
constexpr string_view kTypes[] = {"null", "boolean", "integer", "number", "string", "array", "object"};

constexpr int kLongestCircle = 64;  // of references that is looked for; a longer one has no way on where its answer comes to it

bool among(auto& list, string_view key) { return std::ranges::find(list, key) != std::end(list); }
bool is_constraint(string_view key) {
  return key == "type" || among(kCombiners, key) || among(kNever, key) || among(kString, key) || among(kNumber, key) || among(kArray, key) ||
         among(kObject, key);
}

string_view type_of(const json::value& v) {
  switch (v.kind()) {
    case json::kind::null: return "null";
    case json::kind::bool_: return "boolean";
    case json::kind::int64:
    case json::kind::uint64: return "integer";
    case json::kind::double_: return std::trunc(v.get_double()) == v.get_double() ? "integer" : "number";
    case json::kind::string: return "string";
    case json::kind::array: return "array";
    case json::kind::object: return "object";
  }
  return "";
}

// A step of a JSON pointer (RFC 6901).
std::string step(string_view key) {
  std::string out;
  for (const char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return out;
}

class SchemaReader {
 public:
  SchemaReader(const json::value& root, ReadSchema* to) : root_(root), to_(*to) {}

  json::value read(const json::value& schema, const std::string& at) {
    ++to_.schemas;
    if (schema.is_bool()) return schema;
    if (!schema.is_object()) return wrong(at, "must be an object, true or false"), schema;
    const json::object& o = schema.get_object();
    for (string_view key : kNever)
      if (o.contains(key)) unsupported(at, fmt::format("{} cannot be held to", key));
    const auto combiner = std::ranges::find_if(kCombiners, [&](string_view key) { return o.contains(key); });
    json::object normal = combiner == std::end(kCombiners) ? typed(o, at) : combined(o, *combiner, at);
    for (string_view definitions : {"$defs", "definitions"}) {
      const json::value* of = o.if_contains(definitions);
      if (!of) continue;
      if (!of->is_object()) return wrong(at + "/" + std::string(definitions), "must be an object"), normal;
      normal[definitions] = each(of->get_object(), at + "/" + std::string(definitions));
    }
    return normal;
  }

 private:
  void unsupported(const std::string& at, const std::string& what) {
    if (!to_.unsupported) to_.unsupported = at + ": " + what;
  }
  void wrong(const std::string& at, const std::string& what) {
    if (!to_.wrong) to_.wrong = at + ": " + what;
  }

  json::object each(const json::object& schemas, const std::string& at) {
    json::object out;
    for (const auto& [key, schema] : schemas) out[key] = read(schema, at + "/" + step(key));
    return out;
  }

  json::array each(const json::value& schemas, const std::string& at) {
    json::array out;
    if (!schemas.is_array() || schemas.get_array().empty()) return wrong(at, "must be a list of schemas"), out;
    for (size_t i = 0; i < schemas.get_array().size(); ++i) out.push_back(read(schemas.get_array()[i], fmt::format("{}/{}", at, i)));
    return out;
  }

  json::object combined(const json::object& o, string_view combiner, const std::string& at) {
    const json::value& value = o.at(combiner);
    const std::string here = at + "/" + std::string(combiner);
    json::object out;
    const bool values = combiner == "enum" || combiner == "const";
    for (const auto& [key, ignored] : o) {
      if (key == combiner || !is_constraint(key) || among(kNever, key)) continue;
      if (key != "type" || !(values || same_type_below(o, value))) unsupported(at, fmt::format("{} beside {} cannot be held to", key, combiner));
    }
    if (combiner == "$ref") {
      if (!value.is_string()) wrong(here, "must be a string");
      else if (const string_view uri = value.get_string(); uri != "#" && !uri.starts_with("#/"))
        unsupported(here, "only places in the schema itself can be referred to");
      else if (uri.find_first_of("~%") != uri.npos) unsupported(here, "a place whose name has / or ~ cannot be referred to");
      else if (circles(value)) wrong(here, "refers to itself and to nothing else");
      out[combiner] = value;
    } else if (values) {
      if (combiner == "enum" && (!value.is_array() || value.get_array().empty())) wrong(here, "must be a list of values");
      const json::array listed = combiner == "const" ? json::array{value} : value.is_array() ? value.get_array() : json::array{};
      const json::value* type = o.if_contains("type");
      for (const json::value& v : listed)
        if (type && !allows(*type, type_of(v))) unsupported(at, fmt::format("type forbids the value {} of {}", json::serialize(v), combiner));
      out[combiner] = value;
    } else {
      out[combiner] = each(value, here);
    }
    return out;
  }

  // Whether a reference leads to references only, and those back: no value is right for it.
  bool circles(const json::value& reference) const {
    const json::value* at = &reference;
    for (int steps = 0; at && at->is_string() && steps < kLongestCircle; ++steps) {
      const string_view uri = at->get_string();
      json::error_code bad;
      const json::value* next = uri == "#" ? &root_ : uri.starts_with("#/") ? root_.find_pointer(uri.substr(1), bad) : nullptr;
      const json::object* o = next ? next->if_object() : nullptr;
      at = o ? o->if_contains("$ref") : nullptr;
      if (at == &reference) return true;
    }
    return false;
  }

  static bool allows(const json::value& type, string_view name) {
    const auto one = [&](const json::value& t) {
      return t.is_string() && (t.get_string() == name || (t.get_string() == "number" && name == "integer"));
    };
    return type.is_array() ? std::ranges::any_of(type.get_array(), one) : one(type);
  }

  // The type beside anyOf and the like says nothing new where each branch has the same.
  static bool same_type_below(const json::object& o, const json::value& branches) {
    const json::value& type = o.at("type");
    return branches.is_array() && std::ranges::all_of(branches.get_array(), [&](const json::value& b) {
             const json::value* below = b.is_object() ? b.get_object().if_contains("type") : nullptr;
             return below && *below == type;
           });
  }

  json::object typed(const json::object& o, const std::string& at) {
    json::object out;
    json::array types;
    if (const json::value* type = o.if_contains("type")) {
      types = type->is_array() ? type->get_array() : json::array{*type};
      if (types.empty()) wrong(at + "/type", "must name a type");
      for (const json::value& t : types)
        if (!t.is_string() || !among(kTypes, string_view(t.get_string())))
          return wrong(at + "/type", fmt::format("{} is no type of JSON", json::serialize(t))), out;
      out["type"] = *type;
    }
    const auto has = [&](string_view name) { return std::ranges::any_of(types, [&](const json::value& t) { return t.get_string() == name; }); };
    // Constraints of a type count only where that type is named; what implies one, XGrammar takes for it.
    const bool objects = has("object") || (types.empty() && (o.contains("properties") || o.contains("additionalProperties")));
    const bool arrays = has("array") || (types.empty() && !objects && (o.contains("items") || o.contains("prefixItems")));
    const bool numbers = has("integer") || has("number");
    for (const auto& [key, value] : o) {
      if (key == "type" || !is_constraint(key) || among(kNever, key)) continue;
      if (among(kString, key) ? has("string") : among(kNumber, key) ? numbers : among(kArray, key) ? arrays : objects) continue;
      if (types.empty()) unsupported(at, fmt::format("{} needs a type beside it", key));
    }
    if (has("string")) strings(o, at, &out);
    if (numbers) bounds(o, at, has("number"), &out);
    if (arrays) items(o, at, &out);
    if (objects) properties(o, at, &out);
    return out;
  }

  void strings(const json::object& o, const std::string& at, json::object* out) {
    for (string_view key : kString) {
      const json::value* v = o.if_contains(key);
      if (!v) continue;
      const bool text = key == "pattern" || key == "format";
      if (text ? !v->is_string() : !is_count(*v)) wrong(at + "/" + std::string(key), text ? "must be a string" : "must be a whole number, 0 or more");
      (*out)[key] = *v;
    }
    if (out->contains("pattern") && out->contains("format")) {
      unsupported(at, "format beside pattern cannot be held to");
      out->erase("format");
    }
    if ((out->contains("pattern") || out->contains("format")) && (out->contains("minLength") || out->contains("maxLength")))
      unsupported(at, "minLength and maxLength beside pattern or format cannot be held to");
  }

  static bool is_count(const json::value& v) {
    return (v.is_int64() && v.get_int64() >= 0) || v.is_uint64() ||
           (v.is_double() && v.get_double() >= 0 && std::trunc(v.get_double()) == v.get_double());
  }

  void bounds(const json::object& o, const std::string& at, bool fractions, json::object* out) {
    for (string_view key : kNumber) {
      const json::value* v = o.if_contains(key);
      if (!v) continue;
      if (v->is_bool()) unsupported(at, fmt::format("{} as in draft 4 (true or false) is not known", key));
      else if (!v->is_number()) wrong(at + "/" + std::string(key), "must be a number");
      if (key == "multipleOf" && v->is_number()) {
        const double m = v->to_number<double>();
        if (m <= 0) wrong(at + "/multipleOf", "must be above 0");
        else if (fractions || std::trunc(m) != m) unsupported(at, "multipleOf can be held to for integers only");
      }
      if (v->is_number()) (*out)[key] = *v;
    }
  }

  void items(const json::object& o, const std::string& at, json::object* out) {
    if (const json::value* unique = o.if_contains("uniqueItems"); unique && *unique != false) unsupported(at, "uniqueItems cannot be held to");
    for (string_view key : {"minItems", "maxItems"}) {
      const json::value* v = o.if_contains(key);
      if (v && !is_count(*v)) wrong(at + "/" + std::string(key), "must be a whole number, 0 or more");
      if (v) (*out)[key] = *v;
    }
    if (const json::value* prefix = o.if_contains("prefixItems")) (*out)["prefixItems"] = each(*prefix, at + "/prefixItems");
    for (string_view key : {"items", "unevaluatedItems"}) {
      const json::value* v = o.if_contains(key);
      if (v && v->is_array()) unsupported(at, "items as a list (draft 4) is not known: it is called prefixItems now");
      else if (v) (*out)[key] = read(*v, at + "/" + std::string(key));
    }
    if (!out->contains("items") && !out->contains("unevaluatedItems")) (*out)["items"] = json::object{};
  }

  void properties(const json::object& o, const std::string& at, json::object* out) {
    for (string_view key : {"properties", "patternProperties"}) {
      const json::value* v = o.if_contains(key);
      if (!v) continue;
      if (!v->is_object()) wrong(at + "/" + std::string(key), "must be an object of schemas");
      else (*out)[key] = each(v->get_object(), at + "/" + std::string(key));
    }
    for (string_view key : {"propertyNames", "additionalProperties", "unevaluatedProperties"})
      if (const json::value* v = o.if_contains(key)) (*out)[key] = read(*v, at + "/" + std::string(key));
    for (string_view key : {"minProperties", "maxProperties"}) {
      const json::value* v = o.if_contains(key);
      if (v && !is_count(*v)) wrong(at + "/" + std::string(key), "must be a whole number, 0 or more");
      if (v) (*out)[key] = *v;
    }
    const json::value* required = o.if_contains("required");
    if (required && !(required->is_array() && std::ranges::all_of(required->get_array(), [](const json::value& v) { return v.is_string(); }))) {
      wrong(at + "/required", "must be a list of names");
    } else if (required) {
      (*out)["required"] = *required;
      const json::value* declared = out->if_contains("properties");
      for (const json::value& name : required->get_array())
        if (!declared || !declared->get_object().contains(name.get_string()))
          unsupported(at, fmt::format("required {} is not among the properties", json::serialize(name)));
    }
    const bool named = out->contains("properties") && !out->at("properties").get_object().empty();
    if (out->contains("patternProperties") && (named || out->contains("additionalProperties")))
      unsupported(at, "patternProperties beside properties or additionalProperties cannot be held to");
    // A name that was declared could come again as an undeclared one, with another value.
    const json::value* more = out->if_contains("additionalProperties");
    if (named && more && *more != false) (*out)["additionalProperties"] = false;
    if (!named && !out->contains("patternProperties") && !out->contains("propertyNames") && !out->contains("additionalProperties") &&
        !out->contains("unevaluatedProperties"))
      (*out)["additionalProperties"] = true;
  }

  const json::value& root_;
  ReadSchema& to_;
};

}  // namespace

ReadSchema read_schema(const json::value& schema) {
  ReadSchema out;
  out.normal = SchemaReader(schema, &out).read(schema, "#");
  return out;
}

}  // namespace winnow::grammar
