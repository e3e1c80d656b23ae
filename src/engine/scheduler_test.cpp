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
  explicit Fixture(const SchedulerOptions& o, int64_t pages = 1000, int64_t host_pages = 0, int64_t host_states = 0)
      : pages(pages), states(o.max_sequences), host({}, host_pages, host_states, {}), scheduler(over(o, host), this->pages, states) {}
  static SchedulerOptions over(SchedulerOptions o, cache::HostStore& host) {
    if (host.states.size() > 0) o.lower.host = &host;
    return o;
  }
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
  cache::HostStore host;
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

TEST(Scheduler, DecodeRowsComeFirstAndPrefillsInFairOrder) {
  Fixture f({.max_batched_tokens = 130, .max_sequences = 4});
  for (int64_t id = 1; id <= 3; ++id) f.scheduler.add(sequence(id, 100, 5));
  f.scheduler.add(sequence(4, 1, 5));
  EXPECT_EQ(f.step(), "1:0+100 4:0+1");  // 30 rows are no chunk of the second, and the fourth takes nothing from it
  EXPECT_EQ(f.step(), "1:100+1 4:1+1 2:0+100");
  EXPECT_EQ(f.step(), "1:101+1 2:100+1 4:2+1 3:0+100");
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
  EXPECT_EQ(f.pages.free(), 3);  // taken as rows need them
  EXPECT_EQ(f.scheduler.waiting().size(), 2u);
  ASSERT_TRUE(f.scheduler.remove(RequestId(1)));
  EXPECT_EQ(f.step(), "2:0+64 3:0+10");
  EXPECT_EQ(f.pages.free(), 3);
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
  SchedulerRules(const SchedulerOptions& o, int64_t pages, int64_t host_pages, int64_t host_states)
      : o_(o), f_(o, pages, host_pages, host_states), pages_(pages), swaps_(host_states > 0) {}

  void submit(Random& random, bool priorities) {
    int64_t prompt = random.from(1, 5 * o_.chunk_grid), out = random.from(1, 40);
    if (pages_for(prompt + out, o_.page_tokens) > pages_) return;
    auto s = sequence(next_id_, prompt, out, o_.page_tokens);
    if (priorities) s->request.priority = static_cast<int32_t>(random.from(-1, 1));
    all_[next_id_++] = {.priority = s->request.priority};
    f_.scheduler.add(std::move(s));
  }
  void cancel(Random& random) {
    const int64_t id = random.from(0, next_id_);
    ASSERT_EQ(f_.scheduler.remove(RequestId(id)) != nullptr, all_.count(id) > 0);
    all_.erase(id);
  }
  // One step; false when there was nothing to do.
  bool step() {
    admit();
    const auto chunks = f_.scheduler.plan();
    judge(chunks);
    std::set<int64_t> ends;
    for (const Chunk& c : chunks) {
      all_[c.sequence->id.value].rows += c.count;
      if (c.samples() && c.sequence->generated_tokens() + 1 == c.sequence->request.max_tokens) ends.insert(c.sequence->id.value);
    }
    const bool any = !chunks.empty();
    run(f_.scheduler, chunks);
    for (int64_t id : ends) all_.erase(id);
    f_.scheduler.check_integrity();
    return any;
  }
  bool idle() const { return f_.scheduler.idle(); }
  int64_t preemptions() const { return f_.scheduler.preemptions(); }
  void expect_all_free() const {
    EXPECT_EQ(f_.pages.free(), pages_);
    EXPECT_EQ(f_.states.free(), o_.max_sequences);
    EXPECT_EQ(f_.host.pages.used() + f_.host.states.used(), 0);
    EXPECT_TRUE(all_.empty());
  }

 private:
  struct Known {
    int32_t priority = 0;
    int64_t rows = 0;  // computed; a preempted sequence computes none again
    int idle = 0;      // steps that it sat out though it was its turn
  };
  using Rank = std::pair<int32_t, int64_t>;
  static Rank rank(const Sequence& s) { return {s.request.priority, s.id.value}; }

  void admit() {
    f_.scheduler.admit();
    ASSERT_LE(static_cast<int64_t>(f_.scheduler.running().size()), o_.max_sequences);
    const auto& waiting = f_.scheduler.waiting();
    if (waiting.empty()) return;
    int64_t worst = waiting.front()->worst_case_pages(o_.page_tokens);
    for (const auto& s : f_.scheduler.running()) worst += s->worst_case_pages(o_.page_tokens);
    const bool fits = f_.scheduler.swapped().empty() && static_cast<int64_t>(f_.scheduler.running().size()) < o_.max_sequences && worst <= pages_;
    ASSERT_FALSE(fits) << "kept waiting though it fits";
  }
  void judge(std::span<const Chunk> chunks) {
    int64_t rows = 0, prefills = 0;
    std::set<int64_t> seen;
    for (const Chunk& c : chunks) {
      const Sequence& s = *c.sequence;
      rows += c.count;
      ASSERT_TRUE(seen.insert(s.id.value).second) << "twice in a step";
      ASSERT_TRUE(s.running());
      ASSERT_EQ(c.position.value, s.num_computed_tokens);
      ASSERT_EQ(s.num_computed_tokens, all_[s.id.value].rows) << "computed again";
      ASSERT_GE(c.count, 1);
      const int64_t end = c.position.value + c.count;
      ASSERT_LE(end, static_cast<int64_t>(s.tokens.size()));
      ASSERT_LE(end, static_cast<int64_t>(s.pages.size()) * o_.page_tokens);
      if (c.decode()) {
        ASSERT_EQ(prefills, 0) << "a decode row behind a prefill chunk";
        ASSERT_EQ(c.count, 1);
        ASSERT_TRUE(c.samples());
      } else {
        ++prefills;
        ASSERT_TRUE(end == s.prompt_tokens || end % o_.chunk_grid == 0);
      }
    }
    ASSERT_LE(rows, o_.max_batched_tokens);
    // Nobody whose turn it is sits out two steps: decode rows and some prefill, or with preemption the first by rank.
    const auto running = f_.scheduler.running();
    const bool any_prefill = std::ranges::any_of(running, [](const auto& s) { return s->prefilling(); });
    prefill_idle_ = any_prefill && prefills == 0 && !swaps_ ? prefill_idle_ + 1 : 0;
    ASSERT_LE(prefill_idle_, 1);
    for (size_t i = 0; i < running.size(); ++i) {
      const Sequence& s = *running[i];
      ASSERT_TRUE(i == 0 || rank(*running[i - 1]) < rank(s)) << "not in order of rank";
      const bool turn = !s.prefilling() && (!swaps_ || i == 0);
      int& idle = all_[s.id.value].idle;
      idle = turn && !seen.count(s.id.value) ? idle + 1 : 0;
      ASSERT_LE(idle, 1) << s.id.value << " at " << i << " of " << running.size() << ", swaps " << swaps_ << ": " << text(chunks) << "; budget "
                         << o_.max_batched_tokens << " grid " << o_.chunk_grid << " free " << f_.pages.free() << " of " << pages_;
    }
    if (!f_.scheduler.swapped().empty() && !f_.scheduler.waiting().empty()) { ASSERT_TRUE(!running.empty()) << "everybody waits"; }
  }

  const SchedulerOptions o_;
  Fixture f_;
  const int64_t pages_;
  const bool swaps_;
  int64_t next_id_ = 1;
  std::map<int64_t, Known> all_;  // that have not ended
  int prefill_idle_ = 0;
};

