// What the parts of the request parser share (request.cpp has the table; request_chat, request_messages and request_responses
// read what each API has of its own). Not for others: they use request.h.
#pragma once

#include <fmt/format.h>

#include <boost/json.hpp>

#include "server/request.h"

namespace winnow::server {

// Fields as they are read; the first mistake is kept. The functions complain about `name` and give what was read, if it was right.
struct Reader {
  Request& r;
  const ModelFacts& facts;
  const Limits& limits;
  std::optional<Refusal> wrong = {};
  std::optional<int64_t> logprobs = {}, top_logprobs = {}, best_of = {}, thinking_tokens = {};
  std::string_view thinking_field = {};
  std::optional<bool> chat_logprobs = {}, think = {};
  bool stream_options = false, tools_off = false;
  std::string_view tool_choice_field = "tool_choice";
  boost::json::array messages = {};  // as templates see them
  bool has_messages = false;
  std::optional<boost::json::value> system = {};  // goes before them
  boost::json::object template_variables = {};

  void fail(std::string_view param, std::string message, int status = 400, std::string code = "");
  bool boolean(std::string_view name, const boost::json::value& v);
  std::optional<int64_t> integer(std::string_view name, const boost::json::value& v, int64_t low, int64_t high);
  void number(std::string_view name, const boost::json::value& v, double low, double high, float* to);
  const boost::json::string* string(std::string_view name, const boost::json::value& v);
  const boost::json::string* short_string(std::string_view name, const boost::json::value& v);  // not empty, at most limits.name_bytes
  const boost::json::object* object(std::string_view name, const boost::json::value& v);
  const boost::json::array* array(std::string_view name, const boost::json::value& v, size_t most);
  std::optional<int32_t> token(std::string_view name, const boost::json::value& v);
  // The member of an object that must be there.
  const boost::json::string* string_in(std::string_view at, const boost::json::object& o, std::string_view key);
  // Complains about the first member that is neither null nor known.
  void only(std::string_view at, const boost::json::object& o, std::initializer_list<std::string_view> known, std::string_view what);
  bool full(std::string_view name);  // complains if there are as many messages as may be
};

using ReadField = void (*)(Reader&, std::string_view name, const boost::json::value&);

// --- what more than one API reads alike
void read_effort(Reader&, std::string_view name, const boost::json::value&);
// Complains about a tool whose name, description or schema is wrong; adds one {name, description, parameters} to the tools.
bool check_tool(Reader&, std::string_view at, const boost::json::object& tool, std::string_view schema_key);
void add_tool(Reader&, boost::json::object function);
// Arguments of a call that came as JSON text; complains if they are no object.
std::optional<boost::json::object> parse_arguments(Reader&, std::string_view at, std::string_view text);

// --- forms of answers and choice of tools
void read_response_format(Reader&, std::string_view, const boost::json::value&);
void read_text_format(Reader&, std::string_view, const boost::json::value&);
void read_anthropic_format(Reader&, std::string_view, const boost::json::value&);
void read_structured_outputs(Reader&, std::string_view, const boost::json::value&);
void read_tool_choice(Reader&, std::string_view, const boost::json::value&);  // of chat and responses
void read_anthropic_tool_choice(Reader&, std::string_view, const boost::json::value&);
void check_calls(Reader&);  // once tools and their choice are known

// --- chat
void read_chat_messages(Reader&, std::string_view, const boost::json::value&);
void read_chat_tools(Reader&, std::string_view, const boost::json::value&);

// --- messages
void read_anthropic_messages(Reader&, std::string_view, const boost::json::value&);
void read_anthropic_system(Reader&, std::string_view, const boost::json::value&);
void read_anthropic_tools(Reader&, std::string_view, const boost::json::value&);
void read_anthropic_output(Reader&, std::string_view, const boost::json::value&);
void read_thinking(Reader&, std::string_view, const boost::json::value&);

// --- responses
void read_input(Reader&, std::string_view, const boost::json::value&);
void read_instructions(Reader&, std::string_view, const boost::json::value&);
void read_responses_tools(Reader&, std::string_view, const boost::json::value&);
void read_reasoning(Reader&, std::string_view, const boost::json::value&);
void read_include(Reader&, std::string_view, const boost::json::value&);
void read_metadata(Reader&, std::string_view, const boost::json::value&);

}  // namespace winnow::server
