// One token from one row of logits. The common cases (greedy, or a draw without filters) are linear scans over the
// vocabulary; filters first gather the few tokens that can survive and sort only those.
#include "ops/sample/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace winnow::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Candidate { float logit; int32_t token; };
// Larger logit first, then the lower token: a total order (no logit is NaN here).
bool better(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.token < b.token); }

struct Scan { float largest = -kInfinity; bool finite = true; };  // finite: no NaN, no +inf, not all -inf

Scan scan(std::span<const float> logits) {
  constexpr size_t kLanes = 32;  // independent lanes, so that the loop becomes vector code without reordering a sum
  float largest[kLanes];
  uint32_t bad[kLanes] = {};
  std::fill(std::begin(largest), std::end(largest), -kInfinity);
  auto look = [&](size_t lane, float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    bad[lane] |= static_cast<uint32_t>((bits & 0x7fffffffu) > 0x7f800000u) | static_cast<uint32_t>(bits == 0x7f800000u);
    largest[lane] = x > largest[lane] ? x : largest[lane];
  };
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) look(j, logits[i + j]);
  for (size_t j = 0; i + j < logits.size(); ++j) look(j, logits[i + j]);
  Scan s;
  for (size_t j = 0; j < kLanes; ++j) {
    s.largest = std::max(s.largest, largest[j]);
    s.finite = s.finite && !bad[j];
  }
  s.finite = s.finite && s.largest != -kInfinity;
  return s;
}

bool changes_logits(const Sampling& p, std::span<const uint32_t> mask) {
  return !p.logit_bias.empty() || p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0 || !mask.empty();
}

// f(token, count) for each distinct token of the spans. `counts` is zero before and after.
template <class F>
void for_each_distinct(std::span<float> counts, std::initializer_list<std::span<const int32_t>> spans, F&& f) {
  for (auto tokens : spans)
    for (int32_t t : tokens) {
      check(t >= 0 && static_cast<size_t>(t) < counts.size(), "sample: token out of the vocabulary");
      counts[static_cast<size_t>(t)] += 1;
    }
  for (auto tokens : spans)
    for (int32_t t : tokens)
      if (float& count = counts[static_cast<size_t>(t)]; count > 0) {
        f(static_cast<size_t>(t), count);
        count = 0;
      }
}

// The logits after bias, penalties and mask.
std::span<const float> changed(std::span<const float> logits, const Sampling& p, std::span<const int32_t> prompt,
                               std::span<const int32_t> generated, std::span<const uint32_t> mask, std::vector<float>& workspace) {
  const size_t n = logits.size();
  workspace.resize(std::max(workspace.size(), 2 * n));
  const std::span<float> x(workspace.data(), n), counts(workspace.data() + n, n);
  std::copy(logits.begin(), logits.end(), x.begin());
  for (auto [token, bias] : p.logit_bias) {
    check(token >= 0 && static_cast<size_t>(token) < n, "sample: biased token out of the vocabulary");
    x[static_cast<size_t>(token)] += bias;
  }
  if (p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0) std::fill(counts.begin(), counts.end(), 0.0f);
  if (p.repetition_penalty != 1)
    for_each_distinct(counts, {prompt, generated},
                      [&](size_t t, float) { x[t] = x[t] > 0 ? x[t] / p.repetition_penalty : x[t] * p.repetition_penalty; });
  if (p.presence_penalty != 0 || p.frequency_penalty != 0)
    for_each_distinct(counts, {generated}, [&](size_t t, float count) { x[t] -= p.presence_penalty + p.frequency_penalty * count; });
  if (!mask.empty())
    for (size_t t = 0; t < n; ++t)
      if (!(mask[t / 32] >> (t % 32) & 1u)) x[t] = -kInfinity;
  return x;
}

int32_t first_equal(std::span<const float> x, float value) {
  return static_cast<int32_t>(std::find(x.begin(), x.end(), value) - x.begin());
}

