#include "ops/sample/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace winnow::ops {
namespace {

const float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

Sampled draw(const std::vector<float>& logits, const Sampling& p, int64_t position = 0, const std::vector<int32_t>& prompt = {},
             const std::vector<int32_t>& generated = {}, const std::vector<uint32_t>& mask = {}) {
  std::vector<float> workspace;
  const std::vector<float> before = logits;
  const Sampled s = sample(logits, p, prompt, generated, TokenPos(position), mask, workspace);
  EXPECT_EQ(std::memcmp(before.data(), logits.data(), before.size() * 4), 0) << "the logits are not to be touched";
  return s;
}

std::vector<float> random_logits(size_t n, uint32_t seed, float spread = 2) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng) * spread;
  return v;
}

// The definition, in the plainest way: the probability of each token after bias, penalties, mask, temperature and filters.
std::vector<double> distribution(const std::vector<float>& logits, const Sampling& p, const std::vector<int32_t>& prompt = {},
                                 const std::vector<int32_t>& generated = {}, const std::vector<bool>& allowed = {}) {
  std::vector<double> x(logits.begin(), logits.end());
  for (auto [t, b] : p.logit_bias) x[static_cast<size_t>(t)] += b;
  std::set<int32_t> seen(prompt.begin(), prompt.end());
  seen.insert(generated.begin(), generated.end());
  for (int32_t t : seen) x[static_cast<size_t>(t)] *= x[static_cast<size_t>(t)] > 0 ? 1 / double{p.repetition_penalty} : double{p.repetition_penalty};
  std::map<int32_t, int> count;
  for (int32_t t : generated) ++count[t];
  for (auto [t, n] : count) x[static_cast<size_t>(t)] -= double{p.presence_penalty} + double{p.frequency_penalty} * n;
  for (size_t t = 0; t < allowed.size(); ++t)
    if (!allowed[t]) x[t] = -kInf;
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
  if (p.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(p.top_k)));
  auto weight = [&](size_t t) { return std::exp((x[t] - x[order[0]]) / p.temperature); };
  double total = 0, sum = 0;
  for (size_t t : order) total += weight(t);
  size_t kept = 0;
  while (kept < order.size() && (kept == 0 || sum / total < p.top_p)) sum += weight(order[kept++]);
  order.resize(p.top_p < 1 ? kept : order.size());
  std::vector<double> probability(x.size());
  total = 0;
  for (size_t t : order)
    if (weight(t) >= p.min_p) total += probability[t] = weight(t);
  for (double& v : probability) v /= total;
  return probability;
}

// Draws at many positions against a distribution: tokens of probability 0 never appear, and the counts fit (chi-square).
void expect_distribution(const std::vector<float>& logits, const Sampling& p, const std::vector<double>& want,
                         const std::vector<int32_t>& prompt = {}, const std::vector<int32_t>& generated = {}, const std::vector<uint32_t>& mask = {},
                         int draws = 20'000) {
  std::vector<int> count(logits.size());
  std::vector<float> workspace;
  for (int i = 0; i < draws; ++i) ++count[static_cast<size_t>(sample(logits, p, prompt, generated, TokenPos(i), mask, workspace).token)];
  double chi2 = 0;
  int cells = -1;
  double rare = 0;
  int rare_count = 0;
  for (size_t t = 0; t < want.size(); ++t) {
    if (want[t] == 0) {
      EXPECT_EQ(count[t], 0) << "token " << t << " was filtered out";
      continue;
    }
    if (want[t] * draws < 5) {
      rare += want[t] * draws;
      rare_count += count[t];
      continue;
    }
    chi2 += std::pow(count[t] - want[t] * draws, 2) / (want[t] * draws);
    ++cells;
  }
  if (rare >= 5) {
    chi2 += std::pow(rare_count - rare, 2) / rare;
    ++cells;
  }
  // Mean `cells`, variance 2 * cells; five standard deviations, and some more for the skew of few cells.
  EXPECT_LT(chi2, cells + 5 * std::sqrt(2.0 * std::max(cells, 1)) + 10);
}

void expect_definition(const std::vector<float>& logits, const Sampling& p, const std::vector<int32_t>& prompt = {},
                       const std::vector<int32_t>& generated = {}) {
  expect_distribution(logits, p, distribution(logits, p, prompt, generated), prompt, generated);
}

