#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

namespace winnow::engine {
namespace {

bool before(const Sequence& a, const Sequence& b) {
  return a.request.priority != b.request.priority ? a.request.priority < b.request.priority : a.id < b.id;
}

// Puts a sequence where it belongs by rank.
void insert_by_rank(auto& into, std::unique_ptr<Sequence> s) {
  const auto at = std::ranges::upper_bound(into, *s, before, [](const auto& other) -> const Sequence& { return *other; });
  into.insert(at, std::move(s));
}

std::unique_ptr<Sequence> take_out(auto& from, const auto& is) {
  const auto found = std::ranges::find_if(from, is);
  if (found == from.end()) return nullptr;
  std::unique_ptr<Sequence> out = std::move(*found);
  from.erase(found);
  return out;
}

// Whether there is something that preemption must save.
bool began(const Sequence& s) { return !s.restoring && s.num_computed_tokens > s.cached.tokens; }

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& o, cache::PagePool& pages, cache::StatePool& states)
    : options_(o),
      pages_(pages),
      states_(states),
      reuse_(pages, states,
             {.what = o.reuse,
              .page_tokens = o.page_tokens,
              .max_sequences = o.max_sequences,
              .snapshot_interval = o.snapshot_interval,
              .lower = o.lower,
              .seed = o.seed}),
      swap_(pages, states, reuse_, o.lower) {
  if (o.chunk_grid < 1 || o.max_batched_tokens < o.chunk_grid)
    throw error("max_batched_tokens is {}; a step needs room for a chunk of {} tokens", o.max_batched_tokens, o.chunk_grid);
  if (o.max_sequences < 1) throw error("max_sequences is {}; it must be at least 1", o.max_sequences);
  if (o.max_sequences > o.max_batched_tokens)
    throw error("max_sequences is {}, more than max_batched_tokens, {}; a step needs a row for each", o.max_sequences, o.max_batched_tokens);
  if (o.snapshot_interval < 0 || o.snapshot_interval % o.page_tokens != 0)
    throw error("snapshot_interval is {}; it must be a multiple of the page size, {} tokens, or 0", o.snapshot_interval, o.page_tokens);
  running_.reserve(static_cast<size_t>(o.max_sequences));
  chunks_.reserve(static_cast<size_t>(o.max_sequences));
}

Scheduler::~Scheduler() { remove_all(); }

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  const bool first = waiting_.empty() || before(*sequence, *waiting_.front());
  if (first) head_waits_ = false;
  insert_by_rank(waiting_, std::move(sequence));
}

Scheduler::Share Scheduler::share(const Sequence* candidate) const {
  Share share;
  int64_t used = reuse_.held_pages(candidate);
  bool on = true;
  const auto count = [&](const Sequence& s) {
    const int64_t worst = s.worst_case_pages(options_.page_tokens) - s.held_pages;
    on = on && share.on_device < options_.max_sequences && used + worst <= pages_.size();
    if (on) {
      used += worst;
      ++share.on_device;
    }
    if (on && !s.swapped()) return;
    share.swap_pages += on ? static_cast<int64_t>(s.swapped_pages.size()) : worst;
    ++share.swap_sequences;
  };
  auto r = running_.begin();
  auto w = swapped_.begin();
  while (r != running_.end() || w != swapped_.end()) {
    const bool running = w == swapped_.end() || (r != running_.end() && before(**r, **w));
    const Sequence& next = running ? **r : **w;
    if (candidate && before(*candidate, next)) count(*std::exchange(candidate, nullptr));
    else if (running) count(**r++);
    else count(**w++);
  }
  if (candidate) count(*candidate);
  return share;
}

bool Scheduler::can_end(const Share& share, const Sequence* candidate) const {
  if (!swap_.fits(share.swap_pages, share.swap_sequences)) return false;
  // Whoever is first by rank, later too, must fit beside the pages that are held as prefixes.
  const int64_t held = reuse_.held_pages(candidate);
  const auto fits = [&](const Sequence& s) { return held + s.worst_case_pages(options_.page_tokens) - s.held_pages <= pages_.size(); };
  return (!candidate || fits(*candidate)) && std::ranges::all_of(running_, [&](const auto& s) { return fits(*s); }) &&
         std::ranges::all_of(swapped_, [&](const auto& s) { return fits(*s); });
}

