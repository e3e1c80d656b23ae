#include "engine/step.h"

#include <algorithm>

namespace winnow::engine {

Step::Step(Runner runner, int64_t max_rows, int64_t max_sequences, int64_t max_scored_rows)
    : runner_(std::move(runner)), max_rows_(static_cast<size_t>(max_rows)) {
  tokens_.reserve(max_rows_);
  sequences_.reserve(static_cast<size_t>(max_sequences));
  logit_rows_.reserve(static_cast<size_t>(max_sequences + max_scored_rows));
  mask_.resize(static_cast<size_t>(ceil_div(runner_.vocab_size, 32)));
  workspace_.resize(static_cast<size_t>(2 * runner_.vocab_size));
}

void Step::compute(std::span<const Chunk> chunks) {
  tokens_.clear();
  sequences_.clear();
  logit_rows_.clear();
  for (const Chunk& c : chunks) {
    const Sequence& s = *c.sequence;
    const auto first = s.tokens.begin() + c.position.value;
    sequences_.push_back({.first_row = static_cast<int64_t>(tokens_.size()),
                          .count = c.count,
                          .position = c.position,
                          .state = s.state,
                          .source = s.source,
                          .folded = s.folded,
                          .pages = s.pages,
                          .decode = c.decode()});
    tokens_.insert(tokens_.end(), first, first + c.count);
    for (int64_t i = c.logit_rows(); i > 0; --i) logit_rows_.push_back(static_cast<int32_t>(static_cast<int64_t>(tokens_.size()) - i));
  }
  check(tokens_.size() <= max_rows_, "a step has more rows than planned for");

  runner_.forward({.tokens = tokens_, .sequences = sequences_, .logit_rows = logit_rows_});
  for (size_t i = 0; i < chunks.size(); ++i) {
    Sequence& s = *chunks[i].sequence;
    s.num_computed_tokens += chunks[i].count;
    s.folded = runner_.folded_after(sequences_[i]);
  }
}

bool Step::sound(int64_t i) const {
  if (!runner_.bad_rows) return true;
  const models::SequenceRows& s = sequences_[static_cast<size_t>(i)];
  const ConstTensorView bad = runner_.bad_rows();
  check(bad.rank == 1 && s.first_row + s.count <= bad.shape[0], "the model says nothing of some rows");
  const int32_t* first = bad.as<int32_t>() + s.first_row;
  return std::find(first, first + s.count, 1) == first + s.count;
}

std::span<const float> Step::logits(int64_t i) const {
  const ConstTensorView v = runner_.logits();
  check(v.rank == 2 && i < v.shape[0] && v.shape[1] == runner_.vocab_size, "the model's logits have another shape");
  return {v.as<float>() + i * v.stride[0], static_cast<size_t>(runner_.vocab_size)};
}

void Step::mask_stop_tokens(const Request& r) {
  cleared_.clear();
  for (int32_t t : r.stop_tokens) {
    uint32_t& word = mask_[static_cast<size_t>(t / 32)];
    const uint32_t bit = uint32_t{1} << (t % 32);
    if (word & bit) cleared_.push_back(t);
    word &= ~bit;
  }
  if (!r.constraint || std::ranges::any_of(mask_, [](uint32_t word) { return word != 0; })) return;
  for (int32_t t : cleared_) mask_[static_cast<size_t>(t / 32)] |= uint32_t{1} << (t % 32);
}

ops::Sampled Step::draw(const Sequence& s, std::span<const float> logits) {
  const std::span<const int32_t> tokens = s.tokens;
  const auto prompt = tokens.first(static_cast<size_t>(s.prompt_tokens)), generated = tokens.subspan(prompt.size());
  Constraint* const constraint = s.request.constraint.get();
  const bool too_short = !s.request.ignore_eos && s.generated_tokens() < s.request.min_tokens && !s.request.stop_tokens.empty();
  if (constraint) constraint->mask(mask_);
  else if (too_short) std::ranges::fill(mask_, ~uint32_t{0});
  if (too_short) mask_stop_tokens(s.request);
  const std::span<const uint32_t> mask = constraint || too_short ? std::span<const uint32_t>(mask_) : std::span<const uint32_t>{};
  ops::Sampled out = ops::sample(logits, s.request.sampling, prompt, generated, TokenPos(static_cast<int64_t>(tokens.size())), mask, workspace_);
  if (constraint && out.token >= 0 && !constraint->accept(out.token))
    throw error("the answer's grammar refuses token {}, which it had allowed", out.token);
  return out;
}

}  // namespace winnow::engine
