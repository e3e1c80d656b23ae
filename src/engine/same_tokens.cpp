#include "engine/same_tokens.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <random>

namespace winnow::engine {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  int64_t from(int64_t low, int64_t high) { return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1)); }
  bool one_in(int64_t n) { return from(1, n) == 1; }
  int64_t one_of(std::initializer_list<int64_t> list) { return *(list.begin() + from(0, static_cast<int64_t>(list.size()) - 1)); }

 private:
  std::mt19937_64 random_;
};

using Tokens = std::vector<int32_t>;

void append_random(Tokens* to, Dice& dice, int64_t n, int64_t vocab) {
  for (; n > 0; --n) to->push_back(static_cast<int32_t>(dice.from(0, vocab - 1)));
}

// The next prompt: a turn more of an earlier conversation, a branch of one, one again, or a new one behind a shared beginning.
Tokens next_prompt(Dice& dice, const std::vector<Question>& before, const std::vector<Tokens>& beginnings, int64_t longest, int64_t vocab) {
  Tokens prompt;
  const int64_t kind = before.empty() ? 9 : dice.from(0, 9);
  const Question* parent =
      before.empty() ? nullptr
                     : &before[static_cast<size_t>(dice.from(dice.one_in(2) ? std::max<int64_t>(0, static_cast<int64_t>(before.size()) - 12) : 0,
                                                             static_cast<int64_t>(before.size()) - 1))];
  if (kind < 8) prompt = parent->request.prompt;
  if (kind < 4) prompt.insert(prompt.end(), parent->tokens.begin(), parent->tokens.end());
  if (kind == 4 || kind == 5) prompt.resize(static_cast<size_t>(dice.from(0, static_cast<int64_t>(prompt.size()))));
  if (kind >= 8) prompt = beginnings[static_cast<size_t>(dice.from(0, static_cast<int64_t>(beginnings.size()) - 1))];
  if (kind != 7) append_random(&prompt, dice, dice.from(1, 70), vocab);
  if (dice.one_in(8)) {  // it ends with a page
    append_random(&prompt, dice, kChunkGrid - 1, vocab);
    prompt.resize(prompt.size() / kChunkGrid * kChunkGrid);
  }
  if (dice.one_in(3) && static_cast<int64_t>(prompt.size()) >= kChunkGrid)  // its answer crosses a page's end
    prompt.resize(prompt.size() / kChunkGrid * kChunkGrid - static_cast<size_t>(dice.from(1, 6)));
  if (prompt.empty()) append_random(&prompt, dice, 5, vocab);
  if (static_cast<int64_t>(prompt.size()) > longest) prompt.resize(static_cast<size_t>(longest));
  return prompt;
}

// Files of which operations fail. What a process that is killed leaves is what files that all fail from then on leave.
class Faults {
 public:
  Faults(uint64_t seed, int64_t one_in, int64_t killed_at) : dice_(seed), one_in_(one_in), killed_at_(killed_at) {}
  int64_t count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  cache::DiskFiles over(cache::DiskFiles f) {
    const cache::DiskFiles real = f;
    using Path = cache::DiskFiles::Path;
    f.create = [=, this](Path name, int* file) { return fails() ? EACCES : real.create(name, file); };
    f.append = [=, this](int file, std::span<const std::byte> bytes) {
      if (!fails()) return real.append(file, bytes);
      real.append(file, bytes.first(bytes.size() / 2));
      return ENOSPC;
    };
    f.rename = [=, this](Path from, Path to) { return fails() ? EIO : real.rename(from, to); };
    f.remove = [=, this](Path name) { return fails() ? EIO : real.remove(name); };
    f.read = [=, this](Path name, std::span<const std::span<std::byte>> parts) { return fails() ? EIO : real.read(name, parts); };
    return f;
  }

 private:
  bool fails() {
    const std::lock_guard lock(mutex_);
    const bool now = (killed_at_ > 0 && ++done_ >= killed_at_) || (one_in_ > 0 && dice_.one_in(one_in_));
    count_ += now;
    return now;
  }
  std::mutex mutex_;  // the tier's thread and the one that opens the folder
  Dice dice_;
  const int64_t one_in_, killed_at_;
  int64_t done_ = 0, count_ = 0;
};

