// Calls of tools as the model writes them, read token by token (docs/model.md, Output):
//   <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>
// The tags are tokens of their own; text that looks like one is text. A call is told as its name, then its arguments as pieces
// of one JSON text, then its end. A value whose schema allows strings only is told as it comes; any other waits for its end and
// becomes JSON if it is JSON of an allowed type, else a string. A call that breaks off has arguments that break off: nobody
// can take them for whole.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace winnow::text {

// A piece of an answer. Pieces of one kind may be cut anywhere between code points.
struct AnswerPart {
  enum class Kind : uint8_t { reasoning, content, call, arguments, call_end };
  Kind kind;
  std::string text;  // call: the tool's name, whole; arguments: JSON text; call_end: nothing
  bool operator==(const AnswerPart&) const = default;
};
using AnswerParts = std::vector<AnswerPart>;

// Joins the piece to the last one where both are text of the same kind.
void push(AnswerParts* to, AnswerPart::Kind kind, std::string text);
// All text of one kind.
std::string text_of(const AnswerParts& parts, AnswerPart::Kind kind);

// Which JSON types each parameter of each tool may have.
class ToolTypes {
 public:
  using Set = uint8_t;
  static constexpr Set kNull = 1, kBoolean = 2, kInteger = 4, kNumber = 8, kString = 16, kArray = 32, kObject = 64, kAny = 127;
  // Tools as templates see them: {"function": {"name", "parameters": JSON schema}}. What is not known of a schema allows any type.
  explicit ToolTypes(const boost::json::array& tools);
  Set of(std::string_view tool, std::string_view parameter) const;  // any for those that are not known

 private:
  std::map<std::string, std::map<std::string, Set, std::less<>>, std::less<>> types_;
};

// A value as JSON text: what the model wrote if that is JSON of an allowed type, else a string.
std::string typed_value(std::string_view text, ToolTypes::Set allowed);

class ToolCallReader {
 public:
  explicit ToolCallReader(const Tokenizer& tokenizer);
  bool can_read() const;                                     // the vocabulary has the tags
  bool opens(Token id) const { return id == tags_[kOpen]; }  // a call
  bool is_tag(Token id) const;
  bool in_call() const { return state_ != State::outside; }
  bool in_value() const { return state_ == State::value; }
  void tag(Token id, const ToolTypes& types, AnswerParts* to);
  void append(std::string_view text, AnswerParts* to);  // between tags, within a call
  int64_t calls() const { return calls_; }              // that have ended

 private:
  enum Tag : uint8_t { kOpen, kClose, kKey, kEndKey, kValue, kEndValue, kTags };
  enum class State : uint8_t { outside, name, between, key, after_key, value };
  void begin_call(AnswerParts* to);
  void end_call(AnswerParts* to);
  void begin_value(const ToolTypes& types, AnswerParts* to);
  void end_value(AnswerParts* to);

  Token tags_[kTags];
  const Tokenizer& tokenizer_;
  State state_ = State::outside;
  std::string name_, key_, value_;
  ToolTypes::Set allowed_ = ToolTypes::kAny;
  bool named_ = false;  // the call was told of; one without a name is not
  int arguments_ = 0;   // told of
  int64_t calls_ = 0;
};

}  // namespace winnow::text
