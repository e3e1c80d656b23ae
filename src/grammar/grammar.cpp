#include "grammar/grammar.h"

#include <pthread.h>
#include <xgrammar/xgrammar.h>

#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "base/units.h"

// What XGrammar has to say while it compiles: keywords that it passes over among it, each of which would let answers through
// that the schema forbids.
namespace winnow::grammar {
namespace {
thread_local std::vector<std::string>* listening = nullptr;
}
}  // namespace winnow::grammar

namespace xgrammar {

void LogFatalImpl(const std::string&, int, const std::string& message) { throw std::runtime_error(message); }

void LogMessageImpl(const std::string&, int, int, const std::string& message) {
  if (winnow::grammar::listening) winnow::grammar::listening->push_back(message);
}

}  // namespace xgrammar

namespace winnow::grammar {

class Grammar {
 public:
  explicit Grammar(xgrammar::CompiledGrammar compiled) : compiled_(std::move(compiled)) {}
  const xgrammar::CompiledGrammar& compiled() const { return compiled_; }
  size_t bytes() const { return compiled_.MemorySizeBytes(); }

 private:
  xgrammar::CompiledGrammar compiled_;
};

// --- matcher ------------------------------------------------------------------------------------------------------------

struct Matcher::Impl {
  std::shared_ptr<const Grammar> grammar;
  xgrammar::GrammarMatcher matcher;
  explicit Impl(std::shared_ptr<const Grammar> g) : grammar(std::move(g)), matcher(grammar->compiled()) {}
};

Matcher::Matcher(std::shared_ptr<const Grammar> grammar) : impl_(std::make_unique<Impl>(std::move(grammar))) {}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

namespace {

bool timed(const std::function<bool()>& work) {
  const auto start = std::chrono::steady_clock::now();
  bool out = false;
  try {
    out = work();
  } catch (const std::exception& e) { throw error("the answer's grammar failed: {}", e.what()); }
  if (std::chrono::steady_clock::now() - start > Matcher::kSlowStep)
    throw error("the answer's grammar is too slow: one token took more than {} ms", Matcher::kSlowStep.count());
  return out;
}

}  // namespace

void Matcher::mask(std::span<uint32_t> words) {
  int64_t size = static_cast<int64_t>(words.size());
  DLTensor to{.data = words.data(),
              .device = {kDLCPU, 0},
              .ndim = 1,
              .dtype = xgrammar::GetBitmaskDLType(),
              .shape = &size,
              .strides = nullptr,
              .byte_offset = 0};
  timed([&] { return impl_->matcher.FillNextTokenBitmask(&to); });
}

bool Matcher::accept(text::Token token) {
  return timed([&] { return impl_->matcher.AcceptToken(token); });
}
void Matcher::rollback(int64_t tokens) { impl_->matcher.Rollback(static_cast<int>(tokens)); }
bool Matcher::is_done() const { return impl_->matcher.IsTerminated(); }
bool Matcher::may_stop() const { return impl_->matcher.IsCompleted(); }

// --- compiler -----------------------------------------------------------------------------------------------------------

namespace {

// Bytes of each token as grammars see them. An added token's begin with 0xff, which is in no text: grammars name it by id or
// not at all. Ids without bytes are never allowed.
xgrammar::TokenizerInfo vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size, const std::vector<text::Token>& stop_tokens) {
  std::vector<std::string> tokens(static_cast<size_t>(vocab_size));
  for (text::Token id = 0; id < std::min<int64_t>(vocab_size, tokenizer.vocab_size()); ++id) tokens[static_cast<size_t>(id)] = tokenizer.bytes(id);
  for (const text::Token id : tokenizer.added_tokens())
    if (id < vocab_size) tokens[static_cast<size_t>(id)].insert(0, "\xff");
  return xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, static_cast<int>(vocab_size), stop_tokens);
}

// XGrammar follows schemas and expressions by recursion, as deep as they are nested; std::thread has no stack size.
constexpr size_t kStackBytes = size_t{256} << 20;  // of address space

}  // namespace

struct Compiler::Impl {
  using Compiled = std::shared_ptr<const Grammar>;
  using Key = std::pair<std::string, Strictness>;
  struct Job {
    Key key;
    std::optional<Result<Compiled>> result;
  };

