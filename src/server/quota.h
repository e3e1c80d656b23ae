// Who may start what now: each key's requests a minute, tokens a minute and requests at once, and the bounded queue of all.
// A rate is a bucket that holds a minute's worth and refills evenly. Tokens are taken when they are known, so a bucket may fall
// below zero: then the key waits until it is above it again.
//
// Thread: the I/O thread.
#pragma once

#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "server/limits.h"

namespace winnow::server {

enum class Reason : uint8_t { key_requests, key_tokens, key_concurrent, queue };

struct TooMuch {
  Reason reason;
  std::string message;
  int64_t retry_after_s;
};

class Quota {
 public:
  using Clock = std::chrono::steady_clock;
  // `keys` are the limits of each key, or, without keys, those of everybody.
  Quota(const Limits& limits, std::vector<KeyLimits> keys);

  // A request's place; gone, it leaves it. The Quota outlives it.
  class Place {
   public:
    Place() = default;
    Place(Place&& o) noexcept { *this = std::move(o); }
    Place& operator=(Place&& o) noexcept;
    ~Place() { leave(Clock::now()); }
    void count(int64_t choices);  // once known; until then it is one
    void spend(int64_t tokens, Clock::time_point now = Clock::now());
    void leave(Clock::time_point now);

   private:
    friend class Quota;
    Quota* quota_ = nullptr;
    size_t key_ = 0;
    int64_t choices_ = 0;  // 0: it does not generate and takes no room in the queue
    Clock::time_point began_;
  };
  std::variant<Place, TooMuch> take(size_t key, bool generates, Clock::time_point now = Clock::now());
  int64_t choices() const { return choices_; }  // of all that are here

 private:
  struct Bucket {
    double left = 0;
    Clock::time_point at;
  };
  struct Account {
    KeyLimits limits;
    Bucket requests, tokens;
    int64_t running = 0;
  };
  static void refill(Bucket* bucket, int64_t per_minute, Clock::time_point now);
  int64_t seconds(double s) const;  // as Retry-After has it
  const Limits limits_;
  std::vector<Account> accounts_;
  int64_t choices_ = 0;
  double mean_s_ = 1;  // that a request that generates stays, weighted towards the newest
};

}  // namespace winnow::server
