// Ring lengths and the lazy fold, driven by random steps against an unbounded log: each ring slot remembers which
// position (and which attempt at it) wrote it, so a row that was overwritten too early or is stale is seen when read.
#include "ops/rows.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace winnow::ops {
namespace {

struct Entry {
  int64_t position = -1, attempt = -1;
};

// A ring beside the log of everything ever written: a slot read must hold the latest entry of the position asked for.
class Ring {
 public:
  explicit Ring(int64_t rows) : slots_(static_cast<size_t>(rows)) {}
  void read(int64_t position) {
    const Entry& e = slots_[static_cast<size_t>(position % rows())];
    EXPECT_EQ(e.position, position) << "the slot was overwritten";
    EXPECT_EQ(e.attempt, log_[position]) << "the row is of an earlier attempt";
    read_.push_back(position % rows());
  }
  void write(int64_t position, int64_t attempt) {
    for (int64_t slot : read_) EXPECT_NE(slot, position % rows()) << "a step writes a slot that it reads";
    slots_[static_cast<size_t>(position % rows())] = {position, attempt};
    log_[position] = attempt;
  }
  void end_step() { read_.clear(); }
  int64_t rows() const { return static_cast<int64_t>(slots_.size()); }

 private:
  std::vector<Entry> slots_;
  std::map<int64_t, int64_t> log_;
  std::vector<int64_t> read_;
};

// Steps of 1 + depth rows of which 1 .. 1 + depth are accepted, from any first position.
struct Steps {
  int64_t depth;
  std::mt19937_64 rng;
  int64_t position, attempt = 0;
  Steps(int64_t d, int64_t start, uint64_t seed) : depth(d), rng(seed), position(start) {}
  int64_t accepted() { return 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(depth + 1)); }
};

// What a KDA decode step reads and writes: rows since `folded`, then its own.
bool kda_is_clean(int64_t depth, int64_t ring_rows, int64_t start, uint64_t seed) {
  Steps s(depth, start, seed);
  Ring ring(ring_rows);
  int64_t folded = folded_after(0, TokenPos(0), start, false, false);
  for (int64_t t = folded; t < start; ++t) ring.write(t, 0);
  ring.end_step();
  for (int step = 0; step < 60; ++step, ++s.attempt) {
    for (int64_t t = folded; t < s.position; ++t) ring.read(t);
    for (int64_t t = s.position; t <= s.position + depth; ++t) ring.write(t, s.attempt + 1);
    ring.end_step();
    const int64_t after = folded_after(folded, TokenPos(s.position), depth + 1, true, false);
    EXPECT_TRUE(after == folded || after == folded + kKdaGroup) << "more than one fold is written";
    EXPECT_LE(after, s.position) << "a fold of rows that are not accepted yet";
    EXPECT_LT(s.position - after, kKdaGroup) << "a full group stays unfolded, and a step would cross two boundaries";
    folded = after;
    s.position += s.accepted();
  }
  return !::testing::Test::HasFailure();
}

TEST(Rings, Kda) {
  for (int64_t depth = 0; depth < kKdaGroup; ++depth)
    for (int64_t start = 1; start <= 3 * kKdaGroup; ++start)
      ASSERT_TRUE(kda_is_clean(depth, kda_ring_rows(depth), start, static_cast<uint64_t>(start))) << "depth " << depth << " from " << start;
}

TEST(Rings, Convolution) {
  for (int64_t taps : {1, 2, 3, 4, 5, 8})
    for (int64_t depth = 0; depth <= 7; ++depth)
      for (uint64_t seed = 0; seed < 20; ++seed) {
        Steps s(depth, static_cast<int64_t>(seed) + 1, seed);
        Ring ring(conv_ring_rows(taps, depth));
        for (int64_t t = std::max<int64_t>(0, s.position - ring.rows()); t < s.position; ++t) ring.write(t, 0);
        for (int step = 0; step < 60; ++step, ++s.attempt) {
          for (int64_t t = std::max<int64_t>(0, s.position - (taps - 1)); t < s.position; ++t) ring.read(t);
          for (int64_t t = s.position; t <= s.position + depth; ++t) ring.write(t, s.attempt + 1);
          ring.end_step();
          s.position += s.accepted();
        }
        ASSERT_FALSE(HasFailure()) << "taps " << taps << ", depth " << depth;
      }
}

// Rows of an incomplete pool are read when a later token completes it; a draft may complete it too.
TEST(Rings, Pools) {
  for (int64_t kpool : {1, 2, 3, 4, 8, 16})
    for (int64_t depth = 0; depth <= 7; ++depth)
      for (uint64_t seed = 0; seed < 20; ++seed) {
        Steps s(depth, static_cast<int64_t>(seed) + 1, seed);
        Ring ring(pool_ring_rows(kpool, depth));
        for (int64_t t = std::max<int64_t>(0, s.position - ring.rows()); t < s.position; ++t) ring.write(t, 0);
        for (int step = 0; step < 60; ++step, ++s.attempt) {
          ring.end_step();
          const PoolPos open = pool_of(TokenPos(s.position), kpool);  // its rows before this step come from the ring
          for (int64_t t = first_token(open, kpool).value; t < s.position; ++t) ring.read(t);
          for (int64_t t = s.position; t <= s.position + depth; ++t) ring.write(t, s.attempt + 1);
          s.position += s.accepted();
        }
        ASSERT_FALSE(HasFailure()) << "kpool " << kpool << ", depth " << depth;
      }
}

TEST(FoldedAfter, Prefill) {
  EXPECT_EQ(folded_after(0, TokenPos(0), 8, false, false), 0);  // a full group waits for the next token
  EXPECT_EQ(folded_after(0, TokenPos(0), 9, false, false), 8);
  EXPECT_EQ(folded_after(0, TokenPos(0), 64, false, true), 64);  // a whole chunk does not wait
  EXPECT_EQ(folded_after(0, TokenPos(0), 72, false, true), 64);
  EXPECT_EQ(folded_after(0, TokenPos(0), 73, false, true), 72);
  EXPECT_EQ(folded_after(24, TokenPos(29), 120, false, true), 144);
  EXPECT_EQ(folded_after(144, TokenPos(149), 43, false, true), 184);  // reaches the grid, holds no whole chunk
  EXPECT_EQ(folded_after(184, TokenPos(192), 64, false, true), 256);
  EXPECT_EQ(folded_after(16, TokenPos(20), 0, false, true), 16);
}

TEST(FoldedAfter, DecodeFoldsOnlyWhatWasFullBefore) {
  EXPECT_EQ(folded_after(0, TokenPos(7), 1, true, true), 0);
  EXPECT_EQ(folded_after(0, TokenPos(8), 1, true, true), 8);
  EXPECT_EQ(folded_after(0, TokenPos(6), 8, true, true), 0);  // rows 7 .. 13 may be rejected drafts
  EXPECT_EQ(folded_after(0, TokenPos(14), 8, true, true), 8);
}

}  // namespace
}  // namespace winnow::ops
