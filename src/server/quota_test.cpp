#include "server/quota.h"

#include <gtest/gtest.h>

namespace winnow::server {
namespace {

using Clock = Quota::Clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

struct Desk {
  explicit Desk(KeyLimits key, Limits limits = {}) : quota(limits, {key, {}}) {}
  // Seconds to wait, 0 if there was a place, which is kept.
  int64_t ask(size_t key = 0, bool generates = true) {
    std::variant<Quota::Place, TooMuch> got = quota.take(key, generates, now);
    if (const auto* no = std::get_if<TooMuch>(&got)) {
      reason = no->reason;
      return no->retry_after_s;
    }
    places.push_back(std::move(std::get<Quota::Place>(got)));
    return 0;
  }
  Clock::time_point now = Clock::now() + seconds(1);
  Quota quota;
  std::vector<Quota::Place> places;
  Reason reason{};
};

TEST(Quota, RequestsAMinuteRefillEvenly) {
  Desk d({.requests_per_minute = 6});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(d.ask(), 0);
  EXPECT_EQ(d.ask(), 10);
  EXPECT_EQ(d.reason, Reason::key_requests);
  EXPECT_EQ(d.ask(1), 0) << "another key";
  d.now += milliseconds(9500);
  EXPECT_EQ(d.ask(), 1);
  d.now += milliseconds(500);
  EXPECT_EQ(d.ask(), 0);
  EXPECT_EQ(d.ask(), 10);
  d.now += seconds(3600);  // no more than a minute's worth is saved
  for (int i = 0; i < 6; ++i) EXPECT_EQ(d.ask(), 0);
  EXPECT_EQ(d.ask(), 10);
}

TEST(Quota, TokensAreTakenWhenTheyAreKnown) {
  Desk d({.tokens_per_minute = 60});
  EXPECT_EQ(d.ask(), 0);
  d.places[0].spend(69, d.now);
  EXPECT_EQ(d.ask(), 10);
  EXPECT_EQ(d.reason, Reason::key_tokens);
  d.now += seconds(10);
  EXPECT_EQ(d.ask(), 0);
  d.places[1].spend(1'000'000'000, d.now);
  EXPECT_EQ(d.ask(), 60) << "no longer than longest_retry";
}

TEST(Quota, AKeyRunsSoManyAtOnce) {
  Desk d({.concurrent = 2});
  EXPECT_EQ(d.ask(), 0);
  EXPECT_EQ(d.ask(), 0);
  EXPECT_GT(d.ask(), 0);
  EXPECT_EQ(d.reason, Reason::key_concurrent);
  EXPECT_EQ(d.ask(0, false), 0) << "what does not generate";
  EXPECT_EQ(d.ask(1), 0) << "another key";
  d.places.erase(d.places.begin());
  EXPECT_EQ(d.ask(), 0);
}

TEST(Quota, TheQueueCountsChoices) {
  Limits limits;
  limits.running = 2;
  limits.waiting = 3;
  Desk d({}, limits);
  EXPECT_EQ(d.ask(), 0);
  d.places[0].count(4);
  EXPECT_EQ(d.quota.choices(), 4);
  EXPECT_EQ(d.ask(), 0);
  EXPECT_EQ(d.ask(), 1);
  EXPECT_EQ(d.reason, Reason::queue);
  d.now += seconds(100);
  d.places[0].leave(d.now);  // the mean stay is 10.9 s now, and one is here
  EXPECT_EQ(d.quota.choices(), 1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(d.ask(), 0);
  EXPECT_EQ(d.ask(), 3) << "11 s over five of them, rounded up";
  d.places.clear();
  EXPECT_EQ(d.quota.choices(), 0);
}

TEST(Quota, NoLimitsAreNoLimits) {
  Desk d({});
  for (int i = 0; i < 200; ++i) EXPECT_EQ(d.ask(), 0);
  d.places[0].spend(int64_t{1} << 50, d.now);
  EXPECT_EQ(d.ask(), 0);
}

}  // namespace
}  // namespace winnow::server
