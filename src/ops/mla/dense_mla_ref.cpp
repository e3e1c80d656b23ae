#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/mla/dense_mla.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

// w[h, i] . c_u
float expand(const DenseMla::Args& a, In w, int64_t sequence, int64_t h, int64_t i, TokenPos u) {
  const int32_t* table = a.rows.page_table.as<int32_t>() + sequence * a.rows.page_table.stride[0];
  const int64_t page = table[page_index(u, a.rows.page_tokens)];
  double x = 0;
  for (int64_t d = 0; d < w.shape[2]; ++d) x += double{ref::get(w, h, i, d)} * ref::get(a.pages, page, u.value % a.rows.page_tokens, d);
  return static_cast<float>(x);
}

// Rows [first, first + count) of a sequence, one head.
void attend(const DenseMla::Spec& s, const DenseMla::Args& a, int64_t sequence, int64_t first, int64_t count, int64_t h) {
  const int64_t position = a.rows.position.as<int64_t>()[first], tokens = position + count;
  std::vector<float> k, v;
  for (TokenPos u(0); u.value < tokens; ++u.value) {
    for (int64_t i = 0; i < s.nope; ++i) k.push_back(expand(a, a.w_k, sequence, h, i, u));
    for (int64_t i = 0; i < s.v; ++i) v.push_back(expand(a, a.w_v, sequence, h, i, u));
  }
  for (int64_t r = 0; r < count; ++r) {
    std::vector<double> p;
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t u = 0; u <= position + r; ++u) {
      double score = 0;
      for (int64_t i = 0; i < s.nope; ++i) score += double{ref::get(a.q, first + r, h, i)} * k[static_cast<size_t>(u * s.nope + i)];
      p.push_back(score * a.scale);
      largest = std::max(largest, p.back());
    }
    for (double& x : p) sum += x = std::exp(x - largest);
    for (int64_t i = 0; i < s.v; ++i) {
      double y = 0;
      for (int64_t u = 0; u <= position + r; ++u) y += p[static_cast<size_t>(u)] / sum * v[static_cast<size_t>(u * s.v + i)];
      ref::set(a.y, first + r, h, i, static_cast<float>(y));
    }
  }
}

void run(Queue&, Scratch, const DenseMla::Spec& s, const DenseMla::Args& a) {
  for (int64_t sequence = 0; sequence < a.rows.sequences(); ++sequence)
    if (const int64_t count = DenseMla::rows_of_sequence(s, a.rows, sequence))
      for (int64_t h = 0; h < s.heads; ++h) attend(s, a, sequence, a.rows.first_row.as<int32_t>()[sequence], count, h);
}

}  // namespace

List<DenseMla> kernels(DenseMla, Ref) {
  static constexpr Kernel<DenseMla> list[] = {{.name = "dense_mla.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
