// What the loop draws from the model's logits: under which rules, and where an answer ends.
#include "engine/loop_testing.h"

namespace winnow::engine {
namespace {

using namespace testing;

// What the toy's formula says of a prompt's tokens behind the first.
void expect_scores(const Request& r, const std::vector<ops::Sampled>& scores) {
  ASSERT_EQ(scores.size(), r.prompt.size());
  EXPECT_EQ(scores[0].token, r.prompt[0]);
  EXPECT_TRUE(std::isnan(scores[0].logprob) && scores[0].top.empty());
  std::vector<float> logits(kVocab);
  for (size_t i = 1; i < scores.size(); ++i) {
    toy_logits(std::span(r.prompt).first(i), logits);
    const ops::Sampled want = ops::score(logits, r.prompt[i], r.prompt_logprobs);
    EXPECT_EQ(scores[i].token, r.prompt[i]);
    EXPECT_EQ(scores[i].logprob, want.logprob);
    EXPECT_EQ(scores[i].top, want.top);
  }
}

TEST(Loop, PromptsAreScoredWhereTheyAreAskedFor) {
  std::mt19937_64 random(6);
  for (const auto& [pages, reuse] : {std::pair{200, Reuse::computed}, {200, Reuse::none}, {40, Reuse::prefilled}}) {
    Served served({.max_batched_tokens = 128, .max_sequences = 5, .scored_rows = 64, .reuse = reuse}, pages, {}, 0, pages, 5);
    std::vector<Request> requests;
    for (int i = 0; i < 30; ++i) {
      requests.push_back(request(i % 7 == 6 ? requests.back().prompt : random_prompt(random, 300), 1 + static_cast<int64_t>(random() % 20)));
      requests.back().prompt_logprobs = i % 3 == 0 ? -1 : i % 4;
      requests.back().priority = static_cast<int32_t>(random() % 3);
    }
    std::vector<Stream> streams;
    for (const Request& r : requests) streams.push_back(served.submit(r));
    for (size_t i = 0; i < requests.size(); ++i) {
      const Event first = streams[i].next();
      if (requests[i].prompt_logprobs >= 0) expect_scores(requests[i], first.prompt);
      else EXPECT_TRUE(first.prompt.empty());
      std::vector<int32_t> tokens{first.sampled.token};
      if (first.finish == FinishReason::none)
        for (int32_t t : read(streams[i]).tokens) tokens.push_back(t);
      EXPECT_EQ(tokens, expected(requests[i]));
    }
  }
}

TEST(Loop, APromptWhoseLogitsAreNoNumbersIsNotScored) {
  Served served({.max_batched_tokens = 128, .max_sequences = 4, .scored_rows = 64});
  Request r = request({1, 2, kPoison, 4, 5}, 5);
  r.prompt_logprobs = 0;
  const Answer a = answer_of(served, r);
  EXPECT_EQ(a.finish, FinishReason::error);
  EXPECT_TRUE(a.tokens.empty());
  served.expect_all_free();
}

TEST(Loop, StopTokensEndARequestUnlessIgnored) {
  Served served;
  Request r = request({1, 2, 3}, 10);
  const std::vector<int32_t> all = expected(r);
  size_t at = 3;  // where a token comes for the first time
  while (at + 1 < all.size() && std::count(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(at), all[at]) > 0) ++at;
  r.stop_tokens = {all[at]};
  Answer a = answer_of(served, r);
  EXPECT_EQ(a.finish, FinishReason::stop);
  EXPECT_EQ(a.tokens, std::vector<int32_t>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(at) + 1));
  r.max_tokens = static_cast<int64_t>(at) + 1;  // the stop token is also the last that fits
  EXPECT_EQ(answer_of(served, r).finish, FinishReason::stop);
  r.max_tokens = 10;
  r.ignore_eos = true;
  r.min_tokens = 7;
  a = answer_of(served, r);
  EXPECT_EQ(a.finish, FinishReason::length);
  EXPECT_EQ(a.tokens, all);
}

TEST(Loop, StopTokensAreNotDrawnBeforeMinTokens) {
  Served served;
  Request r = request({1, 2, 3}, 40);
  for (int32_t t = 0; t < 40; ++t) r.stop_tokens.push_back(t);  // most of the vocabulary
  for (int64_t least : {0, 1, 5, 39}) {
    r.min_tokens = least;
    const Answer a = answer_of(served, r);
    ASSERT_GE(static_cast<int64_t>(a.tokens.size()), least);
    for (int64_t i = 0; i < least; ++i) EXPECT_GE(a.tokens[static_cast<size_t>(i)], 40);
  }
  r.stop_tokens.clear();  // the mask of one request leaves no trace in another's
  for (int32_t t = 10; t < kVocab; ++t) r.stop_tokens.push_back(t);
  r.min_tokens = r.max_tokens = 5;
  const Answer a = answer_of(served, r);
  EXPECT_EQ(a.finish, FinishReason::length);
  for (int32_t t : a.tokens) EXPECT_LT(t, 10);
}

TEST(Loop, ARequestThatMayDrawNothingEndsWithAnError) {
  Served served;
  Request r = request({1, 2, 3}, 4);
  for (int32_t t = 0; t < kVocab; ++t) r.stop_tokens.push_back(t);
  r.min_tokens = 1;
  const Answer a = answer_of(served, r);
  EXPECT_EQ(a.finish, FinishReason::error);
  EXPECT_TRUE(a.tokens.empty());
}

// Lets one token through at a time.
class Script : public Constraint {
 public:
  explicit Script(std::vector<int32_t> tokens, size_t throws_at = SIZE_MAX) : tokens_(std::move(tokens)), throws_at_(throws_at) {}
  void mask(std::span<uint32_t> words) override {
    if (at_ == throws_at_) throw error("the script broke");
    std::ranges::fill(words, 0);
    words[static_cast<size_t>(tokens_[at_] / 32)] |= uint32_t{1} << (tokens_[at_] % 32);
  }
  bool accept(int32_t token) override { return token == tokens_[at_] && ++at_ > 0; }
  void rollback(int64_t tokens) override { at_ -= static_cast<size_t>(tokens); }
  bool is_done() const override { return at_ == tokens_.size(); }

