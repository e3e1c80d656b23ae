// What other threads may say to the engine thread, and what it says about itself. The one place, besides the outboxes,
// that both sides touch; everything in it is guarded by one mutex that is held for moments only.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/sequence.h"

namespace winnow::engine {

class Inbox {
 public:
  // Any thread.
  std::optional<Error> submit(std::unique_ptr<Sequence> sequence);  // refused once the engine has stopped
  void cancel(RequestId id);
  void stop();
  void nudge();  // something else that the engine thread may wait for is there
  // Whether the engine thread showed itself at or after `since`; if not, it is asked to, which an idle one does at once and
  // a busy one after its step.
  Pulse pulse(Clock::time_point since);
  Totals totals() const;

  // Engine thread.
  struct Mail {
    std::vector<std::unique_ptr<Sequence>> submitted;  // in order of arrival
    std::vector<RequestId> cancelled;
    bool stop = false;
  };
  // Fills *mail, which must be empty, with what has come since the last call; sleeps until there is something or a nudge, at
  // most so long, and answers probes meanwhile.
  void take(Mail* mail, std::chrono::milliseconds longest);
  // Between two steps: the engine thread is alive, and these are its numbers.
  void publish(const Totals& totals);
  // Nothing is accepted from now on, for this reason. What has come but was not taken goes to *mail.
  void close(std::string reason, Mail* mail);

 private:
  void show_life();  // with mutex_ held

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  // Guarded by mutex_.
  Mail mail_;
  std::optional<std::string> closed_;
  bool probed_ = false, nudged_ = false;
  Clock::time_point last_shown_ = Clock::now();
  Totals totals_;
};

}  // namespace winnow::engine
