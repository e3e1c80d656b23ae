#include "engine/request.h"

#include <algorithm>
#include <cmath>

namespace winnow::engine {
namespace {

std::optional<Error> refuse(const std::string& message) { return Error(message, Failure::usage); }

std::optional<Error> wrong_token(std::string_view field, int64_t token, int64_t vocab) {
  if (token >= 0 && token < vocab) return {};
  return refuse(fmt::format("{} holds token {}, which is not in the vocabulary of {}", field, token, vocab));
}

std::optional<Error> wrong_sampling(const ops::Sampling& p, int64_t vocab) {
  const auto wrong = [](std::string_view field, auto value, std::string_view wanted) {
    return refuse(fmt::format("{} is {}; it must be {}", field, value, wanted));
  };
  // Written so that a NaN is refused.
  if (!(p.temperature >= 0) || std::isinf(p.temperature)) return wrong("temperature", p.temperature, "a finite number from 0");
  if (p.top_k < 0) return wrong("top_k", p.top_k, "0 (off) or more");
  if (!(p.top_p > 0 && p.top_p <= 1)) return wrong("top_p", p.top_p, "above 0 and at most 1");
  if (!(p.min_p >= 0 && p.min_p <= 1)) return wrong("min_p", p.min_p, "from 0 to 1");
  if (!std::isfinite(p.presence_penalty)) return wrong("presence_penalty", p.presence_penalty, "a finite number");
  if (!std::isfinite(p.frequency_penalty)) return wrong("frequency_penalty", p.frequency_penalty, "a finite number");
  if (!(p.repetition_penalty > 0) || std::isinf(p.repetition_penalty))
    return wrong("repetition_penalty", p.repetition_penalty, "a finite number above 0");
  if (p.logprobs < -1 || p.logprobs > vocab) return wrong("logprobs", p.logprobs, "-1 (none) up to the size of the vocabulary");
  for (auto [token, bias] : p.logit_bias) {
    if (auto e = wrong_token("logit_bias", token, vocab)) return e;
    if (!std::isfinite(bias)) return wrong("logit_bias", bias, "a finite number");
  }
  return {};
}

}  // namespace

std::optional<Error> refusal(const Request& r, const RequestLimits& l) {
  const int64_t prompt = static_cast<int64_t>(r.prompt.size());
  if (prompt == 0) return refuse("prompt is empty; it needs at least one token");
  if (r.max_tokens < 1) return refuse(fmt::format("max_tokens is {}; it must be at least 1", r.max_tokens));
  if (prompt > l.max_context || r.max_tokens > l.max_context - prompt)
    return refuse(fmt::format("prompt of {} tokens and max_tokens {} exceed the context of {} tokens; shorten one of them", prompt, r.max_tokens,
                              l.max_context));
  if (const int64_t pages = pages_for(prompt + r.max_tokens, l.page_tokens); pages > l.pages)
    return refuse(fmt::format("prompt of {} tokens and max_tokens {} need {} pages of {} tokens, and the KV cache has {}; shorten one of them",
                              prompt, r.max_tokens, pages, l.page_tokens, l.pages));
  for (int32_t t : r.prompt)
    if (auto e = wrong_token("prompt", t, l.vocab_size)) return e;
  for (int32_t t : r.stop_tokens)
    if (auto e = wrong_token("stop_tokens", t, l.vocab_size)) return e;
  if (r.min_tokens < 0 || r.min_tokens > r.max_tokens)
    return refuse(fmt::format("min_tokens is {}; it must be from 0 to max_tokens, {}", r.min_tokens, r.max_tokens));
  if (r.prompt_logprobs < -1 || r.prompt_logprobs > l.vocab_size)
    return refuse(fmt::format("prompt_logprobs is {}; it must be -1 (none) up to the size of the vocabulary", r.prompt_logprobs));
  if (r.prompt_logprobs >= 0 && !l.scores_prompts) return refuse("prompt_logprobs: this engine has no room for the logits of prompts");
  return wrong_sampling(r.sampling, l.vocab_size);
}

std::string_view name_of(FinishReason r) {
  switch (r) {
    case FinishReason::none: return "none";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::error: return "error";
  }
  return "?";
}

}  // namespace winnow::engine
