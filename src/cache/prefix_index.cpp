#include "cache/prefix_index.h"

#include <xxhash.h>

#include <limits>

namespace winnow::cache {

PrefixIndex::PrefixIndex(PagePool& pages, StatePool& states, int64_t page_tokens) : pages_(pages), states_(states), page_tokens_(page_tokens) {
  check(page_tokens > 0, "a page holds no token");
  nodes_.emplace_back();
}

PrefixIndex::~PrefixIndex() { clear(); }

uint64_t PrefixIndex::key_of(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const {
  const uint64_t before = parent == 0 ? salt : nodes_[static_cast<size_t>(parent)].key;
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), before);
}

int32_t PrefixIndex::child(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const {
  const auto [begin, end] = by_key_.equal_range(key_of(parent, salt, tokens));
  for (auto i = begin; i != end; ++i) {
    const Node& n = nodes_[static_cast<size_t>(i->second)];
    if (n.parent == parent && n.salt == salt && std::ranges::equal(n.tokens, tokens)) return i->second;
  }
  return kNone;
}

int32_t PrefixIndex::find(std::span<const int32_t> tokens, uint64_t salt) const {
  check(static_cast<int64_t>(tokens.size()) % page_tokens_ == 0, "a prefix ends inside a page");
  int32_t node = 0;
  for (size_t at = 0; at < tokens.size() && node != kNone; at += static_cast<size_t>(page_tokens_))
    node = child(node, salt, tokens.subspan(at, static_cast<size_t>(page_tokens_)));
  return node;
}

Match PrefixIndex::match(std::span<const int32_t> tokens, uint64_t salt) {
  ++clock_;
  ++counts_.lookups;
  Match m;
  const int64_t most = tokens.empty() ? 0 : (static_cast<int64_t>(tokens.size()) - 1) / page_tokens_;  // pages
  std::vector<int32_t> path;
  int64_t best = 0;
  for (int32_t node = 0; static_cast<int64_t>(path.size()) < most;) {
    node = child(node, salt, tokens.subspan(path.size() * static_cast<size_t>(page_tokens_), static_cast<size_t>(page_tokens_)));
    if (node == kNone) break;
    path.push_back(node);
    if (nodes_[static_cast<size_t>(node)].snapshot.value >= 0) best = static_cast<int64_t>(path.size());
  }
  m.shared = static_cast<int64_t>(path.size()) * page_tokens_;
  m.cut = best < static_cast<int64_t>(path.size()) ? Cut::no_snapshot : best < most ? Cut::no_page : Cut::none;
  if (best == 0) return m;
  for (int64_t i = 0; i < best; ++i) {
    Node& n = nodes_[static_cast<size_t>(path[static_cast<size_t>(i)])];
    n.used = clock_;
    pages_.share(n.page);
    m.pages.push_back(n.page);
  }
  const Node& end = nodes_[static_cast<size_t>(path[static_cast<size_t>(best - 1)])];
  states_.share(end.snapshot);
  m.snapshot = end.snapshot;
  m.folded = end.folded;
  m.tokens = best * page_tokens_;
  ++counts_.hits;
  counts_.hit_tokens += m.tokens;
  return m;
}

int64_t PrefixIndex::insert(std::span<const int32_t> tokens, uint64_t salt, std::span<const PageId> pages) {
  check(static_cast<int64_t>(tokens.size()) >= static_cast<int64_t>(pages.size()) * page_tokens_, "a page beyond its tokens");
  int64_t added = 0;
  int32_t node = 0;
  for (size_t i = 0; i < pages.size(); ++i) {
    const auto own = tokens.subspan(i * static_cast<size_t>(page_tokens_), static_cast<size_t>(page_tokens_));
    int32_t next = child(node, salt, own);
    if (next == kNone) {
      if (free_.empty()) {
        next = static_cast<int32_t>(nodes_.size());
        nodes_.emplace_back();
      } else {
        next = free_.back();
        free_.pop_back();
      }
      Node& n = nodes_[static_cast<size_t>(next)];
      n.key = key_of(node, salt, own);
      n.parent = node;
      n.children = 0;
      n.depth = nodes_[static_cast<size_t>(node)].depth + 1;
      n.page = pages[i];
      n.snapshot = StateId(-1);
      n.used = clock_;
      n.salt = salt;
      n.tokens.assign(own.begin(), own.end());
      pages_.share(n.page);
      by_key_.emplace(n.key, next);
      ++nodes_[static_cast<size_t>(node)].children;
      ++live_;
      ++added;
    }
    node = next;
  }
  return added;
}

bool PrefixIndex::keep(std::span<const int32_t> tokens, uint64_t salt, StateId state, TokenPos folded) {
  const int32_t node = find(tokens, salt);
  if (node <= 0) return false;
  Node& n = nodes_[static_cast<size_t>(node)];
  if (n.snapshot.value >= 0) return false;
  check(folded.value <= static_cast<int64_t>(tokens.size()), "a state from beyond its prefix");
  states_.share(state);
  n.snapshot = state;
  n.folded = folded;
  n.used = clock_;
  ++snapshots_;
  return true;
}

void PrefixIndex::drop_snapshot(int32_t node) {
  Node& n = nodes_[static_cast<size_t>(node)];
  states_.release(n.snapshot);
  n.snapshot = StateId(-1);
  --snapshots_;
}

void PrefixIndex::remove(int32_t node) {
  Node& n = nodes_[static_cast<size_t>(node)];
  check(n.children == 0, "a page goes before those behind it");
  if (n.snapshot.value >= 0) drop_snapshot(node);
  const auto [begin, end] = by_key_.equal_range(n.key);
  for (auto i = begin; i != end; ++i)
    if (i->second == node) {
      by_key_.erase(i);
      break;
    }
  --nodes_[static_cast<size_t>(n.parent)].children;
  pages_.release(n.page);
  n.tokens.clear();
  free_.push_back(node);
  --live_;
}

// Of the leaves without a snapshot the one used longest ago: nothing can be reached through it.
bool PrefixIndex::evict_page() {
  int32_t found = kNone;
  for (size_t i = 1; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    if (n.tokens.empty() || n.children > 0 || n.snapshot.value >= 0 || pages_.references(n.page) > 1) continue;
    if (found == kNone || n.used < nodes_[static_cast<size_t>(found)].used) found = static_cast<int32_t>(i);
  }
  if (found == kNone) return false;
  remove(found);
  ++counts_.evicted_pages;
  return true;
}

bool PrefixIndex::evict_snapshot() {
  int32_t found = kNone;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 1; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    if (n.tokens.empty() || n.snapshot.value < 0 || states_.references(n.snapshot) > 1) continue;
    int32_t before = n.parent;
    while (before > 0 && nodes_[static_cast<size_t>(before)].snapshot.value < 0) before = nodes_[static_cast<size_t>(before)].parent;
    const int64_t pages = n.depth - nodes_[static_cast<size_t>(before)].depth;
    const double worth = static_cast<double>(pages) / static_cast<double>(1 + clock_ - n.used);
    if (worth < least) {
      least = worth;
      found = static_cast<int32_t>(i);
    }
  }
  if (found == kNone) return false;
  drop_snapshot(found);
  ++counts_.evicted_snapshots;
  return true;
}

