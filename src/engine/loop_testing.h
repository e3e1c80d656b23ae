// The toy model of the loop's tests, and what serves it: its next token is a hash of everything that its caches hold for the
// sequence, so a row that is lost, doubled, misplaced or mixed with another sequence's changes the tokens.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "cache/disk_testing.h"
#include "engine/loop.h"
#include "engine/outbox.h"
#include "engine/stream.h"

namespace winnow::engine::testing {

constexpr int64_t kVocab = 50, kPage = 16;
constexpr int32_t kBroken = 48;  // a row of this token comes out not finite
constexpr int32_t kPoison = 49;  // a prompt that holds it gets logits that are no numbers

// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): every bit of the result depends on every bit given.
inline uint64_t mix(uint64_t h, uint64_t x) {
  h += x + 0x9e3779b97f4a7c15u;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}
inline float noise(uint64_t h, int64_t v) { return static_cast<float>(mix(h, static_cast<uint64_t>(v)) % 4096) / 512.0f; }

inline void toy_logits(std::span<const int32_t> tokens, std::span<float> out) {
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
    for (int i = 0; i < 2000 && !idle(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
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
inline bool healthy(Inbox& inbox, std::chrono::milliseconds deadline) {
  const Clock::time_point asked = Clock::now();
  Pulse p;
  while ((p = inbox.pulse(asked - deadline)) == Pulse::asked && Clock::now() < asked + deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
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

inline Request request(std::vector<int32_t> prompt, int64_t max_tokens, float temperature = 0) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.temperature = temperature;
  r.sampling.seed = 11;
  return r;
}

inline std::vector<int32_t> random_prompt(std::mt19937_64& random, int64_t longest) {
  std::vector<int32_t> p(1 + random() % static_cast<uint64_t>(longest));
  for (int32_t& t : p) t = static_cast<int32_t>(random() % kBroken);
  return p;
}

struct Answer {
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::none;
  std::string error;
};
inline Answer read(Stream& stream) {
  Answer a;
  while (a.finish == FinishReason::none) {
    Event e = stream.next();
    if (e.sampled.token >= 0) a.tokens.push_back(e.sampled.token);
    a.finish = e.finish;
    a.error = e.error;
  }
  return a;
}
inline Answer answer_of(Served& served, Request r) {
  Stream s = served.submit(std::move(r));
  return read(s);
}

// What the loop must draw, from the toy's formula alone.
inline std::vector<int32_t> expected(const Request& r) {
  std::vector<int32_t> tokens = r.prompt;
  std::vector<float> logits(kVocab), workspace;
  while (static_cast<int64_t>(tokens.size() - r.prompt.size()) < r.max_tokens) {
    toy_logits(tokens, logits);
    const auto generated = std::span<const int32_t>(tokens).subspan(r.prompt.size());
    tokens.push_back(ops::sample(logits, r.sampling, r.prompt, generated, TokenPos(static_cast<int64_t>(tokens.size())), {}, workspace).token);
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(r.prompt.size()), tokens.end()};
}

}  // namespace winnow::engine::testing