// Which third of the vocabulary the next token is of depends on all tokens before it: a rule that lost one, or saw one twice, forbids others.
class Thirds : public Constraint {
 public:
  void mask(std::span<uint32_t> words) override {
    std::ranges::fill(words, 0);
    for (size_t id = 0; id < 32 * words.size(); ++id)
      if (id % 3 == seen_.back() % 3) words[id / 32] |= uint32_t{1} << (id % 32);
  }
  bool accept(int32_t token) override {
    seen_.push_back((seen_.back() + static_cast<uint64_t>(token)) * 0x9e3779b97f4a7c15u >> 7);  // Fibonacci hashing (Knuth, TAOCP 3, 6.4)
    return true;
  }
  void rollback(int64_t tokens) override { seen_.resize(seen_.size() - static_cast<size_t>(tokens)); }
  bool is_done() const override { return false; }

 private:
  std::vector<uint64_t> seen_{1};
};

Request asked(const Question& q) {
  Request r = q.request;
  if (q.constrained) r.constraint = std::make_shared<Thirds>();
  return r;
}

struct Read {
  Tokens tokens;
  std::vector<std::vector<float>> logits;
  FinishReason finish = FinishReason::none;
  std::string error;
};

Read read(Stream& stream, int64_t cancel_after) {
  Read r;
  while (r.finish == FinishReason::none) {
    if (cancel_after >= 0 && static_cast<int64_t>(r.tokens.size()) >= cancel_after) stream.cancel();
    Event e = stream.next();
    if (e.sampled.token >= 0) {
      r.tokens.push_back(e.sampled.token);
      r.logits.push_back(std::move(e.logits));
    }
    r.finish = e.finish;
    r.error = e.error;
  }
  return r;
}

std::string difference(const Question& q, const Read& r) {
  if (!r.error.empty()) return "ended with an error: " + r.error;
  if (r.finish == FinishReason::cancelled && q.cancel_after < 0) return "was cancelled by nobody, alone it was not";
  if (r.finish != FinishReason::cancelled && r.tokens.size() != q.tokens.size())
    return fmt::format("gave {} tokens, alone {}", r.tokens.size(), q.tokens.size());
  for (size_t i = 0; i < r.tokens.size(); ++i) {
    if (i >= q.tokens.size() || r.tokens[i] != q.tokens[i]) return fmt::format("token {} is another one than alone", i);
    if (r.logits[i].size() != q.logits[i].size() || std::memcmp(r.logits[i].data(), q.logits[i].data(), q.logits[i].size() * sizeof(float)) != 0)
      return fmt::format("the logits of token {} have other bits than alone", i);
  }
  return {};
}

// The most that a question may find cached: what it has in common with questions before it, or served together with it, of its salt.
int64_t most_cached(const std::vector<Question>& all, size_t i, size_t end) {
  const Question& q = all[i];
  int64_t most = 0;
  for (size_t j = 0; j < end; ++j) {
    const Question& other = all[j];
    if (j == i || other.request.cache_salt != q.request.cache_salt) continue;
    Tokens told = other.request.prompt;
    told.insert(told.end(), other.tokens.begin(), other.tokens.end());
    most = std::max<int64_t>(most, std::ranges::mismatch(q.request.prompt, told).in1 - q.request.prompt.begin());
  }
  return most;
}

// Engines of all kinds: small pools, with and without tiers, and what the one before left on disk.
std::vector<Phase> draw_phases(Dice& dice, const WorkloadOptions& o, const models::Glm5Next& model) {
  const bool exact = model.options().profile == models::Profile::exact;
  const cache::KvLayout layout(model.kv_spec(), model.options().page_tokens);
  const int64_t longest = o.max_prompt + o.max_output, worst = pages_for(longest, layout.page_tokens);
  std::vector<Phase> phases;
  for (int64_t i = 0; i < 4; ++i) {
    Phase p{.options = {}, .questions = o.requests / 4, .together = dice.from(2, 12)};
    EngineOptions& e = p.options;
    e.max_sequences = i == 0 ? dice.from(3, 8) : dice.from(1, 8);
    e.max_batched_tokens = dice.one_of({64, 128, 192, 512});
    if (exact) e.chunk_grid = dice.one_of({1, 5, 16, 64});
    e.max_context = longest;
    e.kv_bytes = int64_t{1} << 30;
    e.kv_pages = i == 2 ? 200 : worst + dice.from(0, 2 * worst);
    e.kv_states = e.max_sequences + dice.from(i == 0 ? 4 : 0, 12);
    // Not where prefix and pages alone are to be tried; elsewhere room for one to a few preempted sequences.
    const int64_t one = layout.record_bytes() + layout.page_bytes * worst;
    e.host_bytes = i == 3 && dice.one_in(2) ? 0 : one * dice.from(2, 8);
    if (!o.folder.empty() && i > 0) {
      e.cache_dir = o.folder;
      e.cache_dir_bytes = std::max(one * dice.from(4, 40), int64_t{1} << 20);
      if (i == 2) (dice.one_in(2) ? p.one_fails_in : p.killed_at) = dice.from(10, 60);
    }
    e.model_identity = "same tokens";
    e.reuse = exact && !dice.one_in(3) ? Reuse::computed : Reuse::prefilled;
    if (!exact) e.reuse = Reuse::prefilled;
    if (dice.one_in(3)) e.snapshot_interval = layout.page_tokens * dice.from(1, 3);
    e.max_itl_s = dice.one_in(3) ? 0.002 : 0;
    phases.push_back(p);
  }
  phases.back().questions = o.requests - 3 * (o.requests / 4);
  return phases;
}

}  // namespace

