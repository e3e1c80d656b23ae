#include "server/request.h"

#include <xxhash.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <random>

namespace winnow::server {
namespace {

namespace json = boost::json;
using std::string_view;

// A name or value that a client made up is repeated to it, but not at any length.
constexpr size_t kLongestName = 200, kLongestMessage = 500;

// Fields as they are read; the first mistake is kept.
struct Reader {
  Request& r;
  const ModelFacts& facts;
  const Limits& limits;
  std::optional<Refusal> wrong = {};
  std::optional<int64_t> logprobs = {}, top_logprobs = {}, best_of = {}, max_tokens = {}, max_completion_tokens = {};
  std::optional<bool> chat_logprobs = {};
  bool stream_options = false, tools_off = false;
  json::object template_variables = {};

  void fail(string_view param, std::string message, int status = 400, std::string code = "") {
    if (wrong) return;
    const string_view shown = param.substr(0, kLongestName);
    wrong = Refusal{status, fmt::format("{}: {}", shown, message.substr(0, kLongestMessage)), std::string(shown), std::move(code)};
  }

  bool boolean(string_view name, const json::value& v) {
    if (!v.is_bool()) fail(name, "must be true or false");
    return v.is_bool() && v.get_bool();
  }
  std::optional<int64_t> integer(string_view name, const json::value& v, int64_t low, int64_t high) {
    std::optional<int64_t> n;
    if (v.is_int64()) n = v.get_int64();
    if (v.is_double() && std::abs(v.get_double()) < 1e15 && std::trunc(v.get_double()) == v.get_double())
      n = static_cast<int64_t>(v.get_double());  // 2.0
    if (!n || *n < low || *n > high) {
      fail(name, fmt::format("must be an integer from {} to {}", low, high));
      return std::nullopt;
    }
    return n;
  }
  void number(string_view name, const json::value& v, double low, double high, float* to) {
    if (!v.is_number()) return fail(name, fmt::format("must be a number from {} to {}", low, high));
    const double d = v.to_number<double>();
    if (!(d >= low && d <= high)) return fail(name, fmt::format("must be from {} to {}, not {}", low, high, d));
    *to = static_cast<float>(d);
  }
  const json::string* string(string_view name, const json::value& v) {
    if (!v.is_string()) fail(name, "must be a string");
    return v.if_string();
  }
  std::optional<int32_t> token(string_view name, const json::value& v) {
    const std::optional<int64_t> id = integer(name, v, 0, facts.vocab_size - 1);
    if (!id) return std::nullopt;
    return static_cast<int32_t>(*id);
  }
};

// --- messages ---------------------------------------------------------------------------------------------------------

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
    const json::value* text = part->if_contains("text");
    if (!text || !text->is_string()) return p.fail(part_at + ".text", "must be a string");
    for (const auto& [key, value] : *part)
      if (key != "type" && key != "text" && !value.is_null())
        return p.fail(fmt::format("{}.{}", part_at, string_view(key)), "is not a known field of a text part");
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
    const json::value* name = fn->get_object().if_contains("name");
    if (!name || !name->is_string()) return p.fail(call_at + ".function.name", "must be a string");
    json::value& arguments = fn->get_object()["arguments"];
    if (arguments.is_null()) arguments = json::object();
    if (arguments.is_string()) {
      if (arguments.get_string().empty()) arguments = json::object();
      else {
        json::error_code bad;
        json::parse_options options;
        options.max_depth = p.limits.json_depth;
        json::value parsed = json::parse(string_view(arguments.get_string()), bad, {}, options);
        if (bad) return p.fail(call_at + ".function.arguments", "must be a JSON object as text: " + bad.message());
        arguments = std::move(parsed);
      }
    }
    if (!arguments.is_object()) return p.fail(call_at + ".function.arguments", "must be a JSON object");
  }
}

void check_message(Reader& p, const std::string& at, json::object& m) {
  static constexpr string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  static constexpr string_view kKnown[] = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "refusal", "annotations"};
  const json::value* role = m.if_contains("role");
  if (!role || !role->is_string()) return p.fail(at + ".role", "must be a string: system, developer, user, assistant or tool");
  const std::string who(role->get_string());
  if (std::find(std::begin(kRoles), std::end(kRoles), who) == std::end(kRoles))
    return p.fail(at + ".role", fmt::format("unknown role '{}' (known: system, developer, user, assistant, tool)", who));
  if (who == "developer") m["role"] = "system";  // OpenAI's newer name for it

  std::vector<std::string> nulls;
  for (const auto& [key, value] : m) {
    if (value.is_null()) nulls.emplace_back(key);
    else if (std::find(std::begin(kKnown), std::end(kKnown), string_view(key)) == std::end(kKnown))
      return p.fail(fmt::format("{}.{}", at, string_view(key)), "is not a known field of a message");
  }
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

