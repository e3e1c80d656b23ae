// Byte-level BPE as in a Hugging Face tokenizer.json: pre-tokenizer regex, merges, added and special tokens. Exact against
// the `tokenizers` package with add_special_tokens=False: what a post-processor would put around a text is the template's
// business. Ill-formed UTF-8 becomes U+FFFD first (utf8.h). What of tokenizer.json is not supported is refused by name.
// A Tokenizer is immutable after load and may be used by many threads.
//
// Known differences: characters that Unicode added after version 14 belong to no class in the pre-tokenizer's pattern
// (regex.h); a file whose added token is also the product of merges never gives that token for text in which it is not
// matched as an added token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace winnow::text {

using Token = int32_t;

// Text with the knowledge of who wrote it. Only bytes from the template (trusted) may become control tokens.
struct Piece {
  std::string text;
  bool trusted = false;
};

class Tokenizer {
 public:
  static Result<Tokenizer> load(const std::string& path);  // tokenizer.json
  static Result<Tokenizer> parse(std::string_view json, std::string_view where);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Both encode() throw Error if the file's own pattern exceeds its match limit, or for a text of more than 1 GiB.
  // Added tokens in `text` are matched if `control` (as the tokenizers package does); otherwise all of it is plain text.
  std::vector<Token> encode(std::string_view text, bool control) const;
  // Adjacent pieces are one text for merging; an added token is matched only where all of its bytes are trusted.
  std::vector<Token> encode(std::span<const Piece> pieces) const;
  // Bytes of a token; empty for ids that have none. Added tokens give their text, read as byte symbols where it can be,
  // as the package does.
  std::string_view bytes(Token id) const;
  std::string decode(std::span<const Token> ids, bool skip_special) const;  // invalid UTF-8 becomes U+FFFD, as the package does
  size_t longest_token() const;                                             // in bytes: n tokens hold no more than n times as many
  int64_t vocab_size() const;                                               // 1 + the largest id
  bool is_special(Token id) const;                                          // added with "special": true
  Token find(std::string_view added_token) const;                           // id of an added token or -1
  std::vector<Token> added_tokens() const;                                  // ids, ascending

 private:
  Tokenizer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Turns tokens into text as they come and never emits half a code point: bytes that may still become valid UTF-8 wait
// for the next token; flush() emits what is left (invalid bytes as U+FFFD).
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special) : tokenizer_(&tokenizer), skip_special_(skip_special) {}
  std::string append(Token id);
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace winnow::text
