#include "cli/overhead.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "engine/scheduler.h"
#include "engine/step.h"

namespace winnow::cli {
namespace {

constexpr int64_t kPage = 64;

double now_us() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double quantile(std::vector<double> v, double q) {
  const auto at = v.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(v.size() - 1));
  std::nth_element(v.begin(), at, v.end());
  return *at;
}

std::vector<int32_t> tokens(int64_t n, int32_t seed) {
  std::vector<int32_t> t(static_cast<size_t>(n));
  std::iota(t.begin(), t.end(), seed);
  return t;
}

// Steps of `n` sequences that decode behind 1,000 tokens of prompt, all that a step does on the host but the model and sampling:
// admission, planning, laying out the batch, appending, the prefix index with a page end every 64 tokens and a hand-over at each.
std::vector<double> steps(int64_t n) {
  constexpr int64_t kPrompt = 1000, kOut = 1000;
  cache::PagePool pages(n * pages_for(kPrompt + kOut, kPage));
  cache::StatePool states(3 * n);
  engine::Scheduler scheduler({.max_batched_tokens = 2048, .max_sequences = n, .page_tokens = kPage, .reuse = engine::Reuse::computed}, pages,
                              states);
  engine::Step step({.forward = [](const models::Batch&) {},
                     .logits = {},
                     .bad_rows = {},
                     .folded_after = [](const models::SequenceRows& r) { return TokenPos((r.position.value + r.count - 1) / kKdaGroup * kKdaGroup); },
                     .vocab_size = 32},
                    2048, n, 0);
  for (int64_t i = 0; i < n; ++i) {
    engine::Request r;
    r.prompt = tokens(kPrompt, static_cast<int32_t>(i * 7919));
    r.max_tokens = kOut;
    scheduler.add(std::make_unique<engine::Sequence>(engine::RequestId(i), std::move(r), kPage));
  }
  std::vector<double> times;
  while (!scheduler.idle()) {
    const double start = now_us();
    scheduler.admit();
    const auto chunks = scheduler.plan();
    step.compute(chunks);
    std::vector<engine::RequestId> done;
    for (const engine::Chunk& c : chunks) {
      scheduler.computed(c);
      if (!c.samples()) continue;
      c.sequence->tokens.push_back(static_cast<int32_t>(times.size()));
      if (c.sequence->generated_tokens() == kOut) done.push_back(c.sequence->id);
    }
    const bool decodes = std::ranges::all_of(chunks, [](const engine::Chunk& c) { return c.decode(); });
    if (decodes && static_cast<int64_t>(chunks.size()) == n) times.push_back(now_us() - start);
    for (engine::RequestId id : done) scheduler.remove(id);
  }
  return times;
}

struct Lookup {
  double us = 0, bytes_per_token = 0;
};
Lookup lookup(int64_t n) {
  const int64_t whole = n / kPage;
  cache::PagePool pages(whole);
  cache::StatePool states(1);
  cache::PrefixIndex index(pages, states, kPage);
  const std::vector<int32_t> prompt = tokens(n + 1, 5);
  std::vector<PageId> own;
  std::vector<StateId> state;
  check(pages.take(whole, &own) && states.take(1, &state), "fresh pools have no records");
  index.insert(prompt, 0, own);
  check(index.keep(std::span(prompt).first(static_cast<size_t>(whole * kPage)), 0, state[0], TokenPos(whole * kPage)), "a snapshot is refused");
  std::vector<double> times;
  for (int i = 0; i < 200; ++i) {
    const double start = now_us();
    const cache::Match m = index.match(prompt, 0);
    times.push_back(now_us() - start);
    check(m.tokens == whole * kPage, "a prefix is not found");
    pages.release(m.pages);
    states.release(m.snapshot);
  }
  return {.us = quantile(times, 0.5), .bytes_per_token = static_cast<double>(index.memory_bytes()) / static_cast<double>(n)};
}

}  // namespace

int overhead() {
  fmt::print("a step on the host, without model and sampling, pages of {} tokens\n", kPage);
  for (int64_t n : {16, 128, 512}) {
    const std::vector<double> t = steps(n);
    fmt::print("  {:>4} sequences: median {:6.1f} us, 99 % {:6.1f} us, most {:6.1f} us\n", n, quantile(t, 0.5), quantile(t, 0.99), quantile(t, 1));
  }
  for (int64_t n : {10'000, 100'000}) {
    const Lookup l = lookup(n);
    fmt::print("  finding a prefix of {:>7} tokens: {:6.1f} us; {:.1f} bytes of index a token\n", n, l.us, l.bytes_per_token);
  }
  return 0;
}

}  // namespace winnow::cli
