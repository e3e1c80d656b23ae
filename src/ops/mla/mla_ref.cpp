#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/mla/mla.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

void attend(const SparseMla::Spec& s, const SparseMla::Args& a, int64_t t, int64_t h) {
  const int32_t* table = a.rows.page_table.as<int32_t>() + a.rows.sequence.as<int32_t>()[a.first_row + t] * a.rows.page_table.stride[0];
  const int64_t n = a.count.as<int32_t>()[t], page_tokens = a.rows.page_tokens;
  auto latent = [&](int64_t i, int64_t d) {
    const TokenPos u(a.selected.as<int32_t>()[t * a.selected.shape[1] + i]);
    return ref::get(a.pages, table[page_index(u, page_tokens)], u.value % page_tokens, d);
  };
  std::vector<double> p;
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    double score = 0;
    for (int64_t d = 0; d < s.dim; ++d) score += double{ref::get(a.q, t, h, d)} * latent(i, d);
    p.push_back(score * a.scale);
    largest = std::max(largest, p.back());
  }
  for (double& x : p) sum += x = std::exp(x - largest);
  for (int64_t d = 0; d < s.dim; ++d) {
    double y = 0;
    for (int64_t i = 0; i < n; ++i) y += p[i] / sum * latent(i, d);
    ref::set(a.y, t, h, d, static_cast<float>(y));
  }
}

void run(Queue&, Scratch, const SparseMla::Spec& s, const SparseMla::Args& a) {
  for (int64_t t = 0; t < a.q.shape[0]; ++t)
    for (int64_t h = 0; h < s.heads; ++h) attend(s, a, t, h);
}

}  // namespace

List<SparseMla> kernels(SparseMla, Ref) {
  static constexpr Kernel<SparseMla> list[] = {{.name = "sparse_mla.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
