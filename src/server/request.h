// The body of a POST as checked values: the common request, which all APIs that generate are read into. One table (request.cpp)
// names every field that is known and the APIs that have it; each is checked there, at the edge, and nothing behind it sees an
// unchecked one. A field that is not in the table is refused by name: to ignore it could mean to answer another question
// than was asked. null means absent.
//
// Conversations of every API become messages as chat templates see them: roles system, user, assistant, tool;
// reasoning_content, tool_calls with arguments as objects; tools as {"type": "function", "function": {...}}.
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
#include "grammar/answer_form.h"
#include "server/limits.h"

namespace winnow::server {

// An answer that is an error; each API has a shape for it.
struct Refusal {
  int status = 400;
  std::string message;
  std::string param;          // the field; empty: none
  std::string code;           // empty: none
  int64_t retry_after_s = 0;  // 0: says nothing
};

// What a request is checked against.
struct ModelFacts {
  std::string name;
  int64_t vocab_size = 0, max_context = 0;
  float default_temperature = 1.0f, default_top_p = 1.0f;
  std::vector<int32_t> eos_token_ids;
  int64_t created = 0;  // when the server started, in Unix seconds
};

// Which API asks. count_tokens, tokenize and detokenize generate nothing.
enum class Api : uint8_t { chat, completion, messages, responses, count_tokens, tokenize, detokenize };

using Prompt = std::variant<std::string, std::vector<int32_t>>;

// What only /v1/responses has.
struct ResponsesFields {
  boost::json::object echo;   // fields as they were given, for the answer to repeat
  std::string previous_id;    // of the response that this one continues; empty: none
  bool instructions = false;  // the first message is made of them: not part of what is continued
  boost::json::array input;   // its items as they came, each whole; a string is one message
  bool store = true;
  bool background = false;     // nobody waits for the answer: it is kept
  bool text_logprobs = false;  // of the tokens that the text is made of
};

struct Request {
  Api api = Api::chat;
  boost::json::object context;  // what the template sees; empty: there are prompts
  std::vector<Prompt> prompts;  // completion, tokenize, detokenize
  int64_t n = 1;
  ops::Sampling sampling;             // seed drawn if none was given
  std::optional<int64_t> max_tokens;  // 0, with echo only: the prompt alone
  int64_t min_tokens = 0;
  bool ignore_eos = false;
  bool echo = false;  // the answer begins with the prompt
  std::vector<std::string> stop;
  std::vector<int32_t> stop_tokens;  // beside the model's own
  bool stream = false, include_usage = false;
  bool continuous_usage = false;                // every chunk has the counts so far
  std::string max_tokens_field = "max_tokens";  // as the client called it
  std::string prompt_field = "messages";        // as its API calls what the answer follows
  uint64_t cache_salt = 0;                      // hash of what the client gave; 0: nothing
  int32_t priority = 0;
  double timeout_s = 0;                    // 0: none
  std::optional<int64_t> thinking_tokens;  // the reasoning is closed behind so many; 0: the prompt closes it
  bool continues_last = false;             // the answer goes on where the last message, the assistant's, ends
  grammar::CallRules calls;                // which tools may be called
  grammar::OutputForm output;              // what the answer's content must be
  bool token_texts = false;                // tokenize: with the text of each
  ResponsesFields responses;

  bool is_conversation() const { return !context.empty(); }
  bool has_tools() const { return context.contains("tools"); }
};

std::variant<Request, Refusal> parse_request(Api api, std::string_view body, const ModelFacts& facts, const Limits& limits);

}  // namespace winnow::server
