#include "ops/rows.h"

namespace winnow::ops {

void expect(const Rows& r) {
  Dim tokens{"tokens"}, sequences{"sequences"}, pages{"max_pages"};
  expect("sequence", r.sequence, DType::i32, {tokens});
  expect("position", r.position, DType::i64, {tokens});
  expect("slot", r.slot, DType::i64, {tokens});
  expect("state", r.state, DType::i32, {sequences});
  expect("source", r.source, DType::i32, {sequences});
  expect("folded", r.folded, DType::i64, {sequences});
  expect("decode", r.decode, DType::i32, {sequences});
  expect("first_row", r.first_row, DType::i32, {sequences.value() + 1});
  expect_rows("page_table", r.page_table, DType::i32, {sequences, pages});
}

int64_t folded_after(int64_t folded, TokenPos position, int64_t count, bool decode, bool chunked) {
  const int64_t begin = position.value, end = begin + count;
  if (count <= 0) return folded;
  if (decode) return begin - folded >= kKdaGroup ? folded + kKdaGroup : folded;
  if (chunked) {
    const int64_t whole = end / kChunkGrid * kChunkGrid;  // end of the last whole chunk, if one begins in this step
    if (whole > round_up(begin, kChunkGrid)) folded = whole;
  }
  return std::max(folded, (end - 1) / kKdaGroup * kKdaGroup);
}

}  // namespace winnow::ops
