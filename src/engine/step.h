// One step: lays the planned rows out as a batch, runs the model on it, and draws tokens from its logits. All arrays
// have their full size from the start.
//
// Thread: the engine's.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "models/glm5_next.h"

namespace winnow::engine {

// What a step needs of a model, so that the loop can be tested without one.
struct Runner {
  std::function<void(const models::Batch&)> forward;
  std::function<ConstTensorView()> logits;    // [logit rows of the last forward, vocab] f32
  std::function<ConstTensorView()> bad_rows;  // [rows of the last forward] i32, 1: its values are not finite; may be empty
  std::function<TokenPos(const models::SequenceRows&)> folded_after;
  int64_t vocab_size = 0;
};

class Step {
 public:
  Step(Runner runner, int64_t max_rows, int64_t max_sequences, int64_t max_scored_rows);

  // Runs the model on the chunks and marks their tokens as computed. Throws what the model throws.
  void compute(std::span<const Chunk> chunks);
  // Whether every row of the i-th chunk of the last compute() came out finite. If not, what it wrote must reach nobody.
  bool sound(int64_t i) const;
  // The i-th row of raw logits of the last compute(): each chunk has as many as it says.
  std::span<const float> logits(int64_t i) const;
  // The next token of a sequence, under its constraint, which is told of it. Stop tokens are masked as long as it is shorter than
  // min_tokens and any other may follow. Throws what the constraint throws.
  ops::Sampled draw(const Sequence& sequence, std::span<const float> logits);

 private:
  void mask_stop_tokens(const Request& request);
  const Runner runner_;
  const size_t max_rows_;
  std::vector<int32_t> tokens_;
  std::vector<models::SequenceRows> sequences_;
  std::vector<int32_t> logit_rows_;
  std::vector<uint32_t> mask_;    // of the vocabulary
  std::vector<int32_t> cleared_;  // stop tokens that mask_ had
  std::vector<float> workspace_;  // of ops::sample
};

}  // namespace winnow::engine
