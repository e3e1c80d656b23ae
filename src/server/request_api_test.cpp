// What /v1/messages, /v1/responses and the routes of the tokenizer read.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "server/request.h"

namespace winnow::server {
namespace {

namespace json = boost::json;

const ModelFacts kFacts{
    .name = "tiny", .vocab_size = 100, .max_context = 1000, .default_temperature = 0.7f, .default_top_p = 0.9f, .eos_token_ids = {7}};
const Limits kLimits;

std::string beginning(Api api) {
  switch (api) {
    case Api::messages: return R"("max_tokens": 50, "messages": [{"role": "user", "content": "hi"}])";
    case Api::responses: return R"("input": "hi")";
    case Api::detokenize: return R"("tokens": [1])";
    default: return R"("messages": [{"role": "user", "content": "hi"}])";
  }
}

// Bodies are fields after what the API cannot do without, or whole.
std::variant<Request, Refusal> parse(Api api, std::string_view body) {
  const std::string whole = body.starts_with("{") ? std::string(body) : fmt::format("{{{}{}{}}}", beginning(api), body.empty() ? "" : ", ", body);
  return parse_request(api, whole, kFacts, kLimits);
}
Request accepted(Api api, std::string_view body) {
  std::variant<Request, Refusal> r = parse(api, body);
  if (const auto* refusal = std::get_if<Refusal>(&r)) {
    ADD_FAILURE() << body << ": " << refusal->message;
    return {};
  }
  return std::get<Request>(std::move(r));
}

// What the template is given, as it would be written by hand.
void expect_messages(const Request& r, std::string_view want) { EXPECT_EQ(r.context.at("messages"), json::parse(want)); }

TEST(MessagesRequest, BlocksBecomeMessages) {
  const Request r = accepted(Api::messages, R"({"model": "tiny", "max_tokens": 9, "stop_sequences": ["a"], "stream": true, "top_k": 5,
    "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}], "metadata": {"user_id": "u"},
    "messages": [
      {"role": "user", "content": [{"type": "text", "text": "weather?", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "let me see"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"city": "Paris"}}, {"type": "tool_use", "id": "t2", "name": "g", "input": {}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "sun"}]},
        {"type": "tool_result", "tool_use_id": "t1", "is_error": true}, {"type": "text", "text": "well?"}]}],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": null}, {"type": "custom", "name": "g", "input_schema": {}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}})");
  EXPECT_EQ(r.max_tokens, 9);
  EXPECT_EQ(r.stop, std::vector<std::string>{"a"});
  EXPECT_TRUE(r.stream);
  EXPECT_FALSE(r.calls.parallel);
  EXPECT_EQ(r.thinking_tokens, 0);
  expect_messages(r, R"([{"role": "system", "content": [{"type": "text", "text": "be kind"}]},
    {"role": "user", "content": [{"type": "text", "text": "weather?"}]},
    {"role": "assistant", "content": "let me see", "reasoning_content": "hm", "tool_calls": [
      {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"city": "Paris"}}},
      {"id": "t2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "t2", "content": [{"type": "text", "text": "sun"}]},
    {"role": "tool", "tool_call_id": "t1", "content": ""},
    {"role": "user", "content": [{"type": "text", "text": "well?"}]}])");
  EXPECT_EQ(r.context.at("tools"),
            json::parse(R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "g", "parameters": {}}}])"));
}

TEST(MessagesRequest, ThinkingIsOnWhereItIsAskedFor) {
  EXPECT_EQ(accepted(Api::messages, "").thinking_tokens, 0);
  EXPECT_EQ(accepted(Api::messages, R"("thinking": {"type": "disabled"})").thinking_tokens, 0);
  EXPECT_FALSE(accepted(Api::messages, R"("thinking": {"type": "adaptive", "display": "summarized"})").thinking_tokens);
  EXPECT_EQ(accepted(Api::messages, R"("thinking": {"type": "enabled", "budget_tokens": 20})").thinking_tokens, 20);
  const Request r = accepted(Api::messages, R"("thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"})");
  EXPECT_EQ(r.context.at("reasoning_effort").as_string(), "high");
}

