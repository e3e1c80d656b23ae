// Bodies of requests, made by rules: the input says which fields a request has and what is in them. So they are JSON, with the names and
// types that the parser knows, and reach schemas, tools, calls and forms of answers, which bytes hardly do. Then key files and headers.
#include <cmath>
#include <cstdint>

#include "checked_request.h"
#include "grammar/schema.h"
#include "server/keys.h"
#include "server/traces.h"

using namespace winnow;
using namespace winnow::server;
namespace json = boost::json;

namespace {

class Maker {
 public:
  Maker(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool more() const { return at_ < end_; }
  uint32_t pick(size_t n) { return at_ < end_ ? *at_++ % static_cast<uint32_t>(n) : 0; }
  template <class T, size_t N>
  const T& one(const T (&list)[N]) {
    return list[pick(N)];
  }

  std::string text() {
    constexpr std::string_view kTexts[] = {"",
                                           "a",
                                           "Hi",
                                           "f",
                                           "user",
                                           "assistant",
                                           "tool",
                                           "system",
                                           "text",
                                           "function",
                                           "json_schema",
                                           "required",
                                           "auto",
                                           "none",
                                           "<think>",
                                           "</tool_call>",
                                           "{\"a\": 1}",
                                           "[[[[",
                                           "\x1b[31m",
                                           "\xf0\x9f\x98\x80",
                                           "#",
                                           "#/$defs/a",
                                           "#/properties/a",
                                           "^[a-z]{1,3}$",
                                           "(a{1,99}){1,99}",
                                           "root ::= \"a\"",
                                           "m",
                                           "high",
                                           "tool_use",
                                           "tool_result",
                                           "thinking",
                                           "message",
                                           "reasoning",
                                           "function_call",
                                           "function_call_output",
                                           "input_text",
                                           "output_text",
                                           "enabled",
                                           "disabled",
                                           "any",
                                           "allowed_tools"};
    if (pick(4) != 0) return std::string(one(kTexts));
    std::string s;
    for (uint32_t n = pick(16); n > 0; --n) s += static_cast<char>(pick(128));
    return s;
  }

  json::value number() {
    switch (pick(5)) {
      case 0: return static_cast<int64_t>(pick(256)) - 4;
      case 1: return static_cast<double>(pick(256)) / 64 - 1;
      case 2: return one({int64_t{0}, int64_t{-1}, int64_t{1} << 31, INT64_MAX, INT64_MIN, int64_t{999}, int64_t{1000}, int64_t{1} << 40});
      case 3: return UINT64_MAX;
      default: return one({HUGE_VAL, -1e300, 1e-300, 0.5, 2.0, 9223372036854775808.0});
    }
  }

  json::value anything(int depth = 0) {
    switch (pick(depth > 4 ? 4 : 7)) {
      case 0: return json::value(text());
      case 1: return number();
      case 2: return pick(2) == 0;
      case 3: return nullptr;
      case 4: {
        json::array a;
        for (uint32_t n = pick(4); n > 0; --n) a.push_back(anything(depth + 1));
        return a;
      }
      case 5: return schema(depth + 1);
      default: {
        constexpr std::string_view kKeys[] = {"role",         "content", "type",  "text",    "name",   "function", "arguments", "tool_calls",
                                              "tool_call_id", "id",      "input", "call_id", "output", "schema",   "strict",    "json_schema",
                                              "parameters",   "mode",    "tools", "format",  "effort", "summary",  "a",         "budget_tokens"};
        json::object o;
        for (uint32_t n = pick(5); n > 0; --n) o[one(kKeys)] = anything(depth + 1);
        return o;
      }
    }
  }

  json::value schema(int depth = 0) {
    constexpr std::string_view kKeywords[] = {"type",
                                              "enum",
                                              "const",
                                              "anyOf",
                                              "allOf",
                                              "$ref",
                                              "properties",
                                              "required",
                                              "items",
                                              "prefixItems",
                                              "minItems",
                                              "maxItems",
                                              "minLength",
                                              "maxLength",
                                              "pattern",
                                              "format",
                                              "minimum",
                                              "maximum",
                                              "multipleOf",
                                              "additionalProperties",
                                              "patternProperties",
                                              "$defs",
                                              "not",
                                              "description",
                                              "uniqueItems",
                                              "minProperties",
                                              "propertyNames",
                                              "exclusiveMinimum",
                                              "oneOf",
                                              "definitions",
                                              "title"};
    constexpr std::string_view kTypes[] = {"object", "array", "string", "integer", "number", "boolean", "null"};
    json::object o;
    if (depth > 6) return o;
    if (pick(3) != 0) o["type"] = one(kTypes);
    for (uint32_t n = pick(4); n > 0; --n) {
      const std::string_view key = one(kKeywords);
      const bool one_schema = key == "items" || key == "additionalProperties" || key == "not" || key == "propertyNames";
      const bool list = key == "anyOf" || key == "allOf" || key == "oneOf" || key == "prefixItems";
      if (pick(8) == 0) o[key] = anything(depth + 1);
      else if (one_schema) o[key] = schema(depth + 1);
      else if (list) o[key] = json::array{schema(depth + 1), schema(depth + 1)};
      else if (key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions")
        o[key] = json::object{{"a", schema(depth + 1)}, {text(), schema(depth + 1)}};
      else if (key == "enum") o[key] = json::array{anything(depth + 1), text()};
      else if (key == "required") o[key] = json::array{"a", text()};
      else if (key == "type") o[key] = pick(2) ? json::value(json::array{one(kTypes), one(kTypes)}) : json::value(one(kTypes));
      else if (key == "$ref" || key == "pattern" || key == "format" || key == "const" || key == "description" || key == "title") o[key] = text();
      else o[key] = number();
    }
    return o;
  }

  json::object tool() {
    json::object fn{{"name", pick(4) ? std::string("f") : text()},
                    {"parameters", json::object{{"type", "object"}, {"properties", json::object{{"a", schema(1)}, {text(), schema(1)}}}}}};
    if (pick(2)) fn["strict"] = pick(2) == 0;
    return fn;
  }

  json::array messages() {
    json::array all;
    for (uint32_t n = 1 + pick(4); n > 0; --n) {
      json::object m{{"role", one({"user", "assistant", "system", "tool", "developer"})}, {"content", pick(3) ? json::value(text()) : anything(1)}};
      if (pick(4) == 0)
        m["tool_calls"] = json::array{json::object{{"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", anything(2)}}}}};
      if (pick(8) == 0) m[text()] = anything(2);
      all.push_back(std::move(m));
    }
    return all;
  }