void read_messages(Reader& p, string_view name, const json::value& v) {
  if (!v.is_array() || v.get_array().empty()) return p.fail(name, "must be a non-empty array of messages");
  if (v.get_array().size() > p.limits.messages) return p.fail(name, fmt::format("at most {} messages", p.limits.messages));
  json::array messages = v.get_array();
  for (size_t i = 0; i < messages.size() && !p.wrong; ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    if (!messages[i].is_object()) return p.fail(at, "must be an object");
    check_message(p, at, messages[i].get_object());
  }
  p.r.context["messages"] = std::move(messages);
}

void read_tools(Reader& p, string_view name, const json::value& v) {
  if (!v.is_array()) return p.fail(name, "must be an array");
  if (v.get_array().size() > p.limits.tools) return p.fail(name, fmt::format("at most {} tools", p.limits.tools));
  for (size_t i = 0; i < v.get_array().size(); ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    const json::object* tool = v.get_array()[i].if_object();
    if (!tool) return p.fail(at, "must be an object");
    const json::value* type = tool->if_contains("type");
    if (!type || !type->is_string() || type->get_string() != "function") return p.fail(at + ".type", "must be \"function\"");
    const json::value* fn = tool->if_contains("function");
    if (!fn || !fn->is_object()) return p.fail(at + ".function", "must be an object");
    const json::value* fn_name = fn->get_object().if_contains("name");
    if (!fn_name || !fn_name->is_string() || fn_name->get_string().empty()) return p.fail(at + ".function.name", "must be a non-empty string");
    const json::value* parameters = fn->get_object().if_contains("parameters");
    if (parameters && !parameters->is_object() && !parameters->is_null())
      return p.fail(at + ".function.parameters", "must be a JSON schema (an object)");
  }
  if (!v.get_array().empty()) p.r.context["tools"] = v;
}

void read_tool_choice(Reader& p, string_view name, const json::value& v) {
  const bool is_string = v.is_string();
  if (is_string && v.get_string() == "auto") return;
  if (is_string && v.get_string() == "none") {
    p.tools_off = true;
    return;
  }
  p.fail(name, "only \"auto\" and \"none\" are supported");
}

void read_template_variables(Reader& p, string_view name, const json::value& v) {
  if (!v.is_object()) return p.fail(name, "must be an object");
  for (const auto& [key, value] : v.get_object())
    if (key == "messages" || key == "tools" || key == "add_generation_prompt")
      return p.fail(fmt::format("{}.{}", name, string_view(key)), "is set by the server");
  for (const auto& [key, value] : v.get_object()) p.template_variables.insert_or_assign(key, value);
}

// --- prompts and lists --------------------------------------------------------------------------------------------------

std::optional<std::vector<int32_t>> token_list(Reader& p, string_view name, const json::array& a) {
  std::vector<int32_t> ids;
  ids.reserve(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const std::optional<int32_t> id = p.token(fmt::format("{}[{}]", name, i), a[i]);
    if (!id) return std::nullopt;
    ids.push_back(*id);
  }
  return ids;
}

// A string, token ids, or an array of either: one answer for each.
void read_prompt(Reader& p, string_view name, const json::value& v) {
  if (v.is_string()) {
    if (v.get_string().empty()) return p.fail(name, "must not be empty");
    p.r.prompts.emplace_back(std::string(v.get_string()));
    return;
  }
  if (!v.is_array() || v.get_array().empty()) return p.fail(name, "must be a string, an array of token ids, or an array of those; not empty");
  const json::array& a = v.get_array();
  if (a.front().is_number()) {
    if (auto ids = token_list(p, name, a)) p.r.prompts.emplace_back(std::move(*ids));
    return;
  }
  if (static_cast<int64_t>(a.size()) > p.limits.choices) return p.fail(name, fmt::format("at most {} prompts in one request", p.limits.choices));
  for (size_t i = 0; i < a.size() && !p.wrong; ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    if (a[i].is_string() && !a[i].get_string().empty()) p.r.prompts.emplace_back(std::string(a[i].get_string()));
    else if (a[i].is_array() && !a[i].get_array().empty()) {
      if (auto ids = token_list(p, at, a[i].get_array())) p.r.prompts.emplace_back(std::move(*ids));
    } else {
      p.fail(at, "must be a string or an array of token ids; not empty");
    }
  }
}

