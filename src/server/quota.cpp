#include "server/quota.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace winnow::server {
namespace {

constexpr double kNewest = 0.1;  // weight of one request in the mean

double seconds_between(Quota::Clock::time_point from, Quota::Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

}  // namespace

Quota::Quota(const Limits& limits, std::vector<KeyLimits> keys) : limits_(limits) {
  for (const KeyLimits& k : keys) {
    Account a{.limits = k};
    const Clock::time_point now = Clock::now();
    a.requests = {static_cast<double>(k.requests_per_minute), now};
    a.tokens = {static_cast<double>(k.tokens_per_minute), now};
    accounts_.push_back(a);
  }
}

void Quota::refill(Bucket* b, int64_t per_minute, Clock::time_point now) {
  const double most = static_cast<double>(per_minute);
  if (now > b->at) b->left = std::min(most, b->left + seconds_between(b->at, now) * most / 60);
  b->at = std::max(b->at, now);
}

int64_t Quota::seconds(double s) const {
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(std::min(s, 1e9))), 1, limits_.longest_retry.count());
}

std::variant<Quota::Place, TooMuch> Quota::take(size_t key, bool generates, Clock::time_point now) {
  Account& a = accounts_[key];
  const KeyLimits& l = a.limits;
  refill(&a.requests, l.requests_per_minute, now);
  refill(&a.tokens, l.tokens_per_minute, now);
  if (l.requests_per_minute > 0 && a.requests.left < 1) {
    const double wait = (1 - a.requests.left) * 60 / static_cast<double>(l.requests_per_minute);
    return TooMuch{Reason::key_requests, fmt::format("more than {} requests a minute", l.requests_per_minute), seconds(wait)};
  }
  if (l.tokens_per_minute > 0 && a.tokens.left <= 0) {
    const double wait = (1 - a.tokens.left) * 60 / static_cast<double>(l.tokens_per_minute);
    return TooMuch{Reason::key_tokens, fmt::format("more than {} tokens a minute, of prompts and answers", l.tokens_per_minute), seconds(wait)};
  }
  if (generates && l.concurrent > 0 && a.running >= l.concurrent)
    return TooMuch{Reason::key_concurrent, fmt::format("{} requests run already, which is the most at once", a.running),
                   seconds(mean_s_ / static_cast<double>(a.running))};
  if (generates && choices_ >= limits_.running + limits_.waiting)
    return TooMuch{Reason::queue, "the server is full: every place in its queue is taken", seconds(mean_s_ / static_cast<double>(choices_))};
  a.requests.left -= 1;
  Place p;
  p.quota_ = this;
  p.key_ = key;
  p.began_ = now;
  if (generates) {
    ++a.running;
    p.choices_ = 1;
    ++choices_;
  }
  return p;
}

Quota::Place& Quota::Place::operator=(Place&& o) noexcept {
  if (this == &o) return *this;
  leave(Clock::now());
  quota_ = std::exchange(o.quota_, nullptr);
  key_ = o.key_;
  choices_ = o.choices_;
  began_ = o.began_;
  return *this;
}

void Quota::Place::count(int64_t choices) {
  if (!quota_ || choices_ == 0) return;
  quota_->choices_ += choices - choices_;
  choices_ = choices;
}

void Quota::Place::spend(int64_t tokens, Clock::time_point now) {
  if (!quota_) return;
  Account& a = quota_->accounts_[key_];
  refill(&a.tokens, a.limits.tokens_per_minute, now);
  a.tokens.left -= static_cast<double>(tokens);
}

void Quota::Place::leave(Clock::time_point now) {
  Quota* q = std::exchange(quota_, nullptr);
  if (!q || choices_ == 0) return;
  --q->accounts_[key_].running;
  q->choices_ -= choices_;
  q->mean_s_ += kNewest * (seconds_between(began_, now) - q->mean_s_);
}

}  // namespace winnow::server