// Whether a sequence that comes to the device with `pages` pages will not have to leave it at once: it counts there, or there are pages
// for it and for what the others need next.
bool Scheduler::room_for_stay(const Share& share, const Sequence& s, int64_t pages) {
  const auto ahead = std::ranges::count_if(running_, [&](const auto& other) { return before(*other, s); }) +
                     std::ranges::count_if(swapped_, [&](const auto& other) { return before(*other, s); });
  return ahead < share.on_device || reuse_.index().free_pages(pages + static_cast<int64_t>(running_.size()) + 1);
}

bool Scheduler::admit_first() {
  Sequence& s = *waiting_.front();
  if (!swapped_.empty() && before(*swapped_.front(), s)) return false;
  const bool crowded = static_cast<int64_t>(running_.size()) >= options_.max_sequences;
  if (crowded && running_.back()->request.priority <= s.request.priority) return false;
  reuse_.begin(s, s.scored());
  if (fit(s, crowded)) return true;
  const bool below = s.restoring, alone = running_.empty() && swapped_.empty();
  reuse_.release(s);
  if (!below && !alone) return false;
  reuse_.begin(s, true);  // there are no records to spare for bringing up what it could begin with; computing it is better than to wait
  if (fit(s, static_cast<int64_t>(running_.size()) >= options_.max_sequences)) return true;
  check(!alone, "a request does not fit an empty engine");
  reuse_.release(s);
  return false;
}

// Takes what a sequence that has begun needs to run, from those behind it if need be.
bool Scheduler::fit(Sequence& s, bool crowded) {
  const Share now = share(&s);
  const int64_t first = pages_for(std::min(s.num_computed_tokens + options_.chunk_grid, s.prompt_tokens), options_.page_tokens);
  if (!can_end(now, &s) || !room_for_stay(now, s, first)) return false;
  if (crowded) preempt_last();
  bool taken = reuse_.take(s);
  while (!taken && preempt_behind(s)) taken = reuse_.take(s);
  return taken;
}

std::span<Sequence* const> Scheduler::admit() {
  admitted_.clear();
  resume();
  while (!waiting_.empty() && !head_waits_) {
    head_waits_ = !admit_first();
    if (head_waits_) break;
    std::unique_ptr<Sequence> s = std::move(waiting_.front());
    waiting_.pop_front();
    s->service = std::max(s->service, service_);
    admitted_.push_back(s.get());
    insert_by_rank(running_, std::move(s));
  }
  return admitted_;
}

void Scheduler::resume() {
  while (!swapped_.empty()) {
    Sequence& s = *swapped_.front();
    if (!room_for_stay(share(nullptr), s, static_cast<int64_t>(s.swapped_pages.size()))) return;
    if (static_cast<int64_t>(running_.size()) >= options_.max_sequences && !preempt_behind(s)) return;
    bool in = swap_.in(s);
    while (!in && preempt_behind(s)) in = swap_.in(s);
    if (!in) return;
    std::unique_ptr<Sequence> back = std::move(swapped_.front());
    swapped_.erase(swapped_.begin());
    insert_by_rank(running_, std::move(back));
  }
}

void Scheduler::preempt_last() {
  std::unique_ptr<Sequence> s = std::move(running_.back());
  running_.pop_back();
  std::erase_if(chunks_, [&](const Chunk& c) {
    if (c.sequence != s.get()) return false;
    rows_ += c.count;
    return true;
  });
  if (!began(*s)) {
    reuse_.release(*s);
    insert_by_rank(waiting_, std::move(s));
  } else {
    swap_.out(*s);
    insert_by_rank(swapped_, std::move(s));
  }
}

