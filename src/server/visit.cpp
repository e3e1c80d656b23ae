#include "server/visit.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "base/json_writer.h"

namespace winnow::server {
namespace {

class Line {
 public:
  explicit Line(bool json) : json_(json) {}
  void add(std::string_view name, std::string_view value) {
    std::string quoted;
    if (json_ || value.empty() || value.find_first_of(" \"\\=") != value.npos ||
        !std::ranges::all_of(value, [](char c) { return c > 0x20 && c < 0x7f; })) {
      JsonWriter w;
      quoted = w.value(value).take();
      value = quoted;
    }
    put(name, value);
  }
  void add(std::string_view name, int64_t value) { put(name, std::to_string(value)); }
  void add_seconds(std::string_view name, double s) { put(name, fmt::format("{:.6f}", s)); }
  std::string take() { return std::move(text_); }

 private:
  void put(std::string_view name, std::string_view value) {
    if (!text_.empty()) text_ += json_ ? ',' : ' ';
    text_ += json_ ? fmt::format("\"{}\":{}", name, value) : fmt::format("{}={}", name, value);
  }
  const bool json_;
  std::string text_;
};

}  // namespace

bool is_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::ranges::all_of(id, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
  });
}

std::string random_id() {
  static constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device entropy;
  std::string id;
  for (int i = 0; i < 24; ++i) id += kLetters[entropy() % 36];
  return id;
}

std::string access_line(const Visit& v, bool json) {
  Line l(json);
  l.add("request_id", v.id);
  l.add("client", v.client);
  if (!v.key.empty()) l.add("key", v.key);
  l.add("method", v.method);
  l.add("route", v.route);
  l.add("status", v.status);
  l.add_seconds("duration_s", v.whole_s);
  if (v.choices > 0) {
    l.add("prompt_tokens", v.prompt_tokens);
    l.add("cached_tokens", v.cached_tokens);
    l.add("answer_tokens", v.answer_tokens);
    l.add("choices", v.choices);
    l.add_seconds("queued_s", v.queued_s);
    l.add_seconds("prefill_s", v.prefill_s);
    l.add_seconds("decode_s", v.decode_s);
    if (v.cut) l.add("end", "cut");
  }
  return l.take();
}

}  // namespace winnow::server
