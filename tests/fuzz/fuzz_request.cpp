// Bodies of requests, of every API: whatever comes, an accepted request is within its bounds and a
// refusal is a short JSON error.
#include <boost/json.hpp>
#include <cstdint>

#include "server/api_answer.h"
#include "server/request.h"

using namespace winnow;
using namespace winnow::server;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ModelFacts facts{.name = "m", .vocab_size = 1000, .max_context = 4096, .eos_token_ids = {7}};
  static const Limits limits;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const Api api : {Api::chat, Api::completion, Api::messages, Api::responses, Api::count_tokens, Api::tokenize, Api::detokenize}) {
    const std::variant<Request, Refusal> parsed = parse_request(api, body, facts, limits);
    if (const auto* refusal = std::get_if<Refusal>(&parsed)) {
      check(refusal->status >= 400 && refusal->status < 500 && refusal->message.size() < 2000, "a refusal is short");
      boost::json::parse(openai_error(*refusal));  // throws if it is no JSON
      continue;
    }
    const Request& r = std::get<Request>(parsed);
    check(r.n >= 1 && r.n <= limits.choices && r.sampling.temperature >= 0 && r.sampling.temperature <= 2, "n and temperature");
    check(r.sampling.top_p > 0 && r.sampling.top_p <= 1 && r.sampling.min_p >= 0 && r.sampling.min_p <= 1, "top_p and min_p");
    check(r.sampling.logprobs >= -1 && r.sampling.logprobs <= limits.logprobs && r.stop.size() <= limits.stop_strings, "logprobs and stop");
    check(r.is_conversation() ? r.context.contains("messages") : !r.prompts.empty(), "something to answer");
    check(r.context.empty() || r.context.at("messages").as_array().size() <= limits.messages + 1, "messages");
    if (r.has_tools()) text::ToolTypes(r.context.at("tools").as_array());
    check(r.timeout_s >= 0 && r.timeout_s <= limits.timeout_s, "timeout");
    for (const auto& [token, bias] : r.sampling.logit_bias)
      check(token >= 0 && token < facts.vocab_size && bias >= -100 && bias <= 100, "logit_bias");
  }
  return 0;
}
