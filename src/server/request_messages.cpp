// What Anthropic's /v1/messages has of its own. Blocks become messages as templates see them: a tool_result is a message of
// the role tool, thinking is reasoning_content, tool_use is a call. What clients send to steer Anthropic's cache is accepted
// and has no effect: every prompt is looked up.
#include "server/request_reader.h"

namespace winnow::server {
namespace {

namespace json = boost::json;
using std::string_view;

const json::object* block(Reader& p, const std::string& at, const json::value& v, string_view* type) {
  const json::object* o = p.object(at, v);
  if (!o) return nullptr;
  const json::string* t = p.string_in(at, *o, "type");
  if (!t) return nullptr;
  *type = *t;
  return o;
}

const json::string* text_block(Reader& p, const std::string& at, const json::object& o) {
  p.only(at, o, {"type", "text", "cache_control", "citations"}, "a text block");
  return p.string_in(at, o, "text");
}

// A string, or blocks of text, as template text: a string or parts.
json::value texts(Reader& p, const std::string& at, const json::value& v, string_view where) {
  if (v.is_string()) return v;
  json::array parts;
  if (!v.is_array()) p.fail(at, "must be a string or an array of blocks");
  for (size_t i = 0; !p.wrong && i < v.get_array().size(); ++i) {
    const std::string block_at = fmt::format("{}[{}]", at, i);
    string_view type;
    const json::object* o = block(p, block_at, v.get_array()[i], &type);
    if (!o) break;
    if (type != "text") p.fail(block_at + ".type", fmt::format("blocks of type '{}' are not supported in {}, only 'text'", type, where));
    else if (const json::string* text = text_block(p, block_at, *o)) parts.push_back({{"type", "text"}, {"text", *text}});
  }
  return parts;
}

void add_tool_result(Reader& p, const std::string& at, const json::object& o) {
  p.only(at, o, {"type", "tool_use_id", "content", "is_error", "cache_control"}, "a tool_result block");
  const json::string* id = p.string_in(at, o, "tool_use_id");
  const json::value* failed = o.if_contains("is_error");
  if (failed && !failed->is_null()) p.boolean(at + ".is_error", *failed);
  const json::value* content = o.if_contains("content");
  json::value text = content && !content->is_null() ? texts(p, at + ".content", *content, "tool results") : json::value("");
  if (!p.wrong && !p.full(at)) p.messages.push_back({{"role", "tool"}, {"tool_call_id", *id}, {"content", std::move(text)}});
}

// Text before and behind tool results is a message of its own.
void read_user(Reader& p, const std::string& at, const json::array& blocks) {
  json::array parts;
  const auto say = [&] {
    if (!parts.empty() && !p.full(at)) p.messages.push_back({{"role", "user"}, {"content", std::exchange(parts, {})}});
  };
  for (size_t i = 0; i < blocks.size() && !p.wrong; ++i) {
    const std::string block_at = fmt::format("{}[{}]", at, i);
    string_view type;
    const json::object* o = block(p, block_at, blocks[i], &type);
    if (!o) return;
    if (type == "text") {
      if (const json::string* text = text_block(p, block_at, *o)) parts.push_back({{"type", "text"}, {"text", *text}});
    } else if (type == "tool_result") {
      say();
      add_tool_result(p, block_at, *o);
    } else {
      return p.fail(block_at + ".type", fmt::format("blocks of type '{}' are not supported (supported: text, tool_result)", type));
    }
  }
  say();
}

void read_assistant(Reader& p, const std::string& at, const json::array& blocks) {
  std::string content, reasoning;
  json::array calls;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string block_at = fmt::format("{}[{}]", at, i);
    string_view type;
    const json::object* o = block(p, block_at, blocks[i], &type);
    if (!o) return;
    if (type == "text") {
      if (const json::string* text = text_block(p, block_at, *o)) content += *text;
    } else if (type == "thinking") {
      p.only(block_at, *o, {"type", "thinking", "signature", "cache_control"}, "a thinking block");
      if (const json::string* text = p.string_in(block_at, *o, "thinking")) reasoning += *text;
    } else if (type == "tool_use") {
      p.only(block_at, *o, {"type", "id", "name", "input", "cache_control", "caller"}, "a tool_use block");
      const json::string* id = p.string_in(block_at, *o, "id");
      const json::string* name = p.string_in(block_at, *o, "name");
      const json::value* input = o->if_contains("input");
      if (!input || !input->is_object()) p.fail(block_at + ".input", "must be an object");
      if (!p.wrong) calls.push_back({{"id", *id}, {"type", "function"}, {"function", {{"name", *name}, {"arguments", *input}}}});
    } else {
      p.fail(block_at + ".type", fmt::format("blocks of type '{}' are not supported (supported: text, thinking, tool_use)", type));
    }
    if (p.wrong) return;
  }
  json::object m{{"role", "assistant"}, {"content", content}};
  if (!reasoning.empty()) m["reasoning_content"] = reasoning;
  if (!calls.empty()) m["tool_calls"] = std::move(calls);
  if (!p.full(at)) p.messages.push_back(std::move(m));
}

}  // namespace

