#include "cache/record_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace winnow::cache {
namespace {

TEST(RecordPool, TakesAllOrNothing) {
  PagePool pool(3);
  std::vector<PageId> held;
  EXPECT_FALSE(pool.take(4, &held));
  EXPECT_TRUE(held.empty());
  EXPECT_EQ(pool.free(), 3);
  ASSERT_TRUE(pool.take(3, &held));
  EXPECT_EQ(held, (std::vector{PageId(0), PageId(1), PageId(2)}));
  EXPECT_FALSE(pool.take(1, &held));
  EXPECT_TRUE(pool.take(0, &held));
  pool.release(held);
  EXPECT_EQ(pool.free(), 3);
  held.clear();
  ASSERT_TRUE(pool.take(2, &held));  // the order of the first time
  EXPECT_EQ(held, (std::vector{PageId(0), PageId(1)}));
}

TEST(RecordPool, ASharedRecordOutlivesItsFirstHolder) {
  StatePool pool(1);
  std::vector<StateId> held;
  ASSERT_TRUE(pool.take(1, &held));
  pool.share(held[0]);
  pool.release(held[0]);
  EXPECT_EQ(pool.free(), 0);
  EXPECT_EQ(pool.references(held[0]), 1);
  pool.release(held[0]);
  EXPECT_EQ(pool.free(), 1);
}

using RecordPoolDeathTest = ::testing::Test;
TEST(RecordPoolDeathTest, MisuseAborts) {
  PagePool pool(2);
  std::vector<PageId> held;
  ASSERT_TRUE(pool.take(1, &held));
  pool.release(held[0]);
  EXPECT_DEATH(pool.release(held[0]), "released more often");
  EXPECT_DEATH(pool.share(held[0]), "free record is shared");
  EXPECT_DEATH(pool.references(PageId(2)), "out of range");
  EXPECT_DEATH(pool.references(PageId(-1)), "out of range");
}

// Random holders against a map of who holds what.
TEST(RecordPool, AgreesWithAMapOfCounts) {
  std::mt19937_64 random(1);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 200; ++round) {
    const int64_t size = below(12);
    PagePool pool(size);
    std::map<int64_t, int> model;
    std::vector<PageId> references;  // one entry a reference
    for (int step = 0; step < 200; ++step) {
      const int64_t action = below(4);
      if (action == 0) {
        const int64_t n = below(6);
        std::vector<PageId> got;
        const bool fits = n <= size - static_cast<int64_t>(model.size());
        ASSERT_EQ(pool.take(n, &got), fits);
        ASSERT_EQ(static_cast<int64_t>(got.size()), fits ? n : 0);
        for (PageId id : got) {
          ASSERT_TRUE(model.emplace(id.value, 1).second) << "given out while held";
          references.push_back(id);
        }
      } else if (!references.empty()) {
        const size_t i = static_cast<size_t>(below(static_cast<int64_t>(references.size())));
        const PageId id = references[i];
        if (action == 1) {
          pool.share(id);
          ++model[id.value];
          references.push_back(id);
        } else {
          pool.release(id);
          if (--model[id.value] == 0) model.erase(id.value);
          references.erase(references.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
      ASSERT_EQ(pool.used(), static_cast<int64_t>(model.size()));
      for (int64_t id = 0; id < size; ++id) ASSERT_EQ(pool.references(PageId(id)), model.count(id) ? model[id] : 0);
      pool.check_integrity();
    }
    pool.release(references);
    EXPECT_EQ(pool.free(), size);
    pool.check_integrity();
  }
}

}  // namespace
}  // namespace winnow::cache
