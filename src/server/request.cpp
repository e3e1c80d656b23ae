#include "server/request.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <random>

#include "server/request_reader.h"

namespace winnow::server {

namespace json = boost::json;
using std::string_view;

namespace {

// A name or value that a client made up is repeated to it, but not at any length.
constexpr size_t kLongestName = 200, kLongestMessage = 500;

}  // namespace

void Reader::fail(string_view param, std::string message, int status, std::string code) {
  if (wrong) return;
  const string_view shown = param.substr(0, kLongestName);
  wrong = Refusal{status, fmt::format("{}: {}", shown, message.substr(0, kLongestMessage)), std::string(shown), std::move(code)};
}

bool Reader::boolean(string_view name, const json::value& v) {
  if (!v.is_bool()) fail(name, "must be true or false");
  return v.is_bool() && v.get_bool();
}

std::optional<int64_t> Reader::integer(string_view name, const json::value& v, int64_t low, int64_t high) {
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

void Reader::number(string_view name, const json::value& v, double low, double high, float* to) {
  if (!v.is_number()) return fail(name, fmt::format("must be a number from {} to {}", low, high));
  const double d = v.to_number<double>();
  if (!(d >= low && d <= high)) return fail(name, fmt::format("must be from {} to {}, not {}", low, high, d));
  *to = static_cast<float>(d);
}

const json::string* Reader::string(string_view name, const json::value& v) {
  if (!v.is_string()) fail(name, "must be a string");
  return v.if_string();
}

const json::string* Reader::short_string(string_view name, const json::value& v) {
  const json::string* s = string(name, v);
  if (s && s->empty()) fail(name, "must not be empty");
  if (s && s->size() > limits.name_bytes) fail(name, fmt::format("at most {} bytes", limits.name_bytes));
  return wrong ? nullptr : s;
}

const json::object* Reader::object(string_view name, const json::value& v) {
  if (!v.is_object()) fail(name, "must be an object");
  return v.if_object();
}

const json::array* Reader::array(string_view name, const json::value& v, size_t most) {
  if (!v.is_array()) fail(name, "must be an array");
  else if (v.get_array().size() > most) fail(name, fmt::format("at most {}", most));
  return wrong ? nullptr : v.if_array();
}

std::optional<int32_t> Reader::token(string_view name, const json::value& v) {
  const std::optional<int64_t> id = integer(name, v, 0, facts.vocab_size - 1);
  if (!id) return std::nullopt;
  return static_cast<int32_t>(*id);
}

const json::string* Reader::string_in(string_view at, const json::object& o, string_view key) {
  const json::value* v = o.if_contains(key);
  if (!v || !v->is_string()) fail(fmt::format("{}.{}", at, key), "must be a string");
  return wrong ? nullptr : v->if_string();
}

void Reader::only(string_view at, const json::object& o, std::initializer_list<string_view> known, string_view what) {
  for (const auto& [key, value] : o)
    if (!value.is_null() && std::find(known.begin(), known.end(), string_view(key)) == known.end())
      return fail(fmt::format("{}.{}", at, string_view(key)), fmt::format("is not a known field of {}", what));
}

bool Reader::full(string_view name) {
  if (messages.size() >= limits.messages) fail(name, fmt::format("at most {} messages", limits.messages));
  return wrong.has_value();
}

void read_effort(Reader& p, string_view name, const json::value& v) {
  struct Effort {
    string_view asked, template_word;  // empty: no reasoning
  };
  constexpr Effort kEfforts[] = {{"none", ""},     {"minimal", "low"}, {"low", "low"}, {"medium", "high"},
                                 {"high", "high"}, {"xhigh", "max"},   {"max", "max"}};
  const json::string* s = p.string(name, v);
  if (!s) return;
  for (const Effort& e : kEfforts) {
    if (string_view(*s) != e.asked) continue;
    if (e.template_word.empty()) p.think = false;
    else p.template_variables["reasoning_effort"] = e.template_word;
    return;
  }
  p.fail(name, "must be none, minimal, low, medium, high, xhigh or max");
}

namespace {

void read_template_variables(Reader& p, string_view name, const json::value& v) {
  if (!v.is_object()) return p.fail(name, "must be an object");
  for (const auto& [key, value] : v.get_object())
    if (key == "messages" || key == "tools" || key == "add_generation_prompt")
      return p.fail(fmt::format("{}.{}", name, string_view(key)), "is set by the server");
  for (const auto& [key, value] : v.get_object()) {
    p.template_variables.insert_or_assign(key, value);
    if (key == "enable_thinking" && value.is_bool()) p.think = value.get_bool();  // templates may not know of it
  }
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
    const bool obfuscation = p.r.api == Api::responses && key == "include_obfuscation";  // of lengths: there is none
    const bool continuous = p.r.api != Api::responses && key == "continuous_usage_stats";
    if (key != "include_usage" && !obfuscation && !continuous) return p.fail(at, "unknown field (known: include_usage, continuous_usage_stats)");
    if (value.is_null()) continue;
    const bool wanted = p.boolean(at, value);
    if (continuous) p.r.continuous_usage = wanted;
    else if (!obfuscation) p.r.include_usage = wanted;
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

void ignore(Reader&, string_view, const json::value&) {}
void refuse(Reader& p, string_view name, const json::value&) { p.fail(name, "is not supported"); }

// --- the table ----------------------------------------------------------------------------------------------------------

using Apis = uint8_t;  // a bit for each
constexpr Apis on(Api api) { return static_cast<Apis>(1u << static_cast<unsigned>(api)); }
constexpr Apis kChat = on(Api::chat), kCompletion = on(Api::completion), kOpenAi = kChat | kCompletion, kMessages = on(Api::messages),
               kCount = on(Api::count_tokens), kAnthropic = kMessages | kCount, kResponses = on(Api::responses), kTokenize = on(Api::tokenize),
               kDetokenize = on(Api::detokenize), kGenerate = kOpenAi | kMessages | kResponses;

struct Field {
  string_view name;
  Apis apis;
  ReadField read;
};

constexpr int64_t kMany = int64_t{1} << 40;

// One of its names; two of them must agree.
void read_max_tokens(Reader& p, string_view f, const json::value& v) {
  const std::optional<int64_t> n = p.integer(f, v, p.r.api == Api::completion ? 0 : 1, kMany);
  if (p.r.max_tokens && n && *p.r.max_tokens != *n) p.fail(f, fmt::format("differs from {}; give one of them", p.r.max_tokens_field));
  p.r.max_tokens = n;
  p.r.max_tokens_field = f;
}

void read_tokens(Reader& p, string_view name, const json::value& v) {
  const json::array* a = p.array(name, v, p.limits.tokens);
  if (!a) return;
  if (auto ids = token_list(p, name, *a)) p.r.prompts.emplace_back(std::move(*ids));
}

constexpr Field kFields[] = {
    {"model", 0xff, read_model},
    {"messages", kChat | kTokenize, read_chat_messages},
    {"messages", kAnthropic, read_anthropic_messages},
    {"system", kAnthropic, read_anthropic_system},
    {"input", kResponses, read_input},
    {"instructions", kResponses, read_instructions},
    {"prompt", kCompletion | kTokenize, read_prompt},
    {"tokens", kDetokenize, read_tokens},
    {"n", kOpenAi, [](Reader& p, string_view f, const json::value& v) { p.r.n = p.integer(f, v, 1, p.limits.choices).value_or(1); }},
    {"best_of", kCompletion, [](Reader& p, string_view f, const json::value& v) { p.best_of = p.integer(f, v, 1, p.limits.choices); }},

    {"temperature", kGenerate, [](Reader& p, string_view f, const json::value& v) { p.number(f, v, 0, 2, &p.r.sampling.temperature); }},
    {"top_p", kGenerate, [](Reader& p, string_view f, const json::value& v) { p.number(f, v, 1e-6, 1, &p.r.sampling.top_p); }},
    {"top_k", kGenerate,
     [](Reader& p, string_view f, const json::value& v) {
       const int64_t k = p.integer(f, v, -1, p.facts.vocab_size).value_or(0);
       p.r.sampling.top_k = static_cast<int32_t>(k < 0 ? 0 : k);  // -1 and 0: off
     }},
    {"min_p", kGenerate, [](Reader& p, string_view f, const json::value& v) { p.number(f, v, 0, 1, &p.r.sampling.min_p); }},
    {"presence_penalty", kGenerate, [](Reader& p, string_view f, const json::value& v) { p.number(f, v, -2, 2, &p.r.sampling.presence_penalty); }},
    {"frequency_penalty", kGenerate, [](Reader& p, string_view f, const json::value& v) { p.number(f, v, -2, 2, &p.r.sampling.frequency_penalty); }},
    {"repetition_penalty", kGenerate,
     [](Reader& p, string_view f, const json::value& v) { p.number(f, v, 0.01, 10, &p.r.sampling.repetition_penalty); }},
    {"logit_bias", kGenerate, read_logit_bias},
    {"seed", kGenerate, read_seed},

    {"max_tokens", kOpenAi | kMessages, read_max_tokens},
    {"max_completion_tokens", kChat, read_max_tokens},
    {"max_output_tokens", kResponses, read_max_tokens},
    {"min_tokens", kGenerate, [](Reader& p, string_view f, const json::value& v) { p.r.min_tokens = p.integer(f, v, 0, kMany).value_or(0); }},
    {"ignore_eos", kGenerate, [](Reader& p, string_view f, const json::value& v) { p.r.ignore_eos = p.boolean(f, v); }},
    {"stop", kOpenAi | kResponses, read_stop},
    {"stop_sequences", kMessages, read_stop},
    {"stop_token_ids", kGenerate, read_stop_tokens},

    {"logprobs", kChat, [](Reader& p, string_view f, const json::value& v) { p.chat_logprobs = p.boolean(f, v); }},
    {"top_logprobs", kChat | kResponses,
     [](Reader& p, string_view f, const json::value& v) { p.top_logprobs = p.integer(f, v, 0, p.limits.logprobs); }},
    {"logprobs", kCompletion, [](Reader& p, string_view f, const json::value& v) { p.logprobs = p.integer(f, v, 0, p.limits.logprobs); }},

    {"cache_salt", kGenerate, read_cache_salt},
    {"priority", kGenerate,
     [](Reader& p, string_view f, const json::value& v) {
       using Range = std::numeric_limits<int32_t>;
       p.r.priority = static_cast<int32_t>(p.integer(f, v, Range::min(), Range::max()).value_or(0));
     }},
    {"timeout", kGenerate, read_timeout},

    {"stream", kGenerate, [](Reader& p, string_view f, const json::value& v) { p.r.stream = p.boolean(f, v); }},
    {"stream_options", kOpenAi | kResponses, read_stream_options},

    {"tools", kChat | kTokenize, read_chat_tools},
    {"tools", kAnthropic, read_anthropic_tools},
    {"tools", kResponses, read_responses_tools},
    {"tool_choice", kChat | kResponses, read_tool_choice},
    {"tool_choice", kAnthropic, read_anthropic_tool_choice},
    {"parallel_tool_calls", kChat | kResponses, [](Reader& p, string_view f, const json::value& v) { p.r.calls.parallel = p.boolean(f, v); }},
    {"reasoning_effort", kChat | kTokenize, read_effort},
    {"reasoning", kResponses, read_reasoning},
    {"thinking", kChat | kAnthropic, read_thinking},
    {"thinking_token_budget", kChat | kResponses,
     [](Reader& p, string_view f, const json::value& v) {
       p.thinking_field = f;
       p.thinking_tokens = p.integer(f, v, 0, kMany);
     }},
    {"output_config", kAnthropic, read_anthropic_output},
    {"output_format", kAnthropic, read_anthropic_format},
    {"chat_template_kwargs", kChat | kMessages | kCount | kResponses | kTokenize, read_template_variables},
    {"response_format", kChat, read_response_format},
    {"structured_outputs", kOpenAi | kResponses, read_structured_outputs},
    {"text", kResponses, read_text_format},
    {"include", kResponses, read_include},
    {"metadata", kResponses, read_metadata},
    {"store", kResponses, [](Reader& p, string_view f, const json::value& v) { p.r.responses.store = p.boolean(f, v); }},
    {"previous_response_id", kResponses,
     [](Reader& p, string_view f, const json::value& v) {
       if (const json::string* id = p.short_string(f, v)) p.r.responses.previous_id = *id;
     }},
    {"background", kResponses, [](Reader& p, string_view f, const json::value& v) { p.r.responses.background = p.boolean(f, v); }},
    {"truncation", kResponses,
     [](Reader& p, string_view f, const json::value& v) {
       if (v != "disabled") p.fail(f, "only \"disabled\" is supported");
     }},
    {"add_generation_prompt", kTokenize,
     [](Reader& p, string_view f, const json::value& v) { p.template_variables["add_generation_prompt"] = p.boolean(f, v); }},
    {"add_special_tokens", kTokenize, [](Reader& p, string_view f, const json::value& v) { p.boolean(f, v); }},  // there are none to add
    {"return_token_strs", kTokenize, [](Reader& p, string_view f, const json::value& v) { p.r.token_texts = p.boolean(f, v); }},
    {"echo", kCompletion, [](Reader& p, string_view f, const json::value& v) { p.r.echo = p.boolean(f, v); }},
    {"suffix", kCompletion, refuse},

    // They say who asks or how the provider files and caches it; the answer is the same without them.
    {"user", kGenerate, ignore},
    {"metadata", kOpenAi | kMessages, ignore},
    {"store", kOpenAi, ignore},
    {"service_tier", kGenerate, ignore},
    {"safety_identifier", kGenerate, ignore},
    {"prompt_cache_key", kGenerate, ignore},
    {"prompt_cache_retention", kOpenAi | kResponses, ignore},
    {"cache_control", kAnthropic, ignore},
    {"context_management", kAnthropic, ignore},
    {"inference_geo", kMessages, ignore},
};

const Field* find_field(Api api, string_view name) {
  for (const Field& f : kFields)
    if (f.name == name && (f.apis & on(api))) return &f;
  return nullptr;
}

// What concerns more than one field.
void check_together(Reader& p, Apis api) {
  Request& r = p.r;
  if ((api & (kChat | kAnthropic)) && !p.has_messages) p.fail("messages", "is missing");
  if ((api & kResponses) && !p.has_messages) p.fail("input", "is missing");
  if ((api & kTokenize) && p.has_messages == !r.prompts.empty()) p.fail("prompt", "give one of prompt and messages");
  if ((api & kTokenize) && !p.has_messages && p.r.has_tools()) p.fail("tools", "needs messages");
  if ((api & kTokenize) && r.prompts.size() > 1) p.fail("prompt", "must be one string");
  if ((api & kCompletion) && r.prompts.empty()) p.fail("prompt", "is missing");
  if ((api & kDetokenize) && r.prompts.empty()) p.fail("tokens", "is missing");
  if ((api & kMessages) && !r.max_tokens) p.fail("max_tokens", "is missing");
  if (r.max_tokens && r.min_tokens > *r.max_tokens) p.fail("min_tokens", fmt::format("is greater than {}", r.max_tokens_field));
  if (r.max_tokens == 0 && !r.echo) p.fail(r.max_tokens_field, "must be at least 1 without echo: true");
  if (p.stream_options && !r.stream) p.fail("stream_options", "needs stream: true");
  if (p.best_of && *p.best_of != r.n) p.fail("best_of", "only the value of n is supported");
  if ((api & kCompletion) && r.n * static_cast<int64_t>(r.prompts.size()) > p.limits.choices)
    p.fail("n", fmt::format("times the number of prompts must be at most {}", p.limits.choices));
  const bool logprobs = (api & kResponses) ? r.responses.text_logprobs : p.chat_logprobs.value_or(false);
  if (p.top_logprobs.value_or(0) > 0 && !logprobs)
    p.fail("top_logprobs", (api & kResponses) ? "needs include: [\"message.output_text.logprobs\"]" : "needs logprobs: true");
  if (r.responses.background && r.stream) p.fail("stream", "a background response is polled, not streamed: GET /v1/responses/{id}");
  if (r.responses.background && !r.responses.store) p.fail("background", "needs store: true, because its answer can only be asked for later");
  if (api & kCompletion) r.sampling.logprobs = static_cast<int32_t>(p.logprobs.value_or(-1));
  else r.sampling.logprobs = logprobs ? static_cast<int32_t>(p.top_logprobs.value_or(0)) : -1;

  check_calls(p);
  if (p.thinking_tokens && r.max_tokens && *p.thinking_tokens >= *r.max_tokens)
    p.fail(p.thinking_field, fmt::format("its tokens must be fewer than {}", r.max_tokens_field));
  if (r.continues_last && p.think.value_or(false))
    p.fail(p.thinking_field, "an answer that continues the assistant's last message cannot begin with it");
  if (!p.think.value_or(!(api & kAnthropic))) p.thinking_tokens = 0;  // Anthropic's clients ask for it
  r.thinking_tokens = p.thinking_tokens;
}

void make_context(Reader& p) {
  json::object& context = p.r.context;
  if (p.tools_off) context.erase("tools");  // without them the model cannot call one
  if (p.system) {
    p.messages.insert(p.messages.begin(), json::object{{"role", "system"}, {"content", std::move(*p.system)}});
    p.r.responses.instructions = true;
  }
  context["messages"] = std::move(p.messages);
  context["add_generation_prompt"] = !p.r.continues_last;
  for (const auto& [key, value] : p.template_variables) context[key] = value;
}

}  // namespace

std::variant<Request, Refusal> parse_request(Api api, string_view body, const ModelFacts& facts, const Limits& limits) {
  json::error_code bad;
  json::parse_options options;
  options.max_depth = static_cast<size_t>(limits.json_depth);
  const json::value v = json::parse(body, bad, {}, options);
  if (bad) return Refusal{.message = "the body is not JSON: " + bad.message(), .param = {}, .code = {}};
  if (!v.is_object()) return Refusal{.message = "the body must be a JSON object", .param = {}, .code = {}};

  Request r;
  r.api = api;
  r.prompt_field = api == Api::completion ? "prompt" : api == Api::responses ? "input" : "messages";
  r.sampling.temperature = facts.default_temperature;
  r.sampling.top_p = facts.default_top_p;
  std::random_device entropy;
  r.sampling.seed = static_cast<uint64_t>(entropy()) << 32 | entropy();
  Reader reader{.r = r, .facts = facts, .limits = limits};
  for (const auto& [key, value] : v.get_object()) {
    if (value.is_null()) continue;
    const Field* field = find_field(api, key);
    if (field) field->read(reader, field->name, value);
    else reader.fail(key, "unknown field");
    if (reader.wrong) return *reader.wrong;
  }
  check_together(reader, on(api));
  if (reader.wrong) return *reader.wrong;
  if (reader.has_messages) make_context(reader);
  return r;
}

}  // namespace winnow::server
