// The body of a POST to /v1/chat/completions or /v1/completions as checked values. One table (request.cpp) names every field
// that is known; each is checked there, at the edge, and nothing behind it sees an unchecked one. A field that is not in
// the table is refused by name: to ignore it could mean to answer another question than was asked. null means absent.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "server/limits.h"

namespace winnow::server {

// An answer that is an error, in OpenAI's shape.
struct Refusal {
  int status = 400;
  std::string message;
  std::string param;  // the field; empty: none
  std::string code;   // empty: none
};

// What a request is checked against.
struct ModelFacts {
  std::string name;
  int64_t vocab_size = 0, max_context = 0;
  float default_temperature = 1.0f, default_top_p = 1.0f;
  std::vector<int32_t> eos_token_ids;
  int64_t created = 0;  // when the server started, in Unix seconds
};

enum class Kind : uint8_t { chat, completion };

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct Request {
  Kind kind = Kind::chat;
  boost::json::object context;  // chat: what the template sees
  std::vector<Prompt> prompts;  // completion
  int64_t n = 1;
  ops::Sampling sampling;  // seed drawn if none was given
  std::optional<int64_t> max_tokens;
  int64_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;  // beside the model's own
  bool stream = false, include_usage = false;
  std::string max_tokens_field = "max_tokens";  // as the client called it
  uint64_t cache_salt = 0;                      // hash of what the client gave; 0: nothing
  int32_t priority = 0;
  double timeout_s = 0;  // 0: none
};

std::variant<Request, Refusal> parse_request(Kind kind, std::string_view body, const ModelFacts& facts, const Limits& limits);

}  // namespace winnow::server
