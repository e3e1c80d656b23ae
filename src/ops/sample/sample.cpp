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

struct Candidate {
  float logit;
  int32_t token;
};
// Larger logit first, then the lower token: a total order (no logit is NaN here).
bool better(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.token < b.token); }

struct Scan {
  float largest = -kInfinity;
  bool finite = true;
};  // finite: no NaN, no +inf, not all -inf

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
std::span<const float> changed(std::span<const float> logits, const Sampling& p, std::span<const int32_t> prompt, std::span<const int32_t> generated,
                               std::span<const uint32_t> mask, std::vector<float>& workspace) {
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

int32_t first_equal(std::span<const float> x, float value) { return static_cast<int32_t>(std::find(x.begin(), x.end(), value) - x.begin()); }

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

double total_weight(std::span<const float> x, float largest, double temperature) {
  double sum = 0;
  for (float v : x) sum += weight(v, largest, temperature);
  return sum;
}

struct Weighted {
  Candidate candidate;
  double weight;
};

// Leaves the smallest set of best candidates from `begin` on whose weights reach `wanted`, by halving: no need to sort them.
void cut(std::vector<Weighted>& v, size_t begin, double wanted) {
  size_t end = v.size();
  while (end - begin > 1) {
    const size_t middle = begin + (end - begin) / 2;
    auto at = [&](size_t i) { return v.begin() + static_cast<ptrdiff_t>(i); };
    std::nth_element(at(begin), at(middle), at(end), [](const Weighted& a, const Weighted& b) { return better(a.candidate, b.candidate); });
    double upper = 0;
    for (size_t i = begin; i < middle; ++i) upper += v[i].weight;
    if (upper >= wanted) {
      end = middle;
    } else {
      wanted -= upper;
      begin = middle;
    }
  }
  v.resize(end);
}

// The smallest set of best tokens whose weight reaches `wanted`; at least one. Looks at the tokens in slices of falling
// logit, so that a peaked distribution touches few of them twice.
std::vector<Weighted> nucleus(std::span<const float> x, float largest, double temperature, double wanted) {
  std::vector<Weighted> taken;
  double sum = 0;
  float above = kInfinity;  // tokens with a logit >= above are taken
  for (double depth = 4 * temperature;; depth *= 2) {
    float from = static_cast<float>(largest - depth);
    if (!(from < above) || depth > 200 * temperature) from = -kInfinity;  // the rest
    const size_t begin = taken.size();
    double slice = 0;
    for (size_t t = 0; t < x.size(); ++t)
      if (x[t] >= from && x[t] < above) {
        taken.push_back({{x[t], static_cast<int32_t>(t)}, weight(x[t], largest, temperature)});
        slice += taken.back().weight;
      }
    if (sum + slice >= wanted) {
      cut(taken, begin, wanted - sum);
      return taken;
    }
    if (from == -kInfinity) return taken;
    sum += slice;
    above = from;
  }
}

// What top_k, top_p and min_p leave.
std::vector<Candidate> filtered(std::span<const float> x, float largest, const Sampling& p) {
  std::vector<Candidate> kept;
  const double least = p.temperature * std::log(double{p.min_p});  // min_p as a distance from the largest logit
  auto too_unlikely = [&](float logit) { return double{logit} - largest < least; };
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < x.size()) {
    kept = best(x, static_cast<size_t>(p.top_k));
    if (p.top_p < 1) {
      double total = 0, sum = 0;
      for (const Candidate& c : kept) total += weight(c.logit, largest, p.temperature);
      size_t n = 0;
      while (n < kept.size() && (n == 0 || sum < p.top_p * total)) sum += weight(kept[n++].logit, largest, p.temperature);
      kept.resize(n);
    }
    std::erase_if(kept, [&](const Candidate& c) { return too_unlikely(c.logit); });
  } else if (p.top_p < 1) {
    for (const Weighted& w : nucleus(x, largest, p.temperature, p.top_p * total_weight(x, largest, p.temperature)))
      if (!too_unlikely(w.candidate.logit)) kept.push_back(w.candidate);
  } else {
    for (size_t t = 0; t < x.size(); ++t)
      if (!too_unlikely(x[t])) kept.push_back({x[t], static_cast<int32_t>(t)});
  }
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
    for (size_t t = 0; t < logits.size(); t += 4) {
      const size_t n = std::min<size_t>(4, logits.size() - t);
      double x[4];
      bool hopeless = true;
      for (size_t i = 0; i < n; ++i) {
        x[i] = scaled(logits[t + i]);
        hopeless = hopeless && x[i] + kLargestNoise < value_;
      }
      if (hopeless) continue;
      const auto words = noise_words(p_.seed, p_.choice, position_, Purpose::token, static_cast<uint32_t>(t / 4));
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

void add_logprobs(std::span<const float> logits, float largest, int32_t top, Sampled* s) {
  const double log_sum = largest + std::log(total_weight(logits, largest, 1));
  s->logprob = static_cast<float>(logits[static_cast<size_t>(s->token)] - log_sum);
  for (const Candidate& c : best(logits, std::min(logits.size(), static_cast<size_t>(top))))
    s->top.emplace_back(c.token, static_cast<float>(c.logit - log_sum));
}

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
  if (p.logprobs >= 0 && s.token >= 0) add_logprobs(logits, raw.largest, p.logprobs, &s);
  return s;
}

Sampled score(std::span<const float> logits, int32_t token, int32_t top) {
  check(token >= 0 && static_cast<size_t>(token) < logits.size(), "score: token out of the vocabulary");
  const Scan raw = scan(logits);
  Sampled s{.finite = raw.finite};
  if (!raw.finite) return s;
  s.token = token;
  add_logprobs(logits, raw.largest, top, &s);
  return s;
}

}  // namespace winnow::ops
