// Which requests run, and which rows the next step computes. Policy only: it knows lengths, pages and states, not the
// model, the clock or any other thread.
//
// Rank. Of two requests the one of the lower priority number goes first, of equal ones the one that came first.
//
// Admission. Nobody overtakes the first that waits. It is admitted when a running place is free, or is held by a request of a
// higher priority number, and when every admitted sequence can still get to its end: by rank, as many of max_sequences as the
// device's pages hold with their worst cases, prompt and max_tokens, count on the device; each one behind them has room for its
// worst case in memory of the host. Pages of prefixes that sequences began with are counted once and stay on the device.
//
// Preemption. Pages are taken as rows need them. When none is left the last running sequence by rank is swapped out to the host
// (swap.h), where it has room as counted above, and comes back when its pages are free. Nothing is computed again. The first by
// rank can always run, so everybody ends.
//
// A step. One row for each sequence whose prompt is finished, then prefill chunks within max_batched_tokens rows, in a fair
// order: the sequence that has had the fewest rows since it came, those of the one before as a start (start-time fair queueing:
// Goyal, Vin, Cheng, SIGCOMM 1996), so that long prompts share the rows and a short one does not wait for their ends. A chunk
// ends at an absolute multiple of chunk_grid or at its prompt's end, so that how a prompt is cut follows the grid and not the
// company; where a state is to be kept (reuse.h), a chunk ends too. When decode rows leave the first prefill no whole chunk, the
// next step keeps room for one, and the decode rows that then find none wait that one step.
//
// Invariants: check_integrity(). Thread: the engine's.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/reuse.h"
#include "engine/sequence.h"
#include "engine/swap.h"

namespace winnow::engine {

struct SchedulerOptions {
  int64_t max_batched_tokens = 512;  // rows of a step: at least chunk_grid and max_sequences
  int64_t max_sequences = 16;        // running at once
  int64_t page_tokens = 64;
  int64_t scored_rows = 0;          // of a step, whose prompt tokens are scored: a chunk_grid at least, or nobody asks for it
  int64_t chunk_grid = kChunkGrid;  // other values are for tests of profile exact, where any cut gives the same bits
  Reuse reuse = Reuse::none;
  int64_t snapshot_interval = 0;  // reuse.h
  cache::LowerTiers lower;        // for swapped sequences and what the prefix index has no room for
  cache::PrefixKey seed;          // of the prefix index
};

// Rows of one sequence in a step.
struct Chunk {
  Sequence* sequence = nullptr;
  TokenPos position;  // of the first row
  int64_t count = 0;
  bool decode() const { return position.value >= sequence->prompt_tokens; }
  // Its last row is the newest token's, whose logits give the next one.
  bool samples() const { return position.value + count == static_cast<int64_t>(sequence->tokens.size()); }
  bool scores() const { return sequence->scored() && !decode(); }
  // Of how many rows, the last ones, logits are wanted.
  int64_t logit_rows() const { return scores() ? count : samples(); }
};

class Scheduler {
 public:
  using Sequences = std::vector<std::unique_ptr<Sequence>>;

  // Throws Error if the options contradict each other.
  Scheduler(const SchedulerOptions& options, cache::PagePool& pages, cache::StatePool& states);
  ~Scheduler();

  void add(std::unique_ptr<Sequence> sequence);
  // Brings back swapped sequences and admits waiting ones, as many as fit. The ones admitted now; valid until the next call.
  std::span<Sequence* const> admit();
  // Goes on bringing up prefixes from lower tiers, at most about `bytes` from the host. True: one is lost, and its request waits
  // for admission again.
  bool restore(int64_t bytes);
  // Of the next step; valid until the next call. Empty if nothing runs or all that runs waits for its prefix. At most prefill_rows rows beside decode
  // rows are prefill.
  std::span<const Chunk> plan(int64_t prefill_rows = INT64_MAX);
  void computed(const Chunk& chunk);  // a step has computed it, and its sequence says so
  // Takes a request out, wherever it is, and frees what it holds. Null if there is none of this id.
  std::unique_ptr<Sequence> remove(RequestId id);
  Sequences remove_all();

  // Each in order of rank.
  std::span<const std::unique_ptr<Sequence>> running() const { return running_; }
  std::span<const std::unique_ptr<Sequence>> swapped() const { return swapped_; }
  const std::deque<std::unique_ptr<Sequence>>& waiting() const { return waiting_; }
  bool idle() const { return running_.empty() && waiting_.empty() && swapped_.empty(); }
  PrefixReuse& reuse() { return reuse_; }
  const PrefixReuse& reuse() const { return reuse_; }
  int64_t preemptions() const { return swap_.preemptions(); }
  // Every page and state, on the device and on the host, is held by exactly the sequences and the prefix index, and what is
  // admitted can get to its end. Aborts if not.
  void check_integrity() const;

 private:
  bool admit_first();
  bool fit(Sequence& sequence, bool crowded);
  // How many of the admitted, and of a candidate, count on the device with their worst cases, by rank; what the rest needs of the
  // host.
  struct Share {
    int64_t on_device = 0, swap_pages = 0, swap_sequences = 0;
  };
  Share share(const Sequence* candidate) const;
  bool can_end(const Share& share, const Sequence* candidate) const;  // all of them
  bool room_for_stay(const Share& share, const Sequence& sequence, int64_t pages);
  void resume();
  bool preempt_behind(const Sequence& sequence);  // the last one, if it ranks behind and has its room on the host
  void preempt_last();
  void requeue(Sequence& sequence);
  bool grow(Sequence& sequence, int64_t tokens);  // pages for so many; false: they are not to be had now
  int64_t chunk_rows(const Sequence& sequence, int64_t rows) const;
  int64_t room_for(const Sequence& sequence, int64_t rows) const;
  void order_prefills();
  void push(Sequence& sequence, int64_t count);

  const SchedulerOptions options_;
  cache::PagePool& pages_;
  cache::StatePool& states_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  Sequences running_, swapped_;
  std::vector<Sequence*> admitted_, prefills_;
  std::vector<Chunk> chunks_;
  PrefixReuse reuse_;
  Swap swap_;
  int64_t rows_ = 0;                  // of the step that is planned, left
  int64_t service_ = 0;               // of the prefill that had its turn last: where newcomers start
  bool head_waits_ = false;           // the first waiting request did not fit, and nothing was given back since
  bool prefill_crowded_out_ = false;  // by decode rows, in the last step
};

}  // namespace winnow::engine
