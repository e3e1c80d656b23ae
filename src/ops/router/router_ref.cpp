#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/ref.h"
#include "ops/router/router.h"

namespace winnow::ops {
namespace {

// Indices of the `count` largest values, largest first; ties go to the lower index, NaN counts as -infinity.
std::vector<int64_t> largest(const std::vector<float>& values, int64_t count) {
  std::vector<float> keys = values;
  for (float& k : keys)
    if (std::isnan(k)) k = -std::numeric_limits<float>::infinity();
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) { return keys[i] > keys[j]; });
  order.resize(std::min<size_t>(order.size(), static_cast<size_t>(count)));
  return order;
}

// Experts of the kept groups, ascending.
std::vector<int64_t> candidates(const Router::Spec& s, const std::vector<float>& biased) {
  const int64_t size = s.experts / s.groups;
  std::vector<float> scores;
  for (int64_t g = 0; g < s.groups; ++g) {
    const std::vector<float> group(biased.begin() + g * size, biased.begin() + (g + 1) * size);
    float score = 0;
    for (int64_t i : largest(group, 2)) score += group[i];
    scores.push_back(score);
  }
  std::vector<int64_t> experts;
  for (int64_t g : largest(scores, s.groups > 1 ? s.kept_groups : 1))
    for (int64_t e = g * size; e < (g + 1) * size; ++e) experts.push_back(e);
  std::sort(experts.begin(), experts.end());
  return experts;
}

void run(Queue&, Scratch, const Router::Spec& s, const Router::Args& a) {
  for (int64_t t = 0; t < a.logits.shape[0]; ++t) {
    std::vector<float> scores, biased, candidate_scores;
    for (int64_t e = 0; e < s.experts; ++e) {
      scores.push_back(static_cast<float>(1 / (1 + std::exp(-double{ref::get(a.logits, t, e)}))));
      biased.push_back(scores.back() + ref::get(a.bias, e));
      if (!std::isfinite(ref::get(a.logits, t, e))) flag_row(a.bad, t);
    }
    const std::vector<int64_t> experts = candidates(s, biased);
    for (int64_t e : experts) candidate_scores.push_back(biased[e]);
    const std::vector<int64_t> order = largest(candidate_scores, s.top_k);
    double sum = 0;
    for (int64_t i : order) sum += scores[experts[i]];
    for (int64_t r = 0; r < s.top_k; ++r) {
      const int64_t e = experts[order[r]];
      const double w = s.normalise ? scores[e] / (sum + 1e-20) : scores[e];
      a.ids.as<int32_t>()[t * s.top_k + r] = static_cast<int32_t>(e);
      a.weights.as<float>()[t * s.top_k + r] = static_cast<float>(s.scaling * w);
    }
  }
}

}  // namespace

List<Router> kernels(Router, Ref) {
  static constexpr Kernel<Router> list[] = {{.name = "router.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
