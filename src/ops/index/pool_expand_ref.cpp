#include <algorithm>
#include <vector>

#include "ops/index/index.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const PoolExpand::Spec& s, const PoolExpand::Args& a) {
  for (int64_t r = 0; r < a.tokens.shape[0]; ++r) {
    const TokenPos pos(a.rows.position.as<int64_t>()[a.first_row + r]);
    const int64_t pools = complete_pools(pos, s.kpool);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < s.select; ++i) {
      const int64_t pool = a.pools.as<int32_t>()[r * s.select + i];
      if (pool < 0 || pool >= pools) continue;
      for (int64_t j = 0; j < s.kpool; ++j) tokens.push_back(static_cast<int32_t>(pool * s.kpool + j));
    }
    if (s.tail)
      for (int64_t t = pools * s.kpool; t <= pos.value; ++t) tokens.push_back(static_cast<int32_t>(t));
    a.count.as<int32_t>()[r] = static_cast<int32_t>(tokens.size());
    tokens.resize(static_cast<size_t>(s.width()), -1);
    std::copy(tokens.begin(), tokens.end(), a.tokens.as<int32_t>() + r * s.width());
  }
}

}  // namespace

List<PoolExpand> kernels(PoolExpand, Ref) {
  static constexpr Kernel<PoolExpand> list[] = {{.name = "pool_expand.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
