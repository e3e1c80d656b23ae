// A pre-tokenizer's regular expression. tokenizer.json holds Oniguruma syntax (what the `tokenizers` package runs); it is
// rewritten for PCRE2 where the two differ (\s is White_Space there) and refused by name where they might differ in a
// way that we did not prove equal. Character classes are those of PCRE2's Unicode version (14 in Debian 12); characters that
// later versions added have no class here, while the package knows some of them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace winnow::text {

// The pattern in PCRE2 syntax, or an Error naming the construct.
Result<std::string> to_pcre2(std::string_view oniguruma, std::string_view where);
// A pattern that matches `text` literally.
std::string literal_pattern(std::string_view text);

class Regex {
 public:
  // `pcre2`: UTF-8. A pattern that can match the empty string is refused: Oniguruma and PCRE2 step over such matches differently.
  static Result<Regex> compile(const std::string& pcre2, std::string_view where);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // The state of one search; a Regex may be searched by many threads, a Search belongs to one.
  class Search {
   public:
    explicit Search(const Regex& regex);
    Search(Search&&) noexcept;
    ~Search();
    // First match at or after `from` in well-formed UTF-8. Throws Error if the match limit, which grows with the
    // text, is exceeded: no pattern of the supported families comes near it.
    bool next(std::string_view subject, size_t from, size_t& begin, size_t& end);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace winnow::text
