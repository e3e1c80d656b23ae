#include "ops/index/index.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

// q[t, h] . K of the pool in row `row` of page `page`
double dot(const IndexScore::Spec& s, const IndexScore::Args& a, int64_t t, int64_t h, int64_t page, int64_t row) {
  double sum = 0;
  for (int64_t c = 0; c < s.dim; ++c)
    sum += double{ref::get(a.q, t, h, c)} * ref::get(a.pages.keys, page * a.pages.keys.stride[0] + index_offset(s.layout, row, c, s.dim));
  return s.keys == IndexKeys::fp8 ? sum * ref::get(a.pages.scales, page, row) : sum;
}

void run(Queue&, Scratch, const IndexScore::Spec& s, const IndexScore::Args& a) {
  const int64_t page_states = a.rows.page_tokens / s.kpool;
  for (int64_t r = 0; r < a.score.shape[0]; ++r) {
    const int64_t t = a.first_row + r, pools = complete_pools(TokenPos(a.rows.position.as<int64_t>()[t]), s.kpool);
    if (pools <= s.select) continue;
    const int32_t* table = a.rows.page_table.as<int32_t>() + a.rows.sequence.as<int32_t>()[t] * a.rows.page_table.stride[0];
    for (int64_t p = 0; p < pools; ++p) {
      double score = 0;
      for (int64_t h = 0; h < s.heads; ++h) {
        const double d = dot(s, a, t, h, table[p / page_states], p % page_states);
        score += ref::get(a.w, t, h) * (d < 0 ? 0 : d);
      }
      ref::set(a.score, r, p, static_cast<float>(score * a.factor));
    }
  }
}

}  // namespace

List<IndexScore> kernels(IndexScore, Ref) {
  static constexpr Kernel<IndexScore> list[] = {{.name = "index_score.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