bool Scheduler::preempt_behind(const Sequence& s) {
  if (running_.empty() || !before(s, *running_.back())) return false;
  const Sequence& victim = *running_.back();
  if (began(victim)) {  // whoever counts on the device has no room on the host, and stays
    const bool candidate = !s.running() && !s.swapped();
    const auto ahead = static_cast<int64_t>(running_.size()) - 1 + candidate +
                       std::ranges::count_if(swapped_, [&](const auto& other) { return before(*other, victim); });
    if (ahead < share(candidate ? &s : nullptr).on_device) return false;
  }
  preempt_last();
  return true;
}

void Scheduler::requeue(Sequence& s) {
  std::unique_ptr<Sequence> out = take_out(running_, [&](const auto& other) { return other.get() == &s; });
  reuse_.release(*out);
  insert_by_rank(waiting_, std::move(out));
  head_waits_ = false;
}

bool Scheduler::restore(int64_t bytes) {
  const std::span<Sequence* const> lost = reuse_.restore(bytes);
  for (Sequence* s : lost) requeue(*s);
  return !lost.empty();
}

bool Scheduler::grow(Sequence& s, int64_t tokens) {
  const int64_t more = pages_for(tokens, options_.page_tokens) - static_cast<int64_t>(s.pages.size());
  if (more <= 0) return true;
  while (!reuse_.index().free_pages(more))
    if (!preempt_behind(s)) return false;
  return pages_.take(more, &s.pages);
}

// Rows of the next prefill chunk of a sequence when at most `rows` are left; 0 if that is too few for one.
int64_t Scheduler::chunk_rows(const Sequence& s, int64_t rows) const {
  const int64_t cut = reuse_.next_cut(s);
  int64_t end = std::min(s.num_computed_tokens + rows, cut);
  if (end < cut) end = end / options_.chunk_grid * options_.chunk_grid;
  return std::max<int64_t>(end - s.num_computed_tokens, 0);
}

// The same when its pages and free ones are all there is.
int64_t Scheduler::room_for(const Sequence& s, int64_t rows) const {
  const int64_t room = (static_cast<int64_t>(s.pages.size()) + pages_.free()) * options_.page_tokens - s.num_computed_tokens;
  return chunk_rows(s, std::min(rows, room));
}

void Scheduler::order_prefills() {
  prefills_.clear();
  for (const auto& s : running_)
    if (s->prefilling() && !s->restoring) prefills_.push_back(s.get());
  std::ranges::sort(prefills_, [](const Sequence* a, const Sequence* b) {
    if (a->request.priority != b->request.priority) return a->request.priority < b->request.priority;
    return a->service != b->service ? a->service < b->service : a->id < b->id;
  });
}

void Scheduler::push(Sequence& s, int64_t count) {
  chunks_.push_back({&s, TokenPos(s.num_computed_tokens), count});
  rows_ -= count;
}

std::span<const Chunk> Scheduler::plan(int64_t prefill_rows) {
  chunks_.clear();
  rows_ = options_.max_batched_tokens;
  order_prefills();
  int64_t kept = !prefills_.empty() && prefill_crowded_out_ ? chunk_rows(*prefills_.front(), options_.chunk_grid) : 0;
  if (kept > 0 && !grow(*prefills_.front(), prefills_.front()->num_computed_tokens + kept)) kept = 0;
  for (size_t i = 0; i < running_.size(); ++i) {  // those behind may be preempted meanwhile
    Sequence& s = *running_[i];
    if (!s.prefilling() && !s.restoring && rows_ > kept && grow(s, s.num_computed_tokens + 1)) push(s, 1);
  }
  if (!chunks_.empty()) rows_ = std::min(rows_, std::max(prefill_rows, options_.chunk_grid));
  bool prefilled = false, crowded_out = !prefills_.empty();
  int64_t scored = options_.scored_rows;
  for (size_t i = 0; i < prefills_.size(); ++i) {
    Sequence& s = *prefills_[i];
    if (!s.running()) continue;  // preempted for one before it
    const int64_t rows = s.scored() ? std::min(rows_, scored) : rows_;
    int64_t count = chunk_rows(s, rows);
    crowded_out = crowded_out && count == 0;
    if (count > 0 && !grow(s, s.num_computed_tokens + count)) {
      count = room_for(s, rows);
      if (count > 0) check(grow(s, s.num_computed_tokens + count), "free pages cannot be taken");
    }
    if (count == 0) continue;
    if (!prefilled) service_ = std::max(service_, s.service);
    prefilled = true;
    s.service += count;
    if (s.scored()) scored -= count;
    push(s, count);
  }
  prefill_crowded_out_ = crowded_out;
  return chunks_;
}

