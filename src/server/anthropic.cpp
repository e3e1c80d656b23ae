#include "server/anthropic.h"

#include <xxhash.h>

#include "base/json_writer.h"
#include "server/sse.h"

namespace winnow::server {
namespace {

using engine::FinishReason;
using Kind = Block::Kind;

std::string_view error_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}

void write_usage(JsonWriter& w, const Usage& u, bool tokens_of_prompt_only) {
  w.key("usage").begin_object().field("input_tokens", u.prompt_tokens - u.cached.tokens).field("cache_creation_input_tokens", 0);
  w.field("cache_read_input_tokens", u.cached.tokens).field("output_tokens", tokens_of_prompt_only ? int64_t{0} : u.completion_tokens);
  if (!tokens_of_prompt_only) {
    w.key("output_tokens_details").begin_object().field("thinking_tokens", u.reasoning_tokens).end_object();
    write_winnow(w, u);
  }
  w.end_object();
}

std::string signature(const Block& b) { return fmt::format("{:016x}", XXH3_64bits(b.text.data(), b.text.size())); }

}  // namespace

std::string anthropic_error(const Refusal& r) {
  JsonWriter w;
  w.begin_object().field("type", "error").key("error").begin_object().field("type", error_type(r.status)).field("message", r.message);
  return w.end_object().end_object().take();
}

std::string count_json(int64_t tokens) {
  JsonWriter w;
  return w.begin_object().field("input_tokens", tokens).end_object().take();
}

std::string AnthropicAnswer::call_id(size_t block) const { return fmt::format("toolu_{}_{}", id_, block); }

void AnthropicAnswer::write_head(JsonWriter& w) const {
  w.begin_object().field("id", "msg_" + id_).field("type", "message").field("role", "assistant").field("model", model_);
}

void AnthropicAnswer::write_stop(JsonWriter& w) const {
  std::string_view reason = "end_turn";
  if (answer_.finish() == FinishReason::length) reason = "max_tokens";
  else if (!answer_.stop_string().empty()) reason = "stop_sequence";
  else if (answer_.ends_with_calls()) reason = "tool_use";
  w.field("stop_reason", reason).key("stop_sequence");
  if (answer_.stop_string().empty()) w.null();
  else w.value(answer_.stop_string());
}

std::string AnthropicAnswer::begin(const Usage& usage) const {
  JsonWriter w;
  w.begin_object().field("type", "message_start").key("message");
  write_head(w);
  w.key("content").begin_array().end_array().key("stop_reason").null().key("stop_sequence").null();
  write_usage(w, usage, true);
  return sse_event("message_start", w.end_object().end_object().take());
}

std::string AnthropicAnswer::events(const Delta& delta) {
  std::string events;
  const std::vector<Change> changes = answer_.add(delta);
  for (const Change& c : changes) {
    const Block& b = answer_.blocks()[c.block];
    const auto event = [&](std::string_view name, auto write) {
      JsonWriter w;
      w.begin_object().field("type", name).field("index", c.block);
      write(w);
      events += sse_event(name, w.end_object().take());
    };
    const auto grew = [&](const char* type, const char* key, std::string_view text) {
      event("content_block_delta", [&](JsonWriter& w) { w.key("delta").begin_object().field("type", type).field(key, text).end_object(); });
    };
    switch (c.what) {
      case Change::What::opened:
        event("content_block_start", [&](JsonWriter& w) {
          w.key("content_block").begin_object();
          if (b.kind == Kind::text) w.field("type", "text").field("text", "");
          if (b.kind == Kind::reasoning) w.field("type", "thinking").field("thinking", "").field("signature", "");
          if (b.kind == Kind::call)
            w.field("type", "tool_use").field("id", call_id(c.block)).field("name", b.name).key("input").begin_object().end_object();
          w.end_object();
        });
        break;
      case Change::What::grew:
        if (b.kind == Kind::text) grew("text_delta", "text", c.text);
        if (b.kind == Kind::reasoning) grew("thinking_delta", "thinking", c.text);
        if (b.kind == Kind::call) grew("input_json_delta", "partial_json", c.text);
        break;
      case Change::What::closed:
        if (b.kind == Kind::reasoning) grew("signature_delta", "signature", signature(b));
        event("content_block_stop", [](JsonWriter&) {});
        break;
    }
  }
  return events;
}

std::string AnthropicAnswer::end(const Usage& usage) const {
  JsonWriter w;
  w.begin_object().field("type", "message_delta").key("delta").begin_object();
  write_stop(w);
  w.end_object();
  write_usage(w, usage, false);
  return sse_event("message_delta", w.end_object().take()) + sse_event("message_stop", R"({"type":"message_stop"})");
}

std::string AnthropicAnswer::failed(const Refusal& why) const { return sse_event("error", anthropic_error(why)); }

std::string AnthropicAnswer::whole(const Usage& usage) const {
  JsonWriter w;
  write_head(w);
  w.key("content").begin_array();
  const std::vector<Block>& blocks = answer_.blocks();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& b = blocks[i];
    w.begin_object();
    if (b.kind == Kind::text) w.field("type", "text").field("text", b.text);
    if (b.kind == Kind::reasoning) w.field("type", "thinking").field("thinking", b.text).field("signature", signature(b));
    if (b.kind == Kind::call) w.field("type", "tool_use").field("id", call_id(i)).field("name", b.name).key("input").raw(arguments_object(b));
    w.end_object();
  }
  w.end_array();
  write_stop(w);
  write_usage(w, usage, false);
  return w.end_object().take();
}

}  // namespace winnow::server
