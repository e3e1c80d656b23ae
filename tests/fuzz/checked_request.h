// What must hold of any body that parse_request sees, whoever made it up.
#pragma once

#include <boost/json.hpp>

#include "grammar/answer_form.h"
#include "server/api_answer.h"
#include "server/request.h"

namespace winnow::server {

// An accepted request is within its bounds, a refusal is a short error of its API. `tokenizer`: null, or what answers are cut into; then
// the grammar of the answer is made too.
inline void check_body(Api api, std::string_view body, const text::Tokenizer* tokenizer) {
  static const ModelFacts facts{.name = "m", .vocab_size = 1000, .max_context = 4096, .eos_token_ids = {7}};
  static const Limits limits;
  const std::variant<Request, Refusal> parsed = parse_request(api, body, facts, limits);
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) {
    check(refusal->status >= 400 && refusal->status < 500 && refusal->message.size() < 2000 && refusal->param.size() <= 200, "a refusal is short");
    check(refusal->message.starts_with(refusal->param), "a refusal begins with its field");
    boost::json::parse(openai_error(*refusal));  // throws if it is no JSON
    boost::json::parse(anthropic_error(*refusal));
    return;
  }
  const Request& r = std::get<Request>(parsed);
  check(r.n >= 1 && r.n <= limits.choices && r.sampling.temperature >= 0 && r.sampling.temperature <= 2, "n and temperature");
  check(r.sampling.top_p > 0 && r.sampling.top_p <= 1 && r.sampling.min_p >= 0 && r.sampling.min_p <= 1, "top_p and min_p");
  check(r.sampling.logprobs >= -1 && r.sampling.logprobs <= limits.logprobs && r.stop.size() <= limits.stop_strings, "logprobs and stop");
  check(r.sampling.top_k >= 0 && r.sampling.top_k <= facts.vocab_size, "top_k");
  check(r.is_conversation() ? r.context.contains("messages") : !r.prompts.empty(), "something to answer");
  check(r.context.empty() || r.context.at("messages").as_array().size() <= limits.messages + 1, "messages");
  check(!r.max_tokens || (*r.max_tokens >= 1 && r.min_tokens <= *r.max_tokens), "max_tokens and min_tokens");
  check(r.timeout_s >= 0 && r.timeout_s <= limits.timeout_s, "timeout");
  for (const std::string& s : r.stop) check(!s.empty() && s.size() <= limits.stop_bytes, "a stop string");
  for (const int32_t t : r.stop_tokens) check(t >= 0 && t < facts.vocab_size, "a stop token");
  for (const auto& [token, bias] : r.sampling.logit_bias) check(token >= 0 && token < facts.vocab_size && bias >= -100 && bias <= 100, "logit_bias");
  const boost::json::array* tools = r.has_tools() ? &r.context.at("tools").as_array() : nullptr;
  if (tools) text::ToolTypes{*tools};
  if (!tokenizer) return;
  for (const bool thinks : {false, true}) {
    const auto form = grammar::answer_form(
        {.starts_in_reasoning = thinks, .reasoning_tokens = r.thinking_tokens, .tools = tools, .calls = r.calls, .output = &r.output}, *tokenizer);
    if (form) boost::json::parse(form->structural_tag);
  }
}

}  // namespace winnow::server
