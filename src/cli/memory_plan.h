// The memory plan: what a model takes on a device, by kind, and how much its caches hold. `winnow plan` prints it for a
// device that only plans; chat, run and serve log the same lines of what they have allocated.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"

namespace winnow::cli {

struct MemoryPlan {
  struct Line {
    std::string kind;
    int64_t bytes = 0;
    std::string note;  // how many of what; empty: nothing to say
    bool in_place = false;
  };
  std::vector<Line> lines;
  cache::KvSizes sizes;
  int64_t max_sequences = 0, max_context = 0, page_tokens = 0;
  int64_t page_bytes = 0, record_bytes = 0;  // of one page; of one request's state and rings, or of a snapshot
  int64_t memory_bytes = 0;                  // of the device: --memory, or what was free when it was made
  bool memory_given = false;

  int64_t total_bytes() const;
  // What is left, or lacking if negative. What is read in place is part of --memory, but takes nothing of what is free.
  int64_t remaining_bytes() const;
  int64_t tokens() const { return sizes.pages * page_tokens; }
  int64_t snapshots() const { return sizes.states - max_sequences - sizes.page_ends; }
  int64_t bytes_per_token() const { return page_bytes / page_tokens; }
};

// Of a device on which a model was made, and of the records that its caches have. Lines of the caches that the device lists
// itself are not counted twice.
MemoryPlan memory_plan(const device::Device& device, const cache::KvLayout& layout, const cache::KvSizes& sizes,
                       const engine::EngineOptions& options);
// One string a line, aligned: kind, bytes, note; then the sum and what remains or is lacking.
std::vector<std::string> text_of(const MemoryPlan& plan);

// One of them.
struct PlannedModel {
  const weights::Checkpoint* checkpoint = nullptr;
  const weights::Config* config = nullptr;  // random weights of these shapes
  device::ForcedKernels forced = {};
};
// The plan that an engine would have, made without allocating anything. Error if it does not fit: what is needed and given.
Result<MemoryPlan> plan_memory(const PlannedModel& model, device::CpuOptions on, const models::Options& options, const engine::EngineOptions& engine);
// The plan of full contexts for all requests at once, without snapshots and host tier, whether it fits or not.
MemoryPlan whole_plan(const PlannedModel& model, device::CpuOptions on, const models::Options& options, const engine::EngineOptions& engine);

}  // namespace winnow::cli
