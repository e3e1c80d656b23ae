#include "ops/index/index.h"

namespace winnow::ops {
namespace {

void expect(const IndexPages& pages, IndexKeys keys, IndexLayout layout, int64_t dim, int64_t kpool, int64_t page_tokens) {
  Dim count{"pages"};
  const DType type = keys == IndexKeys::f32 ? DType::f32 : keys == IndexKeys::bf16 ? DType::bf16 : DType::e4m3;
  winnow::check(page_tokens % kpool == 0, "index: kpool does not divide the page size");
  expect_rows("pages.keys", pages.keys, type, {count, page_tokens / kpool, dim});
  // Both layouts have one size, so nothing else would tell.
  winnow::check(pages.layout == layout && !index_layout_why_not(layout, page_tokens / kpool, dim), "index: the pages have another layout");
  if (keys == IndexKeys::fp8) expect_rows("pages.scales", pages.scales, DType::f32, {count, page_tokens / kpool});
  else winnow::check(!pages.scales, "index: only fp8 keys have scales");
}

}  // namespace

void IndexWrite::check(const Spec& s, const Args& a) {
  Dim tokens{"tokens"}, states{"states"}, ring_rows{"ring_rows"};
  expect(a.rows);
  tokens.bind(a.rows.tokens());
  expect("key", a.key, s.x, {tokens, s.dim});
  expect("gate", a.gate, s.x, {tokens, s.dim});
  expect("ape", a.ape, DType::f32, {s.kpool, s.dim});
  expect("ring", a.ring, DType::f32, {states, ring_rows, int64_t{2}, s.dim});
  winnow::check(ring_rows.value() >= s.kpool, "index_write: the ring is shorter than a pool");
  expect_flags(a.bad, tokens.value());
  expect(a.pages, s.keys, s.layout, s.dim, s.kpool, a.rows.page_tokens);
}

void IndexScore::check(const Spec& s, const Args& a) {
  Dim tokens{"tokens"}, count{"count"}, max_pools{"max_pools"};
  expect(a.rows);
  tokens.bind(a.rows.tokens());
  expect("q", a.q, s.q, {tokens, s.heads, s.dim});
  expect("w", a.w, DType::f32, {tokens, s.heads});
  expect_rows("score", a.score, DType::f32, {count, max_pools});
  winnow::check(a.first_row >= 0 && a.first_row + count.value() <= a.rows.tokens(), "index_score: rows out of range");
  expect(a.pages, s.keys, s.layout, s.dim, s.kpool, a.rows.page_tokens);
}

}  // namespace winnow::ops
