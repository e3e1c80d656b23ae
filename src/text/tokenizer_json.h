// Reads tokenizer.json into what the tokenizer needs, and refuses by name whatever would make it encode otherwise.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"

namespace winnow::text {

struct TokenizerFile {
  std::vector<std::string> decoded;  // bytes of each id as decoding writes them; ids without a token are empty
  std::vector<std::string> encoded;  // bytes of each id that text may become by merging, else empty
  std::array<Token, 256> symbols;    // the token of each byte
  std::vector<Merge> merges;
  bool ignore_merges = false;
  bool nfc = false;
  std::vector<SplitStep> steps;
  std::vector<AddedToken> added;
};

Result<TokenizerFile> read_tokenizer_json(std::string_view json, std::string_view where);

}  // namespace winnow::text
