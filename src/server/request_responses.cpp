// What OpenAI's /v1/responses has of its own. Items become messages as templates see them: reasoning, a message and calls of
// the assistant that follow each other are one message.
#include <algorithm>

#include "server/request_reader.h"

namespace winnow::server {
namespace {

namespace json = boost::json;
using std::string_view;

// A string, or parts of text of the types given, as one string or template parts.
json::value texts(Reader& p, const std::string& at, const json::value& v, std::initializer_list<string_view> types) {
  if (v.is_string()) return v;
  json::array parts;
  if (!v.is_array()) p.fail(at, "must be a string or an array of parts");
  for (size_t i = 0; !p.wrong && i < v.get_array().size(); ++i) {
    const std::string part_at = fmt::format("{}[{}]", at, i);
    const json::object* o = p.object(part_at, v.get_array()[i]);
    const json::string* type = o ? p.string_in(part_at, *o, "type") : nullptr;
    if (!type) break;
    if (std::find(types.begin(), types.end(), string_view(*type)) == types.end()) {
      p.fail(part_at + ".type", fmt::format("parts of type '{}' are not supported here (supported: {})", string_view(*type), fmt::join(types, ", ")));
      break;
    }
    const json::string* text = p.string_in(part_at, *o, *type == "refusal" ? "refusal" : "text");
    if (text) parts.push_back({{"type", "text"}, {"text", *text}});
  }
  return parts;
}

std::string joined(const json::value& texts) {
  if (texts.is_string()) return std::string(texts.get_string());
  std::string all;
  for (const json::value& part : texts.get_array()) all += std::string_view(part.at("text").get_string());
  return all;
}

class Items {
 public:
  explicit Items(Reader& p) : p_(p) {}

  void read(const std::string& at, const json::object& o) {
    const json::value* type = o.if_contains("type");
    if (type && !type->is_null() && !type->is_string()) return p_.fail(at + ".type", "must be a string");
    const std::string kind = type && type->is_string() ? std::string(type->get_string()) : "message";
    if (kind == "message") message(at, o);
    else if (kind == "reasoning") reasoning(at, o);
    else if (kind == "function_call") call(at, o);
    else if (kind == "function_call_output") output(at, o);
    else
      p_.fail(at + ".type",
              fmt::format("items of type '{}' are not supported (supported: message, reasoning, function_call, function_call_output)", kind));
  }
  void end_turn() {
    if (turn_) add(std::move(*turn_));
    turn_.reset();
  }

 private:
  void add(json::object message) {
    if (!p_.full("input")) p_.messages.push_back(std::move(message));
  }
  // The assistant's message that is being put together; a new one if that has any of `keys` already.
  json::object& turn(std::initializer_list<string_view> keys) {
    for (string_view key : keys)
      if (turn_ && turn_->contains(key)) {
        end_turn();
        break;
      }
    if (!turn_) turn_ = json::object{{"role", "assistant"}};
    return *turn_;
  }
  void message(const std::string& at, const json::object& o) {
    p_.only(at, o, {"type", "role", "content", "id", "status", "phase"}, "a message");
    const json::string* role = p_.string_in(at, o, "role");
    if (!role) return;
    const json::value* content = o.if_contains("content");
    if (!content || content->is_null()) return p_.fail(at + ".content", "is missing");
    if (*role == "assistant") {
      json::value text = texts(p_, at + ".content", *content, {"output_text", "input_text", "text", "refusal"});
      if (!p_.wrong) turn({"content", "tool_calls"})["content"] = joined(text);
      return;
    }
    if (*role != "user" && *role != "system" && *role != "developer")
      return p_.fail(at + ".role", fmt::format("unknown role '{}' (known: user, assistant, system, developer)", string_view(*role)));
    json::value text = texts(p_, at + ".content", *content, {"input_text", "text"});
    end_turn();
    add({{"role", *role == "user" ? "user" : "system"}, {"content", std::move(text)}});
  }
  void reasoning(const std::string& at, const json::object& o) {
    p_.only(at, o, {"type", "id", "summary", "content", "encrypted_content", "status"}, "a reasoning item");
    std::string text;
    const json::value* content = o.if_contains("content");
    if (content && !content->is_null()) text = joined(texts(p_, at + ".content", *content, {"reasoning_text"}));
    const json::value* summary = o.if_contains("summary");
    if (text.empty() && summary && !summary->is_null()) text = joined(texts(p_, at + ".summary", *summary, {"summary_text"}));
    if (!p_.wrong && !text.empty()) turn({"reasoning_content", "content", "tool_calls"})["reasoning_content"] = text;
  }
  void call(const std::string& at, const json::object& o) {
    p_.only(at, o, {"type", "id", "call_id", "name", "arguments", "status", "namespace"}, "a function_call");
    const json::string* id = p_.string_in(at, o, "call_id");
    const json::string* name = p_.string_in(at, o, "name");
    const json::string* text = p_.string_in(at, o, "arguments");
    if (p_.wrong) return;
    std::optional<json::object> arguments = parse_arguments(p_, at + ".arguments", *text);
    if (!arguments) return;
    json::object& message = turn({});
    if (!message.contains("tool_calls")) message["tool_calls"] = json::array();
    message["tool_calls"].get_array().push_back(
        {{"id", *id}, {"type", "function"}, {"function", {{"name", *name}, {"arguments", std::move(*arguments)}}}});
  }
  void output(const std::string& at, const json::object& o) {
    p_.only(at, o, {"type", "id", "call_id", "output", "status", "name", "namespace"}, "a function_call_output");
    const json::string* id = p_.string_in(at, o, "call_id");
    const json::value* text = o.if_contains("output");
    if (!text || text->is_null()) return p_.fail(at + ".output", "is missing");
    json::value content = texts(p_, at + ".output", *text, {"input_text", "text", "output_text"});
    if (p_.wrong) return;
    end_turn();
    add({{"role", "tool"}, {"tool_call_id", *id}, {"content", std::move(content)}});
  }

