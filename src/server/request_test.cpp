#include "server/request.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace winnow::server {
namespace {

const ModelFacts kFacts{
    .name = "tiny", .vocab_size = 100, .max_context = 1000, .default_temperature = 0.7f, .default_top_p = 0.9f, .eos_token_ids = {7}};
const Limits kLimits;

Request accepted(Api api, std::string_view body) {
  std::variant<Request, Refusal> r = parse_request(api, body, kFacts, kLimits);
  if (const auto* refusal = std::get_if<Refusal>(&r)) {
    ADD_FAILURE() << body << ": " << refusal->message;
    return {};
  }
  return std::get<Request>(std::move(r));
}
Request chat(std::string_view fields) {
  return accepted(Api::chat, fmt::format(R"({{"messages": [{{"role": "user", "content": "hi"}}]{}{}}})", fields.empty() ? "" : ", ", fields));
}
Request completion(std::string_view fields) {
  return accepted(Api::completion, fmt::format(R"({{"prompt": "hi"{}{}}})", fields.empty() ? "" : ", ", fields));
}

TEST(Request, Defaults) {
  const Request r = chat("");
  EXPECT_EQ(r.n, 1);
  EXPECT_EQ(r.sampling.temperature, 0.7f);
  EXPECT_EQ(r.sampling.top_p, 0.9f);
  EXPECT_EQ(r.sampling.logprobs, -1);
  EXPECT_FALSE(r.max_tokens);
  EXPECT_FALSE(r.stream);
  EXPECT_TRUE(r.context.at("add_generation_prompt").as_bool());
  EXPECT_FALSE(r.context.contains("tools"));
  EXPECT_NE(chat("").sampling.seed, chat("").sampling.seed);
}

TEST(Request, ReadsEveryField) {
  const Request r = chat(R"("model": "tiny", "n": 3, "seed": -1, "temperature": 0, "top_p": 0.5, "top_k": 4, "min_p": 0.1,
    "presence_penalty": 1, "frequency_penalty": -1.5, "repetition_penalty": 1.1, "logit_bias": {"5": -100, "6": 2.5},
    "logprobs": true, "top_logprobs": 3, "stop": ["a", "b", "c", "d", "e"], "stop_token_ids": [1, 2], "max_completion_tokens": 9,
    "min_tokens": 2.0, "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true}, "reasoning_effort": "low",
    "chat_template_kwargs": {"clear_thinking": false}, "tool_choice": "auto", "user": "me", "metadata": {"a": "b"},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "response_format": {"type": "text"},
    "cache_salt": "tenant", "priority": -2147483648, "timeout": 0.25)");
  EXPECT_EQ(r.n, 3);
  EXPECT_EQ(r.sampling.seed, ~uint64_t{0});
  EXPECT_EQ(r.sampling.temperature, 0.0f);
  EXPECT_EQ(r.sampling.top_p, 0.5f);
  EXPECT_EQ(r.sampling.top_k, 4);
  EXPECT_EQ(r.sampling.min_p, 0.1f);
  EXPECT_EQ(r.sampling.presence_penalty, 1.0f);
  EXPECT_EQ(r.sampling.frequency_penalty, -1.5f);
  EXPECT_EQ(r.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(r.sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, -100.0f}, {6, 2.5f}}));
  EXPECT_EQ(r.sampling.logprobs, 3);
  EXPECT_EQ(r.stop.size(), 5u);
  EXPECT_EQ(r.stop_tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(r.max_tokens, 9);
  EXPECT_EQ(r.min_tokens, 2);
  EXPECT_TRUE(r.ignore_eos);
  EXPECT_TRUE(r.stream);
  EXPECT_TRUE(r.include_usage);
  EXPECT_EQ(r.context.at("reasoning_effort").as_string(), "low");
  EXPECT_FALSE(r.context.at("clear_thinking").as_bool());
  EXPECT_EQ(r.context.at("tools").as_array().size(), 1u);
  EXPECT_NE(r.cache_salt, 0u);
  EXPECT_EQ(r.priority, INT32_MIN);
  EXPECT_EQ(r.timeout_s, 0.25);
}

