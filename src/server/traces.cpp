#include "server/traces.h"

#include <curl/curl.h>
#include <fmt/format.h>
#include <openssl/rand.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>

#include "base/json_writer.h"

namespace winnow::server {
namespace {

constexpr int kInternal = 1, kServer = 2;  // SpanKind of opentelemetry-proto
constexpr int kError = 2;                  // StatusCode

std::string hex(const unsigned char* bytes, size_t n) {
  std::string s;
  for (size_t i = 0; i < n; ++i) s += fmt::format("{:02x}", bytes[i]);
  return s;
}

std::string random_hex(size_t bytes) {
  std::array<unsigned char, 16> b{};
  check(bytes <= b.size() && RAND_bytes(b.data(), static_cast<int>(bytes)) == 1, "random bytes of a trace");
  b[0] |= 1;  // zero alone is no id
  return hex(b.data(), bytes);
}

void attribute(JsonWriter& w, std::string_view key, std::string_view value) {
  w.begin_object().field("key", key).key("value").begin_object().field("stringValue", value).end_object().end_object();
}
void attribute(JsonWriter& w, std::string_view key, int64_t value) {
  w.begin_object().field("key", key).key("value").begin_object().field("intValue", std::to_string(value)).end_object().end_object();
}

struct Ids {
  std::string trace, span, parent;
};

void begin_span(JsonWriter& w, const Ids& ids, std::string_view name, int kind, int64_t begin_ns, int64_t end_ns) {
  w.begin_object().field("traceId", ids.trace).field("spanId", ids.span);
  if (!ids.parent.empty()) w.field("parentSpanId", ids.parent);
  w.field("name", name).field("kind", kind);
  w.field("startTimeUnixNano", std::to_string(begin_ns)).field("endTimeUnixNano", std::to_string(std::max(begin_ns, end_ns)));
}

void write_spans(JsonWriter& w, const Visit& v, std::string_view model) {
  const auto ns = [](double s) { return static_cast<int64_t>(s * 1e9); };
  Ids ids{v.parent ? v.parent->trace : random_hex(16), random_hex(8), v.parent ? v.parent->span : ""};
  begin_span(w, ids, fmt::format("{} {}", v.method, v.route), kServer, v.began_unix_ns, v.began_unix_ns + ns(v.whole_s));
  w.key("attributes").begin_array();
  attribute(w, "http.request.method", v.method);
  attribute(w, "http.route", v.route);
  attribute(w, "http.response.status_code", v.status);
  attribute(w, "client.address", v.client);
  attribute(w, "winnow.request_id", v.id);
  if (!v.key.empty()) attribute(w, "winnow.key", v.key);
  if (v.choices > 0) {
    attribute(w, "gen_ai.request.model", model);
    attribute(w, "gen_ai.usage.input_tokens", v.prompt_tokens);
    attribute(w, "gen_ai.usage.output_tokens", v.answer_tokens);
    attribute(w, "winnow.cached_tokens", v.cached_tokens);
    attribute(w, "winnow.choices", v.choices);
    if (v.cut) attribute(w, "winnow.end", "cut");
  }
  w.end_array();
  if (v.status >= 500) w.key("status").begin_object().field("code", kError).end_object();
  w.end_object();
  if (v.choices == 0) return;
  ids.parent = ids.span;
  int64_t at = v.began_unix_ns + ns(v.submitted_s);
  for (const auto& [name, s] : {std::pair{"queue", v.queued_s}, {"prefill", v.prefill_s}, {"decode", v.decode_s}}) {
    if (s <= 0) continue;  // it did not come to that
    ids.span = random_hex(8);
    begin_span(w, ids, name, kInternal, at, at + ns(s));
    w.end_object();
    at += ns(s);
  }
}

// What a collector answers is read and forgotten.
size_t forget(const char*, size_t size, size_t n, void*) { return size * n; }

}  // namespace

std::optional<TraceParent> parse_traceparent(std::string_view t) {
  const auto is_hex = [](std::string_view s) {
    return std::ranges::all_of(s, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  };
  const auto some = [](std::string_view s) { return s.find_first_not_of('0') != s.npos; };
  if (t.size() < 55 || t[2] != '-' || t[35] != '-' || t[52] != '-') return {};
  const std::string_view version = t.substr(0, 2), trace = t.substr(3, 32), span = t.substr(36, 16), flags = t.substr(53, 2);
  if (!is_hex(version) || version == "ff" || !is_hex(trace) || !some(trace) || !is_hex(span) || !some(span) || !is_hex(flags)) return {};
  if (t.size() > 55 && (version == "00" || t[55] != '-')) return {};
  const int last = flags[1] <= '9' ? flags[1] - '0' : flags[1] - 'a' + 10;
  return TraceParent{std::string(trace), std::string(span), (last & 1) != 0};
}

std::string otlp_json(const std::vector<Visit>& visits, std::string_view model, std::string_view version) {
  JsonWriter w;
  w.begin_object().key("resourceSpans").begin_array().begin_object().key("resource").begin_object().key("attributes").begin_array();
  attribute(w, "service.name", "winnow");
  attribute(w, "service.version", version);
  w.end_array().end_object().key("scopeSpans").begin_array().begin_object();
  w.key("scope").begin_object().field("name", "winnow").field("version", version).end_object().key("spans").begin_array();
  for (const Visit& v : visits) write_spans(w, v, model);
  return w.end_array().end_object().end_array().end_object().end_array().end_object().take();
}

Tracer::Tracer(TraceOptions options) : options_(std::move(options)) {}

Tracer::~Tracer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  news_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Tracer::describe(std::string model, std::string version) {
  model_ = std::move(model);
  version_ = std::move(version);
  thread_ = std::thread([this] { run(); });
}

void Tracer::add(const Visit& v) {
  if (v.parent && !v.parent->sampled) return;  // whoever began the trace decided
  const std::lock_guard lock(mutex_);
  if (queue_.size() >= options_.waiting) {
    ++dropped_;
    return;
  }
  queue_.push_back(v);
  if (queue_.size() >= options_.batch) news_.notify_all();
}

void Tracer::run() {
  bool well = true;
  for (bool last = false; !last;) {
    std::vector<Visit> batch;
    {
      std::unique_lock lock(mutex_);
      news_.wait_for(lock, options_.pause, [&] { return stop_ || queue_.size() >= options_.batch; });
      const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(std::min(queue_.size(), options_.batch));
      batch.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
      queue_.erase(queue_.begin(), end);
      last = stop_ && (queue_.empty() || !well);
    }
    if (batch.empty()) continue;
    const bool taken = post(otlp_json(batch, model_, version_));
    (taken ? sent_ : dropped_) += static_cast<int64_t>(batch.size());
    if (taken != well) spdlog::warn("--otlp-endpoint {}: {}", options_.endpoint, taken ? "takes traces again" : "takes no traces; they are dropped");
    well = taken;
  }
}

bool Tracer::post(const std::string& json) {
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), curl_easy_cleanup);
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers(curl_slist_append(nullptr, "Content-Type: application/json"), curl_slist_free_all);
  if (!curl || !headers) return false;
  const std::string url = options_.endpoint + (options_.endpoint.ends_with('/') ? "v1/traces" : "/v1/traces");
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, static_cast<long>(options_.timeout.count()));
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, json.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, forget);
  long status = 0;
  if (curl_easy_perform(curl.get()) != CURLE_OK) return false;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  return status >= 200 && status < 300;
}

}  // namespace winnow::server