TEST(Scheduler, KeepsItsRulesUnderRandomLoad) {
  int64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    SchedulerOptions o;
    o.chunk_grid = random.one_in(4) ? random.from(1, 9) : kChunkGrid;
    o.page_tokens = random.one_in(2) ? 64 : 16;
    o.max_batched_tokens = o.chunk_grid * random.from(1, 6);
    o.max_sequences = random.from(1, std::min<int64_t>(o.max_batched_tokens, 20));
    const bool swaps = random.one_in(2), priorities = random.one_in(2);
    SchedulerRules rules(o, random.from(1, 60), swaps ? random.from(1, 90) : 0, swaps ? random.from(1, 8) : 0);
    const int64_t rate = random.from(1, 6);
    for (int step = 0; step < 150; ++step) {
      for (int64_t n = random.from(0, 2); n > 0; --n)
        if (random.one_in(rate)) rules.submit(random, priorities);
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
    preemptions += rules.preemptions();
  }
  EXPECT_GT(preemptions, 1000);
}

// A state and its rings are one record, however long the prompt is.
TEST(Scheduler, G79G84ALongPromptNeedsOneState) {
  Fixture f({.max_batched_tokens = 512, .max_sequences = 1}, 257);
  f.scheduler.add(sequence(1, 16384, 1));
  EXPECT_EQ(f.step(), "1:0+512");
  EXPECT_EQ(f.states.free(), 0);
  for (int i = 1; i < 32; ++i) EXPECT_EQ(f.step(), fmt::format("1:{}+512", 512 * i));
  EXPECT_TRUE(f.scheduler.idle());
}