TEST(Request, SaltsAreTheirTextsAndNoneIsZero) {
  EXPECT_EQ(chat("").cache_salt, 0u);
  EXPECT_EQ(chat(R"("cache_salt": null)").cache_salt, 0u);
  EXPECT_EQ(chat(R"("cache_salt": "a")").cache_salt, completion(R"("cache_salt": "a")").cache_salt);
  EXPECT_NE(chat(R"("cache_salt": "a")").cache_salt, chat(R"("cache_salt": "b")").cache_salt);
  EXPECT_NE(chat(R"("cache_salt": "a")").cache_salt, chat(R"("cache_salt": "a\u0000")").cache_salt);
  EXPECT_EQ(chat(R"("priority": 2147483647, "timeout": 86400)").priority, INT32_MAX);
}

TEST(Request, Completions) {
  EXPECT_EQ(std::get<std::string>(completion("").prompts.at(0)), "hi");
  EXPECT_EQ(completion(R"("logprobs": 0)").sampling.logprobs, 0);
  EXPECT_EQ(completion(R"("best_of": 2, "n": 2)").n, 2);
  EXPECT_EQ(accepted(Api::completion, R"({"prompt": ["a", [1, 2]]})").prompts.size(), 2u);
  EXPECT_EQ(std::get<1>(accepted(Api::completion, R"({"prompt": [1, 2, 99]})").prompts.at(0)), (std::vector<int32_t>{1, 2, 99}));
}

TEST(Request, NullMeansAbsent) {
  const Request r = chat(R"("temperature": null, "stop": null, "tools": null, "nonsense": null)");
  EXPECT_EQ(r.sampling.temperature, 0.7f);
}

TEST(Request, MessagesReachTheTemplateChecked) {
  const Request r = accepted(Api::chat, R"({"messages": [
    {"role": "developer", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "u"},
    {"role": "assistant", "content": null, "refusal": null, "audio": null, "reasoning_content": "r",
     "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": [1]}"}},
                    {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
    {"role": "tool", "tool_call_id": "1", "content": "42"}]})");
  const boost::json::array& m = r.context.at("messages").as_array();
  EXPECT_EQ(m.at(0).at("role").as_string(), "system");
  EXPECT_EQ(m.at(1).at("content").as_array().size(), 2u);
  EXPECT_EQ(m.at(2).at("content").as_string(), "");
  EXPECT_FALSE(m.at(2).as_object().contains("audio"));
  EXPECT_EQ(m.at(2).at("tool_calls").at(0).at("function").at("arguments").at("x").at(0).as_int64(), 1);
  EXPECT_TRUE(m.at(2).at("tool_calls").at(1).at("function").at("arguments").as_object().empty());
}

TEST(Request, ToolChoiceNoneTakesTheToolsAway) {
  const Request r = chat(R"("tool_choice": "none", "tools": [{"type": "function", "function": {"name": "f"}}])");
  EXPECT_FALSE(r.context.contains("tools"));
}

TEST(Request, FormsOfTheAnswer) {
  using Kind = grammar::OutputForm::Kind;
  EXPECT_EQ(chat(R"("response_format": {"type": "text"})").output.kind, Kind::text);
  const Request object = chat(R"("response_format": {"type": "json_object"})");
  EXPECT_EQ(object.output.kind, Kind::json_schema);
  EXPECT_EQ(object.output.schema, boost::json::parse(R"({"type": "object"})"));
  const Request schema =
      chat(R"("response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": {"type": "integer"}}})");
  EXPECT_EQ(schema.output.schema, boost::json::parse(R"({"type": "integer"})"));
  EXPECT_EQ(schema.output.strictness, grammar::Strictness::exact);
  const Request loose = chat(R"("response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": false, "schema": {"not": {}}}})");
  EXPECT_EQ(loose.output.strictness, grammar::Strictness::lenient);
  EXPECT_EQ(chat(R"("structured_outputs": {"regex": "a+", "json": null})").output.source, "a+");
  EXPECT_EQ(completion(R"("structured_outputs": {"choice": ["a", "b"]})").output.choices, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(completion(R"("structured_outputs": {"grammar": "root ::= \"a\""})").output.kind, Kind::ebnf);
  EXPECT_EQ(completion(R"("structured_outputs": {"json": "{\"type\": \"null\"}"})").output.schema, boost::json::parse(R"({"type": "null"})"));
}

TEST(Request, WhichToolsMayBeCalled) {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}])";
  EXPECT_FALSE(chat(tools + R"(, "tool_choice": "auto")").calls.required);
  EXPECT_TRUE(chat(tools + R"(, "tool_choice": "required")").calls.required);
  for (const char* choice :
       {R"({"type": "function", "function": {"name": "g"}})", R"({"type": "function", "name": "g"})",
        R"({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}})"}) {
    const Request named = chat(fmt::format("\"tool_choice\": {}, {}", choice, tools));  // before its tools
    EXPECT_TRUE(named.calls.required);
    EXPECT_EQ(named.calls.allowed, std::vector<std::string>{"g"});
  }
}

