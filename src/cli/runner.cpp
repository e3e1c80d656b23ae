#include "cli/runner.h"

#include <algorithm>

namespace winnow::cli {

Runner::Runner(device::Device& device, models::Glm5Next& model, int64_t sequences, int64_t context)
    : model_(model),
      kv_(device, model.kv_spec(), cache::KvLayout(model.kv_spec(), model.options().page_tokens),
          {.pages = sequences * pages_for(context, model.options().page_tokens), .states = sequences}),
      sequences_(static_cast<size_t>(sequences)) {
  const int64_t pages = pages_for(context, model.options().page_tokens);
  for (int64_t s = 0; s < sequences; ++s)
    for (int64_t p = 0; p < pages; ++p) sequences_[static_cast<size_t>(s)].pages.push_back(PageId(s * pages + p));
}

void Runner::reset(int64_t sequence) {
  Sequence& s = sequences_[static_cast<size_t>(sequence)];
  s.length = 0;
  s.folded = TokenPos(0);
}

void Runner::assume(int64_t sequence, int64_t tokens) {
  Sequence& s = sequences_[static_cast<size_t>(sequence)];
  const auto fill = [](const TensorView& record, int64_t at) {  // small values of either sign, in every storage type
    const TensorView one = record.rows(at, 1);
    uint32_t x = static_cast<uint32_t>(at) * 2654435761u + 1;
    const auto next = [&x] { return x = x * 1664525u + 1013904223u; };
    for (int64_t i = 0; i < one.elements(); ++i) {
      const float value = static_cast<float>(static_cast<int32_t>(next())) * 0x1p-33f;
      if (one.dtype == DType::f32) one.as<float>()[i] = value;
      else if (one.dtype == DType::bf16) one.as<Bf16>()[i] = to_bf16(value);
      else one.as<E4m3>()[i] = to_e4m3(value);
    }
  };
  const KvViews& kv = kv_.views();
  for (size_t layer = 0; layer < kv.latent.size(); ++layer)
    for (int64_t p = 0; p < pages_for(tokens, kv.page_tokens); ++p) {
      fill(kv.latent[layer], s.pages[static_cast<size_t>(p)].value);
      fill(kv.index[layer].keys, s.pages[static_cast<size_t>(p)].value);
      if (kv.index[layer].scales) fill(kv.index[layer].scales, s.pages[static_cast<size_t>(p)].value);
    }
  for (const std::vector<TensorView>* part : {&kv.pool_ring, &kv.state, &kv.ring_k, &kv.ring_u, &kv.conv_ring})
    for (const TensorView& v : *part) fill(v, sequence);
  stand_at(sequence, tokens);
}

void Runner::stand_at(int64_t sequence, int64_t tokens) {
  Sequence& s = sequences_[static_cast<size_t>(sequence)];
  s.length = tokens;
  s.folded = TokenPos((tokens - 1) / kKdaGroup * kKdaGroup);
}

models::SequenceRows Runner::rows_of(int64_t sequence, int64_t first_row, int64_t count, bool decode) const {
  const Sequence& s = sequences_[static_cast<size_t>(sequence)];
  return {.first_row = first_row,
          .count = count,
          .position = TokenPos(s.length),
          .state = StateId(sequence),
          .folded = s.folded,
          .pages = s.pages,
          .decode = decode};
}

void Runner::prefill(std::span<const int32_t> tokens, int64_t last, const EachLogits& each, const models::Probe* probe, int64_t sequence) {
  Sequence& s = sequences_[static_cast<size_t>(sequence)];
  const int64_t total = static_cast<int64_t>(tokens.size()), first_wanted = total - std::min(last, total);
  const int64_t step = model_.options().max_rows / kChunkGrid * kChunkGrid;
  for (int64_t done = 0; done < total;) {
    const int64_t begin = done, end = std::min(total, (s.length + step) / kChunkGrid * kChunkGrid - s.length + done);
    std::vector<int32_t> wanted;
    for (int64_t t = std::max(begin, first_wanted); t < end; ++t) wanted.push_back(static_cast<int32_t>(t - begin));
    check(static_cast<int64_t>(wanted.size()) <= model_.options().max_logit_rows, "more logits wanted than the model can give in a step");
    first_position_ = s.length;
    const models::SequenceRows rows = rows_of(sequence, 0, end - begin, false);
    model_.forward(
        {.tokens = tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), .sequences = {&rows, 1}, .logit_rows = wanted},
        kv_.views(), probe);
    s.folded = model_.folded_after(rows);
    s.length += end - begin;
    const ConstTensorView logits = model_.logits();
    for (size_t i = 0; i < wanted.size(); ++i)
      each(begin + wanted[i], {logits.as<float>() + static_cast<int64_t>(i) * logits.shape[1], static_cast<size_t>(logits.shape[1])});
    done = end;
  }
}

void Runner::prefill_together(std::span<const std::vector<int32_t>> prompts) {
  std::vector<models::SequenceRows> rows;
  std::vector<int32_t> tokens, wanted;
  for (const std::vector<int32_t>& p : prompts) {
    rows.push_back(rows_of(static_cast<int64_t>(rows.size()), static_cast<int64_t>(tokens.size()), static_cast<int64_t>(p.size()), false));
    tokens.insert(tokens.end(), p.begin(), p.end());
    wanted.push_back(static_cast<int32_t>(tokens.size()) - 1);
  }
  model_.forward({.tokens = tokens, .sequences = rows, .logit_rows = wanted}, kv_.views());
  for (size_t i = 0; i < prompts.size(); ++i) {
    sequences_[i].folded = model_.folded_after(rows[i]);
    sequences_[i].length = rows[i].count;
  }
}

void Runner::decode(std::span<const int32_t> tokens, const models::Probe* probe) {
  std::vector<models::SequenceRows> rows;
  std::vector<int32_t> wanted;
  for (size_t i = 0; i < tokens.size(); ++i) {
    rows.push_back(rows_of(static_cast<int64_t>(i), static_cast<int64_t>(i), 1, true));
    wanted.push_back(static_cast<int32_t>(i));
  }
  first_position_ = sequences_[0].length;
  model_.forward({.tokens = tokens, .sequences = rows, .logit_rows = wanted}, kv_.views(), probe);
  for (size_t i = 0; i < tokens.size(); ++i) {
    sequences_[i].folded = model_.folded_after(rows[i]);
    ++sequences_[i].length;
  }
}

}  // namespace winnow::cli
