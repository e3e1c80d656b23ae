// From the tokens of an answer to its parts, as they come: reasoning, content and calls of tools, stop strings found and
// never shown.
//
// Reasoning is what lies between the tokens <think> and </think> (docs/model.md, Output). A stop string is looked for in
// content only, so a thought or an argument that mentions it does not end the answer. Text that may turn out to be the beginning of a stop
// string waits; where the tokens were cut never changes what is shown.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/tool_calls.h"

namespace winnow::text {

// Finds the first stop string to be completed. Text before it is passed on, it and what follows are not.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stop = {}) : stop_(std::move(stop)) {}
  std::string append(std::string_view text);  // what cannot be part of a stop string any more
  std::string flush();                        // what was held back
  bool found() const { return found_; }
  const std::string& which() const { return which_; }  // was found

 private:
  std::vector<std::string> stop_;  // none is empty
  std::string pending_, which_;
  bool found_ = false;
};

// True if what the template wrote last opens the reasoning block; text of a message that looks like it does not count.
bool opens_reasoning(std::span<const Piece> prompt);

struct AnswerOptions {
  bool split_reasoning = false;      // false: everything is content
  bool starts_in_reasoning = false;  // the prompt ended with <think>
  std::vector<std::string> stop = {};
  bool skip_special = true;
  std::shared_ptr<const ToolTypes> tools = nullptr;  // null: calls are content like any other
  bool one_call = false;                             // the answer ends with its first call
};

class AnswerReader {
 public:
  AnswerReader(const Tokenizer& tokenizer, AnswerOptions options);
  // What can be shown after this token. Before `may_stop`, stop strings are text like any other.
  AnswerParts append(Token id, bool may_stop = true);
  AnswerParts finish();                                             // the rest; call once, also after a stop
  bool stopped() const { return stop_.found() || had_its_call_; }   // by a stop string, or by the one call that was wanted
  const std::string& stop_string() const { return stop_.which(); }  // that was found; empty: none
  bool in_reasoning() const { return in_reasoning_; }               // where the next token goes
  bool in_text() const { return !in_reasoning_ && !calls_.in_call(); }

 private:
  void emit(std::string text, bool may_stop, AnswerParts* to);
  void show(std::string content, AnswerParts* to);
  void close_segment(bool may_stop, AnswerParts* to);

  Detokenizer detokenizer_;
  StopStrings stop_;
  ToolCallReader calls_;
  std::shared_ptr<const ToolTypes> tools_;
  Token think_ = -1, end_think_ = -1, tool_call_ = -1;
  bool in_reasoning_ = false, one_call_ = false, had_its_call_ = false;
  std::string space_;  // at the end of the content so far: belongs to a call if one follows
};

}  // namespace winnow::text