// kat_vectors of Random123 (D. E. Shaw Research), philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, DependsOnEachArgumentAndFillsTheInterval) {
  const double base = uniform(1, 2, TokenPos(3), Purpose::token, 4);
  EXPECT_EQ(base, uniform(1, 2, TokenPos(3), Purpose::token, 4));
  std::set<double> all{base,
                       uniform(2, 2, TokenPos(3), Purpose::token, 4),
                       uniform(1ull << 32 | 1, 2, TokenPos(3), Purpose::token, 4),
                       uniform(1, 3, TokenPos(3), Purpose::token, 4),
                       uniform(1, 2, TokenPos(4), Purpose::token, 4),
                       uniform(1, 2, TokenPos(3 + (1ll << 32)), Purpose::token, 4),
                       uniform(1, 2, TokenPos(3), Purpose::draft, 4),
                       uniform(1, 2, TokenPos(3), Purpose::accept, 4),
                       uniform(1, 2, TokenPos(3), Purpose::token, 5),
                       uniform(1, 2, TokenPos(3), Purpose::token, 8)};
  EXPECT_EQ(all.size(), 10u);
  double sum = 0, squares = 0;
  for (uint32_t t = 0; t < 100'000; ++t) {
    const double u = uniform(9, 0, TokenPos(0), Purpose::token, t);
    ASSERT_TRUE(u > 0 && u < 1);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / 1e5, 0.5, 0.005);
  EXPECT_NEAR(squares / 1e5, 1.0 / 3, 0.005);
}

TEST(Sample, GreedyTakesTheLargestAndTheLowerOfEquals) {
  for (size_t n : {1, 5, 31, 32, 33, 100}) {
    std::vector<float> x = random_logits(n, static_cast<uint32_t>(n));
    for (size_t i = 0; i < n; i += 3) {
      std::vector<float> y = x;
      y[i] = 50;
      y[n - 1] = 50;
      EXPECT_EQ(draw(y, {.temperature = 0}).token, static_cast<int32_t>(i));
    }
  }
  EXPECT_EQ(draw({-0.0f, 0.0f}, {.temperature = 0}).token, 0);
  EXPECT_EQ(draw({-kInf, -3, -kInf}, {.temperature = 0}).token, 1);
}

TEST(Sample, NotFiniteIsReported) {
  for (size_t n : {3, 40, 100})
    for (size_t i : {size_t{0}, n / 2, n - 1})
      for (float bad : {kNaN, -kNaN, kInf}) {
        std::vector<float> x = random_logits(n, 1);
        x[i] = bad;
        for (float temperature : {0.0f, 1.0f}) {
          const Sampled s = draw(x, {.temperature = temperature});
          EXPECT_FALSE(s.finite);
          EXPECT_EQ(s.token, -1);
        }
      }
  EXPECT_FALSE(draw({-kInf, -kInf}, {}).finite);
  EXPECT_TRUE(draw({-kInf, 1}, {}).finite);
  // Judged before the mask and the bias, which may hold -inf.
  EXPECT_FALSE(draw({kNaN, 1}, {}, 0, {}, {}, {2u}).finite);
  const Sampled none = draw({1, 2}, {}, 0, {}, {}, {0u});
  EXPECT_TRUE(none.finite);
  EXPECT_EQ(none.token, -1);
}

TEST(Sample, PlainDrawFollowsTheSoftmax) {
  expect_definition(random_logits(11, 1), {});
  expect_definition(random_logits(11, 2), {.temperature = 0.5f});
  expect_definition(random_logits(200, 3), {.temperature = 2.0f, .seed = 77, .choice = 3});
  expect_definition({1, 1, 1, 1, 1}, {});
  expect_definition({-kInf, 0, 1, -kInf}, {});
  expect_definition({0, 30}, {.temperature = 15});
}

TEST(Sample, EachFilterByItsDefinition) {
  for (uint32_t seed : {1, 2}) {
    const std::vector<float> x = random_logits(30, seed);
    for (int32_t k : {1, 2, 7, 30, 31}) expect_definition(x, {.top_k = k});
    for (float p : {0.001f, 0.3f, 0.8f, 0.97f}) expect_definition(x, {.top_p = p});
    for (float p : {0.9f, 0.2f, 0.01f}) expect_definition(x, {.min_p = p});
    expect_definition(x, {.temperature = 0.7f, .top_k = 12, .top_p = 0.8f, .min_p = 0.1f});
    expect_definition(x, {.temperature = 3, .top_k = 20, .top_p = 0.6f});
    expect_definition(x, {.temperature = 3, .top_p = 0.9f, .min_p = 0.3f});
  }
}

