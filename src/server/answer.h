// One choice as far as it came: blocks of reasoning, text and calls in the order in which the model wrote them. What every API
// writes is made from it: a whole answer from the blocks, a stream from their changes. So both say the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/generation.h"

namespace winnow {
class JsonWriter;
}

namespace winnow::server {

struct Block {
  enum class Kind : uint8_t { reasoning, text, call };
  Kind kind;
  std::string text;       // of a call: its arguments, JSON text
  std::string name = {};  // of a call
  bool whole = false;     // of a call: it did not break off
};

struct Change {
  enum class What : uint8_t { opened, grew, closed };
  What what;
  size_t block;
  std::string text = {};                  // by which it grew
  std::vector<ops::Sampled> tokens = {};  // that this text is made of, where they are told apart
};

class ChoiceAnswer {
 public:
  std::vector<Change> add(const Delta& delta);
  const std::vector<Block>& blocks() const { return blocks_; }
  std::string text_of(Block::Kind kind) const;  // all of one kind
  const std::vector<ops::Sampled>& tokens() const { return tokens_; }
  engine::FinishReason finish() const { return finish_; }
  const std::string& stop_string() const { return stop_string_; }
  bool ends_with_calls() const;  // it is the client's turn to answer them

 private:
  void open(Block block, std::vector<Change>* changes);
  void close(std::vector<Change>* changes);
  std::vector<Block> blocks_;
  bool open_ = false;  // the last of them
  std::vector<ops::Sampled> tokens_;
  engine::FinishReason finish_ = engine::FinishReason::none;
  std::string stop_string_;
};

// The arguments of a call as an object: of one that broke off, those that are whole.
std::string arguments_object(const Block& call);

// Tokens that were drawn and how likely they and others were, as chat completions tell it.
void write_logprobs(JsonWriter& w, const std::vector<ops::Sampled>& tokens, const text::Tokenizer& tokenizer);
// What only this server tells of a request's way: "winnow": {...}.
void write_winnow(JsonWriter& w, const Usage& usage);
// The reason as clients may know it: whether another salt has the same text is nobody's business but its own.
std::string_view shown(cache::Cut cut);

}  // namespace winnow::server
