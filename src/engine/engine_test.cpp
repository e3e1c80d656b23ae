// The engine over the small model: a request's logits are the same bits whatever else happens.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

namespace winnow::engine {
namespace {

using namespace std::chrono_literals;
using models::Profile;

// A device and the model on it; what engines of several tests share.
struct Loaded {
  Loaded(Profile profile, int threads) : device(device::make_cpu({.threads = threads})) {
    const auto checkpoint = weights::Checkpoint::open(WINNOW_SOURCE_DIR "/models/winnow-tiny").or_throw();
    models::Options o;
    o.profile = profile;
    o.max_rows = 1024;
    o.max_context = 1024;
    model = std::make_unique<models::Glm5Next>(*device, checkpoint, o);
  }
  std::unique_ptr<device::Device> device;
  std::unique_ptr<models::Glm5Next> model;
};

Loaded& loaded(Profile profile) {
  static Loaded exact(Profile::exact, 2), fast(Profile::fast, 2);
  return profile == Profile::exact ? exact : fast;
}

EngineOptions options(int64_t budget, int64_t sequences) {
  EngineOptions o;
  o.max_batched_tokens = budget;
  o.max_sequences = sequences;
  o.max_context = 1024;
  return o;
}

struct Serving {
  Serving(Profile profile, const EngineOptions& o) : Serving(loaded(profile), o) {}
  Serving(Loaded& l, const EngineOptions& o) : engine(*l.device, *l.model, o) {}
  Engine engine;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;
  FinishReason finish = FinishReason::none;
  bool operator==(const Answer& o) const {
    if (tokens != o.tokens || finish != o.finish || logits.size() != o.logits.size()) return false;
    for (size_t i = 0; i < logits.size(); ++i)
      if (logits[i].size() != o.logits[i].size() || std::memcmp(logits[i].data(), o.logits[i].data(), logits[i].size() * sizeof(float)) != 0)
        return false;
    return true;
  }
};

Answer read(Stream& stream) {
  Answer a;
  while (a.finish == FinishReason::none) {
    Event e = stream.next();
    if (e.sampled.token >= 0) {
      a.tokens.push_back(e.sampled.token);
      a.logits.push_back(std::move(e.logits));
    }
    a.finish = e.finish;
    EXPECT_EQ(e.error, "");
  }
  return a;
}

Request request(std::vector<int32_t> prompt, int64_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0.7f;
  r.sampling.seed = 5;
  r.keep_logits = true;
  return r;
}

std::vector<int32_t> prompt_of(int64_t length, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> p(static_cast<size_t>(length));
  for (int32_t& t : p) t = static_cast<int32_t>(random() % 6000);
  return p;
}

std::vector<Request> nine() {
  std::vector<Request> r;
  uint64_t seed = 1;
  for (int64_t length : {1, 3, 63, 64, 65, 130, 191, 257, 500}) r.push_back(request(prompt_of(length, seed++), 10));
  return r;
}

std::vector<Answer> alone(const std::vector<Request>& requests, Loaded& on) {
  std::vector<Answer> answers;
  EngineOptions cold = options(1024, 1);
  cold.reuse = Reuse::none;
  Serving serving(on, cold);
  for (const Request& r : requests) {
    Stream s = serving.engine.submit(r).or_throw();
    answers.push_back(read(s));
  }
  return answers;
}

std::vector<Answer> together(const std::vector<Request>& requests, Serving& serving) {
  std::vector<Stream> streams;
  for (const Request& r : requests) streams.push_back(serving.engine.submit(r).or_throw());
  std::vector<Answer> answers;
  for (Stream& s : streams) answers.push_back(read(s));
  return answers;
}

class EngineInProfile : public ::testing::TestWithParam<Profile> {};
INSTANTIATE_TEST_SUITE_P(, EngineInProfile, ::testing::Values(Profile::exact, Profile::fast),
                         [](const auto& p) { return std::string(models::name_of(p.param)); });

TEST_P(EngineInProfile, LogitsAreTheSameBitsAloneInCompanyAndInChunks) {
  const std::vector<Request> requests = nine();
  const std::vector<Answer> want = alone(requests, loaded(GetParam()));
  for (const Answer& a : want) ASSERT_EQ(a.tokens.size(), 10u);
  for (int64_t budget : {64, 128, 1024}) {
    Serving serving(GetParam(), options(budget, 9));
    const std::vector<Answer> got = together(requests, serving);
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_TRUE(got[i] == want[i]) << "prompt " << i << ", budget " << budget;
  }
}

TEST_P(EngineInProfile, ThreadsDoNotChangeABit) {
  const std::vector<Request> requests{request(prompt_of(70, 1), 4), request(prompt_of(9, 2), 12)};
  Loaded one(GetParam(), 1);
  EXPECT_TRUE(alone(requests, one) == alone(requests, loaded(GetParam())));
}

TEST_P(EngineInProfile, EnginesAfterEachOtherGiveTheSameBits) {
  const std::vector<Request> requests{request(prompt_of(100, 8), 6)};
  const std::vector<Answer> first = alone(requests, loaded(GetParam()));
  EXPECT_TRUE(alone(requests, loaded(GetParam())) == first);
}

TEST_P(EngineInProfile, HundredRequestsPassThroughFourSlots) {
  std::vector<Request> kinds;
  for (uint64_t i = 0; i < 5; ++i) kinds.push_back(request(prompt_of(static_cast<int64_t>(20 * i + 1), i), static_cast<int64_t>(3 + i)));
  const std::vector<Answer> want = alone(kinds, loaded(GetParam()));
  std::vector<Request> requests;
  for (size_t i = 0; i < 100; ++i) requests.push_back(kinds[i % kinds.size()]);
  Serving serving(GetParam(), options(64, 4));
  const std::vector<Answer> got = together(requests, serving);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i] == want[i % kinds.size()]) << "request " << i;
}

