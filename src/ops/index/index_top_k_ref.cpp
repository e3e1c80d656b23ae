#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/index/index.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const IndexTopK::Spec& s, const IndexTopK::Args& a) {
  for (int64_t r = 0; r < a.pools.shape[0]; ++r) {
    const int64_t pools = complete_pools(TokenPos(a.rows.position.as<int64_t>()[a.first_row + r]), s.kpool);
    std::vector<int32_t> order;
    for (int64_t p = 0; p < pools; ++p) order.push_back(static_cast<int32_t>(p));
    if (pools > s.select) {
      auto score = [&](int32_t p) {
        const float x = ref::get(a.score, r, p);
        if (!std::isfinite(x)) flag_row(a.bad, a.first_row + r);
        return std::isnan(x) ? -std::numeric_limits<float>::infinity() : x;
      };
      std::stable_sort(order.begin(), order.end(), [&](int32_t x, int32_t y) { return score(x) > score(y); });
      order.resize(static_cast<size_t>(s.select));
      std::sort(order.begin(), order.end());
    }
    order.resize(static_cast<size_t>(s.select), -1);
    std::copy(order.begin(), order.end(), a.pools.as<int32_t>() + r * s.select);
  }
}

}  // namespace

List<IndexTopK> kernels(IndexTopK, Ref) {
  static constexpr Kernel<IndexTopK> list[] = {{.name = "index_top_k.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
