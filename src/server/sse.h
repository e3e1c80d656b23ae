// Server-sent events (WHATWG HTML, "Server-sent events"): one JSON value an event. JSON text of ours has no line breaks.
#pragma once

#include <string>
#include <string_view>

namespace winnow::server {

inline std::string sse_event(std::string_view json) { return "data: " + std::string(json) + "\n\n"; }
inline std::string sse_event(std::string_view name, std::string_view json) { return "event: " + std::string(name) + "\n" + sse_event(json); }
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSsePing = ": ping\n\n";  // a comment: clients skip it

}  // namespace winnow::server
