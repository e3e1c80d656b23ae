#include "engine/swap.h"

namespace winnow::engine {

bool Swap::fits(int64_t pages, int64_t sequences) const {
  if (sequences == 0) return true;
  return host_ && pages <= host_->pages.size() && sequences <= host_->states.size();
}

void Swap::out(Sequence& s) {
  check(host_ && s.running() && !s.restoring, "a sequence is preempted that cannot be");
  reuse_.settle(s);
  const std::span<const PageId> own = std::span(s.pages).subspan(static_cast<size_t>(s.held_pages));
  const int64_t n = static_cast<int64_t>(own.size());
  std::vector<cache::HostStateId> state;
  check(reuse_.index().free_host(n, 1) && host_->pages.take(n, &s.swapped_pages) && host_->states.take(1, &state),
        "the host has no room for a preempted sequence");
  s.swapped_state = state[0];
  for (size_t i = 0; i < own.size(); ++i)
    if (mover_.read_page) mover_.read_page(own[i], host_->at(s.swapped_pages[i]));
  if (mover_.read_state) mover_.read_state(s.source.value >= 0 ? s.source : s.state, host_->at(s.swapped_state));
  pages_.release(own);
  s.pages.resize(static_cast<size_t>(s.held_pages));
  for (StateId* id : {&s.source, &s.state}) {
    if (id->value >= 0) states_.release(*id);
    *id = StateId(-1);
  }
  ++s.preemptions;
  ++preemptions_;
}

bool Swap::in(Sequence& s) {
  const int64_t n = static_cast<int64_t>(s.swapped_pages.size());
  std::vector<StateId> state;
  if (!reuse_.index().free_states(1) || !reuse_.index().free_pages(n)) return false;
  check(states_.take(1, &state) && pages_.take(n, &s.pages), "free records cannot be taken");
  s.state = state[0];
  for (size_t i = 0; i < s.swapped_pages.size(); ++i)
    if (mover_.write_page) mover_.write_page(s.pages[static_cast<size_t>(s.held_pages) + i], host_->at(s.swapped_pages[i]));
  if (mover_.write_state) mover_.write_state(s.state, host_->at(s.swapped_state));
  drop(s);
  return true;
}

void Swap::drop(Sequence& s) {
  host_->pages.release(s.swapped_pages);
  host_->states.release(s.swapped_state);
  s.swapped_pages.clear();
  s.swapped_state = cache::HostStateId(-1);
}

}  // namespace winnow::engine
