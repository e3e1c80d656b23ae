#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace winnow::engine {
namespace {

std::unique_ptr<Sequence> sequence(int64_t id, int64_t prompt, int64_t max_tokens, int64_t page_tokens = 64) {
  Request r;
  r.prompt.assign(static_cast<size_t>(prompt), 7);
  r.max_tokens = max_tokens;
  return std::make_unique<Sequence>(RequestId(id), std::move(r), page_tokens);
}

// What the engine does with a planned step: rows are computed, sampling sequences get a token, full ones end.
void run(Scheduler& scheduler, std::span<const Chunk> chunks) {
  std::vector<RequestId> done;
  for (const Chunk& c : chunks) {
    const bool samples = c.samples();
    c.sequence->num_computed_tokens += c.count;
    scheduler.computed(c);
    if (!samples) continue;
    c.sequence->tokens.push_back(9);
    if (c.sequence->generated_tokens() == c.sequence->request.max_tokens) done.push_back(c.sequence->id);
  }
  for (RequestId id : done) ASSERT_TRUE(scheduler.remove(id));
}

// "3:0+64 5:70+1": id, position and rows of each chunk.
std::string text(std::span<const Chunk> chunks) {
  std::string s;
  for (const Chunk& c : chunks) s += fmt::format("{}{}:{}+{}", s.empty() ? "" : " ", c.sequence->id.value, c.position.value, c.count);
  return s;
}

struct Fixture {
  explicit Fixture(const SchedulerOptions& o, int64_t pages = 1000) : pages(pages), states(o.max_sequences), scheduler(o, this->pages, states) {}
  std::string step() {
    scheduler.admit();
    const auto chunks = scheduler.plan();
    std::string s = text(chunks);
    run(scheduler, chunks);
    scheduler.check_integrity();
    return s;
  }
  cache::PagePool pages;
  cache::StatePool states;
  Scheduler scheduler;
};

TEST(Scheduler, AChunkEndsOnTheGridOrAtThePromptsEnd) {
  Fixture f({.max_batched_tokens = 150, .max_sequences = 4});
  f.scheduler.add(sequence(1, 200, 2));
  EXPECT_EQ(f.step(), "1:0+128");  // not 150
  EXPECT_EQ(f.step(), "1:128+72");
  EXPECT_EQ(f.step(), "1:200+1");
  EXPECT_EQ(f.step(), "");
  EXPECT_TRUE(f.scheduler.idle());
}

TEST(Scheduler, CutsOfAPromptDoNotFollowTheCompany) {
  Fixture f({.max_batched_tokens = 128, .max_sequences = 4});
  f.scheduler.add(sequence(1, 3, 9));
  f.scheduler.add(sequence(2, 300, 1));
  EXPECT_EQ(f.step(), "1:0+3 2:0+64");
  EXPECT_EQ(f.step(), "1:3+1 2:64+64");
  EXPECT_EQ(f.step(), "1:4+1 2:128+64");
}

TEST(Scheduler, AShortLastChunkOfAPromptIsPrefill) {
  Fixture f({.max_batched_tokens = 8, .max_sequences = 1, .chunk_grid = 8});
  f.scheduler.add(sequence(1, 10, 2));
  f.step();
  const auto chunks = f.scheduler.plan();
  ASSERT_EQ(text(chunks), "1:8+2");
  EXPECT_FALSE(chunks[0].decode());
  EXPECT_TRUE(chunks[0].samples());
  run(f.scheduler, chunks);
  const auto next = f.scheduler.plan();
  ASSERT_EQ(text(next), "1:10+1");
  EXPECT_TRUE(next[0].decode());
  EXPECT_TRUE(next[0].samples());
}

TEST(Scheduler, DecodeRowsComeFirstAndPrefillsInOrderOfArrival) {
  Fixture f({.max_batched_tokens = 130, .max_sequences = 4});
  for (int64_t id = 1; id <= 3; ++id) f.scheduler.add(sequence(id, 100, 5));
  f.scheduler.add(sequence(4, 1, 5));
  EXPECT_EQ(f.step(), "1:0+100");  // 30 rows are no chunk of the second, and the fourth does not overtake
  EXPECT_EQ(f.step(), "1:100+1 2:0+100");
  EXPECT_EQ(f.step(), "1:101+1 2:100+1 3:0+100 4:0+1");
  EXPECT_EQ(f.step(), "1:102+1 2:101+1 3:100+1 4:1+1");
}

TEST(Scheduler, APrefillThatDecodeRowsCrowdOutHasTheNextStep) {
  Fixture f({.max_batched_tokens = 64, .max_sequences = 3});
  f.scheduler.add(sequence(1, 1, 9));
  f.scheduler.add(sequence(2, 60, 9));
  EXPECT_EQ(f.step(), "1:0+1 2:0+60");
  f.scheduler.add(sequence(3, 130, 1));
  EXPECT_EQ(f.step(), "1:1+1 2:60+1");
  EXPECT_EQ(f.step(), "3:0+64");
  EXPECT_EQ(f.step(), "1:2+1 2:61+1");
  EXPECT_EQ(f.step(), "3:64+64");
  EXPECT_EQ(f.step(), "1:3+1 2:62+1 3:128+2");  // its end fits beside them
}

TEST(Scheduler, ARequestWaitsForThePagesOfItsWorstCase) {
  Fixture f({.max_batched_tokens = 512, .max_sequences = 4}, 5);
  f.scheduler.add(sequence(1, 100, 29));  // 129 tokens: 3 pages
  f.scheduler.add(sequence(2, 64, 65));   // 3 pages
  f.scheduler.add(sequence(3, 10, 2));    // 1 page, would fit
  EXPECT_EQ(f.step(), "1:0+100");
  EXPECT_EQ(f.pages.free(), 2);
  EXPECT_EQ(f.scheduler.waiting().size(), 2u);
  ASSERT_TRUE(f.scheduler.remove(RequestId(1)));
  EXPECT_EQ(f.step(), "2:0+64 3:0+10");
  EXPECT_EQ(f.pages.free(), 1);
}

TEST(Scheduler, ARequestWaitsForAState) {
  Fixture f({.max_batched_tokens = 512, .max_sequences = 1});
  f.scheduler.add(sequence(1, 10, 2));
  f.scheduler.add(sequence(2, 10, 1));
  EXPECT_EQ(f.step(), "1:0+10");
  EXPECT_EQ(f.step(), "1:10+1");
  EXPECT_EQ(f.step(), "2:0+10");
}

TEST(Scheduler, RemovingAnUnknownRequestDoesNothing) {
  Fixture f({});
  EXPECT_FALSE(f.scheduler.remove(RequestId(5)));
  f.scheduler.add(sequence(1, 10, 2));
  EXPECT_FALSE(f.scheduler.remove(RequestId(5)));
  EXPECT_TRUE(f.scheduler.remove(RequestId(1)));
  EXPECT_FALSE(f.scheduler.remove(RequestId(1)));
}

TEST(Scheduler, RefusesOptionsThatCannotWork) {
  cache::PagePool pages(4);
  cache::StatePool states(4);
  EXPECT_THROW(Scheduler({.max_batched_tokens = 63}, pages, states), Error);
  EXPECT_THROW(Scheduler({.max_batched_tokens = 64, .max_sequences = 0}, pages, states), Error);
  EXPECT_THROW(Scheduler({.max_batched_tokens = 64, .max_sequences = 65}, pages, states), Error);
  EXPECT_THROW(Scheduler({.chunk_grid = 0}, pages, states), Error);
  EXPECT_NO_THROW(Scheduler({.max_batched_tokens = 64, .max_sequences = 64}, pages, states));
}

using SchedulerDeathTest = ::testing::Test;
TEST(SchedulerDeathTest, ALeakIsFound) {
  Fixture f({}, 5);
  std::vector<PageId> stolen;
  ASSERT_TRUE(f.pages.take(1, &stolen));
  EXPECT_DEATH(f.scheduler.check_integrity(), "references are miscounted");
}

// Random arrivals, cancellations and ends, judged by the rules alone.
class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}
  int64_t from(int64_t low, int64_t high) { return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1)); }
  bool one_in(int64_t n) { return from(1, n) == 1; }

 private:
  std::mt19937_64 random_;
};

