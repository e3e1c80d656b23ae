// Grammars that the tokens of an answer must follow: compiled once for a vocabulary, then walked by one matcher an answer.
// The automata are XGrammar's (arXiv:2411.15100); this header is all that the rest of the program sees of it: compile,
// mask, accept, rollback, is_done.
//
// A grammar comes as a structural tag, XGrammar's JSON form of nested formats (answer_format.h makes it). Added tokens of
// the vocabulary (<think>, <tool_call>, ...) can be named there by id; no string of a grammar ever matches one.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"

namespace winnow::grammar {

// Compiled, immutable, shared by any number of answers.
class Grammar;

// The place of one answer in its grammar. One thread at a time. mask() and accept() throw Error for a grammar that needs more
// than kSlowStep for one token: there are grammars that are ambiguous without bound, and others wait meanwhile.
class Matcher {
 public:
  static constexpr std::chrono::milliseconds kSlowStep{500};
  explicit Matcher(std::shared_ptr<const Grammar> grammar);
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;
  ~Matcher();
  // Sets the bits of the tokens that may come next and clears the others; words: [ceil(vocab_size / 32)]. A stop token may
  // come where the grammar's text is whole.
  void mask(std::span<uint32_t> words);
  bool accept(text::Token token);  // false, and nothing changed, if it may not come next
  void rollback(int64_t tokens);   // takes back the last ones that were accepted
  bool is_done() const;            // a stop token was accepted: nothing may follow
  bool may_stop() const;           // the text is whole: a stop token may come

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What happens with keywords of a JSON schema that XGrammar passes over: they are errors, or answers may break them.
enum class Strictness : uint8_t { exact, lenient };

struct CompilerOptions {
  int threads = 1;
  std::chrono::milliseconds time_limit{5000};  // of a compilation, the wait for a free thread included
  size_t cache_bytes = 128 << 20;              // of compiled grammars that are kept
};

// Any thread.
class Compiler {
 public:
  // stop_tokens: the model's own. vocab_size: of its logits; the tokenizer may know fewer.
  Compiler(const text::Tokenizer& tokenizer, int64_t vocab_size, const std::vector<text::Token>& stop_tokens, const CompilerOptions& options);
  ~Compiler();

  // Blocks until it is compiled or found among what is kept. Errors of kind usage say what is wrong with the grammar, others
  // that the time limit passed.
  Result<std::shared_ptr<const Grammar>> compile(const std::string& structural_tag, Strictness strictness);

  struct Counts {
    int64_t compiled = 0, reused = 0, failed = 0, late = 0;
    int64_t kept = 0, kept_bytes = 0;
    double seconds = 0;  // of all compilations
  };
  Counts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow::grammar
