// What the tokens of one answer must follow, a grammar say. The engine asks for the mask of the next token, draws under it and
// tells what it drew. What one of them throws (Error) ends the request and no other.
//
// Thread: whoever makes it, until it is submitted with a request; then the engine's.
#pragma once

#include <cstdint>
#include <span>

namespace winnow::engine {

class Constraint {
 public:
  virtual ~Constraint() = default;
  // Sets the bits of the tokens that may come next and clears the others; words: [ceil(vocab_size / 32)].
  virtual void mask(std::span<uint32_t> words) = 0;
  virtual bool accept(int32_t token) = 0;     // false, and nothing changed, if it may not come next
  virtual void rollback(int64_t tokens) = 0;  // takes back the last ones that were accepted
  virtual bool is_done() const = 0;           // nothing may follow
};

}  // namespace winnow::engine