struct Bad {
  Api api;
  const char* body;   // whole, or fields after a valid beginning
  const char* param;  // that the refusal must name
  int status = 400;
};

TEST(Request, WrongOnesAreRefusedByName) {
  constexpr Api chat = Api::chat, text = Api::completion;
  const Bad cases[] = {
      {chat, R"({"messages": )", ""},
      {chat, "", ""},
      {chat, "[]", ""},
      {chat, "\"x\"", ""},
      {chat, "{\"a\":1}\xff", ""},
      {chat, "{}", "messages"},
      {chat, R"({"messages": []})", "messages"},
      {chat, R"({"messages": "hi"})", "messages"},
      {chat, R"({"messages": [3]})", "messages[0]"},
      {chat, R"({"messages": [{}]})", "messages[0].role"},
      {chat, R"({"messages": [{"role": "king", "content": ""}]})", "messages[0].role"},
      {chat, R"({"messages": [{"role": "user"}]})", "messages[0].content"},
      {chat, R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content"},
      {chat, R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})", "messages[0].content[0].type"},
      {chat, R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", "messages[0].content[0].text"},
      {chat, R"({"messages": [{"role": "user", "content": "a", "colour": 1}]})", "messages[0].colour"},
      {chat, R"({"messages": [{"role": "user", "content": "a", "tool_calls": []}]})", "messages[0].tool_calls"},
      {chat, R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {chat, R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {chat, R"({"messages": [{"role": "assistant", "tool_calls": [{}]}]})", "messages[0].tool_calls[0].function"},
      {chat, R"("model": "other")", "model", 404},
      {chat, R"("model": 3)", "model"},
      {chat, R"("n": 0)", "n"},
      {chat, R"("n": 9)", "n"},
      {chat, R"("n": 1.5)", "n"},
      {chat, R"("n": "1")", "n"},
      {chat, R"("temperature": 2.1)", "temperature"},
      {chat, R"("temperature": -0.1)", "temperature"},
      {chat, R"("temperature": "1")", "temperature"},
      {chat, R"("top_p": 0)", "top_p"},
      {chat, R"("top_p": 1.1)", "top_p"},
      {chat, R"("top_k": -2)", "top_k"},
      {chat, R"("top_k": 1e300)", "top_k"},
      {chat, R"("min_p": 2)", "min_p"},
      {chat, R"("presence_penalty": 3)", "presence_penalty"},
      {chat, R"("frequency_penalty": -3)", "frequency_penalty"},
      {chat, R"("repetition_penalty": 0)", "repetition_penalty"},
      {chat, R"("logit_bias": [1])", "logit_bias"},
      {chat, R"("logit_bias": {"x": 1})", "logit_bias.x"},
      {chat, R"("logit_bias": {"100": 1})", "logit_bias.100"},
      {chat, R"("logit_bias": {"1": 101})", "logit_bias.1"},
      {chat, R"("seed": 1.5)", "seed"},
      {chat, R"("seed": "7")", "seed"},
      {chat, R"("max_tokens": 0)", "max_tokens"},
      {chat, R"("max_tokens": -1)", "max_tokens"},
      {chat, R"("max_tokens": 1, "max_completion_tokens": 2)", "max_completion_tokens"},
      {chat, R"("max_tokens": 1, "min_tokens": 2)", "min_tokens"},
      {chat, R"("ignore_eos": 1)", "ignore_eos"},
      {chat, R"("stop": "")", "stop"},
      {chat, R"("stop": ["a", 1])", "stop[1]"},
      {chat, R"("stop": [""])", "stop[0]"},
      {chat, R"("stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])", "stop"},
      {chat, R"("stop_token_ids": [100])", "stop_token_ids[0]"},
      {chat, R"("stop_token_ids": 1)", "stop_token_ids"},
      {chat, R"("logprobs": 3)", "logprobs"},
      {chat, R"("top_logprobs": 3)", "top_logprobs"},
      {chat, R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {chat, R"("stream": "yes")", "stream"},
      {chat, R"("stream_options": {"include_usage": true})", "stream_options"},
      {chat, R"("stream": true, "stream_options": {"x": 1})", "stream_options.x"},
      {chat, R"("stream": true, "stream_options": 1)", "stream_options"},
      {chat, R"("tools": {})", "tools"},
      {chat, R"("tools": [{"type": "browser"}])", "tools[0].type"},
      {chat, R"("tools": [{"type": "function"}])", "tools[0].function"},
      {chat, R"("tools": [{"type": "function", "function": {"name": ""}}])", "tools[0].function.name"},
      {chat, R"("tools": [{"type": "function", "function": {"name": "f", "parameters": []}}])", "tools[0].function.parameters"},
      {chat, R"("tool_choice": "required")", "tool_choice"},
      {chat, R"("tool_choice": {"type": "function"})", "tool_choice.name"},
      {chat, R"("tool_choice": {"type": "custom"})", "tool_choice.type"},
      {chat, R"("tool_choice": "any")", "tool_choice"},
      {chat, R"("tool_choice": {"type": "function", "function": {"name": "f"}})", "tool_choice"},
      {chat, R"("tool_choice": {"type": "function", "function": 3})", "tool_choice.function"},
      {chat, R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}})", "tool_choice.allowed_tools.tools"},
      {chat, R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "must", "tools": [{}]}})", "tool_choice.allowed_tools.mode"},
      {chat, R"("tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"type": "function", "function": {"name": "g"}})",
       "tool_choice"},
      {chat, R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}])", "tools[0].function.parameters"},
      {chat, R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "text"}}}}}])",
       "tools[0].function.parameters"},
      {chat, R"("tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters": {"properties": {"a": {"not": {}}}}}}])",
       "tools[0].function.parameters"},
      {chat, R"("tools": [{"type": "function", "function": {"name": "f", "strict": 1}}])", "tools[0].function.strict"},
      {chat, R"("parallel_tool_calls": 0)", "parallel_tool_calls"},
      {chat, R"("reasoning_effort": "most")", "reasoning_effort"},
      {chat, R"("thinking": {"type": "on"})", "thinking.type"},
      {chat, R"("thinking": {"type": "disabled", "budget_tokens": 5})", "thinking.budget_tokens"},
      {chat, R"("max_tokens": 5, "thinking_token_budget": 5)", "thinking_token_budget"},
      {chat, R"("thinking_token_budget": -1)", "thinking_token_budget"},
      {chat, R"("input": "x")", "input"},
      {chat, R"("chat_template_kwargs": {"messages": []})", "chat_template_kwargs.messages"},
      {chat, R"("chat_template_kwargs": [])", "chat_template_kwargs"},
      {chat, R"("response_format": "json_object")", "response_format"},
      {chat, R"("response_format": {"type": "xml"})", "response_format.type"},
      {chat, R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
      {chat, R"("response_format": {"type": "json_schema", "json_schema": {"name": "a"}})", "response_format.json_schema.schema"},
      {chat, R"("response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "no"}}})",
       "response_format.json_schema.schema"},
      {chat, R"("response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}})",
       "response_format.json_schema.schema"},
      {chat, R"("response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": "no", "schema": {}}})",
       "response_format.json_schema.strict"},
      {chat, R"("structured_outputs": {"regex": ""})", "structured_outputs.regex"},
      {chat, R"("structured_outputs": {"choice": []})", "structured_outputs.choice"},
      {chat, R"("structured_outputs": {"choice": ["a", 3]})", "structured_outputs.choice[1]"},
      {chat, R"("structured_outputs": {"json": "{"})", "structured_outputs.json"},
      {chat, R"("structured_outputs": {"json": {"not": {}}})", "structured_outputs.json"},
      {chat, R"("structured_outputs": {"lark": "a"})", "structured_outputs.lark"},
      {chat, R"("structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"})", "response_format"},
      {text, R"("response_format": {"type": "text"})", "response_format"},
      {text, R"("structured_outputs": {"grammar": 3})", "structured_outputs.grammar"},
      {chat, R"("cache_salt": "")", "cache_salt"},
      {chat, R"("cache_salt": 7)", "cache_salt"},
      {chat, R"("cache_salt": ["a"])", "cache_salt"},
      {chat, R"("priority": 2147483648)", "priority"},
      {chat, R"("priority": -2147483649)", "priority"},
      {chat, R"("priority": 0.5)", "priority"},
      {chat, R"("priority": "high")", "priority"},
      {chat, R"("timeout": 0)", "timeout"},
      {chat, R"("timeout": -1)", "timeout"},
      {chat, R"("timeout": 86400.5)", "timeout"},
      {chat, R"("timeout": 1e400)", "timeout"},
      {chat, R"("timeout": "5")", "timeout"},
      {text, R"("timeout": true)", "timeout"},
      {chat, R"("prompt": "x")", "prompt"},
      {chat, R"("functions": [])", "functions"},
      {chat, R"("temprature": 1)", "temprature"},
      {text, "{}", "prompt"},
      {text, R"({"prompt": ""})", "prompt"},
      {text, R"({"prompt": []})", "prompt"},
      {text, R"({"prompt": [100]})", "prompt[0]"},
      {text, R"({"prompt": [1, "a"]})", "prompt[1]"},
      {text, R"({"prompt": ["a", ""]})", "prompt[1]"},
      {text, R"({"prompt": {"a": 1}})", "prompt"},
      {text, R"({"prompt": ["a", "b", "c"], "n": 3})", "n"},
      {text, R"("messages": [])", "messages"},
      {text, R"("logprobs": true)", "logprobs"},
      {text, R"("logprobs": 21)", "logprobs"},
      {text, R"("echo": 1)", "echo"},
      {text, R"("max_tokens": 0)", "max_tokens"},
      {text, R"("max_tokens": 0, "echo": false)", "max_tokens"},
      {text, R"("suffix": "s")", "suffix"},
      {text, R"("best_of": 2)", "best_of"},
      {text, R"("max_completion_tokens": 1)", "max_completion_tokens"},
  };
  for (const Bad& c : cases) {
    std::string body = c.body;
    if (body.starts_with("\"") && body.find("\":") != std::string::npos)
      body = fmt::format("{{{}, {}}}", c.api == Api::chat ? R"("messages": [{"role": "user", "content": "hi"}])" : R"("prompt": "hi")", body);
    const std::variant<Request, Refusal> r = parse_request(c.api, body, kFacts, kLimits);
    const auto* refusal = std::get_if<Refusal>(&r);
    ASSERT_TRUE(refusal) << body;
    EXPECT_EQ(refusal->param, c.param) << body << ": " << refusal->message;
    EXPECT_EQ(refusal->status, c.status) << body;
    EXPECT_EQ(refusal->message.find('\n'), std::string::npos);
    EXPECT_TRUE(refusal->message.starts_with(c.param)) << refusal->message;
  }
}

