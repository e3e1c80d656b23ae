#include "engine/scheduler.h"

#include <algorithm>

namespace winnow::engine {

Scheduler::Scheduler(const SchedulerOptions& o, cache::PagePool& pages, cache::StatePool& states)
    : options_(o), pages_(pages), states_(states), reuse_(pages, states, o.page_tokens, o.max_sequences, o.reuse) {
  if (o.chunk_grid < 1 || o.max_batched_tokens < o.chunk_grid)
    throw error("max_batched_tokens is {}; a step needs room for a chunk of {} tokens", o.max_batched_tokens, o.chunk_grid);
  if (o.max_sequences < 1) throw error("max_sequences is {}; it must be at least 1", o.max_sequences);
  if (o.max_sequences > o.max_batched_tokens)
    throw error("max_sequences is {}, more than max_batched_tokens, {}; a step needs a row for each", o.max_sequences, o.max_batched_tokens);
  running_.reserve(static_cast<size_t>(o.max_sequences));
  chunks_.reserve(static_cast<size_t>(o.max_sequences));
}

Scheduler::~Scheduler() = default;

void Scheduler::add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

std::span<const std::unique_ptr<Sequence>> Scheduler::admit() {
  const size_t before = running_.size();
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.max_sequences && !head_waits_) {
    head_waits_ = !reuse_.admit(*waiting_.front());
    if (head_waits_) break;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return std::span(running_).subspan(before);
}

// Rows of the next prefill chunk of a sequence when at most `rows` are left; 0 if that is too few for one.
int64_t Scheduler::chunk_rows(const Sequence& s, int64_t rows) const {
  const int64_t cut = reuse_.next_cut(s);
  int64_t end = std::min(s.num_computed_tokens + rows, cut);
  if (end < cut) end = end / options_.chunk_grid * options_.chunk_grid;
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

void Scheduler::computed(const Chunk& chunk) {
  if (reuse_.computed(*chunk.sequence)) head_waits_ = false;
}

std::unique_ptr<Sequence> Scheduler::remove(RequestId id) {
  const auto is = [&](const auto& s) { return s->id == id; };
  std::unique_ptr<Sequence> out;
  if (const auto r = std::ranges::find_if(running_, is); r != running_.end()) {
    out = std::move(*r);
    running_.erase(r);
    reuse_.release(*out);
    head_waits_ = false;
  } else if (const auto w = std::ranges::find_if(waiting_, is); w != waiting_.end()) {
    out = std::move(*w);
    waiting_.erase(w);
    head_waits_ = false;
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
  reuse_.index().check_integrity();
  std::vector<int32_t> pages(static_cast<size_t>(pages_.size())), states(static_cast<size_t>(states_.size()));
  reuse_.index().count_references(pages, states);
  for (const auto& s : running_) {
    check(static_cast<int64_t>(s->pages.size()) == s->worst_case_pages(options_.page_tokens), "a running sequence lacks pages");
    for (PageId p : s->pages) ++pages[static_cast<size_t>(p.value)];
    for (StateId id : {s->state, s->source, s->page_end})
      if (id.value >= 0) ++states[static_cast<size_t>(id.value)];
  }
  for (const auto& s : waiting_) check(s->pages.empty(), "a waiting request holds pages");
  for (size_t i = 0; i < pages.size(); ++i)
    check(pages_.references(PageId(static_cast<int64_t>(i))) == pages[i], "a page's references are miscounted");
  for (size_t i = 0; i < states.size(); ++i)
    check(states_.references(StateId(static_cast<int64_t>(i))) == states[i], "a state's references are miscounted");
}

}  // namespace winnow::engine