  Impl(const text::Tokenizer& tokenizer, int64_t vocab_size, const std::vector<text::Token>& stop_tokens, const CompilerOptions& o)
      : options(o), info(vocabulary(tokenizer, vocab_size, stop_tokens)), compiler(info, 1, false) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    for (int i = 0; i < options.threads; ++i) {
      pthread_t thread;
      if (pthread_create(&thread, &attributes, [](void* self) -> void* { return static_cast<Impl*>(self)->work(), nullptr; }, this) != 0)
        throw error("cannot start a thread that compiles grammars");
      threads.push_back(thread);
    }
    pthread_attr_destroy(&attributes);
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    news.notify_all();
    for (const pthread_t t : threads) pthread_join(t, nullptr);
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      news.wait(lock, [&] { return stop || !queue.empty(); });
      if (stop) return;
      const std::shared_ptr<Job> job = std::move(queue.front());
      queue.pop_front();
      if (job.use_count() == 1) continue;           // nobody waits any more
      if (const Compiled known = find(job->key)) {  // it was compiled while this one waited
        job->result.emplace(known);
      } else {
        lock.unlock();
        const auto start = std::chrono::steady_clock::now();
        Result<Compiled> result = compile(job->key);
        lock.lock();
        counts.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        ++(result ? counts.compiled : counts.failed);
        if (result) keep(job->key, *result);
        job->result.emplace(std::move(result));
      }
      done.notify_all();
    }
  }

  Compiled find(const Key& key) {
    const auto found = kept.find(key);
    if (found == kept.end()) return nullptr;
    used.splice(used.begin(), used, found->second.use);
    ++counts.reused;
    return found->second.grammar;
  }

  Result<Compiled> compile(const Key& key) {
    std::vector<std::string> messages;
    listening = &messages;
    std::string wrong;
    Compiled out;
    try {
      out = std::make_shared<const Grammar>(compiler.CompileStructuralTag(key.first));
    } catch (const std::exception& e) { wrong = e.what(); }
    listening = nullptr;
    if (wrong.empty() && key.second == Strictness::exact && !messages.empty()) wrong = messages.front();
    if (!wrong.empty()) return Error(wrong, Failure::usage);
    return out;
  }

  void keep(const Key& key, const Compiled& grammar) {
    const size_t bytes = grammar->bytes() + 2 * key.first.size();
    if (bytes > options.cache_bytes || kept.contains(key)) return;
    while (counts.kept_bytes + static_cast<int64_t>(bytes) > static_cast<int64_t>(options.cache_bytes)) {  // the one that was not used for longest
      const auto last = kept.find(used.back());
      counts.kept_bytes -= static_cast<int64_t>(last->second.bytes);
      kept.erase(last);
      used.pop_back();
    }
    used.push_front(key);
    kept.emplace(key, Kept{grammar, bytes, used.begin()});
    counts.kept_bytes += static_cast<int64_t>(bytes);
  }

  struct Kept {
    Compiled grammar;
    size_t bytes;
    std::list<Key>::iterator use;
  };
  const CompilerOptions options;
  const xgrammar::TokenizerInfo info;
  xgrammar::GrammarCompiler compiler;
  std::vector<pthread_t> threads;

  mutable std::mutex mutex;
  std::condition_variable news, done;
  bool stop = false;
  std::deque<std::shared_ptr<Job>> queue;
  std::map<Key, Kept> kept;
  std::list<Key> used;  // keys of `kept`, the latest first
  Counts counts;
};

Compiler::Compiler(const text::Tokenizer& tokenizer, int64_t vocab_size, const std::vector<text::Token>& stop_tokens, const CompilerOptions& options)
    : impl_(std::make_unique<Impl>(tokenizer, vocab_size, stop_tokens, options)) {}
Compiler::~Compiler() = default;

Result<std::shared_ptr<const Grammar>> Compiler::compile(const std::string& source, Strictness strictness) {
  Impl& m = *impl_;
  std::unique_lock lock(m.mutex);
  const Impl::Key key{source, strictness};
  if (const Impl::Compiled known = m.find(key)) return known;
  auto job = std::make_shared<Impl::Job>(key);
  m.queue.push_back(job);
  m.news.notify_one();
  if (!m.done.wait_for(lock, m.options.time_limit, [&] { return job->result.has_value(); })) {
    ++m.counts.late;
    return Error(fmt::format("it is not compiled within {} s; give a simpler one", std::chrono::duration<double>(m.options.time_limit).count()));
  }
  return *job->result;
}

Compiler::Counts Compiler::counts() const {
  const std::lock_guard lock(impl_->mutex);
  Counts c = impl_->counts;
  c.kept = static_cast<int64_t>(impl_->kept.size());
  return c;
}

}  // namespace winnow::grammar