TEST_P(EngineInProfile, SurvivesACancelStorm) {
  const std::vector<Request> probe{request(prompt_of(90, 4), 5)};
  const std::vector<Answer> want = alone(probe, loaded(GetParam()));
  Serving serving(GetParam(), options(64, 3));
  const auto client = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 12; ++i) {
      Stream s = serving.engine.submit(request(prompt_of(1 + static_cast<int64_t>(random() % 150), random()), 30)).or_throw();
      if (random() % 2) s.on_event([] {});
      for (uint64_t n = random() % 4; n > 0; --n) s.next();
      if (random() % 2) {
        s.cancel();
        read(s);
      }
    }
  };
  std::vector<std::thread> clients;
  for (uint64_t seed = 1; seed <= 3; ++seed) clients.emplace_back(client, seed);
  EXPECT_TRUE(together(probe, serving) == want);
  for (std::thread& t : clients) t.join();
  EXPECT_TRUE(together(probe, serving) == want) << "after the storm";
  const auto idle = [&] {
    const Totals t = serving.engine.totals();
    return t.running == 0 && t.waiting == 0 && t.pages - t.free_pages == t.cached_pages && t.states - t.free_states == t.snapshots;
  };
  for (int i = 0; i < 2000 && !idle(); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(idle());
}

// Conversations that go on, part and share what they began with, in company, with pools that hold all of it or little: what
// is taken over changes no bit against a cold run of each request alone.
TEST_P(EngineInProfile, ReuseChangesNoBit) {
  std::mt19937_64 random(7);
  const auto below = [&](size_t n) { return random() % n; };
  std::vector<std::vector<int32_t>> told{prompt_of(200, 40)};  // prompts with their answers
  std::vector<Request> requests;
  std::vector<Answer> want;
  for (int i = 0; i < 24; ++i) {
    const std::vector<int32_t>& before = told[below(told.size())];
    std::vector<int32_t> prompt(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(i % 3 ? before.size() : below(before.size() + 1)));
    for (size_t n = 1 + below(90); n > 0 && prompt.size() < 400; --n) prompt.push_back(static_cast<int32_t>(below(6000)));
    if (i % 7 == 3) prompt.resize(prompt.size() / 64 * 64 + 64, 5);  // ends with a page
    requests.push_back(request(prompt, 1 + static_cast<int64_t>(below(70))));
    want.push_back(alone({requests.back()}, loaded(GetParam())).front());
    prompt.insert(prompt.end(), want.back().tokens.begin(), want.back().tokens.end());
    told.push_back(std::move(prompt));
  }
  const bool exact = GetParam() == Profile::exact;
  for (const auto& [budget, sequences, pages] : {std::array<int64_t, 3>{1024, 1, 1000}, {64, 3, 1000}, {128, 3, 24}}) {
    EngineOptions o = options(budget, sequences);
    o.reuse = exact ? Reuse::computed : Reuse::prefilled;
    o.kv_pages = pages;
    o.host_bytes = 0;
    Serving serving(GetParam(), o);
    int64_t cached = 0;
    for (size_t i = 0; i < requests.size(); i += static_cast<size_t>(sequences)) {  // in order, a few at a time
      const std::vector<Request> some(requests.begin() + static_cast<std::ptrdiff_t>(i),
                                      requests.begin() + static_cast<std::ptrdiff_t>(std::min(i + static_cast<size_t>(sequences), requests.size())));
      std::vector<Stream> streams;
      for (const Request& r : some) streams.push_back(serving.engine.submit(r).or_throw());
      for (size_t j = 0; j < streams.size(); ++j) {
        EXPECT_TRUE(read(streams[j]) == want[i + j]) << "request " << i + j << " of " << some[j].prompt.size() << " tokens, budget " << budget;
        cached += streams[j].timings().cached.tokens;
      }
    }
    const Totals t = serving.engine.totals();
    EXPECT_EQ(t.prefix.hit_tokens, cached);
    EXPECT_GE(t.prefix.hits, pages > 100 ? 15 : 4);
    if (pages < 100) { EXPECT_GT(t.prefix.evicted_pages, 0); }
    EXPECT_EQ(t.missed_snapshots, 0);
  }
}

