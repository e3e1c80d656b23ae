// The loop over a toy model: its next token is a hash of everything that its caches hold for the sequence, so a row that
// is lost, doubled, misplaced or mixed with another sequence's changes the tokens.
#include "engine/loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "cache/disk_testing.h"
#include "engine/outbox.h"
#include "engine/stream.h"

namespace winnow::engine {
namespace {

using namespace std::chrono_literals;
using cache::testing::Folder;

constexpr int64_t kVocab = 50, kPage = 16;
constexpr int32_t kBroken = 48;  // a row of this token comes out not finite
constexpr int32_t kPoison = 49;  // a prompt that holds it gets logits that are no numbers

// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): every bit of the result depends on every bit given.
uint64_t mix(uint64_t h, uint64_t x) {
  h += x + 0x9e3779b97f4a7c15u;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}
float noise(uint64_t h, int64_t v) { return static_cast<float>(mix(h, static_cast<uint64_t>(v)) % 4096) / 512.0f; }

void toy_logits(std::span<const int32_t> tokens, std::span<float> out) {
  uint64_t h = 1;
  bool poisoned = false;
  for (int32_t t : tokens) h = mix(h, static_cast<uint64_t>(t)), poisoned |= t == kPoison;
  for (int64_t v = 0; v < kVocab; ++v) out[static_cast<size_t>(v)] = v >= kBroken ? -100.0f : noise(h, v);
  if (poisoned) out[3] = std::numeric_limits<float>::quiet_NaN();
}

class Toy {
 public:
  Toy(int64_t pages, int64_t states) : slots_(static_cast<size_t>(pages * kPage), -1), lengths_(static_cast<size_t>(states), -1) {}

  Runner runner() {
    return {.forward = [this](const models::Batch& b) { forward(b); },
            .logits = [this] { return ConstTensorView(reinterpret_cast<const std::byte*>(logits_.data()), DType::f32, {rows_, kVocab}); },
            .bad_rows =
                [this] { return ConstTensorView(reinterpret_cast<const std::byte*>(bad_.data()), DType::i32, {static_cast<int64_t>(bad_.size())}); },
            .folded_after = [](const models::SequenceRows& r) { return TokenPos((r.position.value + r.count - 1) / kKdaGroup * kKdaGroup); },
            .vocab_size = kVocab};
  }
  std::function<void(const models::Batch&)> before;  // called first in each step

  cache::RecordMover mover() {
    return {.page_bytes = kPage * 4,
            .state_bytes = 8,
            .read_page = [this](PageId id, std::span<std::byte> to) { std::memcpy(to.data(), page(id), kPage * 4); },
            .write_page = [this](PageId id, std::span<const std::byte> from) { std::memcpy(page(id), from.data(), kPage * 4); },
            .read_state = [this](StateId id, std::span<std::byte> to) { std::memcpy(to.data(), &lengths_[static_cast<size_t>(id.value)], 8); },
            .write_state = [this](StateId id,
                                  std::span<const std::byte> from) { std::memcpy(&lengths_[static_cast<size_t>(id.value)], from.data(), 8); }};
  }

