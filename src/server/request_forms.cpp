// The form that an answer must have: response_format and text.format of OpenAI, output_config.format of Anthropic, and
// structured_outputs as in vLLM, each read into one OutputForm.
#include <algorithm>

#include "server/request_reader.h"

namespace winnow::server {
namespace {

namespace json = boost::json;
using grammar::OutputForm;
using std::string_view;

void take_form(Reader& p, OutputForm form) {
  if (p.wrong) return;
  if (p.r.output.kind != OutputForm::Kind::text)
    return p.fail(form.field, fmt::format("there is another form already, in {}; give one", p.r.output.field));
  if (std::optional<grammar::FormError> wrong = grammar::check_output(form, p.limits.forms)) return p.fail(wrong->field, std::move(wrong->message));
  p.r.output = std::move(form);
}

void any_object(Reader& p, std::string field) {
  take_form(p, {.kind = OutputForm::Kind::json_schema, .schema = json::object{{"type", "object"}}, .field = std::move(field)});
}

// {"schema", "strict"} at a place. A schema that is not strict may say what no grammar can hold an answer to.
void schema_in(Reader& p, const std::string& at, const json::object& o) {
  const json::value* schema = o.if_contains("schema");
  if (!schema || schema->is_null()) return p.fail(at + ".schema", "is missing");
  const json::value* strict = o.if_contains("strict");
  const bool lenient = strict && !strict->is_null() && !p.boolean(at + ".strict", *strict);
  take_form(p, {.kind = OutputForm::Kind::json_schema,
                .schema = *schema,
                .strictness = lenient ? grammar::Strictness::lenient : grammar::Strictness::exact,
                .field = at + ".schema"});
}

// What is common to all of these: {"type": ...}. Nothing is left to read where it is a text.
const json::string* form_type(Reader& p, string_view at, const json::object& o) {
  const json::string* type = p.string_in(at, o, "type");
  if (!type || *type == "text") return nullptr;
  return type;
}

}  // namespace

void read_response_format(Reader& p, string_view name, const json::value& v) {
  const json::object* o = p.object(name, v);
  const json::string* type = o ? form_type(p, name, *o) : nullptr;
  if (!type) return;
  if (*type == "json_object") return any_object(p, std::string(name));
  if (*type != "json_schema")
    return p.fail(fmt::format("{}.type", name), "must be text, json_object or json_schema (other forms: structured_outputs)");
  const json::value* inner = o->if_contains("json_schema");
  const std::string at = fmt::format("{}.json_schema", name);
  if (!inner) return p.fail(at, "is missing");
  const json::object* form = p.object(at, *inner);
  if (!form) return;
  p.only(at, *form, {"name", "description", "schema", "strict"}, "a json_schema");
  if (!p.wrong) schema_in(p, at, *form);
}

void read_text_format(Reader& p, string_view name, const json::value& v) {
  const json::object* o = p.object(name, v);
  if (!o) return;
  p.only(name, *o, {"format", "verbosity"}, "text");
  const json::value* verbosity = o->if_contains("verbosity");
  if (verbosity && !verbosity->is_null() && *verbosity != "low" && *verbosity != "medium" && *verbosity != "high")
    return p.fail(fmt::format("{}.verbosity", name), "must be low, medium or high");
  const json::value* format = o->if_contains("format");
  if (p.wrong || !format || format->is_null()) return;
  p.r.responses.echo["text"] = v;
  const std::string at = fmt::format("{}.format", name);
  const json::object* form = p.object(at, *format);
  const json::string* type = form ? form_type(p, at, *form) : nullptr;
  if (!type) return;
  if (*type == "json_object") return any_object(p, at);
  if (*type != "json_schema") return p.fail(at + ".type", "must be text, json_object or json_schema");
  p.only(at, *form, {"type", "name", "description", "schema", "strict"}, "a json_schema");
  if (!p.wrong) schema_in(p, at, *form);
}

void read_anthropic_format(Reader& p, string_view name, const json::value& v) {
  const json::object* o = p.object(name, v);
  const json::string* type = o ? p.string_in(name, *o, "type") : nullptr;
  if (!type) return;
  if (*type != "json_schema") return p.fail(fmt::format("{}.type", name), "must be json_schema");
  p.only(name, *o, {"type", "schema"}, "a format");
  if (!p.wrong) schema_in(p, std::string(name), *o);
}

void read_structured_outputs(Reader& p, string_view name, const json::value& v) {
  const json::object* o = p.object(name, v);
  if (!o) return;
  p.only(name, *o, {"json", "json_object", "regex", "choice", "grammar"}, "structured_outputs");
  for (const auto& [key, value] : *o) {
    if (p.wrong || value.is_null()) continue;
    const std::string at = fmt::format("{}.{}", name, string_view(key));
    if (key == "json_object") {
      if (p.boolean(at, value)) any_object(p, at);
    } else if (key == "json") {
      json::value schema = value;
      if (const json::string* text = value.if_string()) {
        json::error_code bad;
        schema = json::parse(*text, bad, {}, {.max_depth = static_cast<size_t>(p.limits.json_depth)});
        if (bad) return p.fail(at, "is no JSON: " + bad.message());
      }
      take_form(p, {.kind = OutputForm::Kind::json_schema, .schema = std::move(schema), .field = at});
    } else if (key == "choice") {
      OutputForm form{.kind = OutputForm::Kind::choice, .field = at};
      const json::array* list = p.array(at, value, p.limits.forms.choices);
      for (size_t i = 0; list && i < list->size() && !p.wrong; ++i)
        if (const json::string* text = p.string(fmt::format("{}[{}]", at, i), (*list)[i])) form.choices.emplace_back(*text);
      take_form(p, std::move(form));
    } else if (const json::string* text = p.string(at, value)) {
      take_form(p, {.kind = key == "regex" ? OutputForm::Kind::regex : OutputForm::Kind::ebnf, .source = std::string(*text), .field = at});
    }
  }
}

// --- which tools may be called ------------------------------------------------------------------------------------------

namespace {

// {"type": "function", "name"} (responses) or {"type": "function", "function": {"name"}} (chat).
void allow_tool(Reader& p, const std::string& at, const json::object& o) {
  const json::value* function = o.if_contains("function");
  if (function && !function->is_object()) return p.fail(at + ".function", "must be an object");
  const json::string* called = function ? p.string_in(at + ".function", function->get_object(), "name") : p.string_in(at, o, "name");
  if (called) p.r.calls.allowed.emplace_back(*called);
}

}  // namespace

void read_tool_choice(Reader& p, string_view name, const json::value& v) {
  p.tool_choice_field = name;
  p.r.responses.echo["tool_choice"] = v;
  if (const json::string* s = v.if_string()) {
    if (*s == "none") p.tools_off = true;
    else if (*s == "required") p.r.calls.required = true;
    else if (*s != "auto") p.fail(name, "must be auto, none, required or an object that names a function");
    return;
  }
  const json::object* o = p.object(name, v);
  const json::string* type = o ? p.string_in(name, *o, "type") : nullptr;
  if (!type) return;
  if (*type == "function") {
    p.r.calls.required = true;
    return allow_tool(p, std::string(name), *o);
  }
  if (*type != "allowed_tools") return p.fail(fmt::format("{}.type", name), "must be function or allowed_tools");
  const json::value* inner = o->if_contains("allowed_tools");  // chat nests what responses does not
  if (inner && !inner->is_object()) return p.fail(fmt::format("{}.allowed_tools", name), "must be an object");
  const json::object& list = inner ? inner->get_object() : *o;
  const std::string at = inner ? fmt::format("{}.allowed_tools", name) : std::string(name);
  const json::string* mode = p.string_in(at, list, "mode");
  if (!mode) return;
  if (*mode != "auto" && *mode != "required") return p.fail(at + ".mode", "must be auto or required");
  p.r.calls.required = *mode == "required";
  const json::value* tools = list.if_contains("tools");
  if (!tools) return p.fail(at + ".tools", "is missing");
  const json::array* a = p.array(at + ".tools", *tools, p.limits.tools);
  if (a && a->empty()) return p.fail(at + ".tools", "must name a tool");
  for (size_t i = 0; a && i < a->size() && !p.wrong; ++i) {
    const std::string one = fmt::format("{}.tools[{}]", at, i);
    if (const json::object* tool = p.object(one, (*a)[i])) allow_tool(p, one, *tool);
  }
}

void read_anthropic_tool_choice(Reader& p, string_view name, const json::value& v) {
  p.tool_choice_field = name;
  const json::object* o = p.object(name, v);
  const json::string* type = o ? p.string_in(name, *o, "type") : nullptr;
  if (!type) return;
  if (*type == "none") p.tools_off = true;
  else if (*type == "any" || *type == "tool") p.r.calls.required = true;
  else if (*type != "auto") return p.fail(fmt::format("{}.type", name), "must be auto, any, tool or none");
  if (*type == "tool") {
    p.only(name, *o, {"type", "name", "disable_parallel_tool_use"}, "a tool_choice");
    if (const json::string* called = p.string_in(name, *o, "name")) p.r.calls.allowed.emplace_back(*called);
  } else {
    p.only(name, *o, {"type", "disable_parallel_tool_use"}, "a tool_choice");
  }
  if (const json::value* one = o->if_contains("disable_parallel_tool_use"); one && !one->is_null())
    p.r.calls.parallel = !p.boolean(fmt::format("{}.disable_parallel_tool_use", name), *one);
}

void check_calls(Reader& p) {
  if (p.tools_off) {
    p.r.calls = {.parallel = p.r.calls.parallel};
    return;
  }
  const json::value* tools = p.r.context.if_contains("tools");
  if (p.r.calls.required && !tools) return p.fail(p.tool_choice_field, "needs tools");
  for (const std::string& name : p.r.calls.allowed) {
    const auto is = [&](const json::value& tool) { return std::string_view(tool.at("function").at("name").as_string()) == name; };
    if (!tools || std::ranges::none_of(tools->get_array(), is)) return p.fail(p.tool_choice_field, fmt::format("there is no tool '{}'", name));
  }
}

}  // namespace winnow::server