void read_anthropic_messages(Reader& p, string_view name, const json::value& v) {
  if (!v.is_array() || v.get_array().empty()) return p.fail(name, "must be a non-empty array of messages");
  p.has_messages = true;
  string_view last;
  for (size_t i = 0; i < v.get_array().size() && !p.wrong; ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    const json::object* m = p.object(at, v.get_array()[i]);
    if (!m) return;
    p.only(at, *m, {"role", "content"}, "a message");
    const json::string* role = p.string_in(at, *m, "role");
    if (!role) return;
    last = *role;
    if (last != "user" && last != "assistant" && last != "system")
      return p.fail(at + ".role", fmt::format("unknown role '{}' (known: user, assistant, system)", last));
    const json::value* content = m->if_contains("content");
    if (!content || content->is_null()) return p.fail(at + ".content", "is missing");
    if (content->is_string() || last == "system") {
      json::value text = texts(p, at + ".content", *content, "system messages");
      if (!p.full(at)) p.messages.push_back({{"role", *role}, {"content", std::move(text)}});
    } else if (!content->is_array()) {
      p.fail(at + ".content", "must be a string or an array of blocks");
    } else if (last == "user") {
      read_user(p, at + ".content", content->get_array());
    } else {
      read_assistant(p, at + ".content", content->get_array());
    }
  }
  if (p.wrong || last != "assistant") return;
  if (p.messages.back().get_object().contains("tool_calls"))
    return p.fail(fmt::format("{}[{}]", name, v.get_array().size() - 1), "the conversation cannot end with tool_use: give its tool_result");
  p.r.continues_last = true;
}

void read_anthropic_system(Reader& p, string_view name, const json::value& v) {
  json::value text = texts(p, std::string(name), v, "the system prompt");
  if (!p.wrong) p.system = std::move(text);
}

void read_anthropic_tools(Reader& p, string_view name, const json::value& v) {
  const json::array* tools = p.array(name, v, p.limits.tools);
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    const json::object* tool = p.object(at, (*tools)[i]);
    if (!tool) return;
    const json::value* type = tool->if_contains("type");
    if (type && !type->is_null() && *type != "custom") return p.fail(at + ".type", "only tools of the client's own (type \"custom\") are supported");
    if (!tool->contains("input_schema")) return p.fail(at + ".input_schema", "is missing");
    if (!check_tool(p, at, *tool, "input_schema")) return;
    json::object fn{{"name", tool->at("name")}};
    if (const json::value* description = tool->if_contains("description"); description && !description->is_null()) fn["description"] = *description;
    fn["parameters"] = tool->at("input_schema");
    if (const json::value* strict = tool->if_contains("strict"); strict && !strict->is_null()) fn["strict"] = *strict;
    add_tool(p, std::move(fn));
  }
}

void read_anthropic_output(Reader& p, string_view name, const json::value& v) {
  const json::object* o = p.object(name, v);
  if (!o) return;
  if (const json::value* format = o->if_contains("format"); format && !format->is_null())
    read_anthropic_format(p, fmt::format("{}.format", name), *format);
  p.only(name, *o, {"effort", "format"}, "an output_config");
  if (const json::value* effort = o->if_contains("effort"); effort && !effort->is_null()) read_effort(p, fmt::format("{}.effort", name), *effort);
}

void read_thinking(Reader& p, string_view name, const json::value& v) {
  const json::object* o = p.object(name, v);
  const json::string* type = o ? p.string_in(name, *o, "type") : nullptr;
  if (!type) return;
  p.thinking_field = name;
  const json::value* budget = o->if_contains("budget_tokens");
  const bool has_budget = budget && !budget->is_null();
  if (*type != "enabled" && *type != "disabled" && *type != "adaptive")
    return p.fail(fmt::format("{}.type", name), "must be enabled, adaptive or disabled");
  p.think = *type != "disabled";
  p.only(name, *o, {"type", "budget_tokens", "display"}, "thinking");
  if (has_budget && *type != "enabled") return p.fail(fmt::format("{}.budget_tokens", name), "needs type \"enabled\"");
  if (has_budget) p.thinking_tokens = p.integer(fmt::format("{}.budget_tokens", name), *budget, 1, int64_t{1} << 40);
  if (const json::value* display = o->if_contains("display"); display && !display->is_null() && *display != "summarized")
    p.fail(fmt::format("{}.display", name), "only \"summarized\" is supported: thoughts are shown as they are");
}

}  // namespace winnow::server
