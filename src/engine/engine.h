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
#include <string>
#include <vector>

#include "base/error.h"
#include "models/glm5_next.h"
#include "ops/sample/sample.h"

namespace winnow::engine {

struct EngineOptions {
  int64_t max_batched_tokens = 512;  // rows of a step, a multiple of kChunkGrid
  int64_t max_sequences = 16;        // running at once
  int64_t max_context = 32768;       // prompt and output of one request
  int64_t page_tokens = 64;
  int64_t kv_bytes = 0;              // budget of pages and states; 0: enough for max_sequences full contexts, at most half of free memory
};

struct Request {
  std::vector<int32_t> prompt;            // at least one token
  int64_t max_tokens = 256;
  ops::Sampling sampling;
  std::vector<int32_t> stop_tokens;       // end the request; the stop token is reported in tokens but its text is not part of the answer
  bool ignore_eos = false;                // stop_tokens do not end it
  int64_t min_tokens = 0;
  bool keep_logits = false;               // each event carries the step's logits row (winnow run --logits)
};

enum class FinishReason : uint8_t { none, stop, length, cancelled, error };
std::string_view name_of(FinishReason r);

// One token, or the end, of one request.
struct Event {
  ops::Sampled sampled;                   // token -1 in an end event without a token
  FinishReason finish = FinishReason::none;
  std::string error;                      // with FinishReason::error
  std::vector<float> logits;              // keep_logits only
};

struct Timings {
  double queued_s = 0, prefill_s = 0, decode_s = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
};

// The reading end of one request. next() blocks; safe to use from one thread other than the engine's. Destroying it
// before the end cancels the request.
class Stream {
 public:
  Stream() = default;
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();
  // The next event. After an event with finish != none there is none.
  Event next();
  bool next_for(Event* event, std::chrono::milliseconds wait);   // false: nothing yet
  // Calls `wake` from the engine thread after each event is queued, so that an I/O loop can post() and then poll with try_next.
  void on_event(std::function<void()> wake);
  bool try_next(Event* event);
  void cancel();
  Timings timings() const;      // final after the end event

 private:
  friend class Engine;
  struct State;
  std::shared_ptr<State> state_;
};

class Engine {
 public:
  // Allocates caches and starts the engine thread. The model must outlive the engine.
  Engine(device::Device& device, models::Glm5Next& model, const EngineOptions& options);
  ~Engine();  // cancels what runs and joins
  // Refused (an Error that names the field) if it can never run: empty or too long prompt, token out of range, bad parameters.
  Result<Stream> submit(Request request);
  // True if a step finished within `deadline` or a probe of the idle loop did.
  bool healthy(std::chrono::milliseconds deadline);
  struct Totals { int64_t steps = 0, running = 0, waiting = 0, prompt_tokens = 0, generated_tokens = 0, pages = 0, free_pages = 0, states = 0, free_states = 0; };
  Totals totals() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow::engine
