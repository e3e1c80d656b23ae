// Traces of requests for an OpenTelemetry collector: OTLP over HTTP, as JSON. A request is a span with up to three inside it: queue,
// prefill and decode. A `traceparent` that came with the request (W3C Trace Context) is its parent. A thread sends what has
// ended, a batch at a time; what finds the bounded queue full, and what the collector does not take, is dropped and counted. Nothing
// waits for it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/visit.h"

namespace winnow::server {

// version-trace-parent-flags, in lower-case hex; nothing if it is not that.
std::optional<TraceParent> parse_traceparent(std::string_view text);

// ExportTraceServiceRequest, with ids in hex as OTLP's JSON has them.
std::string otlp_json(const std::vector<Visit>& visits, std::string_view model, std::string_view version);

struct TraceOptions {
  std::string endpoint;                     // http://host:4318, to which /v1/traces is added
  size_t waiting = 2048;                    // requests in the queue
  size_t batch = 512;                       // requests sent at once
  std::chrono::milliseconds pause{1000};    // between two batches
  std::chrono::milliseconds timeout{5000};  // of one
};

class Tracer {
 public:
  explicit Tracer(TraceOptions options);
  ~Tracer();                                              // sends what waits, for the time of one batch
  void describe(std::string model, std::string version);  // from here on it sends
  void add(const Visit& visit);                           // any thread
  int64_t sent() const { return sent_; }                  // requests
  int64_t dropped() const { return dropped_; }

 private:
  void run();
  bool post(const std::string& json);

  const TraceOptions options_;
  std::string model_, version_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<Visit> queue_;
  bool stop_ = false;
  std::atomic<int64_t> sent_{0}, dropped_{0};
  std::thread thread_;
};

}  // namespace winnow::server