// The k best, best first.
std::vector<Candidate> best(std::span<const float> x, size_t k) {
  if (k == 0) return {};
  std::vector<Candidate> heap;  // the worst of the best on top
  heap.reserve(k);
  for (size_t t = 0; t < x.size(); ++t) {
    const Candidate c{x[t], static_cast<int32_t>(t)};
    if (heap.size() < k) {
      heap.push_back(c);
      std::push_heap(heap.begin(), heap.end(), better);
    } else if (x[t] > heap.front().logit) {  // an equal one has a higher id than all before it
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.back() = c;
      std::push_heap(heap.begin(), heap.end(), better);
    }
  }
  std::sort_heap(heap.begin(), heap.end(), better);
  return heap;
}

// e^((x - largest) / temperature), the unnormalised probability.
double weight(float x, float largest, double temperature) { return std::exp((double{x} - largest) / temperature); }

// Sum of the weights. Floats are exact enough for a threshold, and much cheaper over a whole vocabulary.
double total_weight(std::span<const float> x, float largest, float temperature) {
  double sum = 0;
  for (float v : x) sum += std::exp((v - largest) / temperature);
  return sum;
}

// The smallest prefix of all tokens, best first, whose weight reaches `wanted`; at least one token. Takes what may be in it
// in slices of falling logit, so that a peaked distribution sorts few tokens.
std::vector<Candidate> nucleus(std::span<const float> x, float largest, float temperature, double wanted) {
  std::vector<Candidate> taken;
  double sum = 0;
  float above = kInfinity;  // tokens with a logit >= above are taken
  for (float depth = 4 * temperature;; depth *= 2) {
    float from = largest - depth;
    if (!(from < above) || depth > 200 * temperature) from = -kInfinity;  // the rest
    const size_t begin = taken.size();
    for (size_t t = 0; t < x.size(); ++t)
      if (x[t] >= from && x[t] < above) taken.push_back({x[t], static_cast<int32_t>(t)});
    for (size_t sorted = begin, step = 256; sorted < taken.size(); step *= 4) {  // and sort only as far as needed
      const auto first = taken.begin() + static_cast<ptrdiff_t>(sorted);
      const auto middle = first + static_cast<ptrdiff_t>(std::min(step, taken.size() - sorted));
      if (middle != taken.end()) std::nth_element(first, middle, taken.end(), better);
      std::sort(first, middle, better);
      for (auto i = first; i != middle; ++i) {
        sum += weight(i->logit, largest, temperature);
        if (sum >= wanted) {
          taken.resize(static_cast<size_t>(i - taken.begin()) + 1);
          return taken;
        }
      }
      sorted = static_cast<size_t>(middle - taken.begin());
    }
    if (from == -kInfinity) return taken;
    above = from;
  }
}

// What top_k, top_p and min_p leave, best first.
std::vector<Candidate> filtered(std::span<const float> x, float largest, const Sampling& p) {
  std::vector<Candidate> kept;
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < x.size()) {
    kept = best(x, static_cast<size_t>(p.top_k));
    if (p.top_p < 1) {
      double total = 0, sum = 0;
      for (const Candidate& c : kept) total += weight(c.logit, largest, p.temperature);
      size_t n = 0;
      while (n < kept.size() && (n == 0 || sum < p.top_p * total)) sum += weight(kept[n++].logit, largest, p.temperature);
      kept.resize(n);
    }
  } else if (p.top_p < 1) {
    kept = nucleus(x, largest, p.temperature, p.top_p * total_weight(x, largest, p.temperature));
  } else {
    for (size_t t = 0; t < x.size(); ++t)
      if (weight(x[t], largest, p.temperature) >= p.min_p) kept.push_back({x[t], static_cast<int32_t>(t)});
    return kept;
  }
  std::erase_if(kept, [&](const Candidate& c) { return weight(c.logit, largest, p.temperature) < p.min_p; });
  return kept;
}

