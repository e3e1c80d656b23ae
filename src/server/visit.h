// What is known of one request from its first byte to its last: who, where, how it went. The line of the log and the spans of a
// trace are made from it. It never holds text of prompts or answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace winnow::server {

inline constexpr std::string_view kOther = "other";  // route of what is none

struct TraceParent {
  std::string trace, span;  // 32 and 16 hex digits
  bool sampled = false;
};

struct Visit {
  using Clock = std::chrono::steady_clock;
  std::string id;      // X-Request-Id, as it came or made here
  std::string client;  // its address
  std::string method;
  std::string_view route = kOther;  // as the table of routes has it
  std::string key;                  // the name of the API key; empty: none
  int status = 0;                   // of the answer; 0: there was none
  bool generates = false;
  bool cut = false;           // the answer ended early: the client left, or it was cancelled
  Clock::time_point began{};  // its header was read
  int64_t began_unix_ns = 0;  // the same time by the calendar
  double submitted_s = 0;     // from there to the queue of the engine
  double whole_s = 0;         // and to the end of the answer
  int64_t choices = 0, prompt_tokens = 0, cached_tokens = 0, answer_tokens = 0;
  double queued_s = 0, prefill_s = 0, decode_s = 0;
  std::optional<TraceParent> parent;  // of its trace, as it came
};

// Request ids that clients may give: 1 to 128 letters, digits and -_.
bool is_request_id(std::string_view id);
std::string random_id();  // 24 letters and digits

// The line of the log: key=value, or members of a JSON object.
std::string access_line(const Visit& visit, bool json);

}  // namespace winnow::server
