// Messages and tools of /v1/chat/completions. They are nearly what templates see.
#include <algorithm>

#include "server/request_reader.h"

namespace winnow::server {
namespace {

namespace json = boost::json;
using std::string_view;

void check_content(Reader& p, const std::string& at, const json::value& content) {
  if (content.is_string()) return;
  if (!content.is_array()) return p.fail(at, "must be a string or an array of parts");
  for (size_t i = 0; i < content.get_array().size(); ++i) {
    const std::string part_at = fmt::format("{}[{}]", at, i);
    const json::object* part = content.get_array()[i].if_object();
    if (!part) return p.fail(part_at, "must be an object {\"type\": \"text\", \"text\": ...}");
    const json::value* type = part->if_contains("type");
    if (!type || !type->is_string()) return p.fail(part_at + ".type", "must be a string");
    if (type->get_string() != "text")
      return p.fail(part_at + ".type", fmt::format("parts of type '{}' are not supported, only 'text'", string_view(type->get_string())));
    p.string_in(part_at, *part, "text");
    p.only(part_at, *part, {"type", "text"}, "a text part");
    if (p.wrong) return;
  }
}

// The template wants arguments as an object; clients send them as the JSON text that they were given.
void check_tool_calls(Reader& p, const std::string& at, json::value& calls) {
  if (!calls.is_array()) return p.fail(at, "must be an array");
  for (size_t i = 0; i < calls.get_array().size(); ++i) {
    const std::string call_at = fmt::format("{}[{}]", at, i);
    json::object* call = calls.get_array()[i].if_object();
    if (!call) return p.fail(call_at, "must be an object");
    json::value* fn = call->if_contains("function");
    if (!fn || !fn->is_object()) return p.fail(call_at + ".function", "must be an object with name and arguments");
    if (!p.string_in(call_at + ".function", fn->get_object(), "name")) return;
    json::value& arguments = fn->get_object()["arguments"];
    if (arguments.is_null()) arguments = json::object();
    if (arguments.is_string()) {
      std::optional<json::object> parsed = parse_arguments(p, call_at + ".function.arguments", arguments.get_string());
      if (!parsed) return;
      arguments = std::move(*parsed);
    }
    if (!arguments.is_object()) return p.fail(call_at + ".function.arguments", "must be a JSON object");
  }
}

void check_message(Reader& p, const std::string& at, json::object& m) {
  static constexpr string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  const json::value* role = m.if_contains("role");
  if (!role || !role->is_string()) return p.fail(at + ".role", "must be a string: system, developer, user, assistant or tool");
  const std::string who(role->get_string());
  if (std::find(std::begin(kRoles), std::end(kRoles), who) == std::end(kRoles))
    return p.fail(at + ".role", fmt::format("unknown role '{}' (known: system, developer, user, assistant, tool)", who));
  if (who == "developer") m["role"] = "system";  // OpenAI's newer name for it

  p.only(at, m, {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "refusal", "annotations"}, "a message");
  if (p.wrong) return;
  std::vector<std::string> nulls;
  for (const auto& [key, value] : m)
    if (value.is_null()) nulls.emplace_back(key);
  for (const std::string& key : nulls) m.erase(key);

  json::value* calls = m.if_contains("tool_calls");
  if (calls && who != "assistant") return p.fail(at + ".tool_calls", "only an assistant message has them");
  if (calls) check_tool_calls(p, at + ".tool_calls", *calls);
  const json::value* content = m.if_contains("content");
  if (content) check_content(p, at + ".content", *content);
  else if (who != "assistant") p.fail(at + ".content", "is missing");
  else m["content"] = "";
  for (string_view key : {"name", "tool_call_id", "reasoning_content"}) {
    const json::value* v = m.if_contains(key);
    if (v && !v->is_string()) p.fail(fmt::format("{}.{}", at, key), "must be a string");
  }
}

}  // namespace

std::optional<json::object> parse_arguments(Reader& p, string_view at, string_view text) {
  if (text.empty()) return json::object();
  json::error_code bad;
  json::parse_options options;
  options.max_depth = static_cast<size_t>(p.limits.json_depth);
  json::value parsed = json::parse(text, bad, {}, options);
  if (bad) p.fail(at, "must be a JSON object as text: " + bad.message());
  else if (!parsed.is_object()) p.fail(at, "must be a JSON object");
  else return std::move(parsed.get_object());
  return std::nullopt;
}

void read_chat_messages(Reader& p, string_view name, const json::value& v) {
  if (!v.is_array() || v.get_array().empty()) return p.fail(name, "must be a non-empty array of messages");
  if (v.get_array().size() > p.limits.messages) return p.fail(name, fmt::format("at most {} messages", p.limits.messages));
  p.has_messages = true;
  p.messages = v.get_array();
  for (size_t i = 0; i < p.messages.size() && !p.wrong; ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    if (!p.messages[i].is_object()) return p.fail(at, "must be an object");
    check_message(p, at, p.messages[i].get_object());
  }
}

bool check_tool(Reader& p, string_view at, const json::object& tool, string_view schema_key) {
  const json::value* name = tool.if_contains("name");
  if (!name || !name->is_string() || name->get_string().empty()) p.fail(fmt::format("{}.name", at), "must be a non-empty string");
  else if (name->get_string().size() > p.limits.name_bytes) p.fail(fmt::format("{}.name", at), fmt::format("at most {} bytes", p.limits.name_bytes));
  const json::value* description = tool.if_contains("description");
  if (description && !description->is_null() && !description->is_string()) p.fail(fmt::format("{}.description", at), "must be a string");
  const json::value* schema = tool.if_contains(schema_key);
  if (schema && !schema->is_object() && !schema->is_null()) p.fail(fmt::format("{}.{}", at, schema_key), "must be a JSON schema (an object)");
  const json::value* strict = tool.if_contains("strict");
  const bool held = strict && !strict->is_null() && p.boolean(fmt::format("{}.strict", at), *strict);
  if (p.wrong || !schema || schema->is_null()) return !p.wrong;
  const std::string field = fmt::format("{}.{}", at, schema_key);
  if (std::optional<grammar::FormError> wrong = grammar::check_parameters(*schema, held, field, p.limits.forms))
    p.fail(field, std::move(wrong->message));
  return !p.wrong;
}

void add_tool(Reader& p, json::object function) {
  json::value& tools = p.r.context["tools"];
  if (!tools.is_array()) tools = json::array();
  tools.get_array().push_back({{"type", "function"}, {"function", std::move(function)}});
}

void read_chat_tools(Reader& p, string_view name, const json::value& v) {
  const json::array* tools = p.array(name, v, p.limits.tools);
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    const json::object* tool = (*tools)[i].if_object();
    if (!tool) return p.fail(at, "must be an object");
    const json::value* type = tool->if_contains("type");
    if (!type || !type->is_string() || type->get_string() != "function") return p.fail(at + ".type", "must be \"function\"");
    const json::value* fn = tool->if_contains("function");
    if (!fn || !fn->is_object()) return p.fail(at + ".function", "must be an object");
    if (!check_tool(p, at + ".function", fn->get_object(), "parameters")) return;
  }
  if (tools && !tools->empty()) p.r.context["tools"] = *tools;
}

}  // namespace winnow::server
