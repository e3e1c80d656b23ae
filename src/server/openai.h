// OpenAI's JSON: models, errors, chunks and whole answers of chat and text completions. Beside OpenAI's fields a chat
// message has `reasoning_content`: what the model wrote before </think>. `logprobs` lists every token drawn, those of the
// reasoning, of calls and the stop token included.
#pragma once

#include <string>
#include <vector>

#include "server/answer.h"

namespace winnow::server {

std::string models_json(const ModelFacts& facts);
std::string model_json(const ModelFacts& facts);
std::string openai_error(const Refusal& refusal);

// The answer to one request, as it comes (head, events, end) or whole. What answers of other APIs have too is listed in
// api_answer.h.
class OpenAiAnswer {
 public:
  OpenAiAnswer(const Request& request, const text::Tokenizer& tokenizer, std::string model, const std::string& id, int64_t created);
  std::string head() const { return {}; }
  std::string begin(const Usage& usage) {
    prompt_tokens_ = usage.prompt_tokens;
    return {};
  }
  void add(const Delta& delta) { choices_[static_cast<size_t>(delta.choice)].answer.add(delta); }
  std::string events(const Delta& delta);  // adds it, too
  std::string end(const Usage& usage) const;
  std::string whole(const Usage& usage) const;
  std::string failed(const Refusal& why) const;
  std::string error(const Refusal& why) const { return openai_error(why); }

 private:
  struct Choice {
    ChoiceAnswer answer;
    int64_t text_offset = 0;
    bool role_sent = false;
  };
  void head(JsonWriter& w, bool chunk) const;
  void write_finish(JsonWriter& w, const Choice& choice) const;
  void write_delta(JsonWriter& w, size_t index, const std::vector<Change>& changes);
  std::string call_id(size_t choice, size_t block) const;
  const bool chat_;
  const int32_t logprobs_;
  const bool include_usage_, continuous_usage_;
  int64_t prompt_tokens_ = 0, drawn_ = 0;
  const text::Tokenizer& tokenizer_;
  const std::string model_, id_;  // the id without the prefix
  const int64_t created_;
  std::vector<Choice> choices_;
};

}  // namespace winnow::server
