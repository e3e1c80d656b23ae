// API keys: who may use the server, and how much of it. They come from a file, one a line,
//
//   # comment
//   3f9c...            a key; its name is key-LINE
//   alice: 77ab...     a key with a name
//   bob: 5cd0... requests_per_minute=60 tokens_per_minute=100000 concurrent=4
//
// and from the environment. Only SHA-256 digests are kept. A key that a client sends is compared with all of them in constant
// time: how long it takes tells nothing of how much of it was right.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "server/limits.h"

namespace winnow::server {

class Keys {
 public:
  static constexpr size_t kShortest = 16;  // characters of a key

  // An Error names `source` and the line. `otherwise` is what a key has whose line says nothing else.
  std::optional<Error> add_lines(std::string_view text, std::string_view source, const KeyLimits& otherwise);
  std::optional<Error> add(std::string name, std::string_view secret, std::string_view source, const KeyLimits& limits);
  bool empty() const { return keys_.empty(); }
  size_t size() const { return keys_.size(); }
  const std::string& name(size_t key) const { return keys_[key].name; }
  const KeyLimits& limits(size_t key) const { return keys_[key].limits; }
  std::optional<size_t> find(std::string_view secret) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Key {
    std::string name;
    KeyLimits limits;
    Digest digest;
  };
  static Digest digest_of(std::string_view secret);
  std::vector<Key> keys_;
};

// What a client shows: `Authorization: Bearer KEY`, or else `x-api-key: KEY`. Empty: nothing.
std::string_view shown_key(std::string_view authorization, std::string_view x_api_key);

}  // namespace winnow::server
