#include "engine/reuse.h"

#include <algorithm>

namespace winnow::engine {
using cache::RecordKind;

std::string_view name_of(Reuse r) {
  switch (r) {
    case Reuse::none: return "none";
    case Reuse::prefilled: return "prefilled";
    case Reuse::computed: return "computed";
  }
  return "?";
}

Result<Reuse> parse_reuse(std::string_view name) {
  for (Reuse r : {Reuse::none, Reuse::prefilled, Reuse::computed})
    if (name == name_of(r)) return r;
  return error("unknown '{}' (known: none, prefilled, computed)", name);
}

PrefixReuse::PrefixReuse(cache::PagePool& pages, cache::StatePool& states, const ReuseOptions& o)
    : pages_(pages),
      states_(states),
      options_(o),
      index_(pages, states, o.page_tokens, o.lower, o.seed),
      holders_(static_cast<size_t>(pages.size()), 0) {
  taken_.reserve(2);
  if (o.lower.disk) index_.adopt(o.lower.disk->take_found());
}

void PrefixReuse::begin(Sequence& s, bool cold) {
  cache::Match m;
  if (options_.what != Reuse::none && !cold) m = index_.match(s.tokens, s.request.cache_salt);
  if (!m.nodes.empty() && m.snapshot.value < 0 && states_.size() <= options_.max_sequences) {  // no place for it, ever
    index_.unpin(m.nodes);
    std::erase(m.pages, PageId(-1));
    pages_.release(m.pages);
    m = {.cut = cache::Cut::no_snapshot};
  }
  s.pages.assign(m.pages.begin(), m.pages.end());
  s.held_pages = s.indexed_pages = static_cast<int64_t>(m.pages.size());
  s.source = m.snapshot;
  s.folded = m.folded;
  s.num_computed_tokens = m.tokens;
  s.parts_at = m.shared > m.tokens ? m.shared : -1;
  s.cursor = {};
  s.cached = {.tokens = m.tokens, .pages_in = m.pages_in, .snapshot_in = m.snapshot_in, .lowest = m.lowest, .cut = m.cut};
  s.restoring = !m.nodes.empty();
  if (s.restoring) restores_.push_back({.sequence = &s, .nodes = std::move(m.nodes)});
}

bool PrefixReuse::take(Sequence& s) {
  const bool state_missing = s.restoring && s.source.value < 0;
  const int64_t missing = std::ranges::count(s.pages, PageId(-1));
  taken_.clear();
  if (!index_.free_states(1 + state_missing) || !index_.free_pages(missing)) return false;
  std::vector<PageId> places;
  check(states_.take(1 + state_missing, &taken_) && pages_.take(missing, &places), "free records cannot be taken");
  s.state = taken_[0];
  if (s.restoring) {
    const auto r = std::ranges::find(restores_, &s, &Restore::sequence);
    for (size_t i = 0, next = 0; i < s.pages.size(); ++i) {
      if (s.pages[i].value >= 0) continue;
      s.pages[i] = places[next++];
      r->parts.push_back({.node = r->nodes[i], .kind = RecordKind::page, .page = s.pages[i], .state = {}});
    }
    if (state_missing) {
      s.source = taken_[1];
      r->parts.push_back({.node = r->nodes.back(), .kind = RecordKind::snapshot, .page = {}, .state = s.source});
    }
  }
  hold(s, 1);
  if (options_.what != Reuse::none) index_.count(s.cached.tokens, s.cached.cut, s.cached.lowest);
  return true;
}

void PrefixReuse::hold(const Sequence& s, int32_t by) {
  for (PageId p : std::span(s.pages).first(static_cast<size_t>(s.held_pages))) {
    int32_t& n = holders_[static_cast<size_t>(p.value)];
    held_ -= n > 0;
    n += by;
    held_ += n > 0;
  }
}

int64_t PrefixReuse::held_pages(const Sequence* with) const {
  if (!with) return held_;
  const auto prefix = std::span(with->pages).first(static_cast<size_t>(with->held_pages));
  return held_ + std::ranges::count_if(prefix, [&](PageId p) { return p.value < 0 || holders_[static_cast<size_t>(p.value)] == 0; });
}

void PrefixReuse::land(Restore& r, const Part& part, std::span<const std::byte> bytes) {
  const cache::RecordMover& mover = options_.lower.mover;
  if (part.kind == RecordKind::page) {
    if (mover.write_page) mover.write_page(part.page, bytes);
    index_.arrived(part.node, part.page);
  } else {
    if (mover.write_state) mover.write_state(part.state, bytes);
    index_.arrived(part.node, part.state);
  }
  check(r.sequence->restoring, "a prefix is brought up for nobody");
}

void PrefixReuse::take_reads() {
  if (!options_.lower.disk) return;
  for (cache::DiskTier::Done done; options_.lower.disk->poll(&done);) {
    const auto i = reads_.find(done.ticket);
    if (done.ticket == 0 || i == reads_.end()) {  // a write failed, or nobody waits any more
      if (!done.error.empty()) index_.lost(done.key, done.kind);
      continue;
    }
    const auto [restore, part] = i->second;
    reads_.erase(i);
    --restore->reads;
    if (done.error.empty()) {
      land(*restore, part, done.payload);
    } else {
      restore->failed = true;
      index_.lost(part.node, part.kind);
    }
  }
}

void PrefixReuse::start(Restore& r, int64_t* bytes) {
  for (; r.next < r.parts.size() && *bytes > 0 && !r.failed; ++r.next) {
    const Part& part = r.parts[r.next];
    if (const auto from = index_.host_bytes(part.node, part.kind); index_.on_host(part.node, part.kind)) {
      land(r, part, from);
      *bytes -= std::max<int64_t>(static_cast<int64_t>(from.size()), 1);
    } else if (index_.on_disk(part.node, part.kind)) {
      if (static_cast<int64_t>(reads_.size()) >= kReadsAtOnce) return;
      reads_[index_.read(part.node, part.kind)] = {&r, part};
      ++r.reads;
    } else {
      r.failed = true;
    }
  }
}

std::span<Sequence* const> PrefixReuse::restore(int64_t bytes) {
  lost_.clear();
  take_reads();
  for (auto r = restores_.begin(); r != restores_.end();) {
    const auto next = std::next(r);
    start(*r, &bytes);
    if (r->reads == 0 && (r->failed || r->next == r->parts.size())) {
      ++(r->failed ? failed_ : restored_);
      if (r->failed) lost_.push_back(r->sequence);
      else forget(r);
    }
    r = next;
  }
  return lost_;
}

PrefixReuse::Restoring PrefixReuse::restoring() const {
  if (restores_.empty()) return Restoring::nothing;
  const bool copies = std::ranges::any_of(restores_, [&](const Restore& r) {
    if (r.failed || r.next == r.parts.size()) return r.reads == 0;  // to be ended
    return static_cast<int64_t>(reads_.size()) < kReadsAtOnce || index_.on_host(r.parts[r.next].node, r.parts[r.next].kind);
  });
  return copies ? Restoring::copies : Restoring::reads;
}

void PrefixReuse::forget(Restores::iterator r) {
  std::erase_if(reads_, [&](const auto& read) { return read.second.first == &*r; });
  r->sequence->restoring = false;
  index_.unpin(r->nodes);
  restores_.erase(r);
}

int64_t PrefixReuse::next_cut(const Sequence& s) const {
  int64_t cut = s.prompt_tokens;
  if (options_.what == Reuse::none) return cut;
  const int64_t last = (s.prompt_tokens - 1) / options_.page_tokens * options_.page_tokens, every = options_.snapshot_interval;
  for (int64_t at : {last, s.parts_at, every > 0 ? (s.num_computed_tokens / every + 1) * every : -1})
    if (at > s.num_computed_tokens) cut = std::min(cut, at);
  return cut;
}

std::span<const int32_t> PrefixReuse::reusable(const Sequence& s) const {
  const int64_t most = options_.what == Reuse::prefilled ? std::min(s.num_computed_tokens, s.prompt_tokens) : s.num_computed_tokens;
  return std::span(s.tokens).first(static_cast<size_t>(most / options_.page_tokens * options_.page_tokens));
}

bool PrefixReuse::hand_over(Sequence& s) {
  taken_.clear();
  const bool renewed = s.page_end.value >= 0;  // then the place of its last page end is the new one's
  if (states_.size() - options_.max_sequences - page_ends_ + renewed < 1) {
    ++missed_;
    return false;
  }
  drop_page_end(s);
  if (!index_.free_states(1) || !states_.take(1, &taken_)) {
    ++missed_;
    return false;
  }
  s.source = s.state;  // its reference goes along
  s.state = taken_.front();
  return true;
}

void PrefixReuse::drop_page_end(Sequence& s) {
  if (s.page_end.value < 0) return;
  states_.release(s.page_end);
  s.page_end = StateId(-1);
  --page_ends_;
}

bool PrefixReuse::wanted(const Sequence& s) const {
  const int64_t n = s.num_computed_tokens, last = (s.prompt_tokens - 1) / options_.page_tokens * options_.page_tokens;
  return n >= last || n == s.parts_at || (options_.snapshot_interval > 0 && n % options_.snapshot_interval == 0);
}

bool PrefixReuse::computed(Sequence& s) {
  const bool gave = s.source.value >= 0;
  if (gave) states_.release(s.source);
  s.source = StateId(-1);
  if (options_.what == Reuse::none) return gave;
  const std::span<const int32_t> prefix = reusable(s);
  const int64_t pages = static_cast<int64_t>(prefix.size()) / options_.page_tokens;
  if (pages > s.indexed_pages) {
    index_.insert(prefix, s.request.cache_salt, std::span(s.pages).first(static_cast<size_t>(pages)), &s.cursor);
    s.indexed_pages = pages;
  }
  if (static_cast<int64_t>(prefix.size()) != s.num_computed_tokens || s.num_computed_tokens == 0 || !wanted(s)) return gave;
  if (!hand_over(s)) return true;
  if (s.num_computed_tokens <= s.prompt_tokens) {
    if (index_.keep(prefix, s.request.cache_salt, s.source, s.folded, &s.cursor)) divergences_ += s.num_computed_tokens == s.parts_at;
    return gave;
  }
  ++page_ends_;
  states_.share(s.source);
  s.page_end = s.source;
  s.page_end_folded = s.folded;
  s.page_end_tokens = s.num_computed_tokens;
  return true;
}

void PrefixReuse::settle(Sequence& s) {
  if (s.page_end.value >= 0) {
    index_.keep(std::span(s.tokens).first(static_cast<size_t>(s.page_end_tokens)), s.request.cache_salt, s.page_end, s.page_end_folded);
    drop_page_end(s);
  }
  s.cursor = {};
  s.indexed_pages = s.held_pages;
}

void PrefixReuse::release(Sequence& s) {
  settle(s);
  const bool held = s.running() || s.swapped();
  if (held) hold(s, -1);
  if (s.restoring) forget(std::ranges::find(restores_, &s, &Restore::sequence));
  for (StateId* id : {&s.source, &s.state}) {
    if (id->value >= 0) states_.release(*id);
    *id = StateId(-1);
  }
  std::erase(s.pages, PageId(-1));
  pages_.release(s.pages);
  s.pages.clear();
  s.held_pages = s.indexed_pages = s.num_computed_tokens = 0;
  s.folded = TokenPos(0);
}

}  // namespace winnow::engine
