// Which prefixes are computed and kept: a tree of token pages, each node one full page of tokens behind its parent's, with
// the page that holds its rows and perhaps a snapshot, the state record as it stood after the page's last token. A prompt
// can begin at the deepest snapshot on its path: latents and pooled keys serve any length, a recurrent state only its own.
//
// Snapshots. A snapshot is a record that a sequence handed over, never a copy: whoever begins with one reads it and writes
// a record of its own (ops/rows.h, source). Two prompts that part in the middle leave no snapshot where they part; the
// second is told so (Match::shared) and hands one over there, so that the third begins there.
//
// Tiers. A page or a snapshot lies on the device, in memory of the host, on disk, or in several of them; a node lives as long
// as its page lies anywhere. What the device has no room for moves down, what a prompt begins with is copied up (Match::nodes)
// and stays below as well, so that it need not be copied down again.
//
// Eviction, on each tier. Pages from which no snapshot can be reached serve nobody and go first, from the ends of paths.
// Then pages move down, the one used longest ago first. On the device snapshots go by GreedyDual (Cao and Irani, USITS 1997):
// the one that is cheapest to compute again first, where what is not used grows cheap. Where nothing is below, a snapshot that
// goes takes the pages that only it needed along. Records that a sequence holds are not gained.
//
// Keys. A node's key chains the hashes of its path, beginning with seed and salt; tokens and parent are compared on every hit.
//
// Host policy and bytes of the host only, nothing of device/. Thread: the engine's. Invariants: check_integrity().
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/disk_tier.h"
#include "cache/host_store.h"
#include "cache/node_list.h"
#include "cache/prefix_key.h"

namespace winnow::cache {

// What cut a match short.
enum class Cut : uint8_t {
  whole,           // nothing: every full page of the prompt
  last_token,      // the whole prompt is there, and its last token has to be computed
  no_page,         // the next page was never computed
  evicted,         // it was, and had to go
  no_snapshot,     // pages go on, but no state was kept at their ends
  different_salt,  // the prompt's beginning is there, of another salt; for operators only: a client must not learn of others' prompts
};
constexpr int kCuts = 6;
std::string_view name_of(Cut cut);

enum class Tier : uint8_t { device, host, disk };
constexpr int kTiers = 3;
std::string_view name_of(Tier tier);

struct Match {
  std::vector<PageId> pages;   // of the prefix, one reference on each for the caller; -1: not on the device
  StateId snapshot{-1};        // of its end, one reference for the caller; -1: none or not on the device
  std::vector<int32_t> nodes;  // of the prefix, pinned for the caller if something is not on the device, else empty
  TokenPos folded;             // tokens that the snapshot's S holds
  int64_t tokens = 0;          // of the prefix: whole pages, at most one less than the prompt has
  int64_t shared = 0;          // tokens whose pages are there, snapshot or not: where the prompt parts from others
  Cut cut = Cut::no_page;
  std::array<int64_t, kTiers> pages_in{};                  // the uppermost tier of each page
  Tier snapshot_in = Tier::device, lowest = Tier::device;  // lowest: of all its records
};

// What lies below the device. Both may be missing.
struct LowerTiers {
  HostStore* host = nullptr;
  DiskTier* disk = nullptr;
  RecordMover mover;
};

class PrefixIndex {
 public:
  PrefixIndex(PagePool& pages, StatePool& states, int64_t page_tokens, LowerTiers lower = {}, PrefixKey seed = {});
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;

  Match match(std::span<const int32_t> tokens, uint64_t salt);
  // A match of so many tokens was made use of, or of none; a match that is asked for again counts once.
  void count(int64_t tokens, Cut cut, Tier lowest);