 private:
  int32_t* page(PageId id) { return &slots_[static_cast<size_t>(id.value * kPage)]; }
  void forward(const models::Batch& b) {
    if (before) before(b);
    std::set<int64_t> states;
    int64_t row = 0;
    size_t next_logit = 0;
    rows_ = static_cast<int64_t>(b.logit_rows.size());
    bad_.clear();
    for (int32_t t : b.tokens) bad_.push_back(t == kBroken);
    logits_.resize(static_cast<size_t>(rows_ * kVocab));
    for (const models::SequenceRows& s : b.sequences) {
      check(states.insert(s.state.value).second && s.first_row == row && s.count > 0, "toy: a bad batch");
      int64_t& length = lengths_[static_cast<size_t>(s.state.value)];
      if (s.source.value >= 0) length = lengths_[static_cast<size_t>(s.source.value)];
      if (s.position.value == 0) length = 0;
      check(length == s.position.value, "toy: rows do not follow on what the state holds");
      check(s.folded.value == (length == 0 ? 0 : (length - 1) / kKdaGroup * kKdaGroup), "toy: a wrong folded length");
      for (int64_t i = 0; i < s.count; ++i, ++length) slot(s, length) = b.tokens[static_cast<size_t>(row + i)];
      row += s.count;
      std::vector<int32_t> seen;
      for (int64_t t = 0; t < length; ++t) seen.push_back(slot(s, t));
      for (; next_logit < b.logit_rows.size() && b.logit_rows[next_logit] < row; ++next_logit) {
        const auto before = seen.size() - static_cast<size_t>(row - 1 - b.logit_rows[next_logit]);
        toy_logits(std::span(seen).first(before), std::span(logits_).subspan(next_logit * kVocab, kVocab));
      }
    }
    check(row == static_cast<int64_t>(b.tokens.size()) && next_logit == b.logit_rows.size(), "toy: rows are left over");
  }
  int32_t& slot(const models::SequenceRows& s, int64_t t) {
    const PageId page = s.pages[static_cast<size_t>(page_index(TokenPos(t), kPage))];
    return slots_[static_cast<size_t>(slot_of(page, TokenPos(t), kPage).value)];
  }