 private:
  const std::vector<int32_t> tokens_;
  const size_t throws_at_;
  size_t at_ = 0;
};

TEST(Loop, AConstraintSaysWhatMayComeAndWhereItEnds) {
  Served served;
  const std::vector<int32_t> script{7, 41, 7, 0, 33};
  for (const bool ignore_eos : {false, true}) {
    Request r = request({1, 2, 3}, 10, 0.7f);
    r.ignore_eos = ignore_eos;
    r.stop_tokens = {33};
    if (!ignore_eos) r.min_tokens = 9;  // the rule lets only the stop token through: it is not held back
    r.constraint = std::make_shared<Script>(script);
    const Answer a = answer_of(served, r);
    EXPECT_EQ(a.tokens, script);
    EXPECT_EQ(a.finish, FinishReason::stop);
    EXPECT_EQ(a.error, "");
  }
  Request r = request({1, 2, 3}, 10);  // the mask leaves no trace in another's
  EXPECT_EQ(answer_of(served, r).tokens, expected(r));
}

TEST(Loop, AConstraintThatFailsEndsItsOwnRequest) {
  Served served({.max_batched_tokens = 64, .max_sequences = 4});
  Request broken = request({1, 2, 3}, 10), other = request({4, 5, 6}, 30);
  broken.constraint = std::make_shared<Script>(std::vector<int32_t>{1, 2, 3, 4}, 2);
  Stream a = served.submit(other), b = served.submit(broken);
  const Answer failed = read(b);
  EXPECT_EQ(failed.finish, FinishReason::error);
  EXPECT_EQ(failed.error, "the script broke");
  EXPECT_EQ(failed.tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(read(a).tokens, expected(other));
  served.expect_all_free();
}

TEST(Loop, SamplingSeesPromptAndGeneratedTokens) {
  Served served;
  Request r = request({1, 2, 3, 4, 5}, 30);
  r.sampling.presence_penalty = 1000;  // no token twice
  const Answer a = answer_of(served, r);
  EXPECT_EQ(std::set<int32_t>(a.tokens.begin(), a.tokens.end()).size(), 30u);
  r.sampling.presence_penalty = 0.5f;
  r.sampling.frequency_penalty = 0.7f;
  r.sampling.repetition_penalty = 1.8f;
  r.sampling.logit_bias = {{7, 2.0f}};
  EXPECT_EQ(answer_of(served, r).tokens, expected(r));
}

}  // namespace
}  // namespace winnow::engine
