#include "cache/prefix_index.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace winnow::cache {

std::string_view name_of(Cut c) {
  switch (c) {
    case Cut::whole: return "whole";
    case Cut::last_token: return "last_token";
    case Cut::no_page: return "no_page";
    case Cut::evicted: return "evicted";
    case Cut::no_snapshot: return "no_snapshot";
    case Cut::different_salt: return "different_salt";
  }
  return "?";
}

std::string_view name_of(Tier t) {
  switch (t) {
    case Tier::device: return "device";
    case Tier::host: return "host";
    case Tier::disk: return "disk";
  }
  return "?";
}

PrefixIndex::PrefixIndex(PagePool& pages, StatePool& states, int64_t page_tokens, LowerTiers lower, PrefixKey seed)
    : pages_(pages), states_(states), page_tokens_(page_tokens), lower_(std::move(lower)), seed_(seed) {
  check(page_tokens > 0, "a page holds no token");
  nodes_.emplace_back();
  if (lower_.disk) bounce_.resize(static_cast<size_t>(std::max(lower_.mover.page_bytes, lower_.mover.state_bytes)));
}

PrefixIndex::~PrefixIndex() { clear(); }

PrefixKey PrefixIndex::key_of(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const {
  PrefixKey before = parent == 0 ? seed_ : at(parent).key;
  if (parent == 0) before.low ^= salt;
  const XXH128_hash_t h = XXH3_128bits_withSeed(tokens.data(), tokens.size_bytes(), before.low ^ std::rotl(before.high, 32));
  return {h.high64, h.low64};
}

int32_t PrefixIndex::child(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) const {
  const auto [begin, end] = by_key_.equal_range(key_of(parent, salt, tokens));
  for (auto i = begin; i != end; ++i) {
    const Node& n = at(i->second);
    if (n.parent == parent && n.salt == salt && std::ranges::equal(n.tokens, tokens)) return i->second;
  }
  return kNone;
}

std::span<const int32_t> PrefixIndex::page_of(std::span<const int32_t> tokens, int64_t page) const {
  return tokens.subspan(static_cast<size_t>(page * page_tokens_), static_cast<size_t>(page_tokens_));
}

bool PrefixIndex::fresh(const Cursor& c) const {
  return c.node == 0 ||
         (static_cast<size_t>(c.node) < nodes_.size() && !at(c.node).tokens.empty() && at(c.node).key == c.key && at(c.node).depth == c.pages);
}

int32_t PrefixIndex::find(std::span<const int32_t> tokens, uint64_t salt, Cursor* cursor) const {
  check(static_cast<int64_t>(tokens.size()) % page_tokens_ == 0, "a prefix ends inside a page");
  const int64_t pages = static_cast<int64_t>(tokens.size()) / page_tokens_;
  const bool begun = cursor && fresh(*cursor) && cursor->pages <= pages;
  int32_t node = begun ? cursor->node : 0;
  for (int64_t i = begun ? cursor->pages : 0; i < pages && node != kNone; ++i) node = child(node, salt, page_of(tokens, i));
  return node;
}

Match PrefixIndex::match(std::span<const int32_t> tokens, uint64_t salt) {
  Match m;
  const int64_t full = static_cast<int64_t>(tokens.size()) / page_tokens_;
  const int64_t most = tokens.empty() ? 0 : (static_cast<int64_t>(tokens.size()) - 1) / page_tokens_;  // pages
  std::vector<int32_t> path;
  int64_t best = 0;
  for (int32_t node = 0; static_cast<int64_t>(path.size()) < full;) {
    node = child(node, salt, page_of(tokens, static_cast<int64_t>(path.size())));
    if (node == kNone || !at(node).page.any()) break;
    path.push_back(node);
    if (at(node).snapshot.any() && static_cast<int64_t>(path.size()) <= most) best = static_cast<int64_t>(path.size());
  }
  m.shared = std::min(static_cast<int64_t>(path.size()), most) * page_tokens_;
  m.cut = cut_of(tokens, salt, path, best);
  if (best == 0) return m;
  path.resize(static_cast<size_t>(best));
  const auto uppermost = [&](const auto& places) {
    const Tier t = places.in(Tier::device) ? Tier::device : places.in(Tier::host) ? Tier::host : Tier::disk;
    m.lowest = std::max(m.lowest, t);
    return t;
  };
  for (int32_t i : path) {
    const Node& n = at(i);
    ++m.pages_in[static_cast<size_t>(uppermost(n.page))];
    if (n.page.device.value >= 0) pages_.share(n.page.device);
    m.pages.push_back(n.page.device);
  }
  const Node& end = at(path.back());
  m.snapshot_in = uppermost(end.snapshot);
  if (end.snapshot.device.value >= 0) states_.share(end.snapshot.device);
  m.snapshot = end.snapshot.device;
  m.folded = end.folded;
  m.tokens = best * page_tokens_;
  use(path.back());
  if (m.lowest != Tier::device) {
    pin(path);
    m.nodes = std::move(path);
  }
  return m;
}

void PrefixIndex::count(int64_t tokens, Cut cut, Tier lowest) {
  ++counts_.lookups;
  ++counts_.cuts[static_cast<size_t>(cut)];
  if (tokens == 0) return;
  ++counts_.hits;
  ++counts_.hits_in[static_cast<size_t>(lowest)];
  counts_.hit_tokens += tokens;
}

// Why a match of `best` pages along a path of nodes was not longer.
Cut PrefixIndex::cut_of(std::span<const int32_t> tokens, uint64_t salt, const std::vector<int32_t>& path, int64_t best) const {
  const int64_t full = static_cast<int64_t>(tokens.size()) / page_tokens_,
                most = tokens.empty() ? 0 : (static_cast<int64_t>(tokens.size()) - 1) / page_tokens_;
  const int64_t there = static_cast<int64_t>(path.size());
  if (full > most && there == full && at(path.back()).snapshot.any()) return Cut::last_token;
  if (best == most) return Cut::whole;
  if (best < std::min(there, most)) {
    const auto beyond = std::span(path).first(static_cast<size_t>(std::min(there, most))).subspan(static_cast<size_t>(best));
    return std::ranges::any_of(beyond, [&](int32_t i) { return at(i).had_snapshot; }) ? Cut::evicted : Cut::no_snapshot;
  }
  const std::span<const int32_t> next = page_of(tokens, there);
  if (gone_.contains(key_of(path.empty() ? 0 : path.back(), salt, next))) return Cut::evicted;
  if (path.empty() && beginnings_.contains(key_of(0, 0, next))) return Cut::different_salt;
  return Cut::no_page;
}

int32_t PrefixIndex::add(int32_t parent, uint64_t salt, std::span<const int32_t> tokens) {
  int32_t i = static_cast<int32_t>(nodes_.size());
  if (free_.empty()) {
    nodes_.emplace_back();
  } else {
    i = free_.back();
    free_.pop_back();
  }
  Node& n = at(i);
  n = {.key = key_of(parent, salt, tokens), .parent = parent, .next = at(parent).first_child, .depth = at(parent).depth + 1, .salt = salt};
  n.tokens.assign(tokens.begin(), tokens.end());
  if (n.next >= 0) at(n.next).before = i;
  at(parent).first_child = i;
  by_key_.emplace(n.key, i);
  gone_.erase(n.key);
  if (parent == 0) ++beginnings_[key_of(0, 0, tokens)];
  ++live_;
  if (parent != 0) classify(parent);
  return i;
}

int64_t PrefixIndex::insert(std::span<const int32_t> tokens, uint64_t salt, std::span<const PageId> pages, Cursor* cursor) {
  const int64_t n = static_cast<int64_t>(pages.size());
  check(static_cast<int64_t>(tokens.size()) >= n * page_tokens_, "a page beyond its tokens");
  const bool begun = cursor && fresh(*cursor) && cursor->pages <= n;
  int64_t added = 0;
  int32_t node = begun ? cursor->node : 0;
  for (int64_t i = begun ? cursor->pages : 0; i < n; ++i) {
    int32_t next = child(node, salt, page_of(tokens, i));
    if (next == kNone) {
      next = add(node, salt, page_of(tokens, i));
      at(next).page.device = pages[static_cast<size_t>(i)];
      pages_.share(at(next).page.device);
      ++counts_.pages_in[static_cast<size_t>(Tier::device)];
      classify(next);
      ++added;
    }
    node = next;
  }
  if (cursor) *cursor = {node, n, at(node).key};
  return added;
}

bool PrefixIndex::keep(std::span<const int32_t> tokens, uint64_t salt, StateId state, TokenPos folded, Cursor* cursor) {
  const int32_t node = find(tokens, salt, cursor);
  if (node <= 0) return false;
  Node& n = at(node);
  if (n.snapshot.any()) return false;
  check(folded.value <= static_cast<int64_t>(tokens.size()), "a state from beyond its prefix");
  states_.share(state);
  n.snapshot.device = state;
  n.folded = folded;
  ++snapshots_;
  ++counts_.snapshots_in[static_cast<size_t>(Tier::device)];
  use(node);
  return true;
}

int64_t PrefixIndex::distance(int32_t node) const {
  int32_t before = at(node).parent;
  while (before > 0 && !at(before).snapshot.any()) before = at(before).parent;
  return at(node).depth - at(before).depth;
}

void PrefixIndex::use(int32_t node) {
  if (at(node).snapshot.any()) at(node).base = inflation_;
  rank(node);
  for (int32_t i = node; i > 0; i = at(i).parent) {  // so that a page is never older than those behind it
    classify(i);
    for (auto* lists : {&useless_, &others_})
      for (NodeList& l : *lists)
        if (l.contains(i)) l.push(i);
    if (host_snapshots_.contains(i)) host_snapshots_.push(i);
  }
}

void PrefixIndex::rank(int32_t node) {
  Node& n = at(node);
  ranked_.erase({n.worth, node});
  if (n.snapshot.device.value < 0) return;
  n.worth = n.base + static_cast<double>(distance(node));
  ranked_.emplace(n.worth, node);
}

void PrefixIndex::classify(int32_t node) {
  const Node& n = at(node);
  for (int t = 0; t < kTiers; ++t) {
    const bool here = !n.tokens.empty() && has(n, static_cast<Tier>(t));
    NodeList &wanted = (n.useless() ? useless_ : others_)[static_cast<size_t>(t)],
             &other = (n.useless() ? others_ : useless_)[static_cast<size_t>(t)];
    other.erase(node);
    if (!here) wanted.erase(node);
    else if (!wanted.contains(node)) wanted.push(node);
  }
  if (n.snapshot.host.value < 0) host_snapshots_.erase(node);
  else if (!host_snapshots_.contains(node)) host_snapshots_.push(node);
}

void PrefixIndex::pin(std::span<const int32_t> nodes) {
  for (int32_t i : nodes) ++at(i).pins;
}

void PrefixIndex::unpin(std::span<const int32_t> nodes) {
  for (size_t i = nodes.size(); i-- > 0;) {
    check(at(nodes[i]).pins > 0, "a node is unpinned more often than pinned");
    --at(nodes[i]).pins;
  }
  for (int32_t i : nodes)  // those behind one that goes are gone with it
    if (!at(i).tokens.empty() && at(i).pins == 0 && !at(i).page.any()) {
      remove_subtree(i);
      return;
    }
}

std::span<const std::byte> PrefixIndex::host_bytes(int32_t node, RecordKind kind) const {
  const Node& n = at(node);
  if (kind == RecordKind::page) return n.page.host.value >= 0 ? lower_.host->at(n.page.host) : std::span<std::byte>{};
  return n.snapshot.host.value >= 0 ? lower_.host->at(n.snapshot.host) : std::span<std::byte>{};
}

bool PrefixIndex::on_host(int32_t node, RecordKind kind) const {
  return kind == RecordKind::page ? at(node).page.host.value >= 0 : at(node).snapshot.host.value >= 0;
}

bool PrefixIndex::on_disk(int32_t node, RecordKind kind) const { return kind == RecordKind::page ? at(node).page.disk : at(node).snapshot.disk; }

uint64_t PrefixIndex::read(int32_t node, RecordKind kind) {
  lower_.disk->touch(kind, at(node).key);
  return lower_.disk->read(kind, at(node).key);
}

void PrefixIndex::arrived(int32_t node, PageId page) {
  Node& n = at(node);
  ++counts_.pages_to[static_cast<size_t>(Tier::device)];
  if (n.page.device.value >= 0) return;  // somebody else was quicker
  pages_.share(page);
  n.page.device = page;
  ++counts_.pages_in[static_cast<size_t>(Tier::device)];
  classify(node);
}

void PrefixIndex::arrived(int32_t node, StateId snapshot) {
  Node& n = at(node);
  ++counts_.snapshots_to[static_cast<size_t>(Tier::device)];
  if (n.snapshot.device.value >= 0) return;
  states_.share(snapshot);
  snapshots_ += !n.snapshot.any();  // its copy below was lost meanwhile
  n.snapshot.device = snapshot;
  ++counts_.snapshots_in[static_cast<size_t>(Tier::device)];
  rank(node);
}

void PrefixIndex::lost(int32_t node, RecordKind kind) {
  Node& n = at(node);
  if (!on_disk(node, kind)) return;
  const bool page = kind == RecordKind::page;
  (page ? n.page.disk : n.snapshot.disk) = false;
  --(page ? counts_.pages_in : counts_.snapshots_in)[static_cast<size_t>(Tier::disk)];
  if (!page && !n.snapshot.any()) lose_snapshot(node);
  classify(node);
  if (n.pins == 0 && !n.page.any()) remove_subtree(node);
}

void PrefixIndex::lost(const PrefixKey& key, RecordKind kind) {
  const auto [begin, end] = by_key_.equal_range(key);
  for (auto i = begin; i != end; ++i)
    if (on_disk(i->second, kind)) return lost(i->second, kind);
}

void PrefixIndex::adopt(std::vector<DiskRecord> found) {
  std::vector<std::pair<int64_t, int32_t>> ages;
  for (const DiskRecord& r : found) {
    int32_t parent = 0;
    if (r.depth > 1) {
      const auto i = by_key_.find(r.parent);
      parent = i == by_key_.end() ? kNone : i->second;
    }
    const bool sound = parent != kNone && static_cast<int64_t>(r.tokens.size()) == page_tokens_ && at(parent).depth + 1 == r.depth &&
                       (parent == 0 || at(parent).salt == r.salt) && key_of(parent, r.salt, r.tokens) == r.key;
    int32_t node = sound ? child(parent, r.salt, r.tokens) : kNone;
    const bool page = r.kind == RecordKind::page;
    if (!sound || (node == kNone && !page) || r.folded.value > r.depth * page_tokens_) {
      lower_.disk->remove(r.kind, r.key);
      continue;
    }
    if (node == kNone) node = add(parent, r.salt, r.tokens);
    Node& n = at(node);
    (page ? n.page.disk : n.snapshot.disk) = true;
    ++(page ? counts_.pages_in : counts_.snapshots_in)[static_cast<size_t>(Tier::disk)];
    if (!page) {
      n.folded = r.folded;
      ++snapshots_;
    }
    classify(node);
    ages.emplace_back(r.used_s, -node);  // of one age the deeper first, which came later
  }
  std::ranges::sort(ages);
  for (const auto& [used, node] : ages)
    for (auto* lists : {&useless_, &others_})
      if (NodeList& l = (*lists)[static_cast<size_t>(Tier::disk)]; l.contains(-node)) l.push(-node);
}

void PrefixIndex::count_references(std::span<int32_t> pages, std::span<int32_t> states, std::span<int32_t> host_pages,
                                   std::span<int32_t> host_states) const {
  const auto count = [](std::span<int32_t> of, auto id) {
    if (id.value >= 0 && !of.empty()) ++of[static_cast<size_t>(id.value)];
  };
  for (const Node& n : nodes_) {
    count(pages, n.page.device);
    count(states, n.snapshot.device);
    count(host_pages, n.page.host);
    count(host_states, n.snapshot.host);
  }
}

int64_t PrefixIndex::memory_bytes() const {
  constexpr int64_t kHashed = 64;  // of a node in by_key_, about
  return gone_.bytes() + static_cast<int64_t>(nodes_.capacity() * (sizeof(Node) + (2 * kTiers + 1) * 12)) +
         (live_ - 1) * (page_tokens_ * 4 + kHashed);
}

void PrefixIndex::check_integrity() const {
  int64_t live = 1, snapshots = 0;
  std::array<int64_t, kTiers> pages_in{}, snapshots_in{};
  for (size_t i = 1; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    const int32_t id = static_cast<int32_t>(i);
    if (n.tokens.empty()) {
      check(!n.page.any() && !n.snapshot.any() && n.pins == 0, "a node that is gone holds something");
      for (const auto* lists : {&useless_, &others_})
        for (const NodeList& l : *lists) check(!l.contains(id), "a node that is gone is listed");
      continue;
    }
    ++live;
    check(static_cast<int64_t>(n.tokens.size()) == page_tokens_, "a node of another length than a page");
    check(n.page.any() || n.pins > 0, "a page that lies nowhere");
    check(n.parent == 0 || (n.parent > 0 && !at(n.parent).tokens.empty()), "a page behind one that is gone");
    check(n.depth == at(n.parent).depth + 1, "a page at the wrong depth");
    check(n.pins == 0 || n.parent == 0 || at(n.parent).pins >= n.pins, "a pinned page behind one that is not");
    check(n.page.device.value < 0 || pages_.references(n.page.device) > 0, "the index holds a free page");
    check(n.snapshot.device.value < 0 || states_.references(n.snapshot.device) > 0, "the index holds a free state");
    check(host_snapshots_.contains(id) == n.snapshot.in(Tier::host), "a snapshot of the host is listed wrongly");
    check(ranked_.contains({n.worth, id}) == (n.snapshot.device.value >= 0), "a snapshot is not ranked");
    for (int t = 0; t < kTiers; ++t) {
      const Tier tier = static_cast<Tier>(t);
      pages_in[static_cast<size_t>(t)] += n.page.in(tier);
      snapshots_in[static_cast<size_t>(t)] += n.snapshot.in(tier);
      check(useless_[static_cast<size_t>(t)].contains(id) == (has(n, tier) && n.useless()), "a node is listed wrongly");
      check(others_[static_cast<size_t>(t)].contains(id) == (has(n, tier) && !n.useless()), "a node is listed wrongly");
    }
    int64_t found = 0;
    for (int32_t c = at(n.parent).first_child; c >= 0; c = at(c).next) found += c == id;
    check(found == 1, "a page is not among its parent's");
    if (!n.snapshot.any()) continue;
    ++snapshots;
    check(n.folded.value <= n.depth * page_tokens_, "a snapshot from beyond its page");
  }
  check(live == live_ && snapshots == snapshots_ && by_key_.size() + 1 == static_cast<size_t>(live), "the index has miscounted");
  check(pages_in == counts_.pages_in && snapshots_in == counts_.snapshots_in, "the index has miscounted its tiers");
}

}  // namespace winnow::cache