void read_stop(Reader& p, string_view name, const json::value& v) {
  const auto add = [&](const std::string& at, const json::value& s) {
    if (!s.is_string() || s.get_string().empty()) return p.fail(at, "must be a non-empty string");
    if (s.get_string().size() > p.limits.stop_bytes) return p.fail(at, fmt::format("at most {} bytes", p.limits.stop_bytes));
    p.r.stop.emplace_back(s.get_string());
  };
  if (!v.is_array()) return add(std::string(name), v);
  if (v.get_array().size() > p.limits.stop_strings) return p.fail(name, fmt::format("at most {} strings", p.limits.stop_strings));
  for (size_t i = 0; i < v.get_array().size(); ++i) add(fmt::format("{}[{}]", name, i), v.get_array()[i]);
}

void read_stop_tokens(Reader& p, string_view name, const json::value& v) {
  if (!v.is_array()) return p.fail(name, "must be an array of token ids");
  if (v.get_array().size() > p.limits.stop_tokens) return p.fail(name, fmt::format("at most {} tokens", p.limits.stop_tokens));
  if (auto ids = token_list(p, name, v.get_array())) p.r.stop_tokens = std::move(*ids);
}

void read_logit_bias(Reader& p, string_view name, const json::value& v) {
  if (!v.is_object()) return p.fail(name, "must be an object: token id -> number from -100 to 100");
  if (v.get_object().size() > p.limits.logit_bias) return p.fail(name, fmt::format("at most {} tokens", p.limits.logit_bias));
  for (const auto& [key, value] : v.get_object()) {
    const std::string at = fmt::format("{}.{}", name, string_view(key));
    int32_t id = -1;
    const auto [end, bad] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (bad != std::errc{} || end != key.data() + key.size() || id < 0 || id >= p.facts.vocab_size)
      return p.fail(at, fmt::format("the key must be a token id from 0 to {}", p.facts.vocab_size - 1));
    float bias = 0;
    p.number(at, value, -100, 100, &bias);
    p.r.sampling.logit_bias.emplace_back(id, bias);
  }
}

void read_stream_options(Reader& p, string_view name, const json::value& v) {
  if (!v.is_object()) return p.fail(name, "must be an object");
  p.stream_options = true;
  for (const auto& [key, value] : v.get_object()) {
    const std::string at = fmt::format("{}.{}", name, string_view(key));
    if (key != "include_usage") return p.fail(at, "unknown field (known: include_usage)");
    if (!value.is_null()) p.r.include_usage = p.boolean(at, value);
  }
}

void read_model(Reader& p, string_view name, const json::value& v) {
  const json::string* s = p.string(name, v);
  if (s && string_view(*s) != p.facts.name)
    p.fail(name, fmt::format("there is no model '{}' here; this server has '{}'", string_view(*s), p.facts.name), 404, "model_not_found");
}

void read_seed(Reader& p, string_view name, const json::value& v) {
  if (v.is_int64()) p.r.sampling.seed = static_cast<uint64_t>(v.get_int64());
  else if (v.is_uint64()) p.r.sampling.seed = v.get_uint64();
  else p.fail(name, "must be an integer of 64 bits");
}

void read_cache_salt(Reader& p, string_view name, const json::value& v) {
  const json::string* s = p.string(name, v);
  if (!s) return;
  if (s->empty()) return p.fail(name, "must not be empty; leave it out to share with all that give none");
  if (s->size() > p.limits.salt_bytes) return p.fail(name, fmt::format("at most {} bytes", p.limits.salt_bytes));
  p.r.cache_salt = std::max<uint64_t>(XXH3_64bits(s->data(), s->size()), 1);  // 0 means none
}

void read_timeout(Reader& p, string_view name, const json::value& v) {
  const double seconds = v.is_number() ? v.to_number<double>() : 0;
  if (!(seconds > 0 && seconds <= p.limits.timeout_s))
    return p.fail(name, fmt::format("must be a number of seconds above 0, at most {}", p.limits.timeout_s));
  p.r.timeout_s = seconds;
}

void read_reasoning_effort(Reader& p, string_view name, const json::value& v) {
  const json::string* s = p.string(name, v);
  if (!s) return;
  if (*s != "low" && *s != "high" && *s != "max") return p.fail(name, "must be low, high or max");
  p.template_variables["reasoning_effort"] = *s;
}