  std::vector<int32_t> slots_;    // token in each slot
  std::vector<int64_t> lengths_;  // tokens that each state has seen
  std::vector<float> logits_;
  std::vector<int32_t> bad_;  // by row of the last step
  int64_t rows_ = 0;
};

// A loop on a thread of its own, as Engine has it.
class Served {
 public:
  explicit Served(SchedulerOptions o = {.max_batched_tokens = 128, .max_sequences = 4}, int64_t pages = 200,
                  std::function<void(const models::Batch&)> before = {}, int64_t states = 0, int64_t host_pages = 0, int64_t host_states = 0,
                  const std::string& folder = "")
      : disk_(folder.empty() ? nullptr : make_disk(folder)),
        toy_(pages, states ? states : 3 * o.max_sequences),
        memory_(static_cast<size_t>(host_pages * kPage * 4 + host_states * 8)),
        host_(memory_, host_pages, host_states, toy_.mover()),
        loop_(toy_.runner(), completed(o), {.pages = pages, .states = states ? states : 3 * o.max_sequences}, inbox_) {
    toy_.before = std::move(before);
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~Served() { stop(); }
  void stop() {
    inbox_->stop();
    if (thread_.joinable()) thread_.join();
  }
  Result<Stream> try_submit(Request r) {
    const RequestId id(next_id_++);
    auto s = std::make_unique<Sequence>(id, std::move(r), kPage);
    s->submitted = Clock::now();
    s->outbox = std::make_shared<Outbox>(id, inbox_);
    auto outbox = s->outbox;
    if (auto e = inbox_->submit(std::move(s))) return *e;
    return Stream(outbox);
  }
  Stream submit(Request r) { return try_submit(std::move(r)).or_throw(); }
  Inbox& inbox() { return *inbox_; }
  // Waits until nothing runs, then expects every page and state to be free.
  void expect_all_free() {
    const auto idle = [&] {
      const Totals t = inbox_->totals();
      return t.running == 0 && t.waiting == 0 && t.free_pages == t.pages && t.free_states == t.states;
    };
    for (int i = 0; i < 2000 && !idle(); ++i) std::this_thread::sleep_for(5ms);
    EXPECT_TRUE(idle());
  }

 private:
  SchedulerOptions completed(SchedulerOptions o) {
    o.page_tokens = kPage;
    o.lower = {.host = host_.states.size() > 0 ? &host_ : nullptr, .disk = disk_.get(), .mover = toy_.mover()};
    return o;
  }
  std::unique_ptr<cache::DiskTier> make_disk(const std::string& folder) {
    return std::make_unique<cache::DiskTier>(cache::DiskOptions{.folder = folder,
                                                                .limit_bytes = 1 << 20,
                                                                .page_bytes = kPage * 4,
                                                                .snapshot_bytes = 8,
                                                                .page_tokens = kPage,
                                                                .queue_bytes = 1 << 16,
                                                                .fingerprint = {}},
                                             cache::real_files(), [inbox = inbox_] { inbox->nudge(); });
  }
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::unique_ptr<cache::DiskTier> disk_;
  Toy toy_;
  std::vector<std::byte> memory_;
  cache::HostStore host_;
  Loop loop_;
  std::atomic<int64_t> next_id_{0};
  std::thread thread_;
};

// True if the engine thread showed itself within the deadline, or does so until another one.
bool healthy(Inbox& inbox, std::chrono::milliseconds deadline) {
  const Clock::time_point asked = Clock::now();
  Pulse p;
  while ((p = inbox.pulse(asked - deadline)) == Pulse::asked && Clock::now() < asked + deadline) std::this_thread::sleep_for(1ms);
  return p == Pulse::alive;
}

// Holds the engine thread inside a step until it is opened.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void await_arrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int waiting_ = 0;
};

Request request(std::vector<int32_t> prompt, int64_t max_tokens, float temperature = 0) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = temperature;
  r.sampling.seed = 11;
  return r;
}

std::vector<int32_t> random_prompt(std::mt19937_64& random, int64_t longest) {
  std::vector<int32_t> p(1 + random() % static_cast<uint64_t>(longest));
  for (int32_t& t : p) t = static_cast<int32_t>(random() % kBroken);
  return p;
}

struct Answer {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::none;
  std::string error;
};
Answer read(Stream& stream) {
  Answer a;
  while (a.finish == FinishReason::none) {
    Event e = stream.next();
    if (e.sampled.token >= 0) a.tokens.push_back(e.sampled.token);
    a.finish = e.finish;
    a.error = e.error;
  }
  return a;
}
Answer answer_of(Served& served, Request r) {
  Stream s = served.submit(std::move(r));
  return read(s);
}

// What the loop must draw, from the toy's formula alone.
std::vector<int32_t> expected(const Request& r) {
  std::vector<int32_t> tokens = r.prompt;
  std::vector<float> logits(kVocab), workspace;
  while (static_cast<int64_t>(tokens.size() - r.prompt.size()) < r.max_tokens) {
    toy_logits(tokens, logits);
    const auto generated = std::span<const int32_t>(tokens).subspan(r.prompt.size());
    tokens.push_back(ops::sample(logits, r.sampling, r.prompt, generated, TokenPos(static_cast<int64_t>(tokens.size())), {}, workspace).token);
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(r.prompt.size()), tokens.end()};
}

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

TEST(Loop, BatchArraysStayWhereTheyAre) {
  std::set<const void*> seen;
  Served served({.max_batched_tokens = 64, .max_sequences = 4}, 200,
                [&](const models::Batch& b) { seen.insert({b.tokens.data(), b.sequences.data(), b.logit_rows.data()}); });
  std::vector<Stream> streams;
  for (int i = 1; i <= 8; ++i) streams.push_back(served.submit(request(std::vector<int32_t>(static_cast<size_t>(20 * i), 1), 20)));
  for (Stream& s : streams) read(s);
  served.stop();
  EXPECT_EQ(seen.size(), 3u);
}

// What the toy's formula says of a prompt's tokens behind the first.
void expect_scores(const Request& r, const std::vector<ops::Sampled>& scores) {
  ASSERT_EQ(scores.size(), r.prompt.size());
  EXPECT_EQ(scores[0].token, r.prompt[0]);
  EXPECT_TRUE(std::isnan(scores[0].logprob) && scores[0].top.empty());
  std::vector<float> logits(kVocab);
  for (size_t i = 1; i < scores.size(); ++i) {
    toy_logits(std::span(r.prompt).first(i), logits);
    const ops::Sampled want = ops::score(logits, r.prompt[i], r.prompt_logprobs);
    EXPECT_EQ(scores[i].token, r.prompt[i]);
    EXPECT_EQ(scores[i].logprob, want.logprob);
    EXPECT_EQ(scores[i].top, want.top);
  }
}

TEST(Loop, PromptsAreScoredWhereTheyAreAskedFor) {
  std::mt19937_64 random(6);
  for (const auto& [pages, reuse] : {std::pair{200, Reuse::computed}, {200, Reuse::none}, {40, Reuse::prefilled}}) {
    Served served({.max_batched_tokens = 128, .max_sequences = 5, .scored_rows = 64, .reuse = reuse}, pages, {}, 0, pages, 5);
    std::vector<Request> requests;
    for (int i = 0; i < 30; ++i) {
      requests.push_back(request(i % 7 == 6 ? requests.back().prompt : random_prompt(random, 300), 1 + static_cast<int64_t>(random() % 20)));
      requests.back().prompt_logprobs = i % 3 == 0 ? -1 : i % 4;
      requests.back().priority = static_cast<int32_t>(random() % 3);
    }
    std::vector<Stream> streams;
    for (const Request& r : requests) streams.push_back(served.submit(r));
    for (size_t i = 0; i < requests.size(); ++i) {
      const Event first = streams[i].next();
      if (requests[i].prompt_logprobs >= 0) expect_scores(requests[i], first.prompt);
      else EXPECT_TRUE(first.prompt.empty());
      std::vector<int32_t> tokens{first.sampled.token};
      if (first.finish == FinishReason::none)
        for (int32_t t : read(streams[i]).tokens) tokens.push_back(t);
      EXPECT_EQ(tokens, expected(requests[i]));
    }
  }
}

TEST(Loop, APromptWhoseLogitsAreNoNumbersIsNotScored) {
  Served served({.max_batched_tokens = 128, .max_sequences = 4, .scored_rows = 64});
  Request r = request({1, 2, kPoison, 4, 5}, 5);
  r.prompt_logprobs = 0;
  const Answer a = answer_of(served, r);
  EXPECT_EQ(a.finish, FinishReason::error);
  EXPECT_TRUE(a.tokens.empty());
  served.expect_all_free();
}

TEST(Loop, StopTokensEndARequestUnlessIgnored) {
  Served served;
  Request r = request({1, 2, 3}, 10);
  const std::vector<int32_t> all = expected(r);
  size_t at = 3;  // where a token comes for the first time
  while (at + 1 < all.size() && std::count(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(at), all[at]) > 0) ++at;
  r.stop_tokens = {all[at]};
  Answer a = answer_of(served, r);
  EXPECT_EQ(a.finish, FinishReason::stop);
  EXPECT_EQ(a.tokens, std::vector<int32_t>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(at) + 1));
  r.max_tokens = static_cast<int64_t>(at) + 1;  // the stop token is also the last that fits
  EXPECT_EQ(answer_of(served, r).finish, FinishReason::stop);
  r.max_tokens = 10;
  r.ignore_eos = true;
  r.min_tokens = 7;
  a = answer_of(served, r);
  EXPECT_EQ(a.finish, FinishReason::length);
  EXPECT_EQ(a.tokens, all);
}

