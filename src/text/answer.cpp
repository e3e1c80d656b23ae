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
  const std::string* first = nullptr;
  for (const std::string& s : stop_) {
    const size_t at = pending_.find(s, known >= s.size() ? known - s.size() + 1 : 0);
    if (at == std::string::npos) continue;
    const size_t end = at + s.size();
    if (end < first_end || (end == first_end && at < start)) {
      first_end = end;
      start = at;
      first = &s;
    }
  }
  if (first_end != std::string::npos) {
    found_ = true;
    which_ = *first;
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
    : detokenizer_(tokenizer, options.skip_special), stop_(std::move(options.stop)), calls_(tokenizer), one_call_(options.one_call) {
  if (!options.split_reasoning) return;
  think_ = tokenizer.find("<think>");
  end_think_ = tokenizer.find("</think>");
  tool_call_ = tokenizer.find("<tool_call>");
  in_reasoning_ = options.starts_in_reasoning && end_think_ >= 0;
  if (calls_.can_read()) tools_ = std::move(options.tools);
}

void AnswerReader::emit(std::string text, bool may_stop, AnswerParts* to) {
  if (calls_.in_call()) return calls_.append(text, to);
  if (in_reasoning_) return push(to, AnswerPart::Kind::reasoning, std::move(text));
  if (may_stop) show(stop_.append(text), to);
  else show(stop_.flush() + text, to);
}

void AnswerReader::show(std::string content, AnswerParts* to) {
  if (tools_) {
    content = space_ + content;
    const size_t end = content.find_last_not_of(" \t\r\n") + 1;  // 0: all of it is space
    space_ = content.substr(end);
    content.resize(end);
  }
  push(to, AnswerPart::Kind::content, std::move(content));
}

void AnswerReader::close_segment(bool may_stop, AnswerParts* to) {
  emit(detokenizer_.flush(), may_stop, to);
  if (!stop_.found()) show(stop_.flush(), to);
}

AnswerParts AnswerReader::append(Token id, bool may_stop) {
  AnswerParts out;
  if (stopped()) return out;
  const bool opens = id == think_ && think_ >= 0;
  const bool closes = id == end_think_ && end_think_ >= 0;
  if ((opens || closes) && !calls_.in_value()) {  // a second one of the same kind means nothing and is dropped
    close_segment(may_stop, &out);
    if (!calls_.in_call()) in_reasoning_ = opens && end_think_ >= 0;
    return out;
  }
  if (in_reasoning_ && id == tool_call_ && tool_call_ >= 0) {  // a call ends the thought that led to it
    close_segment(may_stop, &out);
    in_reasoning_ = false;
  }
  if (tools_ && (calls_.opens(id) || (calls_.in_call() && calls_.is_tag(id)))) {
    close_segment(may_stop, &out);
    if (stop_.found()) return out;
    space_.clear();
    calls_.tag(id, *tools_, &out);
    had_its_call_ = one_call_ && calls_.calls() > 0;
    return out;
  }
  emit(detokenizer_.append(id), may_stop, &out);
  return out;
}

AnswerParts AnswerReader::finish() {
  AnswerParts out;
  if (!stopped()) close_segment(true, &out);
  if (calls_.calls() == 0 && !calls_.in_call()) push(&out, AnswerPart::Kind::content, std::exchange(space_, {}));
  return out;
}

}  // namespace winnow::text