TEST(Request, DepthAndLengthsAreBounded) {
  const std::string deep = fmt::format(R"({{"messages": {}1{}}})", std::string(40, '['), std::string(40, ']'));
  EXPECT_TRUE(std::holds_alternative<Refusal>(parse_request(Api::chat, deep, kFacts, kLimits)));
  const std::string name(100000, 'x');
  const auto r = parse_request(Api::chat, fmt::format(R"({{"{}": 1}})", name), kFacts, kLimits);
  ASSERT_TRUE(std::holds_alternative<Refusal>(r));
  EXPECT_LT(std::get<Refusal>(r).message.size(), 1000u);
  const std::string salt = fmt::format(R"({{"prompt": "x", "cache_salt": "{}"}})", std::string(kLimits.salt_bytes + 1, 's'));
  EXPECT_TRUE(std::holds_alternative<Refusal>(parse_request(Api::completion, salt, kFacts, kLimits)));
  std::string many = R"({"messages": [)";
  for (size_t i = 0; i <= kLimits.messages; ++i) many += fmt::format(R"({}{{"role": "user", "content": ""}})", i ? "," : "");
  EXPECT_TRUE(std::holds_alternative<Refusal>(parse_request(Api::chat, many + "]}", kFacts, kLimits)));
}

}  // namespace
}  // namespace winnow::server
