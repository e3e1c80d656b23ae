#include "server/openai.h"

#include <algorithm>
#include <cmath>

#include "base/json_writer.h"
#include "server/sse.h"

namespace winnow::server {
namespace {

using engine::FinishReason;

std::string_view error_type(int status) {
  if (status == 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

void write_model(JsonWriter& w, const ModelFacts& f) {
  w.begin_object().field("id", f.name).field("object", "model").field("created", f.created).field("owned_by", "winnow");
  w.field("max_model_len", f.max_context).end_object();
}

JsonWriter& write_counts(JsonWriter& w, int64_t prompt, int64_t answer) {
  return w.field("prompt_tokens", prompt).field("completion_tokens", answer).field("total_tokens", prompt + answer);
}

void write_usage(JsonWriter& w, const Usage& u) {
  write_counts(w.key("usage").begin_object(), u.prompt_tokens, u.completion_tokens);
  w.key("prompt_tokens_details").begin_object().field("cached_tokens", u.cached.tokens).end_object();
  w.key("completion_tokens_details").begin_object().field("reasoning_tokens", u.reasoning_tokens).end_object();
  write_winnow(w, u);
  w.end_object();
}

void write_chat_logprobs(JsonWriter& w, const std::vector<ops::Sampled>& tokens, const text::Tokenizer& tokenizer) {
  w.key("logprobs").begin_object().key("content");
  write_logprobs(w, tokens, tokenizer);
  w.key("refusal").null().end_object();
}

// The older shape of /v1/completions. Offsets count code points of the text that the tokens spell.
void write_text_logprobs(JsonWriter& w, const std::vector<ops::Sampled>& tokens, const text::Tokenizer& tokenizer, int32_t top, int64_t* offset) {
  w.key("logprobs").begin_object().key("tokens").begin_array();
  for (const ops::Sampled& t : tokens) w.value(tokenizer.bytes(t.token));
  w.end_array().key("token_logprobs").begin_array();
  for (const ops::Sampled& t : tokens) w.value(t.logprob);  // null of a prompt's first
  w.end_array().key("top_logprobs");
  if (top <= 0) w.null();
  else {
    w.begin_array();
    for (const ops::Sampled& t : tokens) {
      if (std::isnan(t.logprob)) {
        w.null();
        continue;
      }
      w.begin_object();
      for (const auto& [id, logprob] : t.top) w.field(tokenizer.bytes(id), logprob);
      w.end_object();
    }
    w.end_array();
  }
  w.key("text_offset").begin_array();
  for (const ops::Sampled& t : tokens) {
    w.value(*offset);
    for (char c : tokenizer.bytes(t.token)) *offset += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }
  w.end_array().end_object();
}

}  // namespace

std::string models_json(const ModelFacts& facts) {
  JsonWriter w;
  w.begin_object().field("object", "list").key("data").begin_array();
  write_model(w, facts);
  return w.end_array().end_object().take();
}

std::string model_json(const ModelFacts& facts) {
  JsonWriter w;
  write_model(w, facts);
  return w.take();
}

std::string openai_error(const Refusal& r) {
  JsonWriter w;
  w.begin_object().key("error").begin_object().field("message", r.message).field("type", error_type(r.status));
  w.key("param");
  if (r.param.empty()) w.null();
  else w.value(r.param);
  w.key("code");
  if (r.code.empty()) w.null();
  else w.value(r.code);
  return w.end_object().end_object().take();
}

OpenAiAnswer::OpenAiAnswer(const Request& request, const text::Tokenizer& tokenizer, std::string model, const std::string& id, int64_t created)
    : chat_(request.api == Api::chat),
      logprobs_(request.sampling.logprobs),
      include_usage_(request.include_usage),
      continuous_usage_(request.continuous_usage),
      tokenizer_(tokenizer),
      model_(std::move(model)),
      id_(id),
      created_(created),
      choices_(static_cast<size_t>(request.n) * (chat_ ? 1 : request.prompts.size())) {}

std::string OpenAiAnswer::call_id(size_t choice, size_t block) const {
  const std::string of = choice ? fmt::format("{}_", choice) : "";
  return fmt::format("call_{}_{}{}", id_, of, block);
}

void OpenAiAnswer::head(JsonWriter& w, bool chunk) const {
  w.begin_object().field("id", fmt::format("{}-{}", chat_ ? "chatcmpl" : "cmpl", id_));
  w.field("object", !chat_ ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion");
  w.field("created", created_).field("model", model_).key("choices").begin_array();
}

void OpenAiAnswer::write_finish(JsonWriter& w, const Choice& c) const {
  w.key("finish_reason");
  if (c.answer.finish() == FinishReason::none) w.null();
  else w.value(chat_ && c.answer.ends_with_calls() ? "tool_calls" : engine::name_of(c.answer.finish()));
}

// What became of the blocks, as OpenAI tells it: text and reasoning by what they grew, calls each with its number.
void OpenAiAnswer::write_delta(JsonWriter& w, size_t index, const std::vector<Change>& changes) {
  Choice& c = choices_[index];
  const std::vector<Block>& blocks = c.answer.blocks();
  struct Call {
    size_t block;
    bool opened;
    std::string arguments;
  };
  std::string reasoning, content;
  std::vector<Call> calls;
  for (const Change& change : changes) {
    const Block::Kind kind = blocks[change.block].kind;
    if (kind == Block::Kind::reasoning) reasoning += change.text;
    if (kind == Block::Kind::text) content += change.text;
    if (kind != Block::Kind::call || change.what == Change::What::closed) continue;
    if (calls.empty() || calls.back().block != change.block) calls.push_back({change.block, false, {}});
    calls.back().opened |= change.what == Change::What::opened;
    calls.back().arguments += change.text;
  }
  w.key("delta").begin_object();
  if (!std::exchange(c.role_sent, true)) w.field("role", "assistant");
  if (!reasoning.empty()) w.field("reasoning_content", reasoning);
  if (!content.empty()) w.field("content", content);
  if (!calls.empty()) w.key("tool_calls").begin_array();
  for (const Call& call : calls) {
    const auto before = blocks.begin() + static_cast<std::ptrdiff_t>(call.block);
    w.begin_object().field("index", std::count_if(blocks.begin(), before, [](const Block& b) { return b.kind == Block::Kind::call; }));
    if (call.opened) w.field("id", call_id(index, call.block)).field("type", "function");
    w.key("function").begin_object();
    if (call.opened) w.field("name", blocks[call.block].name);
    w.field("arguments", call.arguments).end_object().end_object();
  }
  if (!calls.empty()) w.end_array();
  w.end_object();
}

std::string OpenAiAnswer::events(const Delta& d) {
  const auto index = static_cast<size_t>(d.choice);
  Choice& c = choices_[index];
  const std::vector<Change> changes = c.answer.add(d);
  drawn_ += d.drawn;
  JsonWriter w;
  head(w, true);
  w.begin_object().field("index", index);
  if (chat_) {
    write_delta(w, index, changes);
    if (logprobs_ >= 0) write_chat_logprobs(w, d.tokens, tokenizer_);
    else w.key("logprobs").null();
  } else {
    w.field("text", text::text_of(d.parts, text::AnswerPart::Kind::content));
    if (logprobs_ >= 0) write_text_logprobs(w, d.tokens, tokenizer_, logprobs_, &c.text_offset);
    else w.key("logprobs").null();
  }
  write_finish(w, c);
  w.end_object().end_array();
  if (continuous_usage_) write_counts(w.key("usage").begin_object(), prompt_tokens_, drawn_).end_object();
  else if (include_usage_) w.key("usage").null();
  return sse_event(w.end_object().take());
}

std::string OpenAiAnswer::end(const Usage& usage) const {
  std::string last;
  if (include_usage_) {
    JsonWriter w;
    head(w, true);
    w.end_array();
    write_usage(w, usage);
    last = sse_event(w.end_object().take());
  }
  return last + std::string(kSseDone);
}

std::string OpenAiAnswer::failed(const Refusal& why) const { return sse_event(openai_error(why)); }

std::string OpenAiAnswer::whole(const Usage& usage) const {
  JsonWriter w;
  head(w, false);
  for (size_t i = 0; i < choices_.size(); ++i) {
    const ChoiceAnswer& a = choices_[i].answer;
    const std::string content = a.text_of(Block::Kind::text);
    w.begin_object().field("index", i);
    if (chat_) {
      const std::string reasoning = a.text_of(Block::Kind::reasoning);
      const std::vector<Block>& blocks = a.blocks();
      const auto is_call = [](const Block& b) { return b.kind == Block::Kind::call; };
      const bool calls = std::any_of(blocks.begin(), blocks.end(), is_call);
      w.key("message").begin_object().field("role", "assistant").key("content");
      if (calls && content.empty()) w.null();
      else w.value(content);
      if (!reasoning.empty()) w.field("reasoning_content", reasoning);
      if (calls) w.key("tool_calls").begin_array();
      for (size_t b = 0; b < blocks.size(); ++b) {
        if (!is_call(blocks[b])) continue;
        w.begin_object().field("id", call_id(i, b)).field("type", "function").key("function").begin_object();
        w.field("name", blocks[b].name).field("arguments", blocks[b].text).end_object().end_object();
      }
      if (calls) w.end_array();
      w.key("refusal").null().end_object();
      if (logprobs_ >= 0) write_chat_logprobs(w, a.tokens(), tokenizer_);
      else w.key("logprobs").null();
    } else {
      int64_t offset = 0;
      w.field("text", content);
      if (logprobs_ >= 0) write_text_logprobs(w, a.tokens(), tokenizer_, logprobs_, &offset);
      else w.key("logprobs").null();
    }
    write_finish(w, choices_[i]);
    w.end_object();
  }
  w.end_array();
  write_usage(w, usage);
  return w.end_object().take();
}

}  // namespace winnow::server
