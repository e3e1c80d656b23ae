// Every place that the server answers at, and how: one table. Only the page's files are beside it (page.h).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "server/request.h"

namespace winnow::server {

enum class Does : uint8_t {
  health,
  ready,
  version,
  metrics,
  models,
  model,
  generate,
  count_tokens,
  tokenize,
  detokenize,
  get_response,
  delete_response,
  cancel_response,
  input_items
};

// Who may use it where there are keys: anybody, who has a key, or for /metrics as the operator chose. Nothing changes the
// server: what clients can change is their own (a response of theirs is dropped or ended).
enum class Access : uint8_t { open, metrics, key };
Access access_of(Does does);

struct Route {
  std::string_view path;    // "{}" stands for one segment that is not empty
  std::string_view method;  // GET, POST, DELETE
  Does does;
  Api api = Api::chat;  // of what has a body
};

struct Match {
  const Route* route;
  std::string id;  // what stood for {}
};

std::span<const Route> routes();
// Says 404 for unknown paths and 405 for other methods of known ones, then with those that are known in `allow`.
std::variant<Match, Refusal> find_route(std::string_view method, std::string_view path, std::string* allow);

}  // namespace winnow::server
