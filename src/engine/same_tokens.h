// Promise 1 as something to run (winnow bench --same-tokens): a random workload of conversations that go on, part and share
// what they began with, served by engines whose pools, batches, chunks, tiers and failures of the disk are drawn at random, against the same requests
// run alone, one after the other, on an engine that keeps nothing. Every token and every bit of every logit has to agree.
//
// In profile exact prompts are cut anywhere and rows that decode made are reused; in fast prompts are cut on the grid and
// prefilled rows are reused (Reuse::prefilled).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace winnow::engine {

struct WorkloadOptions {
  uint64_t seed = 1;
  int64_t requests = 200;
  int64_t max_prompt = 300, max_output = 16;
  std::string folder;  // for what outlives an engine; its contents are deleted. Empty: nothing does
};

// A request and what it answers alone.
struct Question {
  Request request;
  bool constrained = false;   // its answer follows a rule that depends on all of its tokens so far
  int64_t cancel_after = -1;  // tokens; -1: it is not cancelled
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;  // of each token
};

// Questions that one engine answers, `together` at a time.
struct Phase {
  EngineOptions options;
  int64_t questions = 0, together = 1;
  // Of operations on the files of cache_dir one in so many fails, or from the so-manyth on all do, as if the process had been killed
  // there; what fails to be appended is half written. 0: none.
  int64_t one_fails_in = 0, killed_at = 0;
};

struct Workload {
  std::vector<Question> questions;
  std::vector<Phase> phases;
};

// How much of what could go wrong was at work.
struct Exercise {
  int64_t requests = 0, cancelled = 0, hits = 0, divergences = 0, preemptions = 0, host_hits = 0, disk_hits = 0, restarts = 0, file_faults = 0;
  Exercise& operator+=(const Exercise& o);
};

// The model must take EngineOptions up to max_batched_tokens 512, max_sequences 8 and a context of max_prompt + max_output.
class SameTokens {
 public:
  SameTokens(device::Device& device, models::Glm5Next& model) : device_(device), model_(model) {}
  // Draws a workload and answers each of its questions alone.
  Workload draw(const WorkloadOptions& options);
  // Serves it. What differs first, in words; empty: nothing.
  std::string serve(const Workload& workload, Exercise* exercise);
  // The smallest workload, made by leaving out questions, that still differs; gives up after about so many seconds.
  Workload shrink(Workload workload, double seconds);

 private:
  std::string serve_phase(const Phase& phase, const std::vector<Question>& all, size_t first, size_t count, Exercise* exercise);
  device::Device& device_;
  models::Glm5Next& model_;
};

// For people: what each phase is and asks.
std::string describe(const Workload& workload);

}  // namespace winnow::engine
