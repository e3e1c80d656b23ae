// Preemption: moves what a running sequence holds alone to memory of the host, and back. Nothing is computed again: its pages,
// its state and rings come back byte for byte, so it goes on with the bits that it would have had. The pages of the prefix that
// it began with stay where they are, with its reference on them.
//
// Thread: the engine's.
#pragma once

#include "engine/reuse.h"

namespace winnow::engine {

class Swap {
 public:
  Swap(cache::PagePool& pages, cache::StatePool& states, PrefixReuse& reuse, const cache::LowerTiers& lower)
      : pages_(pages), states_(states), reuse_(reuse), host_(lower.host), mover_(lower.mover) {}

  // Room for sequences with so many pages of their own in all, however many of it cached pages and snapshots fill now.
  bool fits(int64_t pages, int64_t sequences) const;
  // Of a sequence that fits. What it left to others stays in the index.
  void out(Sequence& sequence);
  // False if a state or pages for it are not free.
  bool in(Sequence& sequence);
  // Of one that is out and ends.
  void drop(Sequence& sequence);
  int64_t preemptions() const { return preemptions_; }

 private:
  cache::PagePool& pages_;
  cache::StatePool& states_;
  PrefixReuse& reuse_;
  cache::HostStore* const host_;  // may be null: nothing can be preempted
  const cache::RecordMover mover_;
  int64_t preemptions_ = 0;
};

}  // namespace winnow::engine
