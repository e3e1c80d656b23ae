#include "server/responses.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>

#include "base/json_writer.h"
#include "server/openai.h"
#include "server/sse.h"

namespace winnow::server {
namespace {

namespace json = boost::json;
using engine::FinishReason;
using Kind = Block::Kind;

json::array without_instructions(const Request& r) {
  const json::value* messages = r.context.if_contains("messages");
  if (!messages) return {};
  json::array all = messages->get_array();
  if (r.responses.instructions && !all.empty()) all.erase(all.begin());
  return all;
}

// Items of the input, each with an id: its own, or one made for it.
std::shared_ptr<const std::vector<std::pair<std::string, std::string>>> listed(const json::array& input, const std::string& id) {
  auto items = std::make_shared<std::vector<std::pair<std::string, std::string>>>();
  for (size_t i = 0; i < input.size(); ++i) {
    json::object item = input[i].get_object();
    const json::value* own = item.if_contains("id");
    std::string name = own && own->is_string() ? std::string(own->get_string()) : fmt::format("in_{}_{}", id, i);
    item["id"] = name;
    items->emplace_back(std::move(name), json::serialize(item));
  }
  return items;
}

void write_usage(JsonWriter& w, const Usage& u) {
  w.key("usage").begin_object().field("input_tokens", u.prompt_tokens);
  w.key("input_tokens_details").begin_object().field("cached_tokens", u.cached.tokens).field("cache_write_tokens", 0).end_object();
  w.field("output_tokens", u.completion_tokens);
  w.key("output_tokens_details").begin_object().field("reasoning_tokens", u.reasoning_tokens).end_object();
  w.field("total_tokens", u.prompt_tokens + u.completion_tokens);
  write_winnow(w, u);
  w.end_object();
}

}  // namespace

std::optional<Refusal> continue_previous(Request* request, ResponseStore& store, const std::string& owner, const Limits& limits) {
  const std::string& id = request->responses.previous_id;
  if (id.empty()) return {};
  const std::string field = "previous_response_id";
  const std::shared_ptr<const StoredResponse> previous = store.find(owner + id);
  if (!previous)
    return Refusal{.message = fmt::format("{}: there is no response '{}' here: it was not stored, or made way for newer ones", field, id),
                   .param = field,
                   .code = "previous_response_not_found"};
  if (previous->messages.empty())
    return Refusal{.message = fmt::format("{}: the response '{}' has no answer to continue", field, id), .param = field, .code = {}};
  json::parse_options deep;  // ours: bounded when it came
  deep.max_depth = 4096;
  json::array messages = json::parse(previous->messages, {}, deep).get_array();
  json::array& own = request->context.at("messages").get_array();
  if (messages.size() + own.size() > limits.messages)
    return Refusal{.message = fmt::format("{}: at most {} messages together", field, limits.messages), .param = field, .code = {}};
  const auto first = own.begin() + (request->responses.instructions ? 1 : 0);
  own.insert(first, messages.begin(), messages.end());
  return {};
}

std::string deleted_json(std::string_view id) {
  JsonWriter w;
  return w.begin_object().field("id", id).field("object", "response").field("deleted", true).end_object().take();
}

std::variant<std::string, Refusal> input_items_json(const StoredResponse& response, const Query& query) {
  constexpr size_t kLimit = 20, kMost = 100;
  size_t limit = kLimit;
  bool rising = false;
  std::string after;
  for (const auto& [name, given] : query) {
    const std::string &key = name, &value = given;
    const auto wrong = [&](const char* why) {
      return Refusal{.message = fmt::format("{}: {}", key.substr(0, 200), why), .param = key.substr(0, 200), .code = {}};
    };
    if (key == "limit") {
      const auto [end, bad] = std::from_chars(value.data(), value.data() + value.size(), limit);
      if (bad != std::errc{} || end != value.data() + value.size() || limit < 1 || limit > kMost) return wrong("must be an integer from 1 to 100");
    } else if (key == "order") {
      if (value != "asc" && value != "desc") return wrong("must be asc or desc");
      rising = value == "asc";
    } else if (key == "after") {
      after = value;
    } else if (!key.starts_with("include")) {
      return wrong("unknown field (known: limit, order, after, include)");
    }
  }
  static const std::vector<std::pair<std::string, std::string>> kNone;
  const auto& items = response.input ? *response.input : kNone;
  const size_t count = items.size();
  const auto at = [&](size_t i) -> const auto& { return items[rising ? i : count - 1 - i]; };
  size_t first = 0;
  if (!after.empty()) {
    while (first < count && at(first).first != after) ++first;
    if (first++ == count) return Refusal{.message = "after: there is no such item", .param = "after", .code = {}};
  }
  const size_t end = std::min(count, first + limit);
  JsonWriter w;
  w.begin_object().field("object", "list").key("data").begin_array();
  for (size_t i = first; i < end; ++i) w.raw(at(i).second);
  w.end_array();
  for (const auto& [key, i] : {std::pair("first_id", first), std::pair("last_id", end - 1)}) {
    w.key(key);
    if (first < end) w.value(at(i).first);
    else w.null();
  }
  return w.field("has_more", end < count).end_object().take();
}

Refusal unknown_response(std::string_view id) {
  return {404, fmt::format("response_id: there is no response '{}' here", id.substr(0, 200)), "response_id", "response_not_found"};
}

ResponsesAnswer::ResponsesAnswer(const Request& request, const text::Tokenizer& tokenizer, std::string model, const std::string& id, int64_t created)
    : model_(std::move(model)),
      id_(id),
      created_(created),
      fields_(request.responses),
      messages_(request.responses.store ? without_instructions(request) : json::array()),
      input_(request.responses.store ? listed(request.responses.input, id) : nullptr),
      tokenizer_(tokenizer),
      logprobs_(request.sampling.logprobs),
      max_tokens_(request.max_tokens),
      temperature_(request.sampling.temperature),
      top_p_(request.sampling.top_p),
      parallel_calls_(request.calls.parallel) {
  fields_.input.clear();  // it is in input_
}

std::string ResponsesAnswer::event(std::string_view name, auto write) {
  JsonWriter w;
  w.begin_object().field("type", name).field("sequence_number", events_++);
  write(w);
  return sse_event(name, w.end_object().take());
}

std::string ResponsesAnswer::item_id(const Block& b, size_t index) const {
  return fmt::format("{}_{}_{}", b.kind == Kind::reasoning ? "rs" : b.kind == Kind::text ? "msg" : "fc", id_, index);
}

std::string ResponsesAnswer::call_id(size_t index) const { return fmt::format("call_{}_{}", id_, index); }

void ResponsesAnswer::write_tokens(JsonWriter& w, const std::vector<ops::Sampled>& tokens) const {
  w.key("logprobs");
  write_logprobs(w, tokens, tokenizer_);
}

void ResponsesAnswer::write_part(JsonWriter& w, const Block& b, size_t index, bool done) const {
  w.begin_object().field("type", b.kind == Kind::text ? "output_text" : "reasoning_text").field("text", done ? b.text : "");
  if (b.kind == Kind::text) {
    w.key("annotations").begin_array().end_array();
    write_tokens(w, done ? text_tokens_[index] : std::vector<ops::Sampled>());
  }
  w.end_object();
}

void ResponsesAnswer::write_item(JsonWriter& w, const Block& b, size_t index, bool done) const {
  const bool broken = index + 1 == answer_.blocks().size() && status() != "completed";
  w.begin_object().field("id", item_id(b, index));
  if (b.kind == Kind::call) {
    w.field("type", "function_call").field("call_id", call_id(index)).field("name", b.name).field("arguments", done ? b.text : "");
  } else {
    w.field("type", b.kind == Kind::text ? "message" : "reasoning");
    if (b.kind == Kind::text) w.field("role", "assistant");
    else w.key("summary").begin_array().end_array();
    w.key("content").begin_array();
    if (done) write_part(w, b, index, true);
    w.end_array();
  }
  w.field("status", !done ? "in_progress" : broken && !b.whole ? "incomplete" : "completed").end_object();
}

std::string_view ResponsesAnswer::status() const {
  switch (answer_.finish()) {
    case FinishReason::none: return was_cancelled_ ? "cancelled" : why_failed_ ? "failed" : fields_.background && !begun_ ? "queued" : "in_progress";
    case FinishReason::stop: return "completed";
    case FinishReason::length: return "incomplete";
    case FinishReason::cancelled: return was_cancelled_ ? "cancelled" : "failed";
    case FinishReason::error: return "failed";
  }
  return "failed";
}

std::string ResponsesAnswer::json(std::string_view status, const Usage* usage) const {
  JsonWriter w;
  const auto echo = [&](const char* key, std::string_view otherwise) {
    const json::value* v = fields_.echo.if_contains(key);
    w.key(key).raw(v ? json::serialize(*v) : otherwise);
  };
  w.begin_object()
      .field("id", id())
      .field("object", "response")
      .field("created_at", created_)
      .field("status", status)
      .field("background", fields_.background);
  w.key("error");
  if (why_failed_) w.begin_object().field("code", "server_error").field("message", why_failed_->message).end_object();
  else w.null();
  w.key("incomplete_details");
  if (status == "incomplete") w.begin_object().field("reason", "max_output_tokens").end_object();
  else w.null();
  echo("instructions", "null");
  w.key("max_output_tokens");
  if (max_tokens_) w.value(*max_tokens_);
  else w.null();
  w.field("model", model_).key("output").begin_array();
  if (status != "in_progress" && status != "queued")
    for (size_t i = 0; i < answer_.blocks().size(); ++i) write_item(w, answer_.blocks()[i], i, true);
  w.end_array().field("parallel_tool_calls", parallel_calls_).key("previous_response_id");
  if (fields_.previous_id.empty()) w.null();
  else w.value(fields_.previous_id);
  echo("reasoning", "null");
  w.field("store", fields_.store).field("temperature", temperature_);
  echo("text", R"({"format": {"type": "text"}})");
  echo("tool_choice", R"("auto")");
  echo("tools", "[]");
  w.field("top_logprobs", std::max(logprobs_, 0)).field("top_p", top_p_).field("truncation", "disabled");
  echo("metadata", "{}");
  if (usage) write_usage(w, *usage);
  else w.key("usage").null();
  return w.end_object().take();
}

std::string ResponsesAnswer::head() {
  const auto write = [&](JsonWriter& w) { w.key("response").raw(json("in_progress", nullptr)); };
  std::string events = event("response.created", write);
  return events + event("response.in_progress", write);
}

std::string ResponsesAnswer::opened(const Block& b, size_t index) {
  std::string events = event("response.output_item.added", [&](JsonWriter& w) {
    w.field("output_index", index).key("item");
    write_item(w, b, index, false);
  });
  if (b.kind == Kind::call) return events;
  return events + event("response.content_part.added", [&](JsonWriter& w) {
           w.field("item_id", item_id(b, index)).field("output_index", index).field("content_index", 0).key("part");
           write_part(w, b, index, false);
         });
}

std::string ResponsesAnswer::grew(const Block& b, const Change& c) {
  const std::string_view name = b.kind == Kind::reasoning ? "response.reasoning_text.delta"
                                : b.kind == Kind::text    ? "response.output_text.delta"
                                                          : "response.function_call_arguments.delta";
  return event(name, [&](JsonWriter& w) {
    w.field("item_id", item_id(b, c.block)).field("output_index", c.block);
    if (b.kind != Kind::call) w.field("content_index", 0);
    w.field("delta", c.text);
    if (b.kind == Kind::text) write_tokens(w, c.tokens);
  });
}

std::string ResponsesAnswer::closed(const Block& b, size_t index) {
  const std::string_view name = b.kind == Kind::reasoning ? "response.reasoning_text.done"
                                : b.kind == Kind::text    ? "response.output_text.done"
                                                          : "response.function_call_arguments.done";
  std::string events = event(name, [&](JsonWriter& w) {
    w.field("item_id", item_id(b, index)).field("output_index", index);
    if (b.kind == Kind::call) w.field("name", b.name).field("arguments", b.text);
    else w.field("content_index", 0).field("text", b.text);
    if (b.kind == Kind::text) write_tokens(w, text_tokens_[index]);
  });
  if (b.kind != Kind::call)
    events += event("response.content_part.done", [&](JsonWriter& w) {
      w.field("item_id", item_id(b, index)).field("output_index", index).field("content_index", 0).key("part");
      write_part(w, b, index, true);
    });
  return events + event("response.output_item.done", [&](JsonWriter& w) {
           w.field("output_index", index).key("item");
           write_item(w, b, index, true);
         });
}

// Tokens of text go to the block where it shows, with the piece that shows it. What never shows, a stop string say, has its tokens
// at the end of the block.
std::vector<Change> ResponsesAnswer::take(const Delta& delta) {
  begun_ = true;
  std::vector<Change> changes = answer_.add(delta);
  text_tokens_.resize(answer_.blocks().size());
  if (logprobs_ < 0) return changes;
  if (delta.in_text) hidden_.insert(hidden_.end(), delta.tokens.begin(), delta.tokens.end());
  for (Change& c : changes) {
    if (answer_.blocks()[c.block].kind != Kind::text || c.what == Change::What::opened) continue;
    c.tokens = std::exchange(hidden_, {});
    text_tokens_[c.block].insert(text_tokens_[c.block].end(), c.tokens.begin(), c.tokens.end());
  }
  return changes;
}

std::string ResponsesAnswer::events(const Delta& delta) {
  std::string events;
  const std::vector<Change> changes = take(delta);
  for (const Change& c : changes) {
    const Block& b = answer_.blocks()[c.block];
    switch (c.what) {
      case Change::What::opened: events += opened(b, c.block); break;
      case Change::What::grew: events += grew(b, c); break;
      case Change::What::closed: events += closed(b, c.block); break;
    }
  }
  return events;
}

std::string ResponsesAnswer::end(const Usage& usage) {
  const std::string_view name = status() == "completed" ? "response.completed" : "response.incomplete";
  return event(name, [&](JsonWriter& w) { w.key("response").raw(whole(usage)); });
}

std::string ResponsesAnswer::failed(const Refusal& why) {
  why_failed_ = why;
  return event("response.failed", [&](JsonWriter& w) { w.key("response").raw(json("failed", nullptr)); });
}

std::string ResponsesAnswer::error(const Refusal& why) const { return openai_error(why); }

StoredResponse ResponsesAnswer::record(const Usage* usage) const {
  StoredResponse r{.json = json(status(), usage), .input = input_};
  if (answer_.finish() == FinishReason::none && !was_cancelled_) return r;
  json::object message{{"role", "assistant"}, {"content", answer_.text_of(Kind::text)}};
  if (const std::string reasoning = answer_.text_of(Kind::reasoning); !reasoning.empty()) message["reasoning_content"] = reasoning;
  json::array calls;
  for (size_t i = 0; i < answer_.blocks().size(); ++i) {
    const Block& b = answer_.blocks()[i];
    if (b.kind != Kind::call) continue;
    json::parse_options deep;
    deep.max_depth = 4096;
    calls.push_back(
        {{"id", call_id(i)}, {"type", "function"}, {"function", {{"name", b.name}, {"arguments", json::parse(arguments_object(b), {}, deep)}}}});
  }
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  json::array all = messages_;
  all.push_back(std::move(message));
  r.messages = json::serialize(all);
  return r;
}

}  // namespace winnow::server
