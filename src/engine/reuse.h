// What a request takes over from earlier ones, and what it leaves to later ones: the sequences' side of the prefix index.
//
// A sequence that is admitted begins behind the longest kept prefix of its prompt. It hands over its state, which makes a
// snapshot, where a later prompt is likely to part from it: at the last page end before its prompt's last token, where
// its prompt parted from others whose pages are kept, and at the last page end that it computed when it ends. From a hand-over on it
// writes another record; the step after it reads the old one (Sequence::source). With no record to spare the hand-over is
// missed and counted; one that another of max_sequences may need is not to spare. Its full pages join the index as soon as they are computed.
//
// Thread: the engine's.
#pragma once

#include "cache/prefix_index.h"
#include "engine/sequence.h"

namespace winnow::engine {

// What later prompts may begin with: nothing, rows that a prefill computed, whose bits in profile fast are those of a cold run,
// or all that was computed.
enum class Reuse : uint8_t { none, prefilled, computed };
std::string_view name_of(Reuse r);
Result<Reuse> parse_reuse(std::string_view name);

class PrefixReuse {
 public:
  PrefixReuse(cache::PagePool& pages, cache::StatePool& states, int64_t page_tokens, int64_t max_sequences, Reuse what);

  // Finds what the prompt begins with and takes the records of the sequence's worst case. False: they are not free, and nothing is
  // taken.
  bool admit(Sequence& sequence);
  // The next position at which the sequence's chunk has to end; its prompt's end if there is none before.
  int64_t next_cut(const Sequence& sequence) const;
  // A step has computed the sequence up to num_computed_tokens. True if a record may have become free.
  bool computed(Sequence& sequence);
  // Gives everything back. What it computed stays in the index.
  void release(Sequence& sequence);

  cache::PrefixIndex& index() { return index_; }
  const cache::PrefixIndex& index() const { return index_; }
  int64_t missed_snapshots() const { return missed_; }

 private:
  bool hand_over(Sequence& sequence);
  void drop_page_end(Sequence& sequence);
  std::span<const int32_t> reusable(const Sequence& sequence) const;  // its tokens, whole pages

  cache::PagePool& pages_;
  cache::StatePool& states_;
  const int64_t page_tokens_, max_sequences_;
  const Reuse what_;
  cache::PrefixIndex index_;
  std::vector<StateId> taken_;
  int64_t missed_ = 0, page_ends_ = 0;  // page ends that sequences hold
};

}  // namespace winnow::engine
