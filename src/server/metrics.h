// What GET /metrics says, in Prometheus' text format. Names are those of vLLM under another prefix where vLLM has them, with its
// meanings, so that a dashboard made for it needs one replacement; docs/man/winnow-serve.1 lists them.
//
// Counts of the engine come from its Totals, copied once a scrape. Times are taken on this side, where a token reaches its
// connection: the engine's thread is not asked for anything.
//
// Thread: the I/O thread.
#pragma once

#include <prometheus/histogram.h>

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/generation.h"

namespace winnow::server {

// Why the server sends somebody away, for an operator who wants to know whether a limit bites.
inline constexpr std::string_view kRefusals[] = {
    "no_key",       "wrong_key",     "key_requests", "key_tokens",  "key_concurrent", "queue",        "connections",   "origin",
    "header_bytes", "header_fields", "body_bytes",   "body_memory", "header_timeout", "body_timeout", "write_timeout", "tls"};

// How long steps of the engine take. Any thread.
class StepTimes {
 public:
  StepTimes();
  void add(int64_t rows, double seconds);

 private:
  friend class Metrics;
  prometheus::Histogram seconds_, rows_;
};

class Metrics {
 public:
  Metrics(std::string model, std::string version, const engine::RequestLimits& limits);
  void answered(std::string_view route, int status);
  void refused(std::string_view reason);  // one of kRefusals
  void traces(int64_t sent, int64_t dropped) { traces_ = {sent, dropped}; }
  void used(const std::string& key, int64_t tokens);                                   // one request of an API key
  void spent(const std::string& key, int64_t tokens) { keys_[key].second += tokens; }  // by one that was counted before
  std::string text(const engine::Totals& totals, const StepTimes* steps = nullptr) const;

 private:
  friend class RequestMetrics;
  enum class End : uint8_t { stop, length, abort, error, timeout };
  static constexpr size_t kEnds = 5;

  const std::string model_, version_;
  const engine::RequestLimits limits_;
  std::map<std::pair<std::string, int>, int64_t> answers_;
  std::array<int64_t, kEnds> ends_{};
  std::map<std::string_view, int64_t> refusals_;
  std::optional<std::pair<int64_t, int64_t>> traces_;
  std::map<std::string, std::pair<int64_t, int64_t>> keys_;  // requests and tokens by name
  int64_t prompt_tokens_ = 0, cached_tokens_ = 0;
  prometheus::Histogram event_delay_s_, first_token_s_, between_tokens_s_, whole_s_, queue_s_, prefill_s_, decode_s_, prompt_lengths_,
      answer_lengths_;
};

// One request on its way: tells Metrics when tokens come and how each choice ends. What has not ended when it goes was aborted.
class RequestMetrics {
 public:
  using Clock = std::chrono::steady_clock;
  RequestMetrics(Metrics& metrics, const Generation& generation, Clock::time_point received);
  ~RequestMetrics();
  RequestMetrics(const RequestMetrics&) = delete;
  void see(const Delta& delta, Clock::time_point now = Clock::now());
  // Events of a stream are with its socket; when the engine had each.
  void sent(std::span<const Clock::time_point> pushed, Clock::time_point now = Clock::now());

 private:
  struct Choice {
    Clock::time_point newest{};  // when its last tokens came
    int64_t tokens = 0;
    bool ended = false;
  };
  void end(size_t choice, Metrics::End how, Clock::time_point now);

  Metrics& metrics_;
  const Generation& generation_;
  const Clock::time_point received_;
  std::vector<Choice> choices_;
};

}  // namespace winnow::server