TEST(MessagesRequest, AnAnswerMayBeBegun) {
  const Request r =
      accepted(Api::messages, R"({"max_tokens": 5, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  EXPECT_TRUE(r.continues_last);
  EXPECT_FALSE(r.context.at("add_generation_prompt").as_bool());
}

TEST(ResponsesRequest, ItemsBecomeMessages) {
  const Request r = accepted(Api::responses, R"({"model": "tiny", "instructions": "be kind", "max_output_tokens": 9, "store": false,
    "metadata": {"a": "b"}, "reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"], "text": {"format": {"type": "text"}},
    "parallel_tool_calls": false, "truncation": "disabled", "previous_response_id": "resp_1", "prompt_cache_key": "k", "stream": true,
    "stream_options": {"include_obfuscation": false}, "tool_choice": "auto", "service_tier": "auto", "background": false,
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": null}],
    "input": [{"role": "user", "content": "weather?"},
      {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "now"}]},
      {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
      {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "see", "annotations": [], "logprobs": []}]},
      {"type": "function_call", "id": "fc", "call_id": "c1", "name": "f", "arguments": "{\"city\": \"Paris\"}", "status": "completed"},
      {"type": "function_call", "call_id": "c2", "name": "f", "arguments": ""},
      {"type": "function_call_output", "call_id": "c1", "output": "sun"},
      {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
      {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "so"}]},
      {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}"},
      {"role": "assistant", "content": "one"}, {"role": "assistant", "content": "two"}]})");
  EXPECT_EQ(r.max_tokens_field, "max_output_tokens");
  EXPECT_FALSE(r.responses.store);
  EXPECT_FALSE(r.calls.parallel);
  EXPECT_EQ(r.responses.previous_id, "resp_1");
  EXPECT_TRUE(r.responses.instructions);
  EXPECT_EQ(r.context.at("reasoning_effort").as_string(), "low");
  EXPECT_EQ(r.responses.echo.at("metadata").at("a").as_string(), "b");
  EXPECT_EQ(r.responses.echo.at("instructions").as_string(), "be kind");
  expect_messages(r, R"([{"role": "system", "content": "be kind"}, {"role": "user", "content": "weather?"},
    {"role": "system", "content": [{"type": "text", "text": "now"}]},
    {"role": "assistant", "reasoning_content": "hm", "content": "see", "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"city": "Paris"}}},
      {"id": "c2", "type": "function", "function": {"name": "f", "arguments": {}}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "rain"}]},
    {"role": "assistant", "reasoning_content": "so", "content": "", "tool_calls": [{"id": "c3", "type": "function", "function": {"name": "f", "arguments": {}}}]},
    {"role": "assistant", "content": "one"}, {"role": "assistant", "content": "two"}])");
  EXPECT_EQ(r.context.at("tools"),
            json::parse(R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}])"));
}

TEST(ResponsesRequest, ThinksByDefault) {
  EXPECT_FALSE(accepted(Api::responses, "").thinking_tokens);
  EXPECT_EQ(accepted(Api::responses, R"("reasoning": {"effort": "none"})").thinking_tokens, 0);
  EXPECT_EQ(accepted(Api::responses, R"("thinking_token_budget": 5)").thinking_tokens, 5);
  EXPECT_EQ(accepted(Api::chat, R"("reasoning_effort": "none")").thinking_tokens, 0);
  EXPECT_EQ(accepted(Api::chat, R"("thinking": {"type": "disabled"})").thinking_tokens, 0);
  EXPECT_EQ(accepted(Api::chat, R"("chat_template_kwargs": {"enable_thinking": false})").thinking_tokens, 0);
  EXPECT_FALSE(accepted(Api::chat, R"("chat_template_kwargs": {"enable_thinking": true})").thinking_tokens);
}

TEST(TokenizeRequest, HasAPromptOrMessages) {
  EXPECT_EQ(std::get<std::string>(accepted(Api::tokenize, R"({"prompt": "hi", "add_special_tokens": false})").prompts.at(0)), "hi");
  const Request r = accepted(Api::tokenize, R"("add_generation_prompt": false, "return_token_strs": true)");
  EXPECT_FALSE(r.context.at("add_generation_prompt").as_bool());
  EXPECT_TRUE(r.token_texts);
  EXPECT_EQ(std::get<1>(accepted(Api::detokenize, R"({"tokens": [1, 99]})").prompts.at(0)), (std::vector<int32_t>{1, 99}));
  EXPECT_TRUE(std::get<1>(accepted(Api::detokenize, R"({"tokens": []})").prompts.at(0)).empty());
}

