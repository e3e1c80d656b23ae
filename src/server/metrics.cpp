#include "server/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <sstream>

namespace winnow::server {
namespace {

using engine::Totals;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr std::string_view kPrefix = "winnow:";
constexpr const char* kEndNames[] = {"stop", "length", "abort", "error", "timeout"};

// 1, 2.5 and 5 times the powers of ten from `first`, `decades` of them.
std::vector<double> bounds(double first, int decades) {
  std::vector<double> b;
  for (int i = 0; i < decades; ++i, first *= 10)
    for (double step : {1.0, 2.5, 5.0}) b.push_back(first * step);
  return b;
}
std::vector<double> second_bounds() { return bounds(1e-3, 6); }
std::vector<double> delay_bounds() {
  return {1e-5, 2e-5,   3e-5, 4e-5,   5e-5, 7.5e-5, 1e-4, 1.25e-4, 1.5e-4, 2e-4, 3e-4, 4e-4,
          5e-4, 7.5e-4, 1e-3, 1.5e-3, 2e-3, 5e-3,   0.01, 0.025,   0.05,   0.1,  0.5,  1};
}
std::vector<double> step_bounds() { return bounds(1e-4, 6); }
std::vector<double> token_bounds() { return bounds(1, 6); }

// A number of Totals that is a metric as it stands. Counters end in _total.
struct Plain {
  const char* name;
  const char* help;
  double (*value)(const Totals&);
};

template <auto Member>
double total(const Totals& t) {
  return static_cast<double>(t.*Member);
}
template <auto Member>
double of_index(const Totals& t) {
  return static_cast<double>(t.prefix.*Member);
}
template <auto Member>
double of_disk(const Totals& t) {
  return static_cast<double>(t.disk.*Member);
}

using Index = cache::PrefixIndex::Counts;
using Disk = cache::DiskTier::Counts;
constexpr Plain kPlain[] = {
    {"num_requests_running", "Requests that run, in requests", total<&Totals::running>},
    {"num_requests_waiting", "Requests that wait for their first step, in requests", total<&Totals::waiting>},
    {"num_requests_swapped", "Preempted requests, whose pages and state are in memory of the host, in requests", total<&Totals::swapped>},
    {"kv_cache_usage_perc", "Share of the KV cache's pages that running requests hold, from 0 to 1; kept prefixes that can make way do not count",
     [](const Totals& t) { return t.pages > 0 ? static_cast<double>(t.held_pages) / static_cast<double>(t.pages) : 0.0; }},
    {"num_preemptions_total", "Preemptions, by which a request made way for one before it and came back unchanged", total<&Totals::preemptions>},
    {"generation_tokens_total", "Tokens of answers", total<&Totals::generated_tokens>},
    {"prefill_tokens_total", "Tokens of prompts that were computed, those taken over from earlier requests not among them",
     total<&Totals::prompt_tokens>},
    {"steps_total", "Steps of the engine", total<&Totals::steps>},
    {"kv_pages", "Pages of the KV cache on the device", total<&Totals::pages>},
    {"kv_pages_free", "Pages that hold nothing", total<&Totals::free_pages>},
    {"kv_pages_held", "Pages that running requests hold", total<&Totals::held_pages>},
    {"states", "State records on the device", total<&Totals::states>},
    {"states_free", "State records that hold nothing", total<&Totals::free_states>},
    {"host_pages", "Pages in memory of the host", total<&Totals::host_pages>},
    {"host_pages_free", "Pages of those that hold nothing", total<&Totals::free_host_pages>},
    {"host_states", "State records in memory of the host", total<&Totals::host_states>},
    {"host_states_free", "State records of those that hold nothing", total<&Totals::free_host_states>},
    {"prefix_pages", "Pages that the prefix index knows, on whatever tier, each once", total<&Totals::cached_pages>},
    {"prefix_snapshots", "Snapshots that the prefix index knows, on whatever tier, each once", total<&Totals::snapshots>},
    {"prefix_index_bytes", "Memory of the prefix index itself, in bytes", total<&Totals::index_bytes>},
    {"prefix_lookups_total", "Lookups of prompts in the prefix index; a request that has to wait may be looked up again", of_index<&Index::lookups>},
    {"prefix_lookup_hits_total", "Lookups that found a beginning", of_index<&Index::hits>},
    {"prefix_lookup_hit_tokens_total", "Tokens of the beginnings found", of_index<&Index::hit_tokens>},
    {"prefix_evicted_pages_total", "Pages that were dropped from the last tier that had them", of_index<&Index::evicted_pages>},
    {"prefix_evicted_snapshots_total", "Snapshots that were dropped from the last tier that had them", of_index<&Index::evicted_snapshots>},
    {"prefix_missed_snapshots_total", "Snapshots not kept because no record was free", total<&Totals::missed_snapshots>},
    {"prefix_restores_total", "Beginnings that were brought up from lower tiers", total<&Totals::restored>},
    {"prefix_failed_restores_total", "Beginnings that could not be brought up and were computed again", total<&Totals::failed_restores>},
    {"disk_bytes", "Size of the files in --cache-dir, in bytes", total<&Totals::disk_bytes>},
    {"disk_writes_total", "Records written to --cache-dir", of_disk<&Disk::writes>},
    {"disk_reads_total", "Records read from --cache-dir", of_disk<&Disk::reads>},
    {"disk_write_failures_total", "Records that could not be written", of_disk<&Disk::write_failures>},
    {"disk_read_failures_total", "Records that could not be read, or were damaged", of_disk<&Disk::read_failures>},
    {"disk_removal_failures_total", "Files that could not be removed", of_disk<&Disk::removal_failures>},
    {"disk_found_records", "Records that the start found in --cache-dir and took over", of_disk<&Disk::found>},
    {"disk_foreign_records", "Records that the start found and that are of another model, profile or layout", of_disk<&Disk::foreign>},
    {"disk_damaged_records", "Records that the start found damaged and deleted", of_disk<&Disk::damaged>},
};

class Families {
 public:
  explicit Families(const std::string& model) : model_(model) {}

