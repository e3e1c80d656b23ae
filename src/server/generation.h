// One request while it runs: its choices, what of their text can be shown, and how it ends. The way up of a request:
// engine events -> text::AnswerReader -> Delta. Streaming and whole answers are both made from the same deltas.
//
// start() is the way down: template, tokens, admission. It may take long for a long prompt and belongs on a thread that
// may block; the rest is cheap and belongs to the thread that owns the connection.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "grammar/grammar.h"
#include "server/request.h"
#include "text/answer.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace winnow::server {

class StepTimes;

// What the server stands on. All of it outlives the server.
struct Services {
  engine::Engine& engine;
  const text::Tokenizer& tokenizer;
  grammar::Compiler& grammars;
  const text::ChatTemplate* chat_template;  // null: the checkpoint has none, chat is refused
  ModelFacts facts;
  std::string version;  // of the program
  const StepTimes* steps = nullptr;
};

// News of one choice.
struct Delta {
  int64_t choice = 0;
  text::AnswerParts parts = {};
  std::vector<ops::Sampled> tokens = {};  // what was drawn, the stop token included; kept only where logprobs are asked for
  int64_t drawn = 0;                      // how many those were
  bool in_text = false;                   // the newest of them is part of the answer's text
  engine::FinishReason finish = engine::FinishReason::none;
  std::string stop_string = {};                                    // with FinishReason::stop: the one that was found; empty: none was
  std::string error = {};                                          // with FinishReason::error and cancelled
  bool late = false;                                               // with FinishReason::error: the request's timeout passed
  bool barred = false;                                             // with FinishReason::error: what the request asked for leaves no way on
  std::vector<std::chrono::steady_clock::time_point> pushed = {};  // when the engine had each event of it
  // Nothing to tell a client.
  bool empty() const { return parts.empty() && tokens.empty() && finish == engine::FinishReason::none; }
};

// One choice's tokens on their way to text.
class ChoiceText {
 public:
  ChoiceText(int64_t index, const text::Tokenizer& tokenizer, text::AnswerOptions options, int64_t min_tokens)
      : index_(index), min_tokens_(min_tokens), reader_(tokenizer, std::move(options)) {}
  void append(const engine::Event& event, Delta* to);
  bool stopped() const { return reader_.stopped(); }  // by its text: the engine does not know yet
  int64_t tokens() const { return tokens_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  int64_t index() const { return index_; }

 private:
  int64_t index_, min_tokens_;
  text::AnswerReader reader_;
  int64_t tokens_ = 0, reasoning_tokens_ = 0;
};

// The prompt's tokens, as many as the answer to a request of these would have; for what generates nothing.
std::variant<std::vector<int32_t>, Refusal> prompt_tokens(const Request& request, const Services& services);

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
  engine::CachedPrefix cached;                       // tokens and pages of all prompts together; the rest of the first prompt
  int64_t preemptions = 0;                           // of all choices
  double queued_s = 0, prefill_s = 0, decode_s = 0;  // each the longest of any choice
};

class Generation {
 public:
  static std::variant<Generation, Refusal> start(Request request, const Services& services);

  const Request& request() const { return request_; }
  // `wake` is called from the engine's thread when there may be news.
  void on_news(const std::function<void()>& wake);
  // All news there is now, at most one delta a choice, or a token where it matters which is in the text; one may be empty() and
  // still have drawn tokens.
  std::vector<Delta> poll();
  bool done() const;
  void cancel();
  Usage usage() const;
  size_t choices() const { return choices_.size(); }
  engine::Timings timings(size_t choice) const;

 private:
  struct Choice {
    engine::Stream stream;
    ChoiceText text;
    std::vector<int32_t> echo;  // the prompt, until it was shown
    bool done = false;
  };
  Generation(Request request, const Services& services) : request_(std::move(request)), services_(&services) {}
  void show_prompt(Choice& choice, const engine::Event& event, Delta* delta);
  void take(Choice& choice, const engine::Event& event, Delta* delta);
  Request request_;
  const Services* services_;
  int64_t prompt_tokens_ = 0;
  std::vector<Choice> choices_;  // n of each prompt, one prompt behind the other
};

}  // namespace winnow::server