struct Bad {
  Api api;
  const char* body;
  const char* param;
};

TEST(ApiRequests, WrongOnesAreRefusedByName) {
  constexpr Api m = Api::messages, r = Api::responses;
  const Bad cases[] = {
      {m, R"({"messages": [{"role": "user", "content": "hi"}]})", "max_tokens"},
      {m, R"({"max_tokens": 5})", "messages"},
      {m, R"({"max_tokens": 5, "messages": []})", "messages"},
      {m, R"({"max_tokens": 5, "messages": [{"role": "tool", "content": "x"}]})", "messages[0].role"},
      {m, R"({"max_tokens": 5, "messages": [{"role": "user"}]})", "messages[0].content"},
      {m, R"({"max_tokens": 5, "messages": [{"role": "user", "content": 3}]})", "messages[0].content"},
      {m, R"({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]})", "messages[0].content[0].type"},
      {m, R"({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text"}]}]})", "messages[0].content[0].text"},
      {m, R"({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]})",
       "messages[0].content[0].tool_use_id"},
      {m,
       R"({"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]}]})",
       "messages[0].content[0].content[0].type"},
      {m, R"({"max_tokens": 5, "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "x"}]}]})",
       "messages[0].content[0].input"},
      {m, R"({"max_tokens": 5, "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]})",
       "messages[0]"},
      {m, R"({"max_tokens": 5, "messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]})",
       "messages[0].content[0].type"},
      {m, R"({"max_tokens": 5, "thinking": {"type": "adaptive"}, "messages": [{"role": "assistant", "content": "b"}]})", "thinking"},
      {m, R"("system": 3)", "system"},
      {m, R"("system": [{"type": "image"}])", "system[0].type"},
      {m, R"("stop": "x")", "stop"},
      {m, R"("stop_sequences": [""])", "stop_sequences[0]"},
      {m, R"("thinking": {"type": "enabled", "budget_tokens": 50})", "thinking"},
      {m, R"("thinking": {"type": "enabled", "budget_tokens": 0})", "thinking.budget_tokens"},
      {m, R"("thinking": {"type": "sometimes"})", "thinking.type"},
      {m, R"("thinking": {"type": "enabled", "display": "omitted"})", "thinking.display"},
      {m, R"("thinking": true)", "thinking"},
      {m, R"("tools": [{"name": "f"}])", "tools[0].input_schema"},
      {m, R"("tools": [{"name": "", "input_schema": {}}])", "tools[0].name"},
      {m, R"("tools": [{"name": "f", "input_schema": []}])", "tools[0].input_schema"},
      {m, R"("tools": [{"type": "bash_20250124", "name": "bash"}])", "tools[0].type"},
      {m, R"("tool_choice": {"type": "any"})", "tool_choice"},
      {m, R"("tool_choice": {"type": "tool", "name": "f"})", "tool_choice"},
      {m, R"("tool_choice": {"type": "tool"})", "tool_choice.name"},
      {m, R"("tool_choice": {"type": "some"})", "tool_choice.type"},
      {m, R"("tool_choice": {"type": "any", "name": "f"})", "tool_choice.name"},
      {m, R"("tool_choice": {"type": "auto", "disable_parallel_tool_use": 1})", "tool_choice.disable_parallel_tool_use"},
      {m, R"("output_config": {"format": {"type": "json_schema"}})", "output_config.format.schema"},
      {m, R"("output_config": {"format": {"type": "json_object"}})", "output_config.format.type"},
      {m, R"("output_format": {"type": "json_schema", "schema": 3})", "output_format.schema"},
      {m, R"("output_config": {"effort": "huge"})", "output_config.effort"},
      {m, R"("n": 2)", "n"},
      {Api::count_tokens, R"("max_tokens": 5)", "max_tokens"},
      {Api::count_tokens, "{}", "messages"},

      {r, "{}", "input"},
      {r, R"({"input": ""})", "input"},
      {r, R"({"input": []})", "input"},
      {r, R"({"input": [3]})", "input[0]"},
      {r, R"({"input": [{"type": "web_search_call"}]})", "input[0].type"},
      {r, R"({"input": [{"role": "king", "content": "x"}]})", "input[0].role"},
      {r, R"({"input": [{"role": "user"}]})", "input[0].content"},
      {r, R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})", "input[0].content[0].type"},
      {r, R"({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1]"}]})", "input[0].arguments"},
      {r, R"({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]})", "input[0].call_id"},
      {r, R"({"input": [{"type": "function_call_output", "call_id": "c"}]})", "input[0].output"},
      {r, R"({"input": [{"type": "reasoning", "id": "x", "summary": []}]})", "input"},
      {r, R"("messages": [])", "messages"},
      {r, R"("max_tokens": 5)", "max_tokens"},
      {r, R"("max_output_tokens": 0)", "max_output_tokens"},
      {r, R"("background": true, "store": false)", "background"},
      {r, R"("background": true, "stream": true)", "stream"},
      {r, R"("background": 1)", "background"},
      {r, R"("top_logprobs": 2)", "top_logprobs"},
      {r, R"("top_logprobs": 21, "include": ["message.output_text.logprobs"])", "top_logprobs"},
      {r, R"("include": ["web_search_call.results"])", "include[0]"},
      {r, R"("truncation": "auto")", "truncation"},
      {r, R"("previous_response_id": "")", "previous_response_id"},
      {r, R"("previous_response_id": 5)", "previous_response_id"},
      {r, R"("include": ["file_search_call.results"])", "include[0]"},
      {r, R"("tools": [{"type": "web_search"}])", "tools[0].type"},
      {r, R"("tools": [{"type": "function"}])", "tools[0].name"},
      {r, R"("tool_choice": "required")", "tool_choice"},
      {r, R"("tool_choice": {"type": "function", "name": "f"})", "tool_choice"},
      {r, R"("text": {"format": {"type": "json_schema"}})", "text.format.schema"},
      {r, R"("text": {"format": {"type": "regex"}})", "text.format.type"},
      {r, R"("text": {"verbosity": "loud"})", "text.verbosity"},
      {r, R"("reasoning": {"effort": 3})", "reasoning.effort"},
      {r, R"("metadata": {"a": 1})", "metadata.a"},
      {r, R"("store": "yes")", "store"},
      {r, R"("conversation": "c")", "conversation"},

      {Api::tokenize, "{}", "prompt"},
      {Api::tokenize, R"("prompt": "x")", "prompt"},
      {Api::tokenize, R"({"prompt": ["a", "b"]})", "prompt"},
      {Api::detokenize, "{}", "tokens"},
      {Api::detokenize, R"({"tokens": "x"})", "tokens"},
      {Api::detokenize, R"({"tokens": [100]})", "tokens[0]"},
  };
  for (const Bad& c : cases) {
    const std::variant<Request, Refusal> parsed = parse(c.api, c.body);
    const auto* refusal = std::get_if<Refusal>(&parsed);
    ASSERT_TRUE(refusal) << c.body;
    EXPECT_EQ(refusal->param, c.param) << c.body << ": " << refusal->message;
    EXPECT_EQ(refusal->status, 400) << c.body;
    EXPECT_TRUE(refusal->message.starts_with(c.param)) << refusal->message;
  }
}

TEST(ApiRequests, MessagesAreCountedAsTheTemplateSeesThem) {
  std::string results, items;
  for (size_t i = 0; i <= kLimits.messages; ++i) {
    results += fmt::format(R"({}{{"type": "tool_result", "tool_use_id": "a"}})", i ? "," : "");
    items += fmt::format(R"({}{{"role": "assistant", "content": "x"}})", i ? "," : "");
  }
  const auto refused = [](Api api, const std::string& body) { return std::holds_alternative<Refusal>(parse(api, body)); };
  EXPECT_TRUE(refused(Api::messages, fmt::format(R"({{"max_tokens": 5, "messages": [{{"role": "user", "content": [{}]}}]}})", results)));
  EXPECT_TRUE(refused(Api::responses, fmt::format(R"({{"input": [{}]}})", items)));
}

}  // namespace
}  // namespace winnow::server
