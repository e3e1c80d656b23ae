// Anthropic's JSON: errors, events and whole messages of /v1/messages. Thinking blocks carry a signature because clients
// expect one; it is a checksum of the text and nothing is inferred from it when it comes back. `input_tokens` are, as there, the
// prompt's tokens beside those that were taken over from earlier requests (`cache_read_input_tokens`).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/answer.h"

namespace winnow::server {

std::string anthropic_error(const Refusal& refusal);
std::string count_json(int64_t tokens);

class AnthropicAnswer {
 public:
  AnthropicAnswer(std::string model, const std::string& id) : model_(std::move(model)), id_(id) {}
  std::string head() const { return {}; }
  std::string begin(const Usage& usage) const;
  void add(const Delta& delta) { answer_.add(delta); }
  std::string events(const Delta& delta);
  std::string end(const Usage& usage) const;
  std::string whole(const Usage& usage) const;
  std::string failed(const Refusal& why) const;
  std::string error(const Refusal& why) const { return anthropic_error(why); }

 private:
  void write_head(JsonWriter& w) const;
  void write_stop(JsonWriter& w) const;
  std::string call_id(size_t block) const;
  const std::string model_, id_;  // the id without the prefix
  ChoiceAnswer answer_;
};

}  // namespace winnow::server