  void begin(std::string_view name, const char* help, MetricType type) {
    MetricFamily f;
    f.name = fmt::format("{}{}", kPrefix, name);
    f.help = help;
    f.type = type;
    all_.push_back(std::move(f));
  }
  void value(double v, Labels labels = {}) {
    ClientMetric m;
    (all_.back().type == MetricType::Counter ? m.counter.value : m.gauge.value) = v;
    add(std::move(m), std::move(labels));
  }
  void histogram(std::string_view name, const char* help, const prometheus::Histogram& h) {
    begin(name, help, MetricType::Histogram);
    add(h.Collect(), {});
  }
  void plain(std::string_view name, const char* help, double v) {
    begin(name, help, name.ends_with("_total") ? MetricType::Counter : MetricType::Gauge);
    value(v);
  }
  // One value a tier, or a reason.
  template <class Label, size_t N>
  void each(std::string_view name, const char* help, const char* label, const std::array<int64_t, N>& values) {
    begin(name, help, name.ends_with("_total") ? MetricType::Counter : MetricType::Gauge);
    for (size_t i = 0; i < N; ++i) value(static_cast<double>(values[i]), {{label, std::string(cache::name_of(static_cast<Label>(i)))}});
  }
  std::string text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, all_);
    return out.str();
  }

 private:
  void add(ClientMetric m, Labels labels) {
    m.label = std::move(labels);
    m.label.push_back({"model_name", model_});
    all_.back().metric.push_back(std::move(m));
  }
  const std::string& model_;
  std::vector<MetricFamily> all_;
};