Exercise& Exercise::operator+=(const Exercise& o) {
  requests += o.requests;
  cancelled += o.cancelled;
  hits += o.hits;
  divergences += o.divergences;
  preemptions += o.preemptions;
  host_hits += o.host_hits;
  disk_hits += o.disk_hits;
  restarts += o.restarts;
  file_faults += o.file_faults;
  return *this;
}

Workload SameTokens::draw(const WorkloadOptions& o) {
  Dice dice(o.seed);
  Workload w;
  w.phases = draw_phases(dice, o, model_);
  EngineOptions cold;
  cold.max_batched_tokens = 512;
  cold.max_sequences = 1;
  cold.max_context = o.max_prompt + o.max_output;
  cold.kv_bytes = int64_t{1} << 30;
  cold.host_bytes = 0;
  cold.reuse = Reuse::none;
  Engine engine(device_, model_, cold);
  const int64_t vocab = model_.config().vocab_size;
  std::vector<Tokens> beginnings(3);
  for (Tokens& b : beginnings) append_random(&b, dice, dice.from(o.max_prompt / 3, o.max_prompt * 2 / 3), vocab);
  for (int64_t i = 0; i < o.requests; ++i) {
    Question q;
    q.request.prompt = next_prompt(dice, w.questions, beginnings, o.max_prompt, vocab);
    q.request.max_tokens = dice.from(1, o.max_output);
    q.request.sampling.temperature = dice.one_in(2) ? 0.8f : 0.0f;
    q.request.sampling.seed = static_cast<uint64_t>(dice.from(0, 1 << 20));
    q.request.keep_logits = true;
    q.request.cache_salt = dice.one_in(10) ? 1 : 0;
    q.request.priority = static_cast<int32_t>(dice.from(-1, 1));
    q.constrained = dice.one_in(4);
    Stream s = engine.submit(asked(q)).or_throw();
    Read r = read(s, -1);
    if (!r.error.empty()) throw error("alone, request {} ended with an error: {}", i, r.error);
    q.tokens = std::move(r.tokens);
    q.logits = std::move(r.logits);
    if (dice.one_in(8)) q.cancel_after = dice.from(0, o.max_output);
    w.questions.push_back(std::move(q));
  }
  return w;
}

std::string SameTokens::serve_phase(const Phase& phase, const std::vector<Question>& all, size_t first, size_t count, Exercise* exercise) {
  std::string wrong;
  const auto questions = std::span(all).subspan(first, count);
  Faults faults(static_cast<uint64_t>(phase.one_fails_in + phase.killed_at), phase.one_fails_in, phase.killed_at);
  EngineOptions options = phase.options;
  options.disk_files = faults.over(std::move(options.disk_files));
  Engine engine(device_, model_, options);
  for (size_t i = 0; i < questions.size() && wrong.empty(); i += static_cast<size_t>(phase.together)) {
    const auto some = questions.subspan(i, std::min(static_cast<size_t>(phase.together), questions.size() - i));
    std::vector<Stream> streams;
    for (const Question& q : some) streams.push_back(engine.submit(asked(q)).or_throw());
    for (size_t j = 0; j < some.size() && wrong.empty(); ++j) {
      const Read r = read(streams[j], some[j].cancel_after);
      exercise->cancelled += r.finish == FinishReason::cancelled;
      ++exercise->requests;
      wrong = difference(some[j], r);
      if (const int64_t most = most_cached(all, first + i + j, first + i + some.size()); wrong.empty() && streams[j].timings().cached.tokens > most)
        wrong = fmt::format("took over what was not there for it, at most {} tokens; alone it takes nothing", most);
      if (!wrong.empty())
        wrong = fmt::format("request {} ({} tokens, {} of them cached, {} preemptions): {}", first + i + j, some[j].request.prompt.size(),
                            streams[j].timings().cached.tokens, streams[j].timings().preemptions, wrong);
    }
  }
  const Totals t = engine.totals();
  exercise->hits += t.prefix.hits;
  exercise->divergences += t.divergences;
  exercise->preemptions += t.preemptions;
  exercise->host_hits += t.prefix.hits_in[static_cast<size_t>(cache::Tier::host)];
  exercise->disk_hits += t.prefix.hits_in[static_cast<size_t>(cache::Tier::disk)];
  exercise->file_faults += faults.count();
  return wrong;
}

