// Which prefixes are computed and kept: a tree of token pages, each node one full page of tokens behind its parent's, with
// the page that holds its rows and perhaps a snapshot, the state record as it stood after the page's last token. A prompt
// can begin at the deepest snapshot on its path: latents and pooled keys serve any length, a recurrent state only its own.
// Host policy only: it holds references on records of the pools and never looks into them.
//
// Snapshots. A snapshot is a record that a sequence handed over, never a copy: whoever begins with one reads it and writes
// a record of its own (ops/rows.h, source). Two prompts that part in the middle leave no snapshot where they part; the
// second is told so (Match::shared) and hands one over there, so that the third begins there.
//
// Eviction. Pages from which no snapshot can be reached serve nobody and go first, from the ends of paths, the one used longest
// ago first. Then snapshots go, the one first that is cheapest to compute again for its age: its distance to the snapshot
// before it over the number of lookups since it was last of use. Records that a running sequence holds too are not gained.
//
// Keys. A node's key chains the hashes of its path, beginning with the salt; tokens and parent are compared on every hit, so
// equal keys of different prefixes cost time, not correctness.
//
// Thread: the engine's. Invariants: check_integrity().
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/record_pool.h"

namespace winnow::cache {

// What cut a match short.
enum class Cut : uint8_t {
  none,         // the whole prompt but its last token, up to the page
  no_page,      // the next page was never computed, or not with these tokens and this salt
  no_snapshot,  // pages go on, but no state was kept at their ends
};

struct Match {
  std::vector<PageId> pages;  // of the prefix, one reference on each for the caller
  StateId snapshot{-1};       // of its end, one reference for the caller; none if the prefix is empty
  TokenPos folded;            // tokens that the snapshot's S holds
  int64_t tokens = 0;         // of the prefix: whole pages, at most one less than the prompt has
  int64_t shared = 0;         // tokens whose pages are there, snapshot or not: where the prompt parts from others
  Cut cut = Cut::no_page;
};

class PrefixIndex {
 public:
  PrefixIndex(PagePool& pages, StatePool& states, int64_t page_tokens);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;

  Match match(std::span<const int32_t> tokens, uint64_t salt);
  // The first pages.size() pages of tokens are computed: those that are not there yet are kept, with a reference each. Where
  // a page of the same tokens is there already, that one stays. Returns how many were new.
  int64_t insert(std::span<const int32_t> tokens, uint64_t salt, std::span<const PageId> pages);
  // The state after tokens, whole pages that are all there. True: the index took a reference. False: there is one already, or a
  // page of the path is gone.
  bool keep(std::span<const int32_t> tokens, uint64_t salt, StateId state, TokenPos folded);

  // Pages that free_pages could gain if every snapshot went.
  int64_t reclaimable_pages() const;
  // Adds one to the count of each record for each reference that the index holds.
  void count_references(std::span<int32_t> pages, std::span<int32_t> states) const;
  // Frees records until `pages` pages or `states` states are free in the pools; false if it cannot.
  bool free_pages(int64_t pages);
  bool free_states(int64_t states);
  void clear();

  int64_t pages() const { return live_ - 1; }
  int64_t snapshots() const { return snapshots_; }
  struct Counts {
    int64_t lookups = 0, hits = 0, hit_tokens = 0, evicted_pages = 0, evicted_snapshots = 0;
  };
  const Counts& counts() const { return counts_; }
  void check_integrity() const;

 private:
  struct Node {
    uint64_t key = 0;
    int32_t parent = -1, children = 0;
    int64_t depth = 0;  // pages up to and with this one
    PageId page{-1};
    StateId snapshot{-1};
    TokenPos folded;
    int64_t used = 0;  // the index's clock when it was last hit or made
    uint64_t salt = 0;
    std::vector<int32_t> tokens;  // of its page; empty: a free place
  };
  static constexpr int32_t kNone = -1;

  int32_t child(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const;
  uint64_t key_of(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const;
  int32_t find(std::span<const int32_t> tokens, uint64_t salt) const;  // the node at the end of whole pages; kNone
  void remove(int32_t node);                                           // a leaf
  void drop_snapshot(int32_t node);
  bool evict_page();      // a page from which no snapshot can be reached
  bool evict_snapshot();  // the cheapest

  PagePool& pages_;
  StatePool& states_;
  const int64_t page_tokens_;
  std::vector<Node> nodes_;  // 0: the root, of no page
  std::vector<int32_t> free_;
  std::unordered_multimap<uint64_t, int32_t> by_key_;
  int64_t clock_ = 0, live_ = 1, snapshots_ = 0;
  Counts counts_;
};

}  // namespace winnow::cache
