// How the CPU kernels of IndexScore split their work: into groups of adjacent rows of one sequence, which share the keys that a worker
// prepares, and runs of pools, so that one row's pools occupy all workers.
#pragma once

#include <algorithm>

#include "device/cpu/workers.h"
#include "ops/index/index.h"

namespace winnow::ops {

inline constexpr int64_t kScoreRun = 32;   // pools, whole tiles of every kernel
inline constexpr int64_t kScoreRows = 64;  // of a group: then preparing keys costs a few hundredths

inline int64_t pools_to_score(const IndexScore::Spec& s, const IndexScore::Args& a, int64_t r) {
  const int64_t pools = complete_pools(TokenPos(a.rows.position.as<int64_t>()[a.first_row + r]), s.kpool);
  return pools <= s.select ? 0 : pools;
}

// Adjacent rows of one sequence, and the pools that the last of them scores, which are the most.
struct ScoreGroup {
  int64_t first, end, pools;
};
inline ScoreGroup group_from(const IndexScore::Spec& s, const IndexScore::Args& a, int64_t r) {
  const int32_t* sequence = a.rows.sequence.as<int32_t>() + a.first_row;
  int64_t end = r + 1;
  while (end < a.score.shape[0] && end < r + kScoreRows && sequence[end] == sequence[r]) ++end;
  return {r, end, pools_to_score(s, a, end - 1)};
}

// f(group, begin, end, worker) for pools [begin, end) of every group.
template <class F>
void for_each_group(Queue& queue, const IndexScore::Spec& s, const IndexScore::Args& a, F&& f) {
  const int64_t count = a.score.shape[0];
  int64_t runs = 0;
  for (ScoreGroup g{}; g.end < count; runs += ceil_div(g.pools, kScoreRun)) g = group_from(s, a, g.end);
  queue.workers().run(runs, 1, [&](int64_t begin, int64_t end, int worker) {
    int64_t before = 0;  // runs of earlier groups
    for (ScoreGroup g{}; g.end < count && before < end;) {
      g = group_from(s, a, g.end);
      const int64_t here = ceil_div(g.pools, kScoreRun), first = std::max(begin - before, int64_t{0}), last = std::min(end - before, here);
      before += here;
      if (first < last) f(g, first * kScoreRun, std::min(last * kScoreRun, g.pools), worker);
    }
  });
}

}  // namespace winnow::ops
