// Tokens that are found in the text itself, before it is cut into words: special and control tokens.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace winnow::text {

// An entry of tokenizer.json's "added_tokens".
struct AddedToken {
  std::string content;
  Token id = 0;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes white space before it along
  bool rstrip = false;       // ... and after it
  bool normalized = false;   // looked for after normalisation, else before
  bool special = false;
};

// A set of tokens that are looked for together: leftmost first, of several the longest.
class AddedTokens {
 public:
  struct Part {
    size_t begin = 0, end = 0;
    Token id = -1;
  };  // -1: text

  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }

  // The parts of `text`, in order. A token is found only inside a stretch of trusted runs.
  std::vector<Part> find(std::string_view text, const Runs& runs) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;
  void add(std::string_view text, size_t begin, const AddedToken& token, size_t& covered, std::vector<Part>& parts) const;

  std::vector<AddedToken> tokens_;  // by content
  std::array<bool, 256> begins_{};  // some token begins with this byte
};

}  // namespace winnow::text