// The first user of a shared beginning computes it, the second learns where it ends, the third begins there.
TEST_P(EngineInProfile, TheThirdUserOfASharedBeginningHitsAllOfIt) {
  EngineOptions o = options(1024, 2);
  Serving serving(GetParam(), o);
  const std::vector<int32_t> system = prompt_of(700, 50);
  std::vector<int64_t> cached;
  for (uint64_t user = 0; user < 4; ++user) {
    std::vector<int32_t> prompt = system;
    for (int32_t t : prompt_of(90, 60 + user)) prompt.push_back(t);
    Stream s = serving.engine.submit(request(prompt, 3)).or_throw();
    read(s);
    cached.push_back(s.timings().cached.tokens);
  }
  EXPECT_EQ(cached, (std::vector<int64_t>{0, 0, 640, 640}));
}

// A conversation pays for its new tokens only: the next prompt begins behind the last page of prompt and answer.
TEST_P(EngineInProfile, ATurnBeginsBehindTheLastPageOfTheOneBefore) {
  Serving serving(GetParam(), options(1024, 1));
  std::vector<int32_t> told;
  for (uint64_t turn = 0; turn < 6; ++turn) {
    const auto computed = static_cast<int64_t>(told.size()) - 1;  // the last token drawn was never computed
    for (int32_t t : prompt_of(30 + static_cast<int64_t>(turn) * 11, turn)) told.push_back(t);
    Request r = request(told, 50);
    r.ignore_eos = true;
    Stream s = serving.engine.submit(r).or_throw();
    const Answer a = read(s);
    if (turn) { EXPECT_EQ(s.timings().cached.tokens, computed / 64 * 64) << "turn " << turn; }
    told.insert(told.end(), a.tokens.begin(), a.tokens.end());
  }
}

