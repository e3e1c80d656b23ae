#include "server/routes.h"

#include <gtest/gtest.h>

#include <set>

namespace winnow::server {
namespace {

std::string found(std::string_view method, std::string_view path) {
  std::string allow;
  const std::variant<Match, Refusal> r = find_route(method, path, &allow);
  if (const auto* refusal = std::get_if<Refusal>(&r)) return fmt::format("{} {}", refusal->status, allow);
  const Match& m = std::get<Match>(r);
  return fmt::format("{} {}", m.route->path, m.id);
}

TEST(Routes, AreFoundByPathAndMethod) {
  EXPECT_EQ(found("GET", "/health"), "/health ");
  EXPECT_EQ(found("POST", "/v1/responses"), "/v1/responses ");
  EXPECT_EQ(found("GET", "/v1/responses/resp_1"), "/v1/responses/{} resp_1");
  EXPECT_EQ(found("DELETE", "/v1/responses/resp_1"), "/v1/responses/{} resp_1");
  EXPECT_EQ(found("POST", "/v1/responses/resp_1/cancel"), "/v1/responses/{}/cancel resp_1");
  EXPECT_EQ(found("GET", "/v1/responses/resp_1/input_items"), "/v1/responses/{}/input_items resp_1");
  EXPECT_EQ(found("GET", "/v1/models/a-b.c"), "/v1/models/{} a-b.c");
  EXPECT_EQ(found("POST", "/v1/messages/count_tokens"), "/v1/messages/count_tokens ");
}

TEST(Routes, OthersAreRefused) {
  for (const char* path : {"/", "", "/healthy", "/v1/responses/", "/v1/responses/a/b", "/v1/responses//cancel", "/v1/models/", "/v1/chat"})
    EXPECT_EQ(found("GET", path), "404 ") << path;
  EXPECT_EQ(found("POST", "/health"), "405 GET");
  EXPECT_EQ(found("PUT", "/v1/responses/x"), "405 GET, DELETE");
  EXPECT_EQ(found("GET", "/v1/responses/x/cancel"), "405 POST");
  EXPECT_EQ(found("get", "/health"), "405 GET");
}

// No route changes the server, so there is no admin key. One that does would have to ask for it: whoever adds a line here decides.
TEST(Routes, WhatChangesAnythingIsTheClientsOwn) {
  std::set<std::string> open, changing;
  for (const Route& r : routes()) {
    const std::string name = fmt::format("{} {}", r.method, r.path);
    if (access_of(r.does) != Access::key) open.insert(name);
    if (r.method != "GET") changing.insert(name);
  }
  EXPECT_EQ(open, (std::set<std::string>{"GET /health", "GET /ready", "GET /metrics"}));
  EXPECT_EQ(changing, (std::set<std::string>{"POST /v1/chat/completions", "POST /v1/completions", "POST /v1/messages",
                                             "POST /v1/messages/count_tokens", "POST /v1/responses", "DELETE /v1/responses/{}",
                                             "POST /v1/responses/{}/cancel", "POST /tokenize", "POST /detokenize"}));
}

}  // namespace
}  // namespace winnow::server
