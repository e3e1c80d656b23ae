#include "server/routes.h"

#include <fmt/format.h>

namespace winnow::server {
namespace {

constexpr Route kRoutes[] = {
    {"/health", "GET", Does::health},
    {"/ready", "GET", Does::ready},
    {"/version", "GET", Does::version},
    {"/metrics", "GET", Does::metrics},
    {"/v1/models", "GET", Does::models},
    {"/v1/models/{}", "GET", Does::model},
    {"/v1/chat/completions", "POST", Does::generate, Api::chat},
    {"/v1/completions", "POST", Does::generate, Api::completion},
    {"/v1/messages", "POST", Does::generate, Api::messages},
    {"/v1/messages/count_tokens", "POST", Does::count_tokens, Api::count_tokens},
    {"/v1/responses", "POST", Does::generate, Api::responses},
    {"/v1/responses/{}", "GET", Does::get_response},
    {"/v1/responses/{}", "DELETE", Does::delete_response},
    {"/v1/responses/{}/cancel", "POST", Does::cancel_response},
    {"/v1/responses/{}/input_items", "GET", Does::input_items},
    {"/tokenize", "POST", Does::tokenize, Api::tokenize},
    {"/detokenize", "POST", Does::detokenize, Api::detokenize},
};

// What stands for {} in `pattern`, empty if it has none; nothing if the path is another.
std::optional<std::string> matched(std::string_view pattern, std::string_view path) {
  const size_t at = pattern.find("{}");
  if (at == pattern.npos) return pattern == path ? std::optional<std::string>("") : std::nullopt;
  const std::string_view before = pattern.substr(0, at), behind = pattern.substr(at + 2);
  if (path.size() <= before.size() + behind.size() || !path.starts_with(before) || !path.ends_with(behind)) return std::nullopt;
  const std::string_view id = path.substr(before.size(), path.size() - before.size() - behind.size());
  if (id.find('/') != id.npos) return std::nullopt;
  return std::string(id);
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }

Access access_of(Does does) {
  switch (does) {
    case Does::health:
    case Does::ready: return Access::open;
    case Does::metrics: return Access::metrics;
    default: return Access::key;
  }
}

std::variant<Match, Refusal> find_route(std::string_view method, std::string_view path, std::string* allow) {
  for (const Route& r : kRoutes) {
    std::optional<std::string> id = matched(r.path, path);
    if (!id) continue;
    if (r.method == method) return Match{&r, std::move(*id)};
    *allow += fmt::format("{}{}", allow->empty() ? "" : ", ", r.method);
  }
  if (allow->empty()) return Refusal{404, fmt::format("there is nothing at {}", path.substr(0, 200)), {}, "not_found"};
  return Refusal{405, fmt::format("{} takes {} only", path.substr(0, 200), *allow), {}, "method_not_allowed"};
}

}  // namespace winnow::server