  // How far along a path somebody is, so that the next page costs one lookup. It may become stale, which costs the whole path.
  struct Cursor {
    int32_t node = 0;
    int64_t pages = 0;
    PrefixKey key;
  };
  // The first pages.size() pages of tokens are computed: those that are not there yet are kept, with a reference each. Where
  // a page of the same tokens is there already, that one stays. Returns how many were new.
  int64_t insert(std::span<const int32_t> tokens, uint64_t salt, std::span<const PageId> pages, Cursor* cursor = nullptr);
  // The state after tokens, whole pages that are all there. True: the index took a reference. False: there is one already, or a
  // page of the path is gone.
  bool keep(std::span<const int32_t> tokens, uint64_t salt, StateId state, TokenPos folded, Cursor* cursor = nullptr);

  // A match whose records are not all on the device. Each missing one is copied by the caller from where it is, or read from disk,
  // and reported; unpin() ends it. A record that could not be read is lost, and its page's node goes when nobody pins it.
  std::span<const std::byte> host_bytes(int32_t node, RecordKind kind) const;
  bool on_host(int32_t node, RecordKind kind) const;
  bool on_disk(int32_t node, RecordKind kind) const;
  uint64_t read(int32_t node, RecordKind kind);  // DiskTier's ticket
  void arrived(int32_t node, PageId page);
  void arrived(int32_t node, StateId snapshot);
  void lost(int32_t node, RecordKind kind);
  void lost(const PrefixKey& key, RecordKind kind);  // a write failed
  void unpin(std::span<const int32_t> nodes);

  // Frees records until `pages` pages or `states` states are free in the pools; false if it cannot: all others are held.
  bool free_pages(int64_t pages);
  bool free_states(int64_t states);
  // The same for records of the host store, whose other holders are preempted sequences: what is pinned goes too, and its
  // restore fails.
  bool free_host(int64_t pages, int64_t states);
  // Copies what is not on disk yet there, the most useful first, as far as it has room and go_on says so before each.
  void save(const std::function<bool()>& go_on);
  // Takes over what earlier runs left on disk.
  void adopt(std::vector<DiskRecord> found);
  void clear();  // disk excepted

  // Adds one to the count of each record for each reference that the index holds.
  void count_references(std::span<int32_t> pages, std::span<int32_t> states, std::span<int32_t> host_pages = {},
                        std::span<int32_t> host_states = {}) const;
  int64_t pages() const { return live_ - 1; }  // on any tier
  int64_t snapshots() const { return snapshots_; }
  struct Counts {
    int64_t lookups = 0, hits = 0, hit_tokens = 0;
    int64_t evicted_pages = 0, evicted_snapshots = 0;  // lost: they were on no other tier
    std::array<int64_t, kCuts> cuts{};
    std::array<int64_t, kTiers> pages_in{}, snapshots_in{};  // that are there now
    std::array<int64_t, kTiers> pages_to{}, snapshots_to{};  // copied there; to the device: brought up
    std::array<int64_t, kTiers> hits_in{};                   // by the lowest tier that a hit needed
  };
  const Counts& counts() const { return counts_; }
  // Bytes of the index itself, records not counted.
  int64_t memory_bytes() const;
  void check_integrity() const;

 private:
  template <class Id, class HostId>
  struct Places {
    Id device{-1};
    HostId host{-1};
    bool disk = false;
    bool any() const { return device.value >= 0 || host.value >= 0 || disk; }
    bool in(Tier t) const { return t == Tier::device ? device.value >= 0 : t == Tier::host ? host.value >= 0 : disk; }
  };
  struct Node {
    PrefixKey key;
    int32_t parent = -1, first_child = -1, next = -1, before = -1;  // before, next: among the parent's children
    int32_t pins = 0;
    int64_t depth = 0;  // pages up to and with this one
    uint64_t salt = 0;
    Places<PageId, HostPageId> page;
    Places<StateId, HostStateId> snapshot;
    TokenPos folded;
    bool had_snapshot = false;    // that was evicted
    double base = 0, worth = 0;   // of the snapshot: GreedyDual's inflation when it was last used, and with the cost added
    std::vector<int32_t> tokens;  // of its page; empty: a free place
    bool useless() const { return first_child < 0 && !snapshot.any(); }
  };
  static constexpr int32_t kNone = -1;

