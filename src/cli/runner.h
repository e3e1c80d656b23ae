// One sequence at a time through a model, without the engine: what verify and bench need. Not thread safe.
#pragma once

#include <span>
#include <vector>

#include "cache/kv_store.h"
#include "models/glm5_next.h"

namespace winnow::cli {

class Runner {
 public:
  // Memory for `sequences` sequences of `context` tokens.
  Runner(device::Device& device, models::Glm5Next& model, int64_t sequences, int64_t context);

  // Forgets what a sequence held.
  void reset(int64_t sequence = 0);
  int64_t length(int64_t sequence = 0) const { return sequences_[static_cast<size_t>(sequence)].length; }
  // Takes a sequence as if it held `tokens` tokens, with random caches and states: for speed, which does not depend on values.
  void assume(int64_t sequence, int64_t tokens);
  // Goes on as if it held the first `tokens` tokens of what was assumed.
  void stand_at(int64_t sequence, int64_t tokens);
  // Feeds tokens of one sequence in steps that end at multiples of kChunkGrid; `each` sees the logits of the last
  // `last` tokens, at most max_logit_rows a step, in order: (index of the token in `tokens`, logits row).
  using EachLogits = std::function<void(int64_t, std::span<const float>)>;
  void prefill(std::span<const int32_t> tokens, int64_t last, const EachLogits& each, const models::Probe* probe = nullptr, int64_t sequence = 0);
  // Whole prompts of sequences 0 .. prompts.size() - 1, which hold nothing yet, in one step; logits() of the model hold a row for
  // the last token of each.
  void prefill_together(std::span<const std::vector<int32_t>> prompts);
  // One decode step of sequences 0 .. tokens.size() - 1 together; logits() of the model hold a row for each.
  void decode(std::span<const int32_t> tokens, const models::Probe* probe = nullptr);
  int64_t first_position() const { return first_position_; }  // of the step in progress, for probes

 private:
  struct Sequence {
    int64_t length = 0;
    TokenPos folded;
    std::vector<PageId> pages;
  };
  models::SequenceRows rows_of(int64_t sequence, int64_t first_row, int64_t count, bool decode) const;

  models::Glm5Next& model_;
  cache::KvStore kv_;
  std::vector<Sequence> sequences_;
  int64_t first_position_ = 0;
};

}  // namespace winnow::cli