TEST(Loop, StopTokensAreNotDrawnBeforeMinTokens) {
  Served served;
  Request r = request({1, 2, 3}, 40);
  for (int32_t t = 0; t < 40; ++t) r.stop_tokens.push_back(t);  // most of the vocabulary
  for (int64_t least : {0, 1, 5, 39}) {
    r.min_tokens = least;
    const Answer a = answer_of(served, r);
    ASSERT_GE(static_cast<int64_t>(a.tokens.size()), least);
    for (int64_t i = 0; i < least; ++i) EXPECT_GE(a.tokens[static_cast<size_t>(i)], 40);
  }
  r.stop_tokens.clear();  // the mask of one request leaves no trace in another's
  for (int32_t t = 10; t < kVocab; ++t) r.stop_tokens.push_back(t);
  r.min_tokens = r.max_tokens = 5;
  const Answer a = answer_of(served, r);
  EXPECT_EQ(a.finish, FinishReason::length);
  for (int32_t t : a.tokens) EXPECT_LT(t, 10);
}

TEST(Loop, ARequestThatMayDrawNothingEndsWithAnError) {
  Served served;
  Request r = request({1, 2, 3}, 4);
  for (int32_t t = 0; t < kVocab; ++t) r.stop_tokens.push_back(t);
  r.min_tokens = 1;
  const Answer a = answer_of(served, r);
  EXPECT_EQ(a.finish, FinishReason::error);
  EXPECT_TRUE(a.tokens.empty());
}