  Node& at(int32_t i) { return const_cast<Node&>(std::as_const(*this).at(i)); }
  const Node& at(int32_t i) const {
    check(i >= 0 && static_cast<size_t>(i) < nodes_.size(), "a node of the prefix index that is not there");
    return nodes_[static_cast<size_t>(i)];
  }
  PrefixKey key_of(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const;
  int32_t child(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const;
  std::span<const int32_t> page_of(std::span<const int32_t> tokens, int64_t page) const;
  int32_t find(std::span<const int32_t> tokens, uint64_t salt, Cursor* cursor) const;  // the node at the end of whole pages; kNone
  bool fresh(const Cursor& cursor) const;
  int32_t add(int32_t parent, uint64_t salt, std::span<const int32_t> tokens);
  Cut cut_of(std::span<const int32_t> tokens, uint64_t salt, const std::vector<int32_t>& path, int64_t best) const;
  void pin(std::span<const int32_t> nodes);
  int64_t distance(int32_t node) const;  // pages to the snapshot before
  void use(int32_t node);                // it and its path were of use
  void classify(int32_t node);           // after any change of a node's places, children or snapshot
  void rank(int32_t node);               // after a snapshot came to the device, left it or was used

  // Eviction (prefix_eviction.cpp).
  bool held(const Node& n) const { return n.pins > 0 || (n.page.device.value >= 0 && pages_.references(n.page.device) > 1); }
  void remove(int32_t node);  // a leaf
  void remove_subtree(int32_t node);
  bool evict_useless();      // a page from which no snapshot can be reached
  bool move_page_down();     // the one used longest ago
  bool evict_snapshot();     // the cheapest on the device, down or away
  bool evict_any_subtree();  // last of all
  void leave_device(int32_t node, RecordKind kind);
  void leave_host(int32_t node, RecordKind kind);
  void lose_snapshot(int32_t node);  // it lies nowhere any more
  bool copy_down(int32_t node, RecordKind kind);
  bool copy_to_host(int32_t node, RecordKind kind);
  bool copy_to_disk(int32_t node, RecordKind kind);
  bool write_to_disk(int32_t node, RecordKind kind);
  bool evict_host(RecordKind kind);
  bool take_from_host(RecordKind kind);
  bool room_on_disk(RecordKind kind);
  bool drop(int32_t node, Tier tier, RecordKind kind);  // false: it is the last copy of a page that others are behind
  bool has(const Node& n, Tier t) const { return t == Tier::device ? n.page.in(t) : n.page.in(t) || n.snapshot.in(t); }
  std::array<NodeList*, 2> of_tier(Tier t) { return {&useless_[static_cast<size_t>(t)], &others_[static_cast<size_t>(t)]}; }
  template <class F>
  bool any_of(std::span<NodeList* const> lists, F&& evict);  // the first of them in order for which evict is true

  PagePool& pages_;
  StatePool& states_;
  const int64_t page_tokens_;
  const LowerTiers lower_;
  const PrefixKey seed_;
  std::vector<Node> nodes_;  // 0: the root, of no page
  std::vector<int32_t> free_;
  std::unordered_multimap<PrefixKey, int32_t, PrefixKeyHash> by_key_;
  std::array<NodeList, kTiers> useless_, others_;                     // nodes of each tier, by age
  NodeList host_snapshots_;                                           // nodes with a snapshot there, by age
  std::set<std::pair<double, int32_t>> ranked_;                       // nodes with a snapshot on the device, by worth
  std::unordered_map<PrefixKey, int64_t, PrefixKeyHash> beginnings_;  // first pages without their salts
  RecentKeys gone_;                                                   // pages that were evicted, to tell why a match was short
  std::vector<std::byte> bounce_;                                     // one record on its way from the device to disk
  double inflation_ = 0;
  int64_t live_ = 1, snapshots_ = 0;
  Counts counts_;
};

}  // namespace winnow::cache
