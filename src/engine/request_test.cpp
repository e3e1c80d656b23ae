#include "engine/request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace winnow::engine {
namespace {

constexpr RequestLimits kLimits{.vocab_size = 100, .max_context = 640, .pages = 5, .page_tokens = 64};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

std::string refusal_of(const std::function<void(Request&)>& change) {
  Request r;
  r.prompt = {1, 2, 3};
  r.max_tokens = 10;
  change(r);
  const auto e = refusal(r, kLimits);
  return e ? e->what() : "";
}

TEST(Refusal, NamesTheFieldAndTheNumbers) {
  EXPECT_EQ(refusal_of([](Request&) {}), "");
  EXPECT_EQ(refusal_of([](Request& r) { r.prompt.clear(); }), "prompt is empty; it needs at least one token");
  EXPECT_EQ(refusal_of([](Request& r) { r.max_tokens = 638; }),
            "prompt of 3 tokens and max_tokens 638 exceed the context of 640 tokens; shorten one of them");
  EXPECT_EQ(refusal_of([](Request& r) { r.max_tokens = 318; }),
            "prompt of 3 tokens and max_tokens 318 need 6 pages of 64 tokens, and the KV cache has 5; shorten one of them");
  EXPECT_EQ(refusal_of([](Request& r) { r.max_tokens = 317; }), "");
  EXPECT_EQ(refusal_of([](Request& r) { r.prompt[1] = 100; }), "prompt holds token 100, which is not in the vocabulary of 100");
  EXPECT_EQ(refusal_of([](Request& r) { r.min_tokens = 11; }), "min_tokens is 11; it must be from 0 to max_tokens, 10");
}

TEST(Refusal, EveryFieldIsChecked) {
  const struct {
    const char* field;
    std::function<void(Request&)> change;
  } cases[] = {
      {"max_tokens", [](Request& r) { r.max_tokens = 0; }},
      {"max_tokens", [](Request& r) { r.max_tokens = -1; }},
      {"max_tokens", [](Request& r) { r.max_tokens = std::numeric_limits<int64_t>::max(); }},
      {"prompt", [](Request& r) { r.prompt[2] = -1; }},
      {"prompt", [](Request& r) { r.prompt.assign(700, 1); }},
      {"stop_tokens", [](Request& r) { r.stop_tokens = {5, 100}; }},
      {"stop_tokens", [](Request& r) { r.stop_tokens = {-1}; }},
      {"min_tokens", [](Request& r) { r.min_tokens = -1; }},
      {"temperature", [](Request& r) { r.sampling.temperature = -0.5f; }},
      {"temperature", [](Request& r) { r.sampling.temperature = kNan; }},
      {"temperature", [](Request& r) { r.sampling.temperature = kInf; }},
      {"top_k", [](Request& r) { r.sampling.top_k = -1; }},
      {"top_p", [](Request& r) { r.sampling.top_p = 0; }},
      {"top_p", [](Request& r) { r.sampling.top_p = 1.5f; }},
      {"top_p", [](Request& r) { r.sampling.top_p = kNan; }},
      {"min_p", [](Request& r) { r.sampling.min_p = 1.5f; }},
      {"min_p", [](Request& r) { r.sampling.min_p = kNan; }},
      {"presence_penalty", [](Request& r) { r.sampling.presence_penalty = kInf; }},
      {"frequency_penalty", [](Request& r) { r.sampling.frequency_penalty = kNan; }},
      {"repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = 0; }},
      {"repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = kNan; }},
      {"repetition_penalty", [](Request& r) { r.sampling.repetition_penalty = kInf; }},
      {"logprobs", [](Request& r) { r.sampling.logprobs = -2; }},
      {"logprobs", [](Request& r) { r.sampling.logprobs = 101; }},
      {"logit_bias", [](Request& r) { r.sampling.logit_bias = {{100, 1.0f}}; }},
      {"logit_bias", [](Request& r) { r.sampling.logit_bias = {{1, kInf}}; }},
  };
  for (const auto& c : cases) {
    const std::string message = refusal_of(c.change);
    EXPECT_NE(message.find(c.field), std::string::npos) << c.field << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace winnow::engine
