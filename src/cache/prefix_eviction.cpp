// What the prefix index gives up, and where it goes (prefix_index.h, Eviction).
#include <algorithm>

#include "cache/prefix_index.h"

namespace winnow::cache {
namespace {

constexpr int kMostTried = 256;  // nodes looked at before a lower tier is taken to be full

constexpr size_t index_of(Tier t) { return static_cast<size_t>(t); }

}  // namespace

void PrefixIndex::leave_device(int32_t node, RecordKind kind) {
  Node& n = at(node);
  if (kind == RecordKind::page) {
    pages_.release(n.page.device);
    n.page.device = PageId(-1);
    --counts_.pages_in[index_of(Tier::device)];
  } else {
    states_.release(n.snapshot.device);
    n.snapshot.device = StateId(-1);
    --counts_.snapshots_in[index_of(Tier::device)];
    rank(node);
    if (!n.snapshot.any()) lose_snapshot(node);
  }
  classify(node);
}

bool PrefixIndex::drop(int32_t node, Tier tier, RecordKind kind) {
  Node& n = at(node);
  const bool page = kind == RecordKind::page;
  if (page) {
    const bool elsewhere = n.page.device.value >= 0 || n.page.in(tier == Tier::host ? Tier::disk : Tier::host);
    if (!elsewhere) {
      if (n.first_child >= 0) return false;
      remove(node);
      return true;
    }
  }
  if (tier == Tier::host) {
    leave_host(node, kind);
    return true;
  }
  lower_.disk->remove(kind, n.key);
  (page ? n.page.disk : n.snapshot.disk) = false;
  --(page ? counts_.pages_in : counts_.snapshots_in)[index_of(Tier::disk)];
  if (!page && !n.snapshot.any()) lose_snapshot(node);
  classify(node);
  return true;
}

void PrefixIndex::remove(int32_t node) {
  Node& n = at(node);
  check(n.first_child < 0, "a page goes before those behind it");
  check(n.pins == 0, "a page goes that somebody waits for");
  if (n.snapshot.device.value >= 0) leave_device(node, RecordKind::snapshot);
  for (Tier t : {Tier::host, Tier::disk})
    if (n.snapshot.in(t)) drop(node, t, RecordKind::snapshot);
  if (n.page.device.value >= 0) leave_device(node, RecordKind::page);
  if (n.page.host.value >= 0) {
    lower_.host->pages.release(n.page.host);
    --counts_.pages_in[index_of(Tier::host)];
  }
  if (n.page.disk) {
    lower_.disk->remove(RecordKind::page, n.key);
    --counts_.pages_in[index_of(Tier::disk)];
  }
  const auto [begin, end] = by_key_.equal_range(n.key);
  by_key_.erase(std::find_if(begin, end, [&](const auto& i) { return i.second == node; }));
  (n.before >= 0 ? at(n.before).next : at(n.parent).first_child) = n.next;
  if (n.next >= 0) at(n.next).before = n.before;
  if (n.parent == 0) {
    const auto i = beginnings_.find(key_of(0, 0, n.tokens));
    if (--i->second == 0) beginnings_.erase(i);
  }
  gone_.insert(n.key);
  ++counts_.evicted_pages;
  const int32_t parent = n.parent;
  n = {};
  classify(node);
  if (parent != 0) classify(parent);
  free_.push_back(node);
  --live_;
}

void PrefixIndex::remove_subtree(int32_t node) {
  for (int32_t i = node;;) {
    if (at(i).first_child >= 0) {
      i = at(i).first_child;
      continue;
    }
    const int32_t parent = at(i).parent;
    remove(i);
    if (i == node) return;
    i = parent;
  }
}

// Of the host or the disk. Moves nodes that cannot go to the back: they are in use.
template <class F>
bool PrefixIndex::any_of(std::span<NodeList* const> lists, F&& evict) {
  for (NodeList* l : lists) {
    NodeList& list = *l;
    const int64_t most = std::min<int64_t>(list.size(), kMostTried);
    for (int64_t tried = 0; tried < most && list.front() != kNone; ++tried) {
      const int32_t node = list.front();
      if (at(node).pins == 0 && evict(node)) return true;
      if (list.contains(node)) list.push(node);
    }
  }
  return false;
}

bool PrefixIndex::evict_useless() {
  NodeList& list = useless_[index_of(Tier::device)];
  for (int64_t tried = 0, most = list.size(); tried < most; ++tried) {
    const int32_t node = list.front();
    if (!held(at(node))) {
      remove(node);
      return true;
    }
    list.push(node);
  }
  return false;
}

bool PrefixIndex::move_page_down() {
  if (!lower_.host && !lower_.disk) return false;
  NodeList& list = others_[index_of(Tier::device)];
  for (int64_t tried = 0, most = list.size(); tried < most; ++tried) {
    const int32_t node = list.front();
    if (held(at(node))) {
      list.push(node);
      continue;
    }
    if (!copy_down(node, RecordKind::page)) return false;
    leave_device(node, RecordKind::page);
    return true;
  }
  return false;
}

bool PrefixIndex::evict_snapshot() {
  for (auto i = ranked_.begin(); i != ranked_.end();) {
    const int32_t node = i->second;
    Node& n = at(node);
    if (states_.references(n.snapshot.device) > 1) {
      ++i;
      continue;
    }
    const double worth = n.base + static_cast<double>(distance(node));
    if (worth > n.worth) {  // the snapshot before it has gone since: it has become dearer
      ranked_.erase(i);
      n.worth = worth;
      ranked_.emplace(worth, node);
      i = ranked_.begin();
      continue;
    }
    inflation_ = worth;
    copy_down(node, RecordKind::snapshot);
    leave_device(node, RecordKind::snapshot);
    return true;
  }
  return false;
}

bool PrefixIndex::evict_any_subtree() {
  NodeList& list = others_[index_of(Tier::device)];
  for (int32_t i = list.front(); i != kNone; i = list.next(i))
    if (!held(at(i))) {
      remove_subtree(i);
      return true;
    }
  return false;
}

bool PrefixIndex::free_pages(int64_t pages) {
  while (pages_.free() < pages)
    if (!evict_useless() && !move_page_down() && !evict_snapshot() && !evict_any_subtree()) return false;
  return true;
}

bool PrefixIndex::free_states(int64_t states) {
  while (states_.free() < states)
    if (!evict_snapshot()) return false;
  return true;
}

bool PrefixIndex::free_host(int64_t pages, int64_t states) {
  if (!lower_.host) return pages == 0 && states == 0;
  while (lower_.host->pages.free() < pages)
    if (!evict_host(RecordKind::page) && !take_from_host(RecordKind::page)) return false;
  while (lower_.host->states.free() < states)
    if (!evict_host(RecordKind::snapshot) && !take_from_host(RecordKind::snapshot)) return false;
  return true;
}

// Last of all: a page that others are behind goes with them, and one that somebody waits for goes from under him, who begins anew.
bool PrefixIndex::take_from_host(RecordKind kind) {
  const bool page = kind == RecordKind::page;
  for (const auto* lists : {&useless_, &others_})
    for (int32_t i = (*lists)[index_of(Tier::host)].front(); i != kNone; i = (*lists)[index_of(Tier::host)].next(i)) {
      const Node& n = at(i);
      if (page ? n.page.host.value < 0 : n.snapshot.host.value < 0) continue;
      const bool last = page && n.page.device.value < 0 && !n.page.disk;
      if (last && n.pins == 0) remove_subtree(i);
      else leave_host(i, kind);
      return true;
    }
  return false;
}

void PrefixIndex::leave_host(int32_t node, RecordKind kind) {
  Node& n = at(node);
  if (kind == RecordKind::page) {
    lower_.host->pages.release(n.page.host);
    n.page.host = HostPageId(-1);
    --counts_.pages_in[index_of(Tier::host)];
  } else {
    lower_.host->states.release(n.snapshot.host);
    n.snapshot.host = HostStateId(-1);
    --counts_.snapshots_in[index_of(Tier::host)];
    if (!n.snapshot.any()) lose_snapshot(node);
  }
  classify(node);
}

void PrefixIndex::lose_snapshot(int32_t node) {
  --snapshots_;
  ++counts_.evicted_snapshots;
  at(node).had_snapshot = true;
}

// True if the record lies on a lower tier now.
bool PrefixIndex::copy_down(int32_t node, RecordKind kind) {
  const Node& n = at(node);
  const bool below = kind == RecordKind::page ? n.page.host.value >= 0 || n.page.disk : n.snapshot.host.value >= 0 || n.snapshot.disk;
  if (below) return true;
  ++at(node).pins;  // making room must not take it
  const bool copied = copy_to_host(node, kind) || copy_to_disk(node, kind);
  --at(node).pins;
  return copied;
}

bool PrefixIndex::copy_to_host(int32_t node, RecordKind kind) {
  const bool page = kind == RecordKind::page;
  if (!lower_.host) return false;
  while ((page ? lower_.host->pages.free() : lower_.host->states.free()) == 0)
    if (!evict_host(kind)) return false;
  Node& n = at(node);
  if (page) {
    std::vector<HostPageId> id;
    check(lower_.host->pages.take(1, &id), "a free record of the host cannot be taken");
    n.page.host = id[0];
    lower_.mover.read_page(n.page.device, lower_.host->at(id[0]));
  } else {
    std::vector<HostStateId> id;
    check(lower_.host->states.take(1, &id), "a free record of the host cannot be taken");
    n.snapshot.host = id[0];
    lower_.mover.read_state(n.snapshot.device, lower_.host->at(id[0]));
  }
  ++(page ? counts_.pages_in : counts_.snapshots_in)[index_of(Tier::host)];
  ++(page ? counts_.pages_to : counts_.snapshots_to)[index_of(Tier::host)];
  classify(node);
  return true;
}

// What lies on disk is of use only behind its parent's page, so a record takes along the pages before it that are not there.
bool PrefixIndex::copy_to_disk(int32_t node, RecordKind kind) {
  if (!lower_.disk) return false;
  std::vector<int32_t> missing;
  for (int32_t i = kind == RecordKind::page ? at(node).parent : node; i > 0 && !at(i).page.disk; i = at(i).parent) missing.push_back(i);
  std::ranges::reverse(missing);
  ++at(node).pins;  // making room must take neither it nor, since they are before it, those
  const bool written = std::ranges::all_of(missing, [&](int32_t i) { return write_to_disk(i, RecordKind::page); }) && write_to_disk(node, kind);
  --at(node).pins;
  return written;
}

bool PrefixIndex::write_to_disk(int32_t node, RecordKind kind) {
  if (by_key_.count(at(node).key) > 1) return false;  // two prefixes of one name cannot both have a file
  if (!room_on_disk(kind)) return false;
  Node& n = at(node);
  const bool page = kind == RecordKind::page;
  if (n.parent != 0 && !at(n.parent).page.disk) return false;  // it had to make room
  std::span<const std::byte> bytes = host_bytes(node, kind);
  if (!on_host(node, kind)) {
    const std::span<std::byte> bounce = std::span(bounce_).first(static_cast<size_t>(page ? lower_.mover.page_bytes : lower_.mover.state_bytes));
    if (page ? n.page.device.value < 0 : n.snapshot.device.value < 0) return false;
    if (page) lower_.mover.read_page(n.page.device, bounce);
    else lower_.mover.read_state(n.snapshot.device, bounce);
    bytes = bounce;
  }
  const DiskRecord record{.kind = kind,
                          .key = n.key,
                          .parent = n.parent == 0 ? PrefixKey{} : at(n.parent).key,
                          .salt = n.salt,
                          .depth = n.depth,
                          .folded = page ? TokenPos(0) : n.folded,
                          .tokens = n.tokens,
                          .used_s = 0};
  if (!lower_.disk->write(record, bytes)) {  // the queue is full; to lose the record would cost more than to wait for it
    lower_.disk->flush();
    if (!lower_.disk->write(record, bytes)) return false;
  }
  (page ? n.page.disk : n.snapshot.disk) = true;
  ++(page ? counts_.pages_in : counts_.snapshots_in)[index_of(Tier::disk)];
  ++(page ? counts_.pages_to : counts_.snapshots_to)[index_of(Tier::disk)];
  classify(node);
  return true;
}

// One record of the host goes, to disk if it is not there and has room, else away.
bool PrefixIndex::evict_host(RecordKind kind) {
  const bool page = kind == RecordKind::page;
  NodeList* const snapshots[] = {&host_snapshots_};
  const auto pages = of_tier(Tier::host);
  return any_of(page ? std::span<NodeList* const>(pages) : std::span<NodeList* const>(snapshots), [&](int32_t node) {
    Node& n = at(node);
    if (page && n.page.host.value < 0) return false;
    if (!n.useless() && !(page ? n.page.disk : n.snapshot.disk)) copy_to_disk(node, kind);
    return drop(node, Tier::host, kind);
  });
}

bool PrefixIndex::room_on_disk(RecordKind kind) {
  while (!lower_.disk->room_for(kind))
    if (!any_of(of_tier(Tier::disk), [&](int32_t node) {
          if (at(node).snapshot.disk) return drop(node, Tier::disk, RecordKind::snapshot);
          return drop(node, Tier::disk, RecordKind::page);
        }))
      return false;
  return true;
}

void PrefixIndex::save(const std::function<bool()>& go_on) {
  if (!lower_.disk) return;
  std::vector<int32_t> ends;
  for (size_t i = 1; i < nodes_.size(); ++i)
    if (nodes_[i].snapshot.any()) ends.push_back(static_cast<int32_t>(i));
  std::ranges::sort(ends, [&](int32_t a, int32_t b) { return at(a).base != at(b).base ? at(a).base > at(b).base : at(a).depth > at(b).depth; });
  int64_t left = lower_.disk->limit_bytes();  // what is older there gives way, but not to what is less useful than the last written
  for (int32_t end : ends) {
    if (!at(end).snapshot.any()) continue;  // it made room for one before
    int64_t bytes = at(end).snapshot.disk ? 0 : lower_.mover.state_bytes;
    for (int32_t i = end; i > 0; i = at(i).parent) bytes += at(i).page.disk ? 0 : lower_.mover.page_bytes;
    left -= bytes + bytes / 8;  // headers
    if (left < 0 || !go_on()) break;
    if (!at(end).snapshot.disk) copy_to_disk(end, RecordKind::snapshot);
    use(end);
  }
  lower_.disk->flush();
}

void PrefixIndex::clear() {
  for (size_t i = 1; i < nodes_.size(); ++i) {  // what lies on disk stays there for the next run
    nodes_[i].page.disk = nodes_[i].snapshot.disk = false;
    nodes_[i].pins = 0;
  }
  counts_.pages_in[index_of(Tier::disk)] = counts_.snapshots_in[index_of(Tier::disk)] = 0;
  snapshots_ = std::ranges::count_if(nodes_, [](const Node& n) { return n.snapshot.any(); });
  for (size_t i = 1; i < nodes_.size(); ++i)
    if (!nodes_[i].tokens.empty() && nodes_[i].parent == 0) remove_subtree(static_cast<int32_t>(i));
}

}  // namespace winnow::cache
