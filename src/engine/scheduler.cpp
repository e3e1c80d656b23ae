#include "engine/scheduler.h"

#include <algorithm>

namespace winnow::engine {

Scheduler::Scheduler(const SchedulerOptions& o, cache::PagePool& pages, cache::StatePool& states) : options_(o), pages_(pages), states_(states) {
  if (o.chunk_grid < 1 || o.max_batched_tokens < o.chunk_grid)
    throw error("max_batched_tokens is {}; a step needs room for a chunk of {} tokens", o.max_batched_tokens, o.chunk_grid);
  if (o.max_sequences < 1) throw error("max_sequences is {}; it must be at least 1", o.max_sequences);
  if (o.max_sequences > o.max_batched_tokens)
    throw error("max_sequences is {}, more than max_batched_tokens, {}; a step needs a row for each", o.max_sequences, o.max_batched_tokens);
  running_.reserve(static_cast<size_t>(o.max_sequences));
  chunks_.reserve(static_cast<size_t>(o.max_sequences));
  taken_.reserve(1);
}

Scheduler::~Scheduler() = default;

void Scheduler::add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

std::span<const std::unique_ptr<Sequence>> Scheduler::admit() {
  const size_t before = running_.size();
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.max_sequences && states_.free() > 0) {
    Sequence& s = *waiting_.front();
    if (!pages_.take(s.worst_case_pages(options_.page_tokens), &s.pages)) break;
    taken_.clear();
    check(states_.take(1, &taken_), "a free state cannot be taken");
    s.state = taken_.front();
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return std::span(running_).subspan(before);
}

// Rows of the next prefill chunk of a sequence when at most `rows` are left; 0 if that is too few for one.
int64_t Scheduler::chunk_rows(const Sequence& s, int64_t rows) const {
  int64_t end = std::min(s.num_computed_tokens + rows, s.prompt_tokens);
  if (end < s.prompt_tokens) end = end / options_.chunk_grid * options_.chunk_grid;
  return std::max<int64_t>(end - s.num_computed_tokens, 0);
}

std::span<const Chunk> Scheduler::plan() {
  chunks_.clear();
  int64_t rows = options_.max_batched_tokens;
  const auto oldest = std::ranges::find_if(running_, [](const auto& s) { return s->prefilling(); });
  const bool prefilling = oldest != running_.end();
  const int64_t kept = prefilling && prefill_crowded_out_ ? chunk_rows(**oldest, options_.chunk_grid) : 0;
  const auto push = [&](Sequence& s, int64_t count) {
    chunks_.push_back({&s, TokenPos(s.num_computed_tokens), count});
    rows -= count;
  };

  for (const auto& s : running_)
    if (!s->prefilling() && rows > kept) push(*s, 1);
  const size_t decodes = chunks_.size();
  for (auto it = oldest; it != running_.end(); ++it) {
    if (!(*it)->prefilling()) continue;
    const int64_t count = chunk_rows(**it, rows);
    if (count > 0) push(**it, count);
    if ((*it)->num_computed_tokens + count < (*it)->prompt_tokens) break;  // a younger and shorter prompt does not overtake
  }
  prefill_crowded_out_ = prefilling && chunks_.size() == decodes;
  return chunks_;
}

void Scheduler::release(Sequence& s) {
  pages_.release(s.pages);
  s.pages.clear();
  states_.release(s.state);
}

std::unique_ptr<Sequence> Scheduler::remove(RequestId id) {
  const auto is = [&](const auto& s) { return s->id == id; };
  std::unique_ptr<Sequence> out;
  if (const auto r = std::ranges::find_if(running_, is); r != running_.end()) {
    out = std::move(*r);
    running_.erase(r);
    release(*out);
  } else if (const auto w = std::ranges::find_if(waiting_, is); w != waiting_.end()) {
    out = std::move(*w);
    waiting_.erase(w);
  }
  return out;
}

std::vector<std::unique_ptr<Sequence>> Scheduler::remove_all() {
  std::vector<std::unique_ptr<Sequence>> out;
  while (!running_.empty()) out.push_back(remove(running_.front()->id));
  while (!waiting_.empty()) out.push_back(remove(waiting_.front()->id));
  return out;
}

void Scheduler::check_integrity() const {
  pages_.check_integrity();
  states_.check_integrity();
  int64_t pages = 0;
  for (const auto& s : running_) {
    check(static_cast<int64_t>(s->pages.size()) == s->worst_case_pages(options_.page_tokens), "a running sequence lacks pages");
    for (PageId p : s->pages) check(pages_.references(p) == 1, "a page of a running sequence has another holder or none");
    check(states_.references(s->state) == 1, "the state of a running sequence has another holder or none");
    pages += static_cast<int64_t>(s->pages.size());
  }
  for (const auto& s : waiting_) check(s->pages.empty(), "a waiting request holds pages");
  check(pages == pages_.used(), "a page is held by no sequence");
  check(static_cast<int64_t>(running_.size()) == states_.used(), "a state is held by no sequence");
}

}  // namespace winnow::engine