  json::object body(Api api) {
    constexpr std::string_view kFields[] = {"model",
                                            "messages",
                                            "system",
                                            "input",
                                            "instructions",
                                            "prompt",
                                            "tokens",
                                            "n",
                                            "best_of",
                                            "temperature",
                                            "top_p",
                                            "top_k",
                                            "min_p",
                                            "presence_penalty",
                                            "repetition_penalty",
                                            "logit_bias",
                                            "seed",
                                            "max_tokens",
                                            "max_completion_tokens",
                                            "max_output_tokens",
                                            "min_tokens",
                                            "ignore_eos",
                                            "stop",
                                            "stop_sequences",
                                            "stop_token_ids",
                                            "logprobs",
                                            "top_logprobs",
                                            "cache_salt",
                                            "priority",
                                            "timeout",
                                            "stream",
                                            "stream_options",
                                            "tools",
                                            "tool_choice",
                                            "parallel_tool_calls",
                                            "reasoning_effort",
                                            "reasoning",
                                            "thinking",
                                            "thinking_token_budget",
                                            "output_config",
                                            "output_format",
                                            "chat_template_kwargs",
                                            "response_format",
                                            "structured_outputs",
                                            "text",
                                            "include",
                                            "metadata",
                                            "store",
                                            "previous_response_id",
                                            "background",
                                            "truncation",
                                            "add_generation_prompt",
                                            "return_token_strs",
                                            "echo",
                                            "suffix",
                                            "user"};
    json::object o;
    if (api == Api::chat || api == Api::messages || api == Api::count_tokens) o["messages"] = messages();
    if (api == Api::messages) o["max_tokens"] = 5;
    if (api == Api::completion || api == Api::tokenize) o["prompt"] = text();
    if (api == Api::detokenize) o["tokens"] = json::array{1, number()};
    if (api == Api::responses) o["input"] = pick(2) ? json::value(text()) : json::value(messages());
    for (uint32_t n = pick(6); n > 0; --n) field(api, &o);
    for (uint32_t n = pick(3); n > 0; --n) o[one(kFields)] = anything();
    return o;
  }

 private:
  // One of those that have an inside.
  void field(Api api, json::object* o) {
    switch (pick(6)) {
      case 0: {
        json::object fn = tool();
        if (api == Api::chat || api == Api::tokenize) (*o)["tools"] = json::array{json::object{{"type", "function"}, {"function", fn}}};
        else if (api == Api::responses) (*o)["tools"] = json::array{(fn["type"] = "function", fn)};
        else (*o)["tools"] = json::array{json::object{{"name", fn["name"]}, {"input_schema", fn["parameters"]}}};
        break;
      }
      case 1:
        (*o)["response_format"] =
            json::object{{"type", "json_schema"}, {"json_schema", {{"name", "a"}, {"schema", schema()}, {"strict", pick(2) == 0}}}};
        break;
      case 2: (*o)["text"] = json::object{{"format", {{"type", "json_schema"}, {"name", "a"}, {"schema", schema()}}}}; break;
      case 3: (*o)["output_config"] = json::object{{"format", {{"type", "json_schema"}, {"schema", schema()}}}}; break;
      case 4:
        (*o)["structured_outputs"] =
            json::object{{one({"json", "regex", "grammar", "choice", "json_object"}), pick(2) ? json::value(text()) : anything(1)}};
        break;
      default: (*o)["tool_choice"] = pick(2) ? json::value(text()) : anything(1);
    }
  }
  const uint8_t *at_, *end_;
};

// Whatever it says, reading it ends, and what it says to XGrammar is a schema again.
void check_schema(const json::value& schema) {
  const grammar::ReadSchema read = grammar::read_schema(schema);
  check(read.schemas >= 1, "a schema holds itself");
  if (read.wrong) return;
  check(!grammar::read_schema(read.normal).wrong, "what is read of a schema is one");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const text::Tokenizer tokenizer = text::Tokenizer::load(WINNOW_SOURCE_DIR "/models/winnow-tiny/tokenizer.json").or_throw();
  constexpr Api kApis[] = {Api::chat, Api::completion, Api::messages, Api::responses, Api::count_tokens, Api::tokenize, Api::detokenize};
  Maker make(data, size);
  if (make.pick(16) == 0) {
    const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - std::min<size_t>(size, 1));
    Keys keys;
    if (!keys.add_lines(rest, "keys", {}))
      for (size_t i = 0; i < keys.size(); ++i) check(keys.limits(i).concurrent >= 0 && !keys.name(i).empty(), "a key's limits");
    shown_key(rest, rest);
    parse_traceparent(rest);
    return 0;
  }
  const Api api = make.one(kApis);
  check_schema(make.schema());
  std::string body = json::serialize(make.body(api));
  if (make.pick(8) == 0 && !body.empty()) body[make.pick(body.size())] = static_cast<char>(make.pick(256));
  check_body(api, body, &tokenizer);
  return 0;
}