double seconds(RequestMetrics::Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

Metrics::Metrics(std::string model, std::string version, const engine::RequestLimits& limits)
    : model_(std::move(model)),
      version_(std::move(version)),
      limits_(limits),
      event_delay_s_(delay_bounds()),
      first_token_s_(second_bounds()),
      between_tokens_s_(second_bounds()),
      whole_s_(second_bounds()),
      queue_s_(second_bounds()),
      prefill_s_(second_bounds()),
      decode_s_(second_bounds()),
      prompt_lengths_(token_bounds()),
      answer_lengths_(token_bounds()) {
  for (std::string_view reason : kRefusals) refusals_[reason] = 0;
}

void Metrics::answered(std::string_view route, int status) { ++answers_[{std::string(route), status}]; }

void Metrics::refused(std::string_view reason) {
  const auto found = refusals_.find(reason);
  check(found != refusals_.end(), "a refusal for a reason that is not listed");
  ++found->second;
}

void Metrics::used(const std::string& key, int64_t tokens) {
  auto& [requests, all] = keys_[key];
  ++requests;
  all += tokens;
}

StepTimes::StepTimes() : seconds_(step_bounds()), rows_(token_bounds()) {}

void StepTimes::add(int64_t rows, double seconds) {
  seconds_.Observe(seconds);
  rows_.Observe(static_cast<double>(rows));
}

std::string Metrics::text(const Totals& t, const StepTimes* steps) const {
  Families f(model_);
  f.begin("build_info", "Always 1; the label says what runs", MetricType::Gauge);
  f.value(1, {{"version", version_}});
  f.begin("cache_config_info", "Always 1; the labels say how the KV cache is laid out: tokens a page and pages", MetricType::Gauge);
  f.value(1, {{"block_size", std::to_string(limits_.page_tokens)}, {"num_gpu_blocks", std::to_string(limits_.pages)}});
  for (const Plain& p : kPlain) f.plain(p.name, p.help, p.value(t));

  f.plain("prompt_tokens_total", "Tokens of prompts, those taken over from earlier requests among them", static_cast<double>(prompt_tokens_));
  f.plain("prefix_cache_queries_total", "Tokens of prompts that were looked for in the prefix cache", static_cast<double>(prompt_tokens_));
  f.plain("prefix_cache_hits_total", "Tokens of prompts that were taken over from the prefix cache", static_cast<double>(cached_tokens_));
  using cache::Cut;
  using cache::Tier;
  f.each<Cut>("prefix_cuts_total", "Lookups by what kept them from finding more", "reason", t.prefix.cuts);
  f.each<Tier>("prefix_tier_hits_total", "Lookups that found a beginning, by the lowest tier that it needed", "tier", t.prefix.hits_in);
  f.each<Tier>("prefix_tier_pages", "Pages of the prefix index by tier; one may lie on several", "tier", t.prefix.pages_in);
  f.each<Tier>("prefix_tier_snapshots", "Snapshots by tier; one may lie on several", "tier", t.prefix.snapshots_in);
  f.each<Tier>("prefix_copied_pages_total", "Pages copied to a tier; to the device: brought up", "tier", t.prefix.pages_to);
  f.each<Tier>("prefix_copied_snapshots_total", "Snapshots copied to a tier; to the device: brought up", "tier", t.prefix.snapshots_to);

  f.begin("request_success_total", "Choices that ended, by how: stop and length as answers say, abort: their client left or the server stopped",
          MetricType::Counter);
  for (size_t i = 0; i < kEnds; ++i) f.value(static_cast<double>(ends_[i]), {{"finished_reason", kEndNames[i]}});
  f.begin("http_requests_total", "HTTP answers by route and status", MetricType::Counter);
  for (const auto& [key, n] : answers_) f.value(static_cast<double>(n), {{"handler", key.first}, {"status", std::to_string(key.second)}});
  f.begin("refused_total", "Requests and connections that were sent away, by reason", MetricType::Counter);
  for (const auto& [reason, n] : refusals_) f.value(static_cast<double>(n), {{"reason", std::string(reason)}});
  f.begin("key_requests_total", "Requests that were let in, by the name of their API key", MetricType::Counter);
  for (const auto& [key, n] : keys_) f.value(static_cast<double>(n.first), {{"key", key}});
  f.begin("key_tokens_total", "Tokens of prompts and answers, by the name of the API key", MetricType::Counter);
  for (const auto& [key, n] : keys_) f.value(static_cast<double>(n.second), {{"key", key}});
  if (traces_) {
    f.plain("traces_sent_total", "Requests whose traces the collector took", static_cast<double>(traces_->first));
    f.plain("traces_dropped_total", "Requests whose traces were dropped: the queue was full, or the collector did not take them",
            static_cast<double>(traces_->second));
  }
  if (steps) {
    f.histogram("step_time_seconds", "One step of the engine, in seconds", steps->seconds_);
    f.histogram("step_rows", "Rows of a step: tokens of prompts and answers", steps->rows_);
  }
  f.histogram("event_delay_seconds", "From the engine's event to its bytes in the socket, in seconds; events of streams that had something to show",
              event_delay_s_);
  f.histogram("time_to_first_token_seconds", "From the end of a request's arrival to its first token, in seconds", first_token_s_);
  f.histogram("inter_token_latency_seconds", "Between two tokens of an answer, in seconds", between_tokens_s_);
  f.histogram("e2e_request_latency_seconds", "From the end of a request's arrival to the end of its answer, in seconds", whole_s_);
  f.histogram("request_queue_time_seconds", "From submission to admission, in seconds", queue_s_);
  f.histogram("request_prefill_time_seconds", "From admission to the first token, in seconds", prefill_s_);
  f.histogram("request_decode_time_seconds", "From the first token to the last, in seconds", decode_s_);
  f.histogram("request_prompt_tokens", "Length of prompts, in tokens", prompt_lengths_);
  f.histogram("request_generation_tokens", "Length of answers, in tokens", answer_lengths_);
  return f.text();
}

RequestMetrics::RequestMetrics(Metrics& metrics, const Generation& generation, Clock::time_point received)
    : metrics_(metrics), generation_(generation), received_(received), choices_(generation.choices()) {}

RequestMetrics::~RequestMetrics() {
  for (size_t i = 0; i < choices_.size(); ++i)
    if (!choices_[i].ended) end(i, Metrics::End::abort, Clock::now());
}

void RequestMetrics::see(const Delta& d, Clock::time_point now) {
  const size_t i = static_cast<size_t>(d.choice);
  Choice& c = choices_[i];
  int64_t between = d.drawn;
  if (c.tokens == 0 && d.drawn > 0) {
    metrics_.first_token_s_.Observe(seconds(now - received_));
    const engine::Timings t = generation_.timings(i);
    metrics_.prompt_tokens_ += t.prompt_tokens;
    metrics_.cached_tokens_ += t.cached.tokens;
    metrics_.prompt_lengths_.Observe(static_cast<double>(t.prompt_tokens));
    c.newest = now;
    --between;
  }
  // Tokens that came together share the time since the ones before.
  for (int64_t k = 0; k < between; ++k) metrics_.between_tokens_s_.Observe(seconds(now - c.newest) / static_cast<double>(between));
  if (d.drawn > 0) c.newest = now;
  c.tokens += d.drawn;
  switch (d.finish) {
    case engine::FinishReason::none: return;
    case engine::FinishReason::stop: return end(i, Metrics::End::stop, now);
    case engine::FinishReason::length: return end(i, Metrics::End::length, now);
    case engine::FinishReason::cancelled: return end(i, Metrics::End::abort, now);
    case engine::FinishReason::error: return end(i, d.late ? Metrics::End::timeout : Metrics::End::error, now);
  }
}

void RequestMetrics::sent(std::span<const Clock::time_point> pushed, Clock::time_point now) {
  for (const Clock::time_point t : pushed) metrics_.event_delay_s_.Observe(seconds(now - t));
}

void RequestMetrics::end(size_t i, Metrics::End how, Clock::time_point now) {
  choices_[i].ended = true;
  ++metrics_.ends_[static_cast<size_t>(how)];
  if (how != Metrics::End::stop && how != Metrics::End::length) return;  // times of what was cut short say nothing
  const engine::Timings t = generation_.timings(i);
  metrics_.whole_s_.Observe(seconds(now - received_));
  metrics_.queue_s_.Observe(t.queued_s);
  metrics_.prefill_s_.Observe(t.prefill_s);
  metrics_.decode_s_.Observe(t.decode_s);
  metrics_.answer_lengths_.Observe(static_cast<double>(choices_[i].tokens));
}

}  // namespace winnow::server