// Lets one token through at a time.
class Script : public Constraint {
 public:
  explicit Script(std::vector<int32_t> tokens, size_t throws_at = SIZE_MAX) : tokens_(std::move(tokens)), throws_at_(throws_at) {}
  void mask(std::span<uint32_t> words) override {
    if (at_ == throws_at_) throw error("the script broke");
    std::ranges::fill(words, 0);
    words[static_cast<size_t>(tokens_[at_] / 32)] |= uint32_t{1} << (tokens_[at_] % 32);
  }
  bool accept(int32_t token) override { return token == tokens_[at_] && ++at_ > 0; }
  void rollback(int64_t tokens) override { at_ -= static_cast<size_t>(tokens); }
  bool is_done() const override { return at_ == tokens_.size(); }

 private:
  const std::vector<int32_t> tokens_;
  const size_t throws_at_;
  size_t at_ = 0;
};

TEST(Loop, AConstraintSaysWhatMayComeAndWhereItEnds) {
  Served served;
  const std::vector<int32_t> script{7, 41, 7, 0, 33};
  for (const bool ignore_eos : {false, true}) {
    Request r = request({1, 2, 3}, 10, 0.7f);
    r.ignore_eos = ignore_eos;
    r.stop_tokens = {33};
    if (!ignore_eos) r.min_tokens = 9;  // the rule lets only the stop token through: it is not held back
    r.constraint = std::make_shared<Script>(script);
    const Answer a = answer_of(served, r);
    EXPECT_EQ(a.tokens, script);
    EXPECT_EQ(a.finish, FinishReason::stop);
    EXPECT_EQ(a.error, "");
  }
  Request r = request({1, 2, 3}, 10);  // the mask leaves no trace in another's
  EXPECT_EQ(answer_of(served, r).tokens, expected(r));
}

TEST(Loop, AConstraintThatFailsEndsItsOwnRequest) {
  Served served({.max_batched_tokens = 64, .max_sequences = 4});
  Request broken = request({1, 2, 3}, 10), other = request({4, 5, 6}, 30);
  broken.constraint = std::make_shared<Script>(std::vector<int32_t>{1, 2, 3, 4}, 2);
  Stream a = served.submit(other), b = served.submit(broken);
  const Answer failed = read(b);
  EXPECT_EQ(failed.finish, FinishReason::error);
  EXPECT_EQ(failed.error, "the script broke");
  EXPECT_EQ(failed.tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(read(a).tokens, expected(other));
  served.expect_all_free();
}

TEST(Loop, SamplingSeesPromptAndGeneratedTokens) {
  Served served;
  Request r = request({1, 2, 3, 4, 5}, 30);
  r.sampling.presence_penalty = 1000;  // no token twice
  const Answer a = answer_of(served, r);
  EXPECT_EQ(std::set<int32_t>(a.tokens.begin(), a.tokens.end()).size(), 30u);
  r.sampling.presence_penalty = 0.5f;
  r.sampling.frequency_penalty = 0.7f;
  r.sampling.repetition_penalty = 1.8f;
  r.sampling.logit_bias = {{7, 2.0f}};
  EXPECT_EQ(answer_of(served, r).tokens, expected(r));
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
