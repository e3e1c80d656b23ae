// The loop over a toy model (loop_testing.h).
#include "engine/loop_testing.h"

namespace winnow::engine {
namespace {

using namespace std::chrono_literals;
using namespace testing;
using cache::testing::Folder;

TEST(Loop, TokensAreTheModelsAloneOrInCompany) {
  std::mt19937_64 random(3);
  for (int64_t budget : {64, 128, 4096}) {
    Served served({.max_batched_tokens = budget, .max_sequences = 9});
    std::vector<Request> requests;
    for (int i = 0; i < 40; ++i)
      requests.push_back(request(random_prompt(random, 200), 1 + static_cast<int64_t>(random() % 20), i % 2 ? 0.8f : 0.0f));
    std::vector<Stream> streams;
    for (const Request& r : requests) streams.push_back(served.submit(r));
    for (size_t i = 0; i < requests.size(); ++i) {
      const Answer a = read(streams[i]);
      EXPECT_EQ(a.tokens, expected(requests[i]));
      EXPECT_EQ(a.finish, FinishReason::length);
    }
    served.expect_all_free();
  }
}

TEST(Loop, CutsOfAnyGridGiveTheSameTokens) {
  std::mt19937_64 random(4);
  for (int64_t grid : {1, 3, 5, 64}) {
    Served served({.max_batched_tokens = 2 * grid + 1, .max_sequences = 2, .chunk_grid = grid});
    for (int i = 0; i < 5; ++i) {
      const Request r = request(random_prompt(random, 150), 5);
      EXPECT_EQ(answer_of(served, r).tokens, expected(r));
    }
  }
}

TEST(Loop, HundredRequestsPassThroughFourSlots) {
  std::mt19937_64 random(5);
  Served served({.max_batched_tokens = 64, .max_sequences = 4}, 40);
  std::vector<Request> requests;
  std::vector<Stream> streams;
  for (int i = 0; i < 100; ++i) {
    requests.push_back(request(random_prompt(random, 100), 1 + static_cast<int64_t>(random() % 30)));
    streams.push_back(served.submit(requests.back()));
  }
  for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(read(streams[i]).tokens, expected(requests[i]));
  served.expect_all_free();
}

TEST(Loop, G23_BatchArraysStayWhereTheyAre) {
  std::set<const void*> seen;
  Served served({.max_batched_tokens = 64, .max_sequences = 4}, 200,
                [&](const models::Batch& b) { seen.insert({b.tokens.data(), b.sequences.data(), b.logit_rows.data()}); });
  std::vector<Stream> streams;
  for (int i = 1; i <= 8; ++i) streams.push_back(served.submit(request(std::vector<int32_t>(static_cast<size_t>(20 * i), 1), 20)));
  for (Stream& s : streams) read(s);
  served.stop();
  EXPECT_EQ(seen.size(), 3u);
}

TEST(Loop, NonFiniteLogitsEndTheirRequestOnly) {
  Served served;
  const Request good = request({4, 5, 6}, 12);
  Stream other = served.submit(good);
  const Answer a = answer_of(served, request({4, kPoison, 6}, 12));
  EXPECT_EQ(a.finish, FinishReason::error);
  EXPECT_EQ(a.error, "the model's logits for position 3 are not finite");
  EXPECT_TRUE(a.tokens.empty());
  EXPECT_EQ(read(other).tokens, expected(good));
  EXPECT_TRUE(healthy(served.inbox(), 5s));
  served.expect_all_free();
}

// Rows that are not finite end their request, and nobody begins with what they wrote; what earlier steps wrote is sound.
TEST(Loop, RowsThatAreNotFiniteReachNobody) {
  SchedulerOptions o{.max_batched_tokens = 4 * kPage, .max_sequences = 4, .chunk_grid = kPage};
  o.reuse = Reuse::computed;
  Served served(o);
  const Request good = request({4, 5, 6}, 12);
  Stream other = served.submit(good);
  std::vector<int32_t> prompt(6 * kPage, 7);
  prompt[5 * kPage + 3] = kBroken;
  for (int turn = 0; turn < 2; ++turn) {
    Stream s = served.submit(request(prompt, 4));
    const Answer a = read(s);
    EXPECT_EQ(a.finish, FinishReason::error);
    EXPECT_NE(a.error.find("are not finite"), std::string::npos) << a.error;
    EXPECT_TRUE(a.tokens.empty());
  }
  EXPECT_EQ(read(other).tokens, expected(good));
  std::vector<int32_t> longer = prompt;
  longer.push_back(9);
  Stream s = served.submit(request(longer, 4));
  read(s);
  EXPECT_LE(s.timings().cached.tokens, 5 * kPage) << "a page with a row that is not finite was kept";
}

TEST(Loop, LogitsComeWithTheirToken) {
  Served served;
  Request r = request({8, 9}, 3);
  r.keep_logits = true;
  Stream s = served.submit(r);
  std::vector<int32_t> tokens = r.prompt;
  std::vector<float> logits(kVocab);
  for (int i = 0; i < 3; ++i) {
    const Event e = s.next();
    toy_logits(tokens, logits);
    EXPECT_EQ(e.logits, logits);
    tokens.push_back(e.sampled.token);
  }
}

TEST(Loop, TheEndRepeats) {
  Served served;
  Stream s = served.submit(request({8, 9}, 1));
  EXPECT_EQ(s.next().finish, FinishReason::length);
  const Event again = s.next();
  EXPECT_EQ(again.finish, FinishReason::length);
  EXPECT_EQ(again.sampled.token, -1);
  Event e;
  EXPECT_TRUE(s.try_next(&e));
  s.cancel();
  EXPECT_EQ(s.next().finish, FinishReason::length);
}

TEST(Loop, CancelReachesQueuedPrefillingAndRunningRequests) {
  for (int steps_before : {0, 1, 2, 6}) {  // of a prompt of five chunks
    Gate gate;
    int steps = 0;
    Served served({.max_batched_tokens = 64, .max_sequences = 1}, 200, [&](const models::Batch&) {
      if (steps++ == steps_before) gate.pass();
    });
    Stream first = served.submit(request(std::vector<int32_t>(300, 5), 1000));
    Stream queued = served.submit(request({1, 2, 3}, 2));
    const Request last = request({3, 2, 1}, 2);
    Stream third = served.submit(last);
    gate.await_arrival();
    queued.cancel();
    first.cancel();
    first.cancel();  // twice is once
    gate.open();
    EXPECT_EQ(read(first).finish, FinishReason::cancelled);
    const Answer q = read(queued);
    EXPECT_EQ(q.finish, FinishReason::cancelled);
    EXPECT_TRUE(q.tokens.empty());
    EXPECT_EQ(read(third).tokens, expected(last));
    served.expect_all_free();
  }
}

TEST(Loop, DestroyingOrReplacingAStreamCancels) {
  Served served({.max_batched_tokens = 64, .max_sequences = 1}, 200, [](const models::Batch&) { std::this_thread::sleep_for(1ms); });
  { const Stream s = served.submit(request({1, 2, 3}, 3000)); }
  Stream s = served.submit(request({1, 2, 4}, 3000));
  s.next();
  s = served.submit(request({1, 2, 5}, 2));
  EXPECT_EQ(read(s).finish, FinishReason::length);
  Stream moved = std::move(s);
  EXPECT_EQ(read(moved).finish, FinishReason::length);
  served.expect_all_free();
  EXPECT_LT(served.inbox().totals().generated_tokens, 1000);
}

TEST(Loop, WakeIsCalledForEachEventAndNeverAfterItIsTakenAway) {
  Served served({.max_batched_tokens = 64, .max_sequences = 1}, 200, [](const models::Batch&) { std::this_thread::sleep_for(100us); });
  std::atomic<int> woken{0};
  {
    Stream s = served.submit(request({1, 2}, 2000));
    s.next();
    s.on_event([&] { ++woken; });
    for (int i = 0; i < 100; ++i) s.next();
    EXPECT_GT(woken.load(), 0);
    s.on_event({});
    const int seen = woken.load();
    for (int i = 0; i < 100; ++i) s.next();
    EXPECT_EQ(woken.load(), seen);
    s.on_event([&] { ++woken; });
  }
  const int seen = woken.load();
  served.expect_all_free();
  EXPECT_EQ(woken.load(), seen);
}

TEST(Loop, TryNextAndNextForDoNotBlock) {
  Gate gate;
  Served served({.max_batched_tokens = 64, .max_sequences = 1}, 200, [&](const models::Batch&) { gate.pass(); });
  Stream s = served.submit(request({1, 2}, 1));
  Event e;
  EXPECT_FALSE(s.try_next(&e));
  EXPECT_FALSE(s.next_for(&e, 5ms));
  gate.open();
  EXPECT_TRUE(s.next_for(&e, 30s));
  EXPECT_EQ(e.finish, FinishReason::length);
}

TEST(Loop, StoppingEndsEveryRequest) {
  Gate gate;
  Served served({.max_batched_tokens = 64, .max_sequences = 1}, 200, [&](const models::Batch&) { gate.pass(); });
  Stream running = served.submit(request({1, 2}, 1000)), waiting = served.submit(request({1, 2}, 1000));
  gate.await_arrival();
  Stream late = served.submit(request({1, 2}, 1000));
  served.inbox().stop();
  gate.open();
  served.stop();
  for (Stream* s : {&running, &waiting, &late}) EXPECT_EQ(read(*s).finish, FinishReason::cancelled);
  EXPECT_FALSE(served.try_submit(request({1, 2}, 1)));
  EXPECT_FALSE(healthy(served.inbox(), 10s));
  running.cancel();  // streams may outlive the engine
}

TEST(Loop, AnErrorOfTheModelEndsEveryRequestAndTheHealth) {
  std::atomic<int> steps{0};
  Gate gate;
  Served served({.max_batched_tokens = 64, .max_sequences = 1}, 200, [&](const models::Batch&) {
    if (++steps < 3) return;
    gate.pass();
    throw Error("the device is lost");
  });
  Stream running = served.submit(request({1, 2}, 1000)), waiting = served.submit(request({1, 2}, 1000));
  gate.await_arrival();
  Stream late = served.submit(request({1, 2}, 1000));  // never taken from the inbox
  gate.open();
  const Answer a = read(running), b = read(waiting), c = read(late);
  EXPECT_EQ(a.tokens.size(), 2u);
  for (const Answer* x : {&a, &b, &c}) {
    EXPECT_EQ(x->finish, FinishReason::error);
    EXPECT_EQ(x->error, "the engine has stopped after an error, restart it: the device is lost");
  }
  EXPECT_FALSE(healthy(served.inbox(), 10s));
  auto refused = served.try_submit(request({1, 2}, 1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().what(), a.error);
}

TEST(Loop, HealthIsAnAnswerOfTheEngineThread) {
  Gate gate;
  std::atomic<bool> hold{false};
  Served served({.max_batched_tokens = 64, .max_sequences = 1}, 200, [&](const models::Batch&) {
    if (hold) gate.pass();
  });
  EXPECT_TRUE(healthy(served.inbox(), 5s));
  std::this_thread::sleep_for(400ms);  // longer ago than the deadline
  EXPECT_TRUE(healthy(served.inbox(), 300ms)) << "the idle loop answers";
  hold = true;
  Stream s = served.submit(request({1, 2}, 2));
  gate.await_arrival();
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(healthy(served.inbox(), 10ms)) << "a step hangs";
  hold = false;
  gate.open();
  read(s);
  EXPECT_TRUE(healthy(served.inbox(), 5s));
}

// States for the running sequences and not one more: nothing is kept, and nobody waits for a state that is kept.
TEST(Loop, ReuseTakesNoStateThatASequenceMayNeed) {
  SchedulerOptions o{.max_batched_tokens = 128, .max_sequences = 4};
  o.reuse = Reuse::computed;
  std::atomic<size_t> most{0};
  Served served(o, 400, [&](const models::Batch& b) { most = std::max(most.load(), b.sequences.size()); }, 4);
  std::vector<Stream> streams;
  for (int32_t i = 1; i <= 12; ++i) streams.push_back(served.submit(request({i, 2, 3}, 5 * kPage)));
  for (int32_t i = 1; i <= 12; ++i) EXPECT_EQ(read(streams[static_cast<size_t>(i - 1)]).tokens, expected(request({i, 2, 3}, 5 * kPage)));
  EXPECT_EQ(most, 4u);
  EXPECT_GT(served.inbox().totals().missed_snapshots, 0);
}

// One state to spare: it serves, and never more than one sequence holds it.
TEST(Loop, ReuseLivesWithOneSpareState) {
  SchedulerOptions o{.max_batched_tokens = 128, .max_sequences = 3};
  o.reuse = Reuse::computed;
  Served served(o, 400, {}, 4);
  std::vector<int32_t> told{1, 2, 3};
  for (int turn = 0; turn < 5; ++turn) {
    std::vector<Stream> others;
    for (int32_t i = 1; i <= 4 && turn < 3; ++i) others.push_back(served.submit(request({i, 7}, 2 * kPage)));  // they want it too
    const Request r = request(told, 2 * kPage);
    const Answer a = answer_of(served, r);
    EXPECT_EQ(a.tokens, expected(r));
    for (Stream& s : others) read(s);
    told.insert(told.end(), a.tokens.begin(), a.tokens.end());
  }
  EXPECT_GT(served.inbox().totals().prefix.hits, 0);
}

// Pools that hold a fraction of what runs, priorities, conversations that go on and a host tier: preempted and restored rows give the
// same tokens.
TEST(Loop, PreemptedAndRestoredSequencesDrawTheSameTokens) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    SchedulerOptions o{.max_batched_tokens = 4 * kPage, .max_sequences = 5, .chunk_grid = kPage};
    o.reuse = Reuse::computed;
    const bool scarce = seed > 4;  // one sequence, one state to spare: a hit in the host may need both
    if (scarce) o.max_sequences = 1;
    Served served(o, 30, {}, scarce ? 2 : 9, 60, 12);
    std::vector<std::vector<int32_t>> told{random_prompt(random, 100)};
    int64_t cached = 0;
    for (int round = 0; round < 25; ++round) {
      std::vector<Request> requests;
      std::vector<Stream> streams;
      for (int i = 0; i < 6; ++i) {
        std::vector<int32_t> prompt = told[below(told.size())];
        if (below(3) == 0) prompt.resize(below(prompt.size() + 1));
        for (int32_t t : random_prompt(random, 60)) prompt.push_back(t);
        if (prompt.size() > 220) prompt.resize(220);
        requests.push_back(request(prompt, 1 + static_cast<int64_t>(below(120)), 0.7f));
        requests.back().priority = static_cast<int32_t>(below(3));
        streams.push_back(served.submit(requests.back()));
      }
      for (size_t i = 0; i < streams.size(); ++i) {
        if (below(6) == 0) {
          streams[i].cancel();
          read(streams[i]);
          continue;
        }
        const Answer a = read(streams[i]);
        ASSERT_EQ(a.error, "");
        ASSERT_EQ(a.tokens, expected(requests[i])) << "seed " << seed << ", round " << round;
        cached += streams[i].timings().cached.tokens;
        told.push_back(requests[i].prompt);
        told.back().insert(told.back().end(), a.tokens.begin(), a.tokens.end());
      }
    }
    served.stop();
    const Totals t = served.inbox().totals();
    EXPECT_GT(t.preemptions, scarce ? -1 : 10);
    EXPECT_GT(t.prefix.hits_in[1], scarce ? 0 : 10) << "hits that the host had a part in";
    EXPECT_GT(t.restored, scarce ? 0 : 10);
    EXPECT_EQ(t.failed_restores, 0);
    EXPECT_GT(cached, 1000);
    EXPECT_EQ(t.free_host_pages + t.prefix.pages_in[1], t.host_pages);
  }
}

// The last byte of each record, which is its payload's.
void spoil(const Folder& folder) {
  for (auto& [name, bytes] : folder.files()) {
    cache::testing::Bytes other = bytes;
    other.back() ^= std::byte{1};
    folder.put(name, other);
  }
}

// What an earlier run left on disk is taken over; where it cannot be read the request begins anew, alone in the engine or not.
TEST(Loop, ALostPrefixIsComputedAgain) {
  const Folder folder;
  SchedulerOptions o{.max_batched_tokens = 4 * kPage, .max_sequences = 2, .chunk_grid = kPage};
  o.reuse = Reuse::computed;
  const Request r = request(std::vector<int32_t>(10 * kPage + 3, 7), 8);
  for (int run = 0; run < 4; ++run) {
    Served served(o, 100, {}, 0, 0, 0, folder.path());
    EXPECT_EQ(answer_of(served, r).tokens, expected(r)) << "run " << run;
    served.stop();
    const Totals t = served.inbox().totals();
    EXPECT_EQ(t.prefix.hits_in[2], run > 0) << "run " << run;
    EXPECT_EQ(t.failed_restores > 0, run == 2) << "run " << run;
    EXPECT_EQ(t.restored, run % 2) << "run " << run;
    if (run == 1) spoil(folder);
  }
}

// A hit on disk wants two states, one of them for the snapshot. With no state to spare an urgent one neither takes a place that is not to
// be had nor waits for it.
TEST(Loop, AHitBelowLivesWithoutASpareState) {
  const Folder folder;
  SchedulerOptions o{.max_batched_tokens = 4 * kPage, .max_sequences = 2, .chunk_grid = kPage};
  o.reuse = Reuse::computed;
  Request urgent = request(std::vector<int32_t>(10 * kPage + 3, 7), 8);
  { EXPECT_EQ(answer_of(*std::make_unique<Served>(o, 100, nullptr, 0, 0, 0, folder.path()), urgent).tokens, expected(urgent)); }
  for (int64_t states : {2, 3}) {
    Served served(o, 200, [](const models::Batch&) { std::this_thread::sleep_for(200us); }, states, 0, 0, folder.path());
    const Request slow = request({1, 2, 3}, 300);
    Stream a = served.submit(slow), b = served.submit(slow);
    a.next();
    urgent.priority = -1;
    EXPECT_EQ(answer_of(served, urgent).tokens, expected(urgent));
    EXPECT_EQ(read(b).tokens, expected(slow));
    EXPECT_EQ(read(a).tokens.size(), 299u);
    // Of equal priority it begins as well while another runs, and nobody waits behind it.
    Request endless = request({3, 2, 1}, 1500), hit = urgent, small = request({9}, 1);
    hit.priority = 0;
    hit.prompt.push_back(states == 2 ? 1 : 2);
    Stream running = served.submit(endless), between = served.submit(hit), last = served.submit(small);
    EXPECT_EQ(read(between).tokens, expected(hit));
    EXPECT_EQ(read(last).tokens, expected(small));
    EXPECT_EQ(served.inbox().totals().running, 1) << "the long one still runs";
    running.cancel();
    read(running);
  }
}

TEST(Loop, ARequestEndsWhenItsDeadlinePasses) {
  Served served({.max_batched_tokens = 64, .max_sequences = 1}, 200, [](const models::Batch&) { std::this_thread::sleep_for(1ms); });
  Request slow = request({1, 2, 3}, 3000), queued = slow;
  slow.deadline_s = 0.1;
  queued.deadline_s = 0.05;
  Stream s = served.submit(slow), q = served.submit(queued);
  const Answer late = read(q), a = read(s);
  EXPECT_EQ(late.finish, FinishReason::error);
  EXPECT_EQ(late.error, "the request's deadline of 0.05 s passed after 0 tokens of its answer");
  EXPECT_EQ(a.finish, FinishReason::error);
  EXPECT_GT(a.tokens.size(), 10u);
  EXPECT_LT(a.tokens.size(), 200u);
  served.expect_all_free();
}

TEST(Pace, FollowsTheTarget) {
  Pace pace(0.100);
  EXPECT_EQ(pace.prefill_rows(), 0) << "one chunk, to learn";
  for (int i = 0; i < 50; ++i) {
    pace.observe(8, 0, 0.020);
    pace.observe(8, 64, 0.020 + 64 * 0.001);
  }
  EXPECT_NEAR(static_cast<double>(pace.prefill_rows()), 80, 2);
  for (int i = 0; i < 50; ++i) pace.observe(8, 0, 0.200);
  EXPECT_EQ(pace.prefill_rows(), 0) << "decode alone takes longer; the scheduler gives prefills one chunk";
  EXPECT_EQ(Pace(0).prefill_rows(), INT64_MAX);
}

TEST(Loop, TimingsAndTotalsCount) {
  Served served;
  Stream s = served.submit(request(std::vector<int32_t>(130, 1), 7));
  read(s);
  const Timings t = s.timings();
  EXPECT_EQ(t.prompt_tokens, 130);
  EXPECT_EQ(t.generated_tokens, 7);
  EXPECT_GE(t.queued_s, 0);
  EXPECT_GT(t.prefill_s, 0);
  EXPECT_GT(t.decode_s, 0);
  served.expect_all_free();
  const Totals all = served.inbox().totals();
  EXPECT_EQ(all.prompt_tokens, 130);
  EXPECT_EQ(all.generated_tokens, 7);
  EXPECT_EQ(all.steps, 8);  // 128 + 2, then six
  EXPECT_EQ(all.states, 12);
}

TEST(Loop, SurvivesACancelStormFromManyThreads) {
  Served served({.max_batched_tokens = 64, .max_sequences = 3}, 60);
  std::atomic<int> whole{0};
  const auto client = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 60; ++i) {
      const Request r = request(random_prompt(random, 200), 1 + static_cast<int64_t>(random() % 20), 0.5f);
      Stream s = served.submit(r);
      std::atomic<int> woken{0};
      if (random() % 2) s.on_event([&woken] { ++woken; });
      const uint64_t fate = random() % 4;
      if (fate == 0) continue;  // destroyed at once
      for (uint64_t n = random() % 8; n > 0 && fate != 3; --n) s.next();
      if (fate == 1) s.cancel();
      if (fate == 2) continue;  // destroyed midway
      const Answer a = read(s);
      if (fate != 3) continue;
      EXPECT_EQ(a.tokens, expected(r));
      ++whole;
    }
  };
  std::vector<std::thread> clients;
  for (uint64_t seed = 1; seed <= 4; ++seed) clients.emplace_back(client, seed);
  for (std::thread& t : clients) t.join();
  EXPECT_GT(whole.load(), 0);
  served.expect_all_free();
}

}  // namespace
}  // namespace winnow::engine
