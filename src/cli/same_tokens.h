// winnow bench --same-tokens: whether company, caches, preemption and restarts change an answer.
#pragma once

#include <cstdint>

#include "cli/flags.h"

namespace winnow::cli {

struct SameTokensFlags {
  int64_t workloads = 3, requests = 200;
  uint64_t seed = 1;
};
// Prints what was at work and what differs; the exit code.
int same_tokens(const ModelFlags& model, const SameTokensFlags& flags);

}  // namespace winnow::cli