void Scheduler::computed(const Chunk& chunk) {
  if (reuse_.computed(*chunk.sequence)) head_waits_ = false;
}

std::unique_ptr<Sequence> Scheduler::remove(RequestId id) {
  const auto is = [&](const auto& s) { return s->id == id; };
  std::unique_ptr<Sequence> out = take_out(running_, is);
  if (!out) out = take_out(swapped_, is);
  if (!out) out = take_out(waiting_, is);
  if (!out) return out;
  const bool swapped = out->swapped();
  reuse_.release(*out);
  if (swapped) swap_.drop(*out);
  head_waits_ = false;
  return out;
}

Scheduler::Sequences Scheduler::remove_all() {
  Sequences out;
  while (!running_.empty()) out.push_back(remove(running_.front()->id));
  while (!swapped_.empty()) out.push_back(remove(swapped_.front()->id));
  while (!waiting_.empty()) out.push_back(remove(waiting_.front()->id));
  return out;
}

void Scheduler::check_integrity() const {
  pages_.check_integrity();
  states_.check_integrity();
  reuse_.index().check_integrity();
  const cache::HostStore* host = options_.lower.host;
  std::vector<int32_t> pages(static_cast<size_t>(pages_.size())), states(static_cast<size_t>(states_.size()));
  std::vector<int32_t> host_pages(static_cast<size_t>(host ? host->pages.size() : 0)),
      host_states(static_cast<size_t>(host ? host->states.size() : 0));
  reuse_.index().count_references(pages, states, host_pages, host_states);
  for (const auto* list : {&running_, &swapped_})
    for (const auto& s : *list) {
      check(s->running() != s->swapped() && (list == &running_) == s->running(), "a sequence runs and is swapped out");
      const auto held = static_cast<int64_t>(s->pages.size());
      check(s->swapped() ? held == s->held_pages : held >= pages_for(s->num_computed_tokens, options_.page_tokens), "a sequence lacks pages");
      check(held <= s->worst_case_pages(options_.page_tokens), "a sequence has more pages than its worst case");
      for (PageId p : s->pages) ++pages[static_cast<size_t>(p.value)];
      for (StateId id : {s->state, s->source, s->page_end})
        if (id.value >= 0) ++states[static_cast<size_t>(id.value)];
      for (cache::HostPageId p : s->swapped_pages) ++host_pages[static_cast<size_t>(p.value)];
      if (s->swapped()) ++host_states[static_cast<size_t>(s->swapped_state.value)];
    }
  for (const auto& s : waiting_) check(s->pages.empty() && !s->running() && !s->swapped(), "a waiting request holds something");
  const auto agree = [](const auto& pool, const std::vector<int32_t>& counted, const char* what) {
    using Id = std::remove_cvref_t<decltype(pool)>::Record;
    for (size_t i = 0; i < counted.size(); ++i) check(pool.references(Id(static_cast<int64_t>(i))) == counted[i], what);
  };
  agree(pages_, pages, "a page's references are miscounted");
  agree(states_, states, "a state's references are miscounted");
  if (host) agree(host->pages, host_pages, "a page's references on the host are miscounted");
  if (host) agree(host->states, host_states, "a state's references on the host are miscounted");
  check(can_end(share(nullptr), nullptr), "an admitted sequence may not get to its end");
}

}  // namespace winnow::engine
