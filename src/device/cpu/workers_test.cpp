#include "device/cpu/workers.h"

#include <gtest/gtest.h>

#include <sched.h>

#include <array>
#include <chrono>
#include <numeric>
#include <thread>

namespace winnow::device {
namespace {

TEST(Workers, EveryItemOnceInRangesOfTheUnit) {
  for (int count : {1, 2, 3, 7}) {
    Workers workers(count);
    for (int64_t items : {0, 1, 5, 64, 1000})
      for (int64_t unit : {1, 4, 64}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(items));
        std::vector<std::atomic<int>> used(static_cast<size_t>(count));
        workers.run(items, unit, [&](int64_t begin, int64_t end, int worker) {
          EXPECT_EQ(begin % unit, 0);
          EXPECT_TRUE(end % unit == 0 || end == items);
          ++used[static_cast<size_t>(worker)];
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (auto& n : seen) EXPECT_EQ(n, 1);
        for (auto& n : used) EXPECT_LE(n, 1) << "one range a worker: its scratch is its own";
      }
  }
}

// Many short rounds of a changing number of parts, with pauses in which the workers fall asleep: no part is lost or done twice.
TEST(Workers, NoRoundLosesAPart) {
  Workers workers(4);
  std::array<int64_t, 4> sums{};  // plain on purpose: a part done twice at once is a race that ThreadSanitizer sees
  int64_t expected = 0;
  for (int64_t round = 0; round < 20000; ++round) {
    const int64_t items = 1 + round % 4;
    workers.run(items, 1, [&](int64_t begin, int64_t, int worker) { sums[static_cast<size_t>(worker)] += round * (begin + 1); });
    expected += round * items * (items + 1) / 2;
    if (round % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), expected);
}

// Workers that sleep are slower to begin than a caller with little to do: it does their parts, and a round never waits for them.
TEST(Workers, OtherThreadsCanKeepClear) {
  cpu_set_t all, mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  for (const int count : {1, CPU_COUNT(&all)}) {
    Workers workers(count);
    std::thread([&] {
      workers.keep_clear();
      ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
    }).join();
    const int left = CPU_COUNT(&all) - count;
    EXPECT_EQ(CPU_COUNT(&mine), left > 0 ? left : CPU_COUNT(&all));
  }
}

TEST(Workers, TheCallerDoesWhatOthersHaveNotBegun) {
  Workers workers(3);
  int alone = 0;
  for (int round = 0; round < 50; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::array<std::thread::id, 3> by;
    workers.run(3, 1, [&](int64_t begin, int64_t, int) { by[static_cast<size_t>(begin)] = std::this_thread::get_id(); });
    for (const std::thread::id& id : by) EXPECT_NE(id, std::thread::id());
    alone += by[1] == by[0] && by[2] == by[0];
  }
  EXPECT_GT(alone, 0);
}

}  // namespace
}  // namespace winnow::device