TEST(Sample, TiesAtTheCutGoToTheLowerToken) {
  const std::vector<float> x{1, 2, 1, 1, 0};
  std::set<int32_t> drawn;
  for (int i = 0; i < 500; ++i) drawn.insert(draw(x, {.temperature = 5, .top_k = 2}, i).token);
  EXPECT_EQ(drawn, (std::set<int32_t>{0, 1}));
  drawn.clear();
  for (int i = 0; i < 500; ++i) drawn.insert(draw({1, 1, 1, 1}, {.top_p = 0.5f}, i).token);
  EXPECT_EQ(drawn, (std::set<int32_t>{0, 1}));
}

TEST(Sample, PenaltiesAndBias) {
  const std::vector<float> x = random_logits(12, 5);
  const std::vector<int32_t> prompt{0, 1, 1, 2}, generated{2, 3, 3, 3, 4};
  expect_definition(x, {.repetition_penalty = 1.7f}, prompt, generated);
  expect_definition(x, {.presence_penalty = 1.5f}, prompt, generated);
  expect_definition(x, {.frequency_penalty = 0.6f}, prompt, generated);
  expect_definition(x, {.frequency_penalty = -0.6f}, prompt, generated);
  expect_definition(x, {.logit_bias = {{3, 2.5f}, {7, -100.0f}, {0, -1.0f}}}, prompt, generated);
  expect_definition(x,
                    {.temperature = 0.8f,
                     .top_k = 9,
                     .top_p = 0.95f,
                     .min_p = 0.01f,
                     .presence_penalty = 0.4f,
                     .frequency_penalty = 0.2f,
                     .repetition_penalty = 1.2f,
                     .logit_bias = {{3, 1.0f}}},
                    prompt, generated);
  // A repetition penalty divides a positive logit and multiplies a negative one, once however often the token occurred.
  EXPECT_EQ(draw({3, 2, -5}, {.temperature = 0, .repetition_penalty = 2}, 0, {0, 0, 0}).token, 1);
  EXPECT_EQ(draw({-3, -4}, {.temperature = 0, .repetition_penalty = 2}, 0, {0}).token, 1);
  // Presence and frequency ignore the prompt.
  EXPECT_EQ(draw({3, 2}, {.temperature = 0, .presence_penalty = 5, .frequency_penalty = 5}, 0, {0}).token, 0);
  EXPECT_EQ(draw({3, 2}, {.temperature = 0, .presence_penalty = 5}, 0, {}, {0}).token, 1);
}

TEST(Sample, MaskForbids) {
  const std::vector<float> x = random_logits(70, 6);
  std::vector<uint32_t> mask(3);
  std::vector<bool> allowed(70);
  for (size_t t = 0; t < 70; ++t)
    if ((allowed[t] = t % 3 == 1)) mask[t / 32] |= 1u << (t % 32);
  for (const Sampling& p : {Sampling{}, Sampling{.top_p = 0.7f}, Sampling{.top_k = 5}, Sampling{.min_p = 0.1f}})
    expect_distribution(x, p, distribution(x, p, {}, {}, allowed), {}, {}, mask);
  std::vector<float> best = x;
  best[3] = 100;
  EXPECT_EQ(draw(best, {.temperature = 0}, 0, {}, {}, mask).token % 3, 1);
}

// The noise belongs to the token: a filter that keeps the winner does not change it, nor does what else is in the vocabulary.
TEST(Sample, NoiseBelongsToTheToken) {
  for (int i = 0; i < 300; ++i) {
    const std::vector<float> x = random_logits(500, static_cast<uint32_t>(i));
    const Sampled plain = draw(x, {.seed = 5}, i);
    std::vector<float> fewer = x;
    for (size_t t = 0; t < fewer.size(); t += 2)
      if (static_cast<int32_t>(t) != plain.token) fewer[t] = -kInf;
    EXPECT_EQ(draw(fewer, {.seed = 5}, i).token, plain.token);
    EXPECT_EQ(draw(x, {.min_p = 1e-30f, .seed = 5}, i).token, plain.token);
    EXPECT_EQ(draw(x, {.top_p = 0.9999999f, .seed = 5}, i).token, plain.token);
  }
}

