// Two conversations of thirty turns, interleaved, over the small model and its chat template: each prompt begins behind the last page
// of what was said before, and answers are those of an engine that keeps nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <iterator>
#include <random>

#include "engine/engine.h"
#include "text/answer.h"
#include "text/chat_template.h"

namespace winnow::engine {
namespace {

constexpr const char* kModel = WINNOW_SOURCE_DIR "/models/winnow-tiny";
using Tokens = std::vector<int32_t>;

struct Small {
  Small() : device(device::make_cpu({})), checkpoint(weights::Checkpoint::open(kModel).or_throw()), model(*device, checkpoint, options()) {}
  static models::Options options() {
    models::Options o;
    o.profile = models::Profile::exact;
    o.max_context = 16384;
    return o;
  }
  Engine engine(Reuse reuse) {
    EngineOptions o;
    o.max_sequences = 2;
    o.max_context = 16384;
    o.reuse = reuse;
    return {*device, model, o};
  }
  std::unique_ptr<device::Device> device;
  weights::Checkpoint checkpoint;
  models::Glm5Next model;
  text::Tokenizer tokenizer = text::Tokenizer::load(std::string(kModel) + "/tokenizer.json").or_throw();
  text::ChatTemplate chat_template = text::ChatTemplate::load(kModel).or_throw();
};

struct Said {
  Tokens tokens;
  int64_t cached = 0;
};
Said ask(Engine& engine, const Small& small, const Tokens& prompt) {
  Request r;
  r.prompt = prompt;
  r.max_tokens = 24;
  r.sampling.temperature = 0;
  r.stop_tokens = small.checkpoint.config().eos_token_ids;
  Stream s = engine.submit(r).or_throw();
  Said said;
  for (Event e; e.finish == FinishReason::none;) {
    e = s.next();
    EXPECT_EQ(e.error, "");
    if (e.sampled.token >= 0) said.tokens.push_back(e.sampled.token);
  }
  said.cached = s.timings().cached.tokens;
  return said;
}

class Conversation {
 public:
  Conversation(const Small& small, bool keeps_reasoning, uint64_t seed) : small_(small), keeps_reasoning_(keeps_reasoning), random_(seed) {}
  // The prompt of the next turn: 40 to 400 tokens more from the user.
  Tokens prompt() {
    const size_t wanted = 40 + random_() % 340;
    std::string text;
    static constexpr const char* kWords[] = {"seven", "blue", "copy", "the", "next", "number", "after", "list", "4", "19", "reverse", "word"};
    while (small_.tokenizer.encode(text, false).size() < wanted) text += std::string(kWords[random_() % 12]) + " ";
    messages_.push_back({{"role", "user"}, {"content", text}});
    boost::json::object context{{"messages", messages_}, {"add_generation_prompt", true}};
    if (keeps_reasoning_) context["clear_thinking"] = false;
    const auto pieces = small_.chat_template.render(context).or_throw();
    opens_reasoning_ = text::opens_reasoning(pieces);
    return small_.tokenizer.encode(pieces);
  }
  void hear(const Tokens& answer) {
    text::AnswerReader reader(small_.tokenizer, {.split_reasoning = true, .starts_in_reasoning = opens_reasoning_});
    text::AnswerParts all;
    const auto add = [&](text::AnswerParts parts) { std::ranges::move(parts, std::back_inserter(all)); };
    for (int32_t t : answer) add(reader.append(t));
    add(reader.finish());
    using Kind = text::AnswerPart::Kind;
    boost::json::object message{{"role", "assistant"}, {"content", text_of(all, Kind::content)}};
    if (keeps_reasoning_) message["reasoning_content"] = text_of(all, Kind::reasoning);
    messages_.push_back(std::move(message));
  }
  Tokens before, answer;  // of the last turn

 private:
  const Small& small_;
  const bool keeps_reasoning_;
  std::mt19937_64 random_;
  boost::json::array messages_;
  bool opens_reasoning_ = false;
};

int64_t common(const Tokens& a, const Tokens& b) { return std::ranges::mismatch(a, b).in1 - a.begin(); }
int64_t whole_pages(int64_t tokens) { return (tokens - 1) / 64 * 64; }

// A cold run of every turn takes minutes: WINNOW_REPLAY_ALL=1 does it, else every tenth.
TEST(Replay, ThirtyTurnsOfTwoConversations) {
  Small small;
  const bool all = std::getenv("WINNOW_REPLAY_ALL") != nullptr;
  for (bool keeps_reasoning : {false, true}) {
    Engine engine = small.engine(Reuse::computed);
    Conversation talks[] = {{small, keeps_reasoning, 1}, {small, keeps_reasoning, 2}};
    std::vector<std::pair<Tokens, Tokens>> to_repeat;
    for (int turn = 1; turn <= 30; ++turn)
      for (Conversation& c : talks) {
        const Tokens prompt = c.prompt();
        const Said said = ask(engine, small, prompt);
        if (turn > 1) {
          Tokens told = c.before;
          told.insert(told.end(), c.answer.begin(), c.answer.end());
          const int64_t least = keeps_reasoning ? whole_pages(common(prompt, told)) : whole_pages(static_cast<int64_t>(c.before.size()));
          EXPECT_GE(said.cached, least) << "turn " << turn << " of " << prompt.size() << " tokens";
          EXPECT_LT(said.cached, static_cast<int64_t>(prompt.size()));
        }
        if (all || turn % 10 == 0) to_repeat.emplace_back(prompt, said.tokens);
        c.hear(said.tokens);
        c.before = prompt;
        c.answer = said.tokens;
      }
    Engine cold = small.engine(Reuse::none);
    for (const auto& [prompt, answer] : to_repeat) EXPECT_EQ(ask(cold, small, prompt).tokens, answer) << "alone, " << prompt.size() << " tokens";
  }
}

// Twenty users of one system prompt of 700 tokens: from the third on the shared part is a hit.
TEST(Replay, TwentyUsersOfOneSystemPrompt) {
  Small small;
  Engine engine = small.engine(Reuse::computed);
  std::mt19937_64 random(5);
  Tokens system(700);
  for (int32_t& t : system) t = static_cast<int32_t>(random() % 6000);
  for (int user = 1; user <= 20; ++user) {
    Tokens prompt = system;
    for (int i = 0; i < 80; ++i) prompt.push_back(static_cast<int32_t>(random() % 6000));
    const Said said = ask(engine, small, prompt);
    EXPECT_EQ(said.cached, user < 3 ? 0 : 640) << "user " << user;
  }
}

}  // namespace
}  // namespace winnow::engine