TEST(EngineExact, AnyCutOfAPromptGivesTheSameBits) {
  const std::vector<Request> requests{request(prompt_of(90, 3), 4)};
  const std::vector<Answer> want = alone(requests, loaded(Profile::exact));
  for (int64_t budget : {1, 7, 63, 100}) {
    EngineOptions o = options(budget, 1);
    o.chunk_grid = 1;
    Serving serving(Profile::exact, o);
    EXPECT_TRUE(together(requests, serving) == want) << "chunks of " << budget;
  }
}

TEST(EngineExact, APositionsLogitsAreTheSameBitsPrefilledOrDecoded) {
  for (int64_t length : {1, 5, 60, 125}) {
    const std::vector<Request> requests{request(prompt_of(length, 6), 12)};
    const Answer decoded = alone(requests, loaded(Profile::exact)).front();
    ASSERT_EQ(decoded.tokens.size(), 12u);
    std::vector<Request> longer;
    for (size_t n = 1; n < 12; ++n) {
      longer.push_back(request(requests[0].prompt, 1));
      longer.back().prompt.insert(longer.back().prompt.end(), decoded.tokens.begin(), decoded.tokens.begin() + static_cast<std::ptrdiff_t>(n));
    }
    const std::vector<Answer> prefilled = alone(longer, loaded(Profile::exact));
    for (size_t n = 1; n < 12; ++n) EXPECT_EQ(prefilled[n - 1].logits[0], decoded.logits[n]) << length << " + " << n;
  }
}

std::string message_of(auto&& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "no error";
}

TEST(EngineOptions, AreRefusedWhenTheyDoNotFitTheModel) {
  const struct {
    const char* field;
    void (*change)(EngineOptions&);
  } cases[] = {
      {"max_batched_tokens", [](EngineOptions& o) { o.max_batched_tokens = 2000; }},
      {"max_batched_tokens", [](EngineOptions& o) { o.max_batched_tokens = 63; }},
      {"max_sequences", [](EngineOptions& o) { o.max_sequences = 17; }},
      {"max_sequences", [](EngineOptions& o) { o.max_sequences = 0; }},
      {"max_context", [](EngineOptions& o) { o.max_context = 4096; }},
      {"chunk_grid", [](EngineOptions& o) { o.chunk_grid = 32; }},
      {"KV cache", [](EngineOptions& o) { o.kv_bytes = 1; }},
  };
  for (const auto& c : cases) {
    EngineOptions o = options(64, 2);
    c.change(o);
    const std::string message = message_of([&] { Serving serving(Profile::fast, o); });
    EXPECT_NE(message.find(c.field), std::string::npos) << c.field << ": " << message;
  }
}

TEST(Engine, RefusesWhatCanNeverRunAndStaysHealthy) {
  Serving serving(Profile::fast, options(64, 1));
  EXPECT_EQ(serving.engine.limits().vocab_size, 6144);
  const auto refused = serving.engine.submit(request(prompt_of(1000, 1), 25));
  ASSERT_FALSE(refused);
  EXPECT_STREQ(refused.error().what(), "prompt of 1000 tokens and max_tokens 25 exceed the context of 1024 tokens; shorten one of them");
  EXPECT_FALSE(serving.engine.submit(request({6144}, 1)));
  EXPECT_FALSE(serving.engine.submit(request({}, 1)));
  const auto asked = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000 && serving.engine.pulse(asked) == Pulse::asked; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(serving.engine.pulse(asked), Pulse::alive);
}

TEST(Engine, EndsItsRequestsWhenItGoes) {
  Stream s;
  {
    Serving serving(Profile::fast, options(64, 1));
    s = serving.engine.submit(request(prompt_of(10, 1), 1000)).or_throw();
    s.next();
  }
  Event e;
  do e = s.next();
  while (e.finish == FinishReason::none);
  EXPECT_EQ(e.finish, FinishReason::cancelled);
}

}  // namespace
}  // namespace winnow::engine
