// IndexScore with vdpbf16ps: for the list in index_score_cpu.cpp. A file of its own, since Highway has no target for the instruction.
#pragma once

#include "ops/cpu.h"
#include "ops/index/index.h"

namespace winnow::ops {

void index_score_pairs(Queue& q, Scratch scratch, const IndexScore::Spec& s, const IndexScore::Args& a);
int64_t index_score_pairs_scratch(const IndexScore::Spec& s, const Limits& limits);
constexpr const char* index_score_pairs_why_not(const IndexScore::Spec& s) {
  if (const char* why = only_plain(s.layout)) return why;
  if (s.q != DType::bf16 || s.keys != IndexKeys::bf16) return "only bf16 queries and keys";
  return s.dim % 2 == 0 ? nullptr : "channels come in pairs";
}
inline constexpr auto kIndexScorePairsFit = [](const IndexScore::Spec& s) { return index_score_pairs_why_not(s); };

inline constexpr Kernel<IndexScore> kIndexScorePairs{.name = "index_score.cpu_avx512_bf16",
                                                     .why_not = needs<Isa::avx512_bf16, IndexScore, kIndexScorePairsFit>,
                                                     .scratch_bytes = index_score_pairs_scratch,
                                                     .run = index_score_pairs};

}  // namespace winnow::ops
