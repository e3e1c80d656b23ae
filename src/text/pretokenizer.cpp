#include "text/pretokenizer.h"

#include <algorithm>

namespace winnow::text {

PreTokenizer::Cutter::Cutter(const PreTokenizer& pre) : steps_(&pre.steps_) {
  for (const SplitStep& s : pre.steps_) searches_.emplace_back(s.pattern);
}

void PreTokenizer::Cutter::merge_parts(size_t step, std::string_view text, std::vector<Part>& words) {
  const SplitStep& s = (*steps_)[step];
  std::vector<Part> parts;
  size_t at = 0, begin, end;
  while (at < text.size() && searches_[step].next(text, at, begin, end)) {
    if (at != begin) parts.push_back({at, begin, s.invert});
    parts.push_back({begin, end, !s.invert});
    at = end;
  }
  if (at != text.size()) parts.push_back({at, text.size(), s.invert});

  // A match joins the text before it unless a match already closed that; contiguous joins equals; with_next is
  // with_previous seen from the end.
  const bool backwards = s.behavior == Behavior::merged_with_next;
  bool previous_match = false;
  for (size_t k = 0; k < parts.size(); ++k) {
    const Part& p = backwards ? parts[parts.size() - 1 - k] : parts[k];
    const bool join = s.behavior == Behavior::contiguous ? p.match == previous_match : p.match && !previous_match;
    if (join && !words.empty()) {
      (backwards ? words.back().begin : words.back().end) = backwards ? p.begin : p.end;
    } else {
      words.push_back(p);
    }
    previous_match = p.match;
  }
  if (backwards) std::ranges::reverse(words);
}

}  // namespace winnow::text
