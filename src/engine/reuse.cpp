#include "engine/reuse.h"

#include <algorithm>

namespace winnow::engine {

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

PrefixReuse::PrefixReuse(cache::PagePool& pages, cache::StatePool& states, int64_t page_tokens, int64_t max_sequences, Reuse what)
    : pages_(pages), states_(states), page_tokens_(page_tokens), max_sequences_(max_sequences), what_(what), index_(pages, states, page_tokens) {
  taken_.reserve(1);
}

bool PrefixReuse::admit(Sequence& s) {
  cache::Match m;
  if (what_ != Reuse::none) m = index_.match(s.tokens, s.request.cache_salt);
  const int64_t wanted = s.worst_case_pages(page_tokens_) - static_cast<int64_t>(m.pages.size());
  const bool possible = pages_.free() >= wanted || pages_.free() + index_.reclaimable_pages() >= wanted;
  taken_.clear();
  if (!possible || !index_.free_states(1) || !index_.free_pages(wanted) || !states_.take(1, &taken_)) {
    pages_.release(m.pages);
    if (m.snapshot.value >= 0) states_.release(m.snapshot);
    return false;
  }
  s.pages.insert(s.pages.end(), m.pages.begin(), m.pages.end());
  check(pages_.take(wanted, &s.pages), "free pages cannot be taken");
  s.state = taken_.front();
  s.source = m.snapshot;
  s.folded = m.folded;
  s.num_computed_tokens = s.cached_tokens = m.tokens;
  s.indexed_pages = static_cast<int64_t>(m.pages.size());
  s.parts_at = m.shared > m.tokens ? m.shared : -1;
  return true;
}

int64_t PrefixReuse::next_cut(const Sequence& s) const {
  int64_t cut = s.prompt_tokens;
  if (what_ == Reuse::none) return cut;
  const int64_t last = (s.prompt_tokens - 1) / page_tokens_ * page_tokens_;
  for (int64_t at : {last, s.parts_at})
    if (at > s.num_computed_tokens) cut = std::min(cut, at);
  return cut;
}

std::span<const int32_t> PrefixReuse::reusable(const Sequence& s) const {
  const int64_t most = what_ == Reuse::prefilled ? std::min(s.num_computed_tokens, s.prompt_tokens) : s.num_computed_tokens;
  return std::span(s.tokens).first(static_cast<size_t>(most / page_tokens_ * page_tokens_));
}

bool PrefixReuse::hand_over(Sequence& s) {
  taken_.clear();
  const bool renewed = s.page_end.value >= 0;  // then the place of its last page end is the new one's
  if (states_.size() - max_sequences_ - page_ends_ + renewed < 1) {
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

bool PrefixReuse::computed(Sequence& s) {
  const bool gave = s.source.value >= 0;
  if (gave) states_.release(s.source);
  s.source = StateId(-1);
  if (what_ == Reuse::none) return gave;
  const std::span<const int32_t> prefix = reusable(s);
  const int64_t pages = static_cast<int64_t>(prefix.size()) / page_tokens_;
  if (pages > s.indexed_pages) {
    index_.insert(prefix, s.request.cache_salt, std::span(s.pages).first(static_cast<size_t>(pages)));
    s.indexed_pages = pages;
  }
  if (static_cast<int64_t>(prefix.size()) != s.num_computed_tokens || s.num_computed_tokens == 0) return gave;
  const bool wanted = s.num_computed_tokens >= (s.prompt_tokens - 1) / page_tokens_ * page_tokens_ || s.num_computed_tokens == s.parts_at;
  if (!wanted) return gave;
  if (!hand_over(s)) return true;
  if (s.num_computed_tokens <= s.prompt_tokens) {
    index_.keep(prefix, s.request.cache_salt, s.source, s.folded);
    return gave;
  }
  ++page_ends_;
  states_.share(s.source);
  s.page_end = s.source;
  s.page_end_folded = s.folded;
  s.page_end_tokens = s.num_computed_tokens;
  return true;
}

void PrefixReuse::release(Sequence& s) {
  if (s.page_end.value >= 0) {
    index_.keep(std::span(s.tokens).first(static_cast<size_t>(s.page_end_tokens)), s.request.cache_salt, s.page_end, s.page_end_folded);
    drop_page_end(s);
  }
  if (s.source.value >= 0) states_.release(s.source);
  s.source = StateId(-1);
  states_.release(s.state);
  pages_.release(s.pages);
  s.pages.clear();
}

}  // namespace winnow::engine