  Reader& p_;
  std::optional<json::object> turn_;
};

// An item with what may be left out of it, as it is listed later.
json::object whole_item(json::object o) {
  if (!o.contains("type") || o.at("type").is_null()) o["type"] = "message";
  if (o.at("type") != "message") return o;
  if (const json::string* text = o.at("content").if_string())
    o["content"] = json::array{{{"type", o.at("role") == "assistant" ? "output_text" : "input_text"}, {"text", *text}}};
  if (!o.contains("status") || o.at("status").is_null()) o["status"] = "completed";
  return o;
}

}  // namespace

void read_input(Reader& p, string_view name, const json::value& v) {
  p.has_messages = true;
  if (v.is_string()) {
    if (v.get_string().empty()) return p.fail(name, "must not be empty");
    p.r.responses.input.push_back(whole_item({{"role", "user"}, {"content", v}}));
    p.messages.push_back({{"role", "user"}, {"content", v}});
    return;
  }
  if (!v.is_array() || v.get_array().empty()) return p.fail(name, "must be a string or an array of items; not empty");
  Items items(p);
  for (size_t i = 0; i < v.get_array().size() && !p.wrong; ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    const json::object* o = p.object(at, v.get_array()[i]);
    if (!o) return;
    items.read(at, *o);
    if (!p.wrong) p.r.responses.input.push_back(whole_item(*o));
  }
  items.end_turn();
  if (!p.wrong && p.messages.empty()) p.fail(name, "holds nothing to answer");
  for (json::value& m : p.messages)
    if (!m.get_object().contains("content")) m.get_object()["content"] = "";
}

void read_instructions(Reader& p, string_view name, const json::value& v) {
  const json::string* s = p.string(name, v);
  if (!s) return;
  p.r.responses.echo["instructions"] = *s;
  if (!s->empty()) p.system = *s;
}

void read_responses_tools(Reader& p, string_view name, const json::value& v) {
  const json::array* tools = p.array(name, v, p.limits.tools);
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    const json::object* tool = p.object(at, (*tools)[i]);
    const json::string* type = tool ? p.string_in(at, *tool, "type") : nullptr;
    if (!type) return;
    if (*type != "function") return p.fail(at + ".type", fmt::format("tools of type '{}' are not supported, only \"function\"", string_view(*type)));
    if (!check_tool(p, at, *tool, "parameters")) return;
    json::object fn;
    for (const auto& [key, value] : *tool)
      if (key != "type" && !value.is_null()) fn[key] = value;
    add_tool(p, std::move(fn));
  }
  if (tools) p.r.responses.echo["tools"] = *tools;
}

void read_reasoning(Reader& p, string_view name, const json::value& v) {
  const json::object* o = p.object(name, v);
  if (!o) return;
  p.only(name, *o, {"effort", "summary", "generate_summary"}, "reasoning");
  if (const json::value* effort = o->if_contains("effort"); effort && !effort->is_null()) read_effort(p, fmt::format("{}.effort", name), *effort);
  for (string_view key : {"summary", "generate_summary"}) {
    const json::value* how = o->if_contains(key);
    if (how && !how->is_null() && *how != "auto" && *how != "concise" && *how != "detailed")
      p.fail(fmt::format("{}.{}", name, key), "must be auto, concise or detailed");
  }
  p.r.responses.echo["reasoning"] = v;
}

void read_include(Reader& p, string_view name, const json::value& v) {
  const json::array* list = p.array(name, v, 16);
  for (size_t i = 0; list && i < list->size(); ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    const json::string* what = p.string(at, (*list)[i]);
    if (!what) return;
    if (*what == "message.output_text.logprobs") p.r.responses.text_logprobs = true;
    else if (*what != "reasoning.encrypted_content")  // reasoning is there in clear
      return p.fail(at,
                    fmt::format("'{}' is not supported (supported: message.output_text.logprobs, reasoning.encrypted_content)", string_view(*what)));
  }
}

void read_metadata(Reader& p, string_view name, const json::value& v) {
  const json::object* o = p.object(name, v);
  if (!o) return;
  if (o->size() > p.limits.metadata) return p.fail(name, fmt::format("at most {} entries", p.limits.metadata));
  for (const auto& [key, value] : *o) {
    const std::string at = fmt::format("{}.{}", name, string_view(key).substr(0, 64));
    if (key.size() > p.limits.name_bytes) return p.fail(at, fmt::format("a key has at most {} bytes", p.limits.name_bytes));
    if (!value.is_string() || value.get_string().size() > 2 * p.limits.name_bytes)
      return p.fail(at, fmt::format("must be a string of at most {} bytes", 2 * p.limits.name_bytes));
  }
  p.r.responses.echo["metadata"] = *o;
}

}  // namespace winnow::server
