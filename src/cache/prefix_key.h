// The name of a prefix: the XXH3-128 chain over all of its tokens up to the end of a page, beginning with whatever
// separates prefixes that must not be shared. Equal keys of different prefixes can be made on purpose; who finds a record by its key
// compares tokens.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace winnow::cache {

struct PrefixKey {
  uint64_t high = 0, low = 0;
  auto operator<=>(const PrefixKey&) const = default;
};

struct PrefixKeyHash {
  size_t operator()(const PrefixKey& k) const { return k.low ^ (k.high * 0x9e3779b97f4a7c15); }  // hashes of hashes need no more mixing
};

}  // namespace winnow::cache