// The token with the largest noisy logit among those that the definition keeps: no shortcut may lose it.
int32_t noisy_argmax(const std::vector<float>& x, const Sampling& p, int64_t position) {
  const std::vector<double> probability = distribution(x, p);
  int32_t token = -1;
  double best = -kInf;
  for (uint32_t t = 0; t < x.size(); ++t) {
    if (probability[t] == 0) continue;
    const double v = x[t] / double{p.temperature} - std::log(-std::log(uniform(p.seed, p.choice, TokenPos(position), Purpose::token, t)));
    if (v > best) best = v, token = static_cast<int32_t>(t);
  }
  return token;
}

TEST(Sample, DrawIsTheArgmaxOfTheNoisyLogits) {
  for (int64_t i = 0; i < 60; ++i) {
    const std::vector<float> x = random_logits(3001, static_cast<uint32_t>(i), i % 3 == 0 ? 0.1f : i % 3 == 1 ? 2 : 8);
    const float part = 0.05f + 0.016f * static_cast<float>(i);
    for (const Sampling& p :
         {Sampling{.seed = 8, .choice = 1}, Sampling{.temperature = 1.3f}, Sampling{.top_p = part}, Sampling{.temperature = 0.4f, .top_p = part},
          Sampling{.temperature = 4, .top_p = 0.999f}, Sampling{.top_k = 1 + static_cast<int32_t>(i) * 40}, Sampling{.min_p = part * part * part},
          Sampling{.top_k = 200, .top_p = part, .min_p = 0.01f}})
      EXPECT_EQ(draw(x, p, i).token, noisy_argmax(x, p, i)) << "round " << i << " top_k " << p.top_k << " top_p " << p.top_p << " min_p " << p.min_p;
  }
}

TEST(Sample, GreedyOverALargeVocabularyIsQuick) {
  const std::vector<float> x = random_logits(151'552, 1);
  std::vector<float> workspace;
  double best_ms = 1e9;
  for (int i = 0; i < 50; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_GE(sample(x, {.temperature = 0}, {}, {}, TokenPos(i), {}, workspace).token, 0);
    best_ms = std::min(best_ms, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  EXPECT_LT(best_ms, 20.0) << "slower than any linear scan, sanitizers included";
  EXPECT_TRUE(workspace.empty()) << "nothing changes the logits, so nothing is copied";
}

TEST(Sample, LogprobsAreOfTheRawLogits) {
  const std::vector<float> x = random_logits(50, 9);
  double sum = 0;
  for (float v : x) sum += std::exp(double{v});
  auto logprob = [&](int32_t t) { return x[static_cast<size_t>(t)] - std::log(sum); };
  const Sampled s = draw(x, {.temperature = 0.3f, .top_k = 3, .repetition_penalty = 1.5f, .logit_bias = {{17, 100.0f}}, .logprobs = 5}, 0, {17});
  EXPECT_EQ(s.token, 17);
  EXPECT_NEAR(s.logprob, logprob(17), 1e-5);
  ASSERT_EQ(s.top.size(), 5u);
  std::vector<int32_t> order(50);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return x[static_cast<size_t>(a)] > x[static_cast<size_t>(b)]; });
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(s.top[i].first, order[i]);
    EXPECT_NEAR(s.top[i].second, logprob(order[i]), 1e-5);
  }
  EXPECT_TRUE(draw(x, {.logprobs = 0}).top.empty());
  EXPECT_LT(draw(x, {.logprobs = 0}).logprob, 0);
  EXPECT_EQ(draw(x, {.logprobs = -1}).logprob, 0);
  EXPECT_EQ(draw(x, {.logprobs = 80}).top.size(), 50u);
  const Sampled other = score(x, 23, 5);
  EXPECT_EQ(other.token, 23);
  EXPECT_NEAR(other.logprob, logprob(23), 1e-5);
  EXPECT_EQ(other.top, s.top);
  const Sampled ties = draw({2, 3, 2, 3}, {.temperature = 0, .logprobs = 3});
  EXPECT_EQ(ties.top[0].first, 1);
  EXPECT_EQ(ties.top[1].first, 3);
  EXPECT_EQ(ties.top[2].first, 0);
}

TEST(Sample, TinyTemperatureIsGreedy) {
  const std::vector<float> x = random_logits(300, 4);
  EXPECT_EQ(draw(x, {.temperature = 1e-30f}).token, draw(x, {.temperature = 0}).token);
  EXPECT_EQ(draw(x, {.temperature = 1e-30f, .top_p = 0.9f}).token, draw(x, {.temperature = 0}).token);
}

}  // namespace
}  // namespace winnow::ops
