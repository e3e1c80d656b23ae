// The one loop. The engine thread owns the scheduler, the caches and the device; other threads talk to it through the
// inbox (submit, cancel) and read each request's outbox. Nothing else is shared.
//
// Each step: take new requests, pick the batch (decode rows first, then prefill chunks within a token budget), run the
// model once, sample, append. A request that can never fit is refused at submit with the numbers; one that does not fit
// now waits in the queue.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "base/error.h"
#include "cache/disk_files.h"
#include "cache/kv_layout.h"
#include "engine/request.h"
#include "engine/reuse.h"
#include "engine/stream.h"
#include "models/glm5_next.h"

namespace winnow::engine {

struct EngineOptions {
  int64_t max_batched_tokens = 512;     // rows of a step, at least kChunkGrid; at most the model's max_rows
  int64_t max_sequences = 16;           // running at once
  int64_t max_context = 32768;          // prompt and output of one request
  int64_t memory_bytes = 0;             // of the device for everything, weights and workspaces included; 0: half of what they leave
  int64_t kv_bytes = 0;                 // budget of pages and states; 0: enough for max_sequences full contexts, within memory_bytes
  int64_t kv_pages = 0, kv_states = 0;  // at most so many, for tests of pools that run short; 0: as the budget says
  int64_t snapshot_bytes = -1;          // of the budget, for states kept for later prompts; -1: a quarter of what running ones leave
  int64_t host_bytes = -1;              // for preempted sequences and what leaves the device; -1: full contexts of half of them, at most an eighth
  std::string cache_dir;                // where pages and snapshots outlive the process; empty: nowhere
  int64_t cache_dir_bytes = int64_t{16} << 30;
  cache::DiskFiles disk_files = cache::real_files();  // tests put faults in between
  std::string model_identity;                         // of the weights, for cache_dir: records of another are never used
  Reuse reuse = Reuse::computed;
  int64_t snapshot_interval = 0;  // tokens, a multiple of the page size: more snapshots along prompts (reuse.h); 0: none
  // Called on the engine thread behind each step: rows that decoded, rows of prompts, seconds.
  std::function<void(int64_t, int64_t, double)> on_step;
  double max_itl_s = 0;             // wanted bound on the time between two tokens of a request, which prefill chunks follow; 0: none
  int64_t chunk_grid = kChunkGrid;  // where prefill chunks may end; no multiple of kChunkGrid only in profile exact, for tests
};

// Bytes of the host that cache_dir takes for records on their way: queued ones, those that are read, copies in between. 0 without it.
int64_t disk_buffer_bytes(const cache::KvLayout& layout, const EngineOptions& options);

// How many records there is room for. Throws Error with the numbers if there is none.
cache::KvSizes plan_kv(const cache::KvLayout& layout, const EngineOptions& options, const device::Device& device);

class Engine {
 public:
  // Allocates caches and starts the engine thread, to which device and model belong from then on. Both must outlive the
  // engine. Throws Error if the options do not fit the model or the caches do not fit the memory.
  Engine(device::Device& device, models::Glm5Next& model, const EngineOptions& options);
  ~Engine();  // cancels what runs and joins
  // Any thread. Refused (an Error that names the field) if it can never run: empty or too long prompt, token out of range,
  // bad parameters; or if the engine has stopped.
  Result<Stream> submit(Request request);
  // Whether the engine thread showed itself, by the end of a step or by an answer to this question, at or after `since`.
  // Never waits: ask again a little later.
  Pulse pulse(std::chrono::steady_clock::time_point since);
  using Totals = engine::Totals;
  Totals totals() const;  // as of the last step
  const RequestLimits& limits() const;
  const cache::KvLayout& layout() const;
  const cache::KvSizes& sizes() const;
  int64_t canary_bytes() const;       // of debug builds, beyond the plan
  const std::string& notice() const;  // a line about what in cache_dir is not used; empty: nothing

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow::engine
