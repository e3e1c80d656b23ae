#include "server/tokenize.h"

#include "base/json_writer.h"
#include "server/anthropic.h"

namespace winnow::server {
namespace {

std::string tokens_json(const Request& r, const std::vector<int32_t>& tokens, const Services& s) {
  JsonWriter w;
  w.begin_object().field("count", tokens.size()).field("max_model_len", s.facts.max_context).key("tokens").begin_array();
  for (int32_t id : tokens) w.value(id);
  w.end_array().key("token_strs");
  if (r.token_texts) {
    w.begin_array();
    for (int32_t id : tokens) w.value(s.tokenizer.bytes(id));
    w.end_array();
  } else {
    w.null();
  }
  return w.end_object().take();
}

}  // namespace

std::variant<std::string, Refusal> answer_without_model(Api api, std::string_view body, const Services& services, const Limits& limits) {
  const std::variant<Request, Refusal> parsed = parse_request(api, body, services.facts, limits);
  if (const auto* refusal = std::get_if<Refusal>(&parsed)) return *refusal;
  const Request& r = std::get<Request>(parsed);
  if (api == Api::detokenize) {
    JsonWriter w;
    return w.begin_object().field("prompt", services.tokenizer.decode(std::get<std::vector<int32_t>>(r.prompts.front()), false)).end_object().take();
  }
  std::variant<std::vector<int32_t>, Refusal> tokens = prompt_tokens(r, services);
  if (auto* refusal = std::get_if<Refusal>(&tokens)) return std::move(*refusal);
  const auto& ids = std::get<std::vector<int32_t>>(tokens);
  if (api == Api::count_tokens) return count_json(static_cast<int64_t>(ids.size()));
  return tokens_json(r, ids, services);
}

}  // namespace winnow::server
