#include "text/answer.h"

#include <algorithm>

namespace winnow::text {

std::string StopStrings::append(std::string_view text) {
  if (found_) return {};
  if (stop_.empty()) return std::string(text);
  const size_t known = pending_.size();  // no stop string ends before here
  pending_ += text;

  // The first to be completed wins, and of those the longest: what a reader of single bytes would have found.
  size_t first_end = std::string::npos, start = 0;
  for (const std::string& s : stop_) {
    const size_t at = pending_.find(s, known >= s.size() ? known - s.size() + 1 : 0);
    if (at == std::string::npos) continue;
    const size_t end = at + s.size();
    if (end < first_end || (end == first_end && at < start)) {
      first_end = end;
      start = at;
    }
  }
  if (first_end != std::string::npos) {
    found_ = true;
    pending_.resize(start);
    return std::exchange(pending_, {});
  }

  size_t hold = 0;  // the longest end of the text that begins a stop string
  for (const std::string& s : stop_) {
    for (size_t n = std::min(s.size() - 1, pending_.size()); n > hold; --n) {
      if (std::string_view(pending_).ends_with(std::string_view(s).substr(0, n))) hold = n;
    }
  }
  std::string out = pending_.substr(0, pending_.size() - hold);
  pending_.erase(0, out.size());
  return out;
}

std::string StopStrings::flush() { return std::exchange(pending_, {}); }

bool opens_reasoning(std::span<const Piece> prompt) {
  while (!prompt.empty() && prompt.back().text.empty()) prompt = prompt.first(prompt.size() - 1);
  return !prompt.empty() && prompt.back().trusted && prompt.back().text.ends_with("<think>");
}

AnswerReader::AnswerReader(const Tokenizer& tokenizer, AnswerOptions options)
    : detokenizer_(tokenizer, options.skip_special), stop_(std::move(options.stop)) {
  if (!options.split_reasoning) return;
  think_ = tokenizer.find("<think>");
  end_think_ = tokenizer.find("</think>");
  tool_call_ = tokenizer.find("<tool_call>");
  in_reasoning_ = options.starts_in_reasoning && end_think_ >= 0;
}

void AnswerReader::emit(std::string text, bool may_stop, AnswerText* to) {
  if (in_reasoning_) {
    to->reasoning += text;
    return;
  }
  if (may_stop) {
    to->content += stop_.append(text);
    return;
  }
  to->content += stop_.flush() + text;
}

void AnswerReader::close_segment(bool may_stop, AnswerText* to) {
  emit(detokenizer_.flush(), may_stop, to);
  if (!stop_.found()) to->content += stop_.flush();
}

AnswerText AnswerReader::append(Token id, bool may_stop) {
  AnswerText out;
  if (stop_.found()) return out;
  const bool opens = id == think_ && think_ >= 0;
  const bool closes = id == end_think_ && end_think_ >= 0;
  if (opens || closes) {  // a second one of the same kind means nothing and is dropped
    close_segment(may_stop, &out);
    in_reasoning_ = opens && end_think_ >= 0;
    return out;
  }
  if (in_reasoning_ && id == tool_call_ && tool_call_ >= 0) {  // a call ends the thought that led to it
    close_segment(may_stop, &out);
    in_reasoning_ = false;
  }
  emit(detokenizer_.append(id), may_stop, &out);
  return out;
}

AnswerText AnswerReader::finish() {
  AnswerText out;
  if (!stop_.found()) close_segment(true, &out);
  return out;
}

}  // namespace winnow::text
