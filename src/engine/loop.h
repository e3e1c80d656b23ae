// The engine thread's life: take what has come, admit, compute a step, hand out tokens; sleep when there is nothing to do.
// It owns every live sequence, the pools and the scheduler.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cache/kv_layout.h"
#include "cache/record_pool.h"
#include "engine/inbox.h"
#include "engine/pace.h"
#include "engine/scheduler.h"
#include "engine/step.h"

namespace winnow::engine {

class Loop {
 public:
  using OnStep = std::function<void(int64_t decode_rows, int64_t prefill_rows, double seconds)>;
  // Throws Error if the options contradict each other.
  Loop(Runner runner, const SchedulerOptions& options, const cache::KvSizes& sizes, std::shared_ptr<Inbox> inbox, double max_itl_s = 0,
       OnStep on_step = {});

  // Until the inbox says stop, or a step throws: then every request ends with that error and the inbox closes. Never throws.
  void run() noexcept;

 private:
  bool take_mail();  // false: stop
  void admit();
  bool step();  // false: nothing could be computed
  void compute(std::span<const Chunk> chunks);
  void end_late();  // whose deadline has passed
  void deliver(Sequence& sequence, std::span<const float> logits);
  bool score(const Chunk& chunk, int64_t row);        // its prompt tokens, of the logits from that row on; false: they are not finite
  void fail(Sequence& sequence, const Chunk& chunk);  // its rows are not finite
  void cancel(RequestId id);
  void end_all(FinishReason reason, const std::string& why);
  void end(const Sequence& sequence, Event event);
  void publish();

  const cache::LowerTiers lower_;
  cache::PagePool pages_;
  cache::StatePool states_;
  Scheduler scheduler_;
  Step step_;
  Pace pace_;
  const OnStep on_step_;
  bool rests_ = false;  // until something comes
  const std::shared_ptr<Inbox> inbox_;
  Inbox::Mail mail_;
  Totals totals_;
};

}  // namespace winnow::engine