// Long prompts of one priority share the rows evenly from when they meet.
TEST(Scheduler, PrefillsShareTheRows) {
  Fixture f({.max_batched_tokens = 64, .max_sequences = 4});
  f.scheduler.add(sequence(1, 6400, 1));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(f.step(), fmt::format("1:{}+64", i * 64));
  f.scheduler.add(sequence(2, 6400, 1));
  f.scheduler.add(sequence(3, 64, 1));
  std::map<char, int> turns;
  for (int i = 0; i < 21; ++i) ++turns[f.step()[0]];
  EXPECT_EQ(turns['3'], 1) << "the short prompt is through at once";
  EXPECT_LE(std::abs(turns['1'] - turns['2']), 1);
}

TEST(Scheduler, AnUrgentRequestTakesThePlaceOfOneThatCanWait) {
  Fixture f({.max_batched_tokens = 128, .max_sequences = 1}, 10, 5, 1);
  f.scheduler.add(sequence(1, 100, 20));
  EXPECT_EQ(f.step(), "1:0+100");
  EXPECT_EQ(f.step(), "1:100+1");
  auto urgent = sequence(2, 30, 2);
  urgent->request.priority = -1;
  f.scheduler.add(std::move(urgent));
  auto equal = sequence(3, 30, 1);
  f.scheduler.add(std::move(equal));
  EXPECT_EQ(f.step(), "2:0+30");
  EXPECT_EQ(f.scheduler.swapped().size(), 1u);
  EXPECT_EQ(f.scheduler.preemptions(), 1);
  EXPECT_EQ(f.step(), "2:30+1");
  EXPECT_EQ(f.step(), "1:101+1") << "where it was, before the one that came later";
}

// Four pages, two sequences of three: without room on the host the second waits, with it both run and one is swapped.
TEST(Scheduler, PreemptsWhenPagesRunOut) {
  const SchedulerOptions o{.max_batched_tokens = 128, .max_sequences = 2};
  Fixture without(o, 4);
  Fixture with(o, 4, 3, 1);
  for (Fixture* f : {&without, &with}) {
    f->scheduler.add(sequence(1, 60, 100));
    f->scheduler.add(sequence(2, 60, 100));
    f->step();
  }
  EXPECT_EQ(without.scheduler.running().size(), 1u);
  EXPECT_EQ(with.scheduler.running().size(), 2u);
  for (int i = 0; i < 99; ++i) with.step();
  EXPECT_EQ(with.scheduler.preemptions(), 1);
  for (int i = 0; i < 150 && !with.scheduler.idle(); ++i) EXPECT_NE(with.step(), "");
  EXPECT_TRUE(with.scheduler.idle());
}

}  // namespace
}  // namespace winnow::engine
