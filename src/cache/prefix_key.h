// The name of a prefix: the XXH3-128 chain over all of its tokens up to the end of a page, beginning with whatever
// separates prefixes that must not be shared. Equal keys of different prefixes can be made on purpose; who finds a record by its key
// compares tokens.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace winnow::cache {

struct PrefixKey {
  uint64_t high = 0, low = 0;
  auto operator<=>(const PrefixKey&) const = default;
};

struct PrefixKeyHash {
  size_t operator()(const PrefixKey& k) const { return k.low ^ (k.high * 0x9e3779b97f4a7c15); }  // hashes of hashes need no more mixing
};

// Most of the keys that were added last. All of its memory is there from the start; of two that share a slot the later stays.
class RecentKeys {
 public:
  void insert(const PrefixKey& key) { slot(key) = key; }
  void erase(const PrefixKey& key) {
    if (contains(key)) slot(key) = {};
  }
  bool contains(const PrefixKey& key) const { return slots_[index(key)] == key; }
  int64_t bytes() const { return static_cast<int64_t>(slots_.size() * sizeof(PrefixKey)); }

 private:
  static constexpr size_t kSlots = 1 << 16;
  static size_t index(const PrefixKey& key) { return PrefixKeyHash{}(key) % kSlots; }
  PrefixKey& slot(const PrefixKey& key) { return slots_[index(key)]; }
  std::vector<PrefixKey> slots_ = std::vector<PrefixKey>(kSlots);
};

}  // namespace winnow::cache
