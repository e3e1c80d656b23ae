// The events of one request on their way from the engine thread to its reader.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "engine/inbox.h"

namespace winnow::engine {

class Outbox {
 public:
  Outbox(RequestId id, std::shared_ptr<Inbox> inbox) : id_(id), inbox_(std::move(inbox)) {}

  // Engine thread: appends an event and calls the reader's wake.
  void push(Event event, const Timings& timings);

  // Reader. False: none in that time; without a time it waits as long as it takes. Behind the end there is only the end
  // itself, without a token.
  bool next(Event* event, std::optional<std::chrono::milliseconds> wait);
  // Once this returns, the former wake is not running and will not be called again.
  void on_event(std::function<void()> wake);
  void cancel();  // no effect after the end
  Timings timings() const;

 private:
  const RequestId id_;
  const std::shared_ptr<Inbox> inbox_;

  mutable std::mutex mutex_;
  std::condition_variable filled_;
  // Guarded by mutex_.
  std::deque<Event> events_;
  Timings timings_;
  std::optional<Event> end_;  // set when the end was queued

  // Held while wake runs, so that taking it away can wait for that. Never taken together with mutex_.
  std::mutex wake_mutex_;
  std::function<void()> wake_;
};

}  // namespace winnow::engine