int64_t PrefixIndex::reclaimable_pages() const {
  return std::count_if(nodes_.begin() + 1, nodes_.end(), [&](const Node& n) { return !n.tokens.empty() && pages_.references(n.page) == 1; });
}

void PrefixIndex::count_references(std::span<int32_t> pages, std::span<int32_t> states) const {
  for (size_t i = 1; i < nodes_.size(); ++i) {
    if (nodes_[i].tokens.empty()) continue;
    ++pages[static_cast<size_t>(nodes_[i].page.value)];
    if (nodes_[i].snapshot.value >= 0) ++states[static_cast<size_t>(nodes_[i].snapshot.value)];
  }
}

bool PrefixIndex::free_pages(int64_t pages) {
  while (pages_.free() < pages)
    if (!evict_page() && !evict_snapshot()) return false;
  return true;
}

bool PrefixIndex::free_states(int64_t states) {
  while (states_.free() < states)
    if (!evict_snapshot()) return false;
  return true;
}

void PrefixIndex::clear() {
  for (bool any = true; any;) {
    any = false;
    for (size_t i = 1; i < nodes_.size(); ++i)
      if (!nodes_[i].tokens.empty() && nodes_[i].children == 0) {
        remove(static_cast<int32_t>(i));
        any = true;
      }
  }
}

void PrefixIndex::check_integrity() const {
  int64_t live = 1, snapshots = 0;
  std::vector<int32_t> children(nodes_.size(), 0);
  for (size_t i = 1; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    if (n.tokens.empty()) continue;
    ++live;
    check(static_cast<int64_t>(n.tokens.size()) == page_tokens_, "a node of another length than a page");
    check(n.parent >= 0 && (n.parent == 0 || !nodes_[static_cast<size_t>(n.parent)].tokens.empty()), "a page behind one that is gone");
    check(n.depth == nodes_[static_cast<size_t>(n.parent)].depth + 1, "a page at the wrong depth");
    ++children[static_cast<size_t>(n.parent)];
    check(pages_.references(n.page) > 0, "the index holds a free page");
    if (n.snapshot.value < 0) continue;
    ++snapshots;
    check(states_.references(n.snapshot) > 0, "the index holds a free state");
    check(n.folded.value <= n.depth * page_tokens_, "a snapshot from beyond its page");
  }
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (i == 0 || !nodes_[i].tokens.empty()) check(children[i] == nodes_[i].children, "a node's children are miscounted");
  check(live == live_ && snapshots == snapshots_ && by_key_.size() + 1 == static_cast<size_t>(live), "the index has miscounted");
}

}  // namespace winnow::cache
