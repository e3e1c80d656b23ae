// For tests: the Rows of a made-up step. Pages are handed to the sequences in order, as many as each needs.
#pragma once

#include <vector>

#include "ops/conformance.h"
#include "ops/rows.h"

namespace winnow::ops::test {

struct Chunk {  // the rows of one sequence
  int32_t state = 0;
  int64_t position = 0, count = 0;
  bool decode = false;
  int32_t source = -1;  // another record than state, if not negative
};

class StepRows {
 public:
  explicit StepRows(const std::vector<Chunk>& chunks, int64_t page_tokens = 64) {
    const int64_t sequences = static_cast<int64_t>(chunks.size());
    int64_t max_pages = 1, tokens = 0;
    for (const Chunk& c : chunks) {
      max_pages = std::max(max_pages, pages_for(c.position + c.count, page_tokens));
      tokens += c.count;
    }
    first_row_ = Tensor(DType::i32, {sequences + 1});
    page_table_ = Tensor(DType::i32, {sequences, max_pages});
    state_ = Tensor(DType::i32, {sequences});
    source_ = Tensor(DType::i32, {sequences});
    folded_ = Tensor(DType::i64, {sequences});
    decode_ = Tensor(DType::i32, {sequences});
    sequence_ = Tensor(DType::i32, {tokens});
    position_ = Tensor(DType::i64, {tokens});
    slot_ = Tensor(DType::i64, {tokens});
    int64_t row = 0;
    for (int64_t q = 0; q < sequences; ++q) {
      const Chunk& c = chunks[q];
      first_row_.as<int32_t>()[q] = static_cast<int32_t>(row);
      state_.as<int32_t>()[q] = c.state;
      source_.as<int32_t>()[q] = c.source < 0 ? c.state : c.source;
      decode_.as<int32_t>()[q] = c.decode;
      folded_.as<int64_t>()[q] = c.position > 0 ? (c.position - 1) / kKdaGroup * kKdaGroup : 0;
      for (int64_t p = 0; p < pages_for(c.position + c.count, page_tokens); ++p)
        page_table_.as<int32_t>()[q * max_pages + p] = static_cast<int32_t>(pages_++);
      for (int64_t i = 0; i < c.count; ++i, ++row) {
        const TokenPos p(c.position + i);
        sequence_.as<int32_t>()[row] = static_cast<int32_t>(q);
        position_.as<int64_t>()[row] = p.value;
        const PageId page(page_table_.as<int32_t>()[q * max_pages + page_index(p, page_tokens)]);
        slot_.as<int64_t>()[row] = slot_of(page, p, page_tokens).value;
      }
    }
    first_row_.as<int32_t>()[sequences] = static_cast<int32_t>(row);
    rows = {.first_row = first_row_,
            .sequence = sequence_,
            .position = position_,
            .slot = slot_,
            .page_table = page_table_,
            .state = state_,
            .source = source_,
            .folded = folded_,
            .decode = decode_,
            .page_tokens = page_tokens};
  }
  int64_t pages() const { return pages_; }  // handed out
  int64_t* slots() { return slot_.as<int64_t>(); }
  Rows rows;

 private:
  Tensor first_row_, sequence_, position_, slot_, page_table_, state_, source_, folded_, decode_;
  int64_t pages_ = 0;
};

}  // namespace winnow::ops::test
