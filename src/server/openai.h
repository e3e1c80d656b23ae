// OpenAI's JSON: models, errors, chunks and whole answers of chat and text completions. Beside OpenAI's fields a chat
// message has `reasoning_content`: what the model wrote before </think>. Tool calls stay in `content` as the model wrote
// them. `logprobs` lists every token drawn, those of the reasoning and the stop token included.
#pragma once

#include <string>
#include <vector>

#include "server/generation.h"

namespace winnow {
class JsonWriter;
}

namespace winnow::server {

std::string models_json(const ModelFacts& facts);
std::string model_json(const ModelFacts& facts);
std::string error_json(const Refusal& refusal);
// The reason as clients may know it: whether another salt has the same text is nobody's business but its own.
std::string_view shown(cache::Cut cut);

// The answer to one request.
class Answer {
 public:
  Answer(const Request& request, const text::Tokenizer& tokenizer, std::string model, std::string id, int64_t created);

  // As a stream: one chunk a delta (the role goes out with a choice's first), the last one with the usage if asked for.
  std::string chunk(const Delta& delta);
  std::string usage_chunk(const Usage& usage) const;
  // As a whole: deltas are collected, then written.
  void add(Delta delta);
  std::string whole(const Usage& usage) const;

 private:
  struct Choice {
    std::string reasoning, content;
    std::vector<ops::Sampled> tokens;
    engine::FinishReason finish = engine::FinishReason::none;
    int64_t text_offset = 0;
    bool role_sent = false;
  };
  void head(JsonWriter& w, bool chunk) const;
  const Kind kind_;
  const int32_t logprobs_;
  const bool include_usage_;
  const text::Tokenizer& tokenizer_;
  const std::string model_, id_;
  const int64_t created_;
  std::vector<Choice> choices_;
};

}  // namespace winnow::server
