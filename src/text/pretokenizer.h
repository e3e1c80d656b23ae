// Cuts text into words, the units that byte-pair merges do not cross: the steps of tokenizer.json's "pre_tokenizer".
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace winnow::text {

// What becomes of a match: a word of its own, nothing, part of a neighbour, or one word with matches that touch it.
enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

struct SplitStep {
  Regex pattern;
  Behavior behavior = Behavior::isolated;
  bool invert = false;  // what the pattern does not match counts as the match
};

class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<SplitStep> steps) : steps_(std::move(steps)) {}

  // The state of one encode call.
  class Cutter {
   public:
    explicit Cutter(const PreTokenizer& pre);
    // Calls word(w) for each non-empty word of well-formed UTF-8, in order. Linear in the text for the supported families.
    template <class F>
    void cut(std::string_view text, F&& word) {
      cut_from(0, text, std::forward<F>(word));
    }

   private:
    struct Part {
      size_t begin, end;
      bool match;
    };
    template <class F>
    void cut_from(size_t step, std::string_view text, F&& word);
    void merge_parts(size_t step, std::string_view text, std::vector<Part>& words);

    const std::vector<SplitStep>* steps_;
    std::vector<Regex::Search> searches_;
  };

 private:
  std::vector<SplitStep> steps_;
};

template <class F>
void PreTokenizer::Cutter::cut_from(size_t step, std::string_view text, F&& word) {
  if (text.empty()) return;
  if (step == steps_->size()) return word(text);
  const SplitStep& s = (*steps_)[step];
  if (s.behavior == Behavior::isolated || s.behavior == Behavior::removed) {
    const bool drops = s.behavior == Behavior::removed;
    size_t at = 0, begin, end;
    while (at < text.size() && searches_[step].next(text, at, begin, end)) {
      if (!(drops && s.invert)) cut_from(step + 1, text.substr(at, begin - at), word);
      if (!(drops && !s.invert)) cut_from(step + 1, text.substr(begin, end - begin), word);
      at = end;
    }
    if (!(drops && s.invert)) cut_from(step + 1, text.substr(at), word);
    return;
  }
  std::vector<Part> parts;
  merge_parts(step, text, parts);
  for (const Part& p : parts) cut_from(step + 1, text.substr(p.begin, p.end - p.begin), word);
}

}  // namespace winnow::text