class SchedulerRules {
 public:
  SchedulerRules(const SchedulerOptions& o, int64_t pages) : o_(o), f_(o, pages), pages_(pages) {}

  void submit(Random& random) {
    int64_t prompt = random.from(1, 5 * o_.chunk_grid), out = random.from(1, 12);
    if (pages_for(prompt + out, o_.page_tokens) > pages_) return;
    arrivals_.push_back(next_id_);
    f_.scheduler.add(sequence(next_id_++, prompt, out, o_.page_tokens));
  }
  void cancel(Random& random) {
    const int64_t id = random.from(0, next_id_);
    const bool known = std::ranges::count(arrivals_, id) + running_.count(id) > 0;
    ASSERT_EQ(f_.scheduler.remove(RequestId(id)) != nullptr, known);
    forget(id);
  }
  // One step; false when there was nothing to do.
  bool step() {
    admit();
    const auto chunks = f_.scheduler.plan();
    judge(chunks);
    std::set<int64_t> ends;
    for (const Chunk& c : chunks)
      if (c.samples() && c.sequence->generated_tokens() + 1 == c.sequence->request.max_tokens) ends.insert(c.sequence->id.value);
    const bool any = !chunks.empty();
    run(f_.scheduler, chunks);
    for (int64_t id : ends) forget(id);
    f_.scheduler.check_integrity();
    return any;
  }
  bool idle() const { return f_.scheduler.idle(); }
  void expect_all_free() const {
    EXPECT_EQ(f_.pages.free(), pages_);
    EXPECT_EQ(f_.states.free(), o_.max_sequences);
  }

