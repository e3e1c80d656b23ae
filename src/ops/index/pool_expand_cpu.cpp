#include "device/cpu/workers.h"
#include "ops/index/index.h"

namespace winnow::ops {
namespace {

void run(Queue& q, Scratch, const PoolExpand::Spec& s, const PoolExpand::Args& a) {
  q.workers().run(a.tokens.shape[0], 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t pos = a.rows.position.as<int64_t>()[a.first_row + r], pools = complete_pools(TokenPos(pos), s.kpool);
      const int32_t* ids = a.pools.as<int32_t>() + r * s.select;
      int32_t* const first = a.tokens.as<int32_t>() + r * s.width();
      int32_t* out = first;
      for (int64_t i = 0; i < s.select; ++i) {
        if (ids[i] < 0 || ids[i] >= pools) continue;
        const int32_t token = static_cast<int32_t>(ids[i] * s.kpool);
        for (int32_t j = 0; j < s.kpool; ++j) *out++ = token + j;
      }
      for (int64_t t = pools * s.kpool; s.tail && t <= pos; ++t) *out++ = static_cast<int32_t>(t);
      a.count.as<int32_t>()[r] = static_cast<int32_t>(out - first);
      std::fill(out, first + s.width(), -1);
    }
  });
}

}  // namespace

List<PoolExpand> kernels(PoolExpand, Cpu) {
  static constexpr Kernel<PoolExpand> list[] = {{.name = "pool_expand.cpu", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
