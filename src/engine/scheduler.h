// Which requests run, and which rows the next step computes. Policy only: it knows lengths, pages and states, not the
// model, the clock or any other thread.
//
// Admission. Requests wait in the order of arrival. The first is admitted when a state and the pages of its worst case,
// prompt and max_tokens, are free or kept for reuse only; nobody overtakes it. So a running sequence always can finish, and a
// request that fits an empty engine (request.h, refusal) always runs in the end.
//
// A step. One row for each sequence whose prompt is finished, then prefill chunks, oldest sequence first, within
// max_batched_tokens rows. A chunk ends at an absolute multiple of chunk_grid or at its prompt's end, so that how a
// prompt is cut follows the grid and not the company; where a state is to be kept (reuse.h), a chunk ends too. When decode rows leave the oldest
// prefill no whole chunk, the next step keeps room for one, and the decode rows that then find none wait that one step.
//
// Invariants: check_integrity(). Thread: the engine's.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/reuse.h"
#include "engine/sequence.h"

namespace winnow::engine {

struct SchedulerOptions {
  int64_t max_batched_tokens = 512;  // rows of a step: at least chunk_grid and max_sequences
  int64_t max_sequences = 16;        // running at once
  int64_t page_tokens = 64;
  int64_t chunk_grid = kChunkGrid;  // other values are for tests of profile exact, where any cut gives the same bits
  Reuse reuse = Reuse::none;
};

// Rows of one sequence in a step.
struct Chunk {
  Sequence* sequence = nullptr;
  TokenPos position;  // of the first row
  int64_t count = 0;
  bool decode() const { return position.value >= sequence->prompt_tokens; }
  // Its last row is the newest token's, whose logits give the next one.
  bool samples() const { return position.value + count == static_cast<int64_t>(sequence->tokens.size()); }
};

class Scheduler {
 public:
  // Throws Error if the options contradict each other.
  Scheduler(const SchedulerOptions& options, cache::PagePool& pages, cache::StatePool& states);
  ~Scheduler();

  void add(std::unique_ptr<Sequence> sequence);        // to the end of the queue
  std::span<const std::unique_ptr<Sequence>> admit();  // from the head of the queue as long as they fit; the ones admitted now
  std::span<const Chunk> plan();                       // of the next step; valid until the next call
  void computed(const Chunk& chunk);                   // a step has computed it, and its sequence says so
  // Takes a request out, waiting or running, and frees what it holds. Null if there is none of this id.
  std::unique_ptr<Sequence> remove(RequestId id);
  std::vector<std::unique_ptr<Sequence>> remove_all();

  std::span<const std::unique_ptr<Sequence>> running() const { return running_; }  // in the order of admission
  const std::deque<std::unique_ptr<Sequence>>& waiting() const { return waiting_; }
  bool idle() const { return running_.empty() && waiting_.empty(); }
  const PrefixReuse& reuse() const { return reuse_; }
  // Every page and state is held by exactly the running sequences, each with what its worst case needs, and the prefix index.
  // Aborts if not.
  void check_integrity() const;

 private:
  int64_t chunk_rows(const Sequence& sequence, int64_t rows) const;

  const SchedulerOptions options_;
  cache::PagePool& pages_;
  cache::StatePool& states_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<Chunk> chunks_;
  PrefixReuse reuse_;
  bool head_waits_ = false;           // the first waiting request did not fit, and nothing was given back since
  bool prefill_crowded_out_ = false;  // by decode rows, in the last step
};

}  // namespace winnow::engine