 private:
  void forget(int64_t id) {
    std::erase(arrivals_, id);
    running_.erase(id);
    idle_steps_.erase(id);
  }
  void admit() {
    for (const auto& s : f_.scheduler.admit()) {
      ASSERT_FALSE(arrivals_.empty());
      ASSERT_EQ(s->id.value, arrivals_.front()) << "admitted out of order";
      arrivals_.pop_front();
      running_[s->id.value] = s->worst_case_pages(o_.page_tokens);
    }
    int64_t used = 0;
    for (auto [id, n] : running_) used += n;
    ASSERT_LE(used, pages_);
    ASSERT_LE(static_cast<int64_t>(running_.size()), o_.max_sequences);
    if (f_.scheduler.waiting().empty()) return;
    const int64_t wanted = f_.scheduler.waiting().front()->worst_case_pages(o_.page_tokens);
    ASSERT_TRUE(static_cast<int64_t>(running_.size()) == o_.max_sequences || used + wanted > pages_) << "kept waiting though it fits";
  }
  void judge(std::span<const Chunk> chunks) {
    int64_t rows = 0;
    std::set<int64_t> seen;
    bool prefill_seen = false, unfinished_seen = false;
    for (const Chunk& c : chunks) {
      const Sequence& s = *c.sequence;
      rows += c.count;
      ASSERT_TRUE(seen.insert(s.id.value).second) << "twice in a step";
      ASSERT_TRUE(running_.count(s.id.value));
      ASSERT_EQ(c.position.value, s.num_computed_tokens);
      ASSERT_GE(c.count, 1);
      const int64_t end = c.position.value + c.count;
      ASSERT_LE(end, static_cast<int64_t>(s.tokens.size()));
      ASSERT_LE(end, static_cast<int64_t>(s.pages.size()) * o_.page_tokens);
      if (c.decode()) {
        ASSERT_FALSE(prefill_seen) << "a decode row behind a prefill chunk";
        ASSERT_EQ(c.count, 1);
        ASSERT_TRUE(c.samples());
      } else {
        prefill_seen = true;
        ASSERT_FALSE(unfinished_seen) << "overtaken by a younger prompt";
        unfinished_seen = end < s.prompt_tokens;
        ASSERT_TRUE(end == s.prompt_tokens || end % o_.chunk_grid == 0);
      }
    }
    ASSERT_LE(rows, o_.max_batched_tokens);
    // Nobody whose turn it is sits out two steps: decode rows, and the oldest prefill.
    bool oldest = true;
    for (const auto& s : f_.scheduler.running()) {
      const bool turn = !s->prefilling() || oldest;
      if (s->prefilling()) oldest = false;
      int& idle = idle_steps_[s->id.value];
      idle = turn && !seen.count(s->id.value) ? idle + 1 : 0;
      ASSERT_LE(idle, 1);
    }
  }

  const SchedulerOptions o_;
  Fixture f_;
  const int64_t pages_;
  int64_t next_id_ = 1;
  std::deque<int64_t> arrivals_;        // waiting, in order
  std::map<int64_t, int64_t> running_;  // pages of each
  std::map<int64_t, int> idle_steps_;
};

TEST(Scheduler, KeepsItsRulesUnderRandomLoad) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    SchedulerOptions o;
    o.chunk_grid = random.one_in(4) ? random.from(1, 9) : kChunkGrid;
    o.page_tokens = random.one_in(2) ? 64 : 16;
    o.max_batched_tokens = o.chunk_grid * random.from(1, 6);
    o.max_sequences = random.from(1, std::min<int64_t>(o.max_batched_tokens, 20));
    SchedulerRules rules(o, random.from(1, 60));
    const int64_t rate = random.from(1, 6);
    for (int step = 0; step < 150; ++step) {
      for (int64_t n = random.from(0, 2); n > 0; --n)
        if (random.one_in(rate)) rules.submit(random);
      if (random.one_in(5)) rules.cancel(random);
      rules.step();
      if (HasFatalFailure()) return;
    }
    for (int steps = 0; !rules.idle(); ++steps) {
      ASSERT_TRUE(rules.step()) << "requests are left but no step is planned";
      if (HasFatalFailure()) return;
      ASSERT_LT(steps, 100000);
    }
    rules.expect_all_free();
  }
}

}  // namespace
}  // namespace winnow::engine