std::string SameTokens::serve(const Workload& w, Exercise* exercise) {
  for (const Phase& p : w.phases)
    if (!p.options.cache_dir.empty()) std::filesystem::remove_all(p.options.cache_dir);
  size_t first = 0;
  for (size_t i = 0; i < w.phases.size(); ++i) {
    const Phase& p = w.phases[i];
    const auto count = std::min(static_cast<size_t>(p.questions), w.questions.size() - first);
    exercise->restarts += i > 0 && !p.options.cache_dir.empty() && p.options.cache_dir == w.phases[i - 1].options.cache_dir;
    std::string wrong = serve_phase(p, w.questions, first, count, exercise);
    if (!wrong.empty()) return fmt::format("phase {}: {}", i, wrong);
    first += count;
  }
  return {};
}

Workload SameTokens::shrink(Workload w, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const auto fails = [&](const Workload& smaller) {  // threads may hide it once
    for (int i = 0; i < 2; ++i) {
      Exercise ignored;
      if (!serve(smaller, &ignored).empty()) return true;
    }
    return false;
  };
  for (size_t size = w.questions.size() / 2; size > 0; size /= 2)
    for (size_t at = 0; at < w.questions.size() && std::chrono::steady_clock::now() < end;) {
      Workload smaller = w;
      const size_t stop = std::min(at + size, w.questions.size());
      smaller.questions.erase(smaller.questions.begin() + static_cast<std::ptrdiff_t>(at),
                              smaller.questions.begin() + static_cast<std::ptrdiff_t>(stop));
      size_t before = 0;
      for (Phase& p : smaller.phases) {  // each phase keeps what is left of its questions
        const size_t from = std::max(before, at), to = std::min(before + static_cast<size_t>(p.questions), stop);
        before += static_cast<size_t>(p.questions);
        if (to > from) p.questions -= static_cast<int64_t>(to - from);
      }
      if (fails(smaller)) w = std::move(smaller);
      else at = stop;
    }
  return w;
}

std::string describe(const Workload& w) {
  std::string text;
  size_t i = 0;
  for (const Phase& p : w.phases) {
    const EngineOptions& e = p.options;
    text += fmt::format("engine: {} rows, {} sequences, grid {}, {} pages, {} states, host {} bytes, {}, reuse {}, snapshots every {}, {} together\n",
                        e.max_batched_tokens, e.max_sequences, e.chunk_grid, e.kv_pages, e.kv_states, e.host_bytes,
                        e.cache_dir.empty()
                            ? "no disk"
                            : fmt::format("disk {} bytes (one operation in {} fails, killed at {})", e.cache_dir_bytes, p.one_fails_in, p.killed_at),
                        name_of(e.reuse), e.snapshot_interval, p.together);
    for (int64_t n = 0; n < p.questions && i < w.questions.size(); ++n, ++i) {
      const Question& q = w.questions[i];
      text += fmt::format("  {} tokens in, {} out, priority {}, salt {}, temperature {}, seed {}{}{}: {}\n", q.request.prompt.size(),
                          q.request.max_tokens, q.request.priority, q.request.cache_salt, q.request.sampling.temperature, q.request.sampling.seed,
                          q.constrained ? ", constrained" : "", q.cancel_after >= 0 ? fmt::format(", cancelled after {}", q.cancel_after) : "",
                          fmt::join(q.request.prompt, ","));
    }
  }
  return text;
}

}  // namespace winnow::engine