void read_response_format(Reader& p, string_view name, const json::value& v) {
  const json::value* type = v.is_object() ? v.get_object().if_contains("type") : nullptr;
  if (!type || !type->is_string() || type->get_string() != "text") p.fail(name, "only {\"type\": \"text\"} is supported");
}

template <bool kWanted>
void must_be(Reader& p, string_view name, const json::value& v) {
  if (p.boolean(name, v) != kWanted) p.fail(name, kWanted ? "only true is supported" : "only false is supported");
}

void ignore(Reader&, string_view, const json::value&) {}
void refuse(Reader& p, string_view name, const json::value&) { p.fail(name, "is not supported"); }

// --- the table ----------------------------------------------------------------------------------------------------------

enum class On : uint8_t { chat, completion, both };
struct Field {
  string_view name;
  On on;
  void (*read)(Reader&, string_view, const json::value&);
};

constexpr int64_t kMany = int64_t{1} << 40;

constexpr Field kFields[] = {
    {"model", On::both, read_model},
    {"messages", On::chat, read_messages},
    {"prompt", On::completion, read_prompt},
    {"n", On::both, [](Reader& p, string_view f, const json::value& v) { p.r.n = p.integer(f, v, 1, p.limits.choices).value_or(1); }},
    {"best_of", On::completion, [](Reader& p, string_view f, const json::value& v) { p.best_of = p.integer(f, v, 1, p.limits.choices); }},

    {"temperature", On::both, [](Reader& p, string_view f, const json::value& v) { p.number(f, v, 0, 2, &p.r.sampling.temperature); }},
    {"top_p", On::both, [](Reader& p, string_view f, const json::value& v) { p.number(f, v, 1e-6, 1, &p.r.sampling.top_p); }},
    {"top_k", On::both,
     [](Reader& p, string_view f, const json::value& v) {
       const int64_t k = p.integer(f, v, -1, p.facts.vocab_size).value_or(0);
       p.r.sampling.top_k = static_cast<int32_t>(k < 0 ? 0 : k);  // -1 and 0: off
     }},
    {"min_p", On::both, [](Reader& p, string_view f, const json::value& v) { p.number(f, v, 0, 1, &p.r.sampling.min_p); }},
    {"presence_penalty", On::both, [](Reader& p, string_view f, const json::value& v) { p.number(f, v, -2, 2, &p.r.sampling.presence_penalty); }},
    {"frequency_penalty", On::both, [](Reader& p, string_view f, const json::value& v) { p.number(f, v, -2, 2, &p.r.sampling.frequency_penalty); }},
    {"repetition_penalty", On::both,
     [](Reader& p, string_view f, const json::value& v) { p.number(f, v, 0.01, 10, &p.r.sampling.repetition_penalty); }},
    {"logit_bias", On::both, read_logit_bias},
    {"seed", On::both, read_seed},

    {"max_tokens", On::both, [](Reader& p, string_view f, const json::value& v) { p.max_tokens = p.integer(f, v, 1, kMany); }},
    {"max_completion_tokens", On::chat, [](Reader& p, string_view f, const json::value& v) { p.max_completion_tokens = p.integer(f, v, 1, kMany); }},
    {"min_tokens", On::both, [](Reader& p, string_view f, const json::value& v) { p.r.min_tokens = p.integer(f, v, 0, kMany).value_or(0); }},
    {"ignore_eos", On::both, [](Reader& p, string_view f, const json::value& v) { p.r.ignore_eos = p.boolean(f, v); }},
    {"stop", On::both, read_stop},
    {"stop_token_ids", On::both, read_stop_tokens},

    {"logprobs", On::chat, [](Reader& p, string_view f, const json::value& v) { p.chat_logprobs = p.boolean(f, v); }},
    {"top_logprobs", On::chat, [](Reader& p, string_view f, const json::value& v) { p.top_logprobs = p.integer(f, v, 0, p.limits.logprobs); }},
    {"logprobs", On::completion, [](Reader& p, string_view f, const json::value& v) { p.logprobs = p.integer(f, v, 0, p.limits.logprobs); }},

    {"cache_salt", On::both, read_cache_salt},
    {"priority", On::both,
     [](Reader& p, string_view f, const json::value& v) {
       using Range = std::numeric_limits<int32_t>;
       p.r.priority = static_cast<int32_t>(p.integer(f, v, Range::min(), Range::max()).value_or(0));
     }},
    {"timeout", On::both, read_timeout},

    {"stream", On::both, [](Reader& p, string_view f, const json::value& v) { p.r.stream = p.boolean(f, v); }},
    {"stream_options", On::both, read_stream_options},

    {"tools", On::chat, read_tools},
    {"tool_choice", On::chat, read_tool_choice},
    {"parallel_tool_calls", On::chat, must_be<true>},
    {"reasoning_effort", On::chat, read_reasoning_effort},
    {"chat_template_kwargs", On::chat, read_template_variables},
    {"response_format", On::chat, read_response_format},
    {"echo", On::completion, must_be<false>},
    {"suffix", On::completion, refuse},

    // They say who asks or how the provider files it; the answer is the same without them.
    {"user", On::both, ignore},
    {"metadata", On::both, ignore},
    {"store", On::both, ignore},
    {"service_tier", On::both, ignore},
    {"safety_identifier", On::both, ignore},
    {"prompt_cache_key", On::both, ignore},
};

