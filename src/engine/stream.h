// The reading end of one request.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "engine/request.h"

namespace winnow::engine {

class Outbox;

// next() blocks; safe to use from one thread other than the engine's. Destroying it before the end cancels the request.
// It may outlive the engine, which ends every request before it goes.
class Stream {
 public:
  Stream() = default;
  explicit Stream(std::shared_ptr<Outbox> outbox);
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();
  // The next event. After an event with finish != none there is none: the end repeats, without a token.
  Event next();
  bool next_for(Event* event, std::chrono::milliseconds wait);  // false: nothing yet
  // Calls `wake` from the engine thread after each event is queued, so that an I/O loop can post() and then poll with
  // try_next. Events queued before this call wake nobody: poll once after it. `wake` returns at once and does not
  // destroy the stream or call on_event.
  void on_event(std::function<void()> wake);
  bool try_next(Event* event);
  void cancel();            // the end arrives as an event, after those already queued
  Timings timings() const;  // final after the end event

 private:
  void drop();
  std::shared_ptr<Outbox> outbox_;
};

}  // namespace winnow::engine