// Argmax of (logit - largest) / temperature + Gumbel noise. The block of the generator that holds a token serves its neighbours too.
class Draw {
 public:
  Draw(const Sampling& p, float largest, TokenPos position) : p_(p), largest_(largest), position_(position) {}
  int32_t token() const { return token_; }
  void offer(float logit, int32_t token) {
    const double x = scaled(logit), u = uniform(p_.seed, p_.choice, position_, Purpose::token, static_cast<uint32_t>(token));
    take(x, u, token);
  }
  void offer_all(std::span<const float> logits) {
    const uint64_t pos = static_cast<uint64_t>(position_.value);
    for (size_t t = 0; t < logits.size(); t += 4) {
      const size_t n = std::min<size_t>(4, logits.size() - t);
      double x[4];
      bool hopeless = true;
      for (size_t i = 0; i < n; ++i) {
        x[i] = scaled(logits[t + i]);
        hopeless = hopeless && x[i] + kLargestNoise < value_;
      }
      if (hopeless) continue;
      const auto words = philox({static_cast<uint32_t>(t / 4), static_cast<uint32_t>(pos), p_.choice,
                                 static_cast<uint32_t>(Purpose::token) + (static_cast<uint32_t>(pos >> 32) << 8)},
                                {static_cast<uint32_t>(p_.seed), static_cast<uint32_t>(p_.seed >> 32)});
      for (size_t i = 0; i < n; ++i) {
        // noise = -log(-log u) <= -log(1 - u) < log(2) * (leading ones of the word + 1): most tokens lose without a logarithm
        if (x[i] + 0.6931472 * (std::countl_one(words[i]) + 1) < value_) continue;
        take(x[i], (words[i] + 0.5) * 0x1p-32, static_cast<int32_t>(t + i));
      }
    }
  }

 private:
  static constexpr double kLargestNoise = 22.9;  // -log(-log(1 - 2^-33))
  double scaled(float logit) const { return (double{logit} - largest_) / p_.temperature; }
  void take(double x, double u, int32_t token) {
    const double v = x - std::log(-std::log(u));
    if (x == -kInfinity || v < value_ || (v == value_ && token > token_)) return;
    value_ = v;
    token_ = token;
  }
  const Sampling& p_;
  float largest_;
  TokenPos position_;
  double value_ = -std::numeric_limits<double>::infinity();
  int32_t token_ = std::numeric_limits<int32_t>::max();
};

int32_t choose(std::span<const float> x, const Sampling& p, float largest, TokenPos position) {
  if (largest == -kInfinity) return -1;
  const int32_t top = first_equal(x, largest);
  if (p.temperature == 0) return top;
  Draw draw(p, largest, position);
  if (p.top_k <= 0 && p.top_p >= 1 && p.min_p <= 0) {
    draw.offer(largest, top);  // first, because it makes most others hopeless
    draw.offer_all(x);
  } else {
    for (const Candidate& c : filtered(x, largest, p)) draw.offer(c.logit, c.token);
  }
  return draw.token();
}

}  // namespace

Sampled sample(std::span<const float> logits, const Sampling& p, std::span<const int32_t> prompt, std::span<const int32_t> generated,
               TokenPos position, std::span<const uint32_t> mask, std::vector<float>& workspace) {
  Sampled s;
  const Scan raw = scan(logits);
  s.finite = raw.finite;
  if (!raw.finite) return s;
  if (changes_logits(p, mask)) {
    const std::span<const float> x = changed(logits, p, prompt, generated, mask, workspace);
    s.token = choose(x, p, scan(x).largest, position);
  } else {
    s.token = choose(logits, p, raw.largest, position);
  }
  if (p.logprobs < 0 || s.token < 0) return s;
  const double log_sum = raw.largest + std::log(total_weight(logits, raw.largest, 1));
  s.logprob = static_cast<float>(logits[static_cast<size_t>(s.token)] - log_sum);
  for (const Candidate& c : best(logits, std::min(logits.size(), static_cast<size_t>(p.logprobs))))
    s.top.emplace_back(c.token, static_cast<float>(c.logit - log_sum));
  return s;
}

}  // namespace winnow::ops
