// Byte-pair encoding of one word: repeatedly joins the pair of lowest rank, of equal ones the leftmost.
//
// Most words of prose are tokens themselves, so a word is first looked up whole. That is exact because the table holds
// only tokens that merging their own bytes gives back (or all of them, if the tokenizer ignores merges for whole words).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace winnow::text {

struct Merge {
  Token left, right, product;
};  // ranked by position in the list; the last of equal pairs counts

class Bpe {
 public:
  // `words`: bytes of each id, empty for ids that text cannot become. `symbols`: the id of each byte, -1 if it has none.
  Bpe(std::vector<std::string> words, const std::array<Token, 256>& symbols, const std::vector<Merge>& merges, bool ignore_merges);

  // Appends the tokens of `word`. Time n log n. A byte without symbol gives no token.
  void encode(std::string_view word, std::vector<Token>& out) const;

 private:
  struct Joined {
    uint32_t rank;
    Token product;
  };
  static constexpr Joined kNone{UINT32_MAX, -1};

  Joined join(Token left, Token right) const;
  Token whole(std::string_view word) const;
  void insert_whole(Token id);
  void merge_short(std::string_view word, std::vector<Token>& out) const;
  void merge_long(std::string_view word, std::vector<Token>& out) const;

  struct Pair {
    uint64_t key = UINT64_MAX;
    Joined joined = kNone;
  };
  struct Whole {
    uint32_t hash = 0;
    Token id = -1;
  };

  std::vector<std::string> words_;
  std::array<Token, 256> symbols_;
  std::vector<Pair> pairs_;    // open addressing, a power of two in size
  std::vector<Whole> wholes_;  // likewise
};

}  // namespace winnow::text