const Field* find_field(Kind kind, string_view name) {
  for (const Field& f : kFields)
    if (f.name == name && (f.on == On::both || (f.on == On::chat) == (kind == Kind::chat))) return &f;
  return nullptr;
}

// What concerns more than one field.
void check_together(Reader& p) {
  Request& r = p.r;
  const bool chat = r.kind == Kind::chat;
  if (chat && !r.context.contains("messages")) p.fail("messages", "is missing");
  if (!chat && r.prompts.empty()) p.fail("prompt", "is missing");
  if (p.max_tokens && p.max_completion_tokens && *p.max_tokens != *p.max_completion_tokens)
    p.fail("max_completion_tokens", "differs from max_tokens; give one of them");
  r.max_tokens = p.max_completion_tokens ? p.max_completion_tokens : p.max_tokens;
  if (p.max_completion_tokens) r.max_tokens_field = "max_completion_tokens";
  if (r.max_tokens && r.min_tokens > *r.max_tokens) p.fail("min_tokens", fmt::format("is greater than {}", r.max_tokens_field));
  if (p.stream_options && !r.stream) p.fail("stream_options", "needs stream: true");
  if (p.best_of && *p.best_of != r.n) p.fail("best_of", "only the value of n is supported");
  if (!chat && r.n * static_cast<int64_t>(r.prompts.size()) > p.limits.choices)
    p.fail("n", fmt::format("times the number of prompts must be at most {}", p.limits.choices));
  if (p.top_logprobs.value_or(0) > 0 && !p.chat_logprobs.value_or(false)) p.fail("top_logprobs", "needs logprobs: true");
  if (chat) r.sampling.logprobs = p.chat_logprobs.value_or(false) ? static_cast<int32_t>(p.top_logprobs.value_or(0)) : -1;
  else r.sampling.logprobs = static_cast<int32_t>(p.logprobs.value_or(-1));
  if (p.tools_off) r.context.erase("tools");  // without them the model cannot call one
  for (const auto& [key, value] : p.template_variables) r.context[key] = value;
  if (chat) r.context["add_generation_prompt"] = true;
}

}  // namespace

std::variant<Request, Refusal> parse_request(Kind kind, string_view body, const ModelFacts& facts, const Limits& limits) {
  json::error_code bad;
  json::parse_options options;
  options.max_depth = static_cast<size_t>(limits.json_depth);
  const json::value v = json::parse(body, bad, {}, options);
  if (bad) return Refusal{.message = "the body is not JSON: " + bad.message(), .param = {}, .code = {}};
  if (!v.is_object()) return Refusal{.message = "the body must be a JSON object", .param = {}, .code = {}};

  Request r;
  r.kind = kind;
  r.sampling.temperature = facts.default_temperature;
  r.sampling.top_p = facts.default_top_p;
  std::random_device entropy;
  r.sampling.seed = static_cast<uint64_t>(entropy()) << 32 | entropy();
  Reader reader{.r = r, .facts = facts, .limits = limits};
  for (const auto& [key, value] : v.get_object()) {
    if (value.is_null()) continue;
    const Field* field = find_field(kind, key);
    if (field) field->read(reader, field->name, value);
    else reader.fail(key, "unknown field");
    if (reader.wrong) return *reader.wrong;
  }
  check_together(reader);
  if (reader.wrong) return *reader.wrong;
  return r;
}

}  // namespace winnow::server
