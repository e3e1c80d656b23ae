#include "server/openai.h"

#include "base/json_writer.h"

namespace winnow::server {
namespace {

using engine::FinishReason;

void write_model(JsonWriter& w, const ModelFacts& f) {
  w.begin_object().field("id", f.name).field("object", "model").field("created", f.created).field("owned_by", "winnow");
  w.field("max_model_len", f.max_context).end_object();
}

void write_finish(JsonWriter& w, FinishReason finish) {
  w.key("finish_reason");
  if (finish == FinishReason::none) w.null();
  else w.value(engine::name_of(finish));
}

void write_usage(JsonWriter& w, const Usage& u) {
  w.key("usage").begin_object().field("prompt_tokens", u.prompt_tokens).field("completion_tokens", u.completion_tokens);
  w.field("total_tokens", u.prompt_tokens + u.completion_tokens);
  w.key("prompt_tokens_details").begin_object().field("cached_tokens", u.cached.tokens).end_object();
  w.key("completion_tokens_details").begin_object().field("reasoning_tokens", u.reasoning_tokens).end_object();
  w.key("winnow").begin_object().key("cached").begin_object().field("tokens", u.cached.tokens).key("pages").begin_object();
  for (size_t tier = 0; tier < u.cached.pages_in.size(); ++tier) w.field(cache::name_of(static_cast<cache::Tier>(tier)), u.cached.pages_in[tier]);
  w.end_object().key("snapshot");
  if (u.cached.tokens > 0) w.value(cache::name_of(u.cached.snapshot_in));
  else w.null();
  w.field("cut", shown(u.cached.cut)).end_object();
  w.field("preemptions", u.preemptions).field("queued_s", u.queued_s).field("prefill_s", u.prefill_s).field("decode_s", u.decode_s).end_object();
  w.end_object();
}

void write_bytes(JsonWriter& w, std::string_view bytes) {
  w.key("bytes").begin_array();
  for (char c : bytes) w.value(static_cast<int>(static_cast<unsigned char>(c)));
  w.end_array();
}

void write_chat_logprobs(JsonWriter& w, const std::vector<ops::Sampled>& tokens, const text::Tokenizer& tokenizer) {
  w.key("logprobs").begin_object().key("content").begin_array();
  for (const ops::Sampled& t : tokens) {
    w.begin_object().field("token", tokenizer.bytes(t.token)).field("logprob", t.logprob);
    write_bytes(w, tokenizer.bytes(t.token));
    w.key("top_logprobs").begin_array();
    for (const auto& [id, logprob] : t.top) {
      w.begin_object().field("token", tokenizer.bytes(id)).field("logprob", logprob);
      write_bytes(w, tokenizer.bytes(id));
      w.end_object();
    }
    w.end_array().end_object();
  }
  w.end_array().key("refusal").null().end_object();
}

// The older shape of /v1/completions. Offsets count code points of the text that the tokens spell.
void write_text_logprobs(JsonWriter& w, const std::vector<ops::Sampled>& tokens, const text::Tokenizer& tokenizer, int32_t top, int64_t* offset) {
  w.key("logprobs").begin_object().key("tokens").begin_array();
  for (const ops::Sampled& t : tokens) w.value(tokenizer.bytes(t.token));
  w.end_array().key("token_logprobs").begin_array();
  for (const ops::Sampled& t : tokens) w.value(t.logprob);
  w.end_array().key("top_logprobs");
  if (top <= 0) w.null();
  else {
    w.begin_array();
    for (const ops::Sampled& t : tokens) {
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

std::string_view shown(cache::Cut cut) { return cache::name_of(cut == cache::Cut::different_salt ? cache::Cut::no_page : cut); }

std::string error_json(const Refusal& r) {
  JsonWriter w;
  w.begin_object().key("error").begin_object().field("message", r.message).field("type", r.status < 500 ? "invalid_request_error" : "server_error");
  w.key("param");
  if (r.param.empty()) w.null();
  else w.value(r.param);
  w.key("code");
  if (r.code.empty()) w.null();
  else w.value(r.code);
  return w.end_object().end_object().take();
}

Answer::Answer(const Request& request, const text::Tokenizer& tokenizer, std::string model, std::string id, int64_t created)
    : kind_(request.kind),
      logprobs_(request.sampling.logprobs),
      include_usage_(request.include_usage),
      tokenizer_(tokenizer),
      model_(std::move(model)),
      id_(std::move(id)),
      created_(created),
      choices_(static_cast<size_t>(request.n) * (request.kind == Kind::chat ? 1 : request.prompts.size())) {}

void Answer::head(JsonWriter& w, bool chunk) const {
  const bool chat = kind_ == Kind::chat;
  w.begin_object().field("id", id_).field("object", !chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion");
  w.field("created", created_).field("model", model_).key("choices").begin_array();
}

std::string Answer::chunk(const Delta& d) {
  Choice& c = choices_[static_cast<size_t>(d.choice)];
  JsonWriter w;
  head(w, true);
  w.begin_object().field("index", d.choice);
  if (kind_ == Kind::chat) {
    w.key("delta").begin_object();
    if (!std::exchange(c.role_sent, true)) w.field("role", "assistant");
    if (!d.reasoning.empty()) w.field("reasoning_content", d.reasoning);
    if (!d.content.empty()) w.field("content", d.content);
    w.end_object();
    if (logprobs_ >= 0) write_chat_logprobs(w, d.tokens, tokenizer_);
    else w.key("logprobs").null();
  } else {
    w.field("text", d.content);
    if (logprobs_ >= 0) write_text_logprobs(w, d.tokens, tokenizer_, logprobs_, &c.text_offset);
    else w.key("logprobs").null();
  }
  write_finish(w, d.finish);
  w.end_object().end_array();
  if (include_usage_) w.key("usage").null();
  return w.end_object().take();
}

std::string Answer::usage_chunk(const Usage& usage) const {
  JsonWriter w;
  head(w, true);
  w.end_array();
  write_usage(w, usage);
  return w.end_object().take();
}

void Answer::add(Delta d) {
  Choice& c = choices_[static_cast<size_t>(d.choice)];
  c.reasoning += d.reasoning;
  c.content += d.content;
  if (logprobs_ >= 0) c.tokens.insert(c.tokens.end(), std::make_move_iterator(d.tokens.begin()), std::make_move_iterator(d.tokens.end()));
  if (d.finish != FinishReason::none) c.finish = d.finish;
}

std::string Answer::whole(const Usage& usage) const {
  JsonWriter w;
  head(w, false);
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& c = choices_[i];
    w.begin_object().field("index", i);
    if (kind_ == Kind::chat) {
      w.key("message").begin_object().field("role", "assistant").field("content", c.content);
      if (!c.reasoning.empty()) w.field("reasoning_content", c.reasoning);
      w.key("refusal").null().end_object();
      if (logprobs_ >= 0) write_chat_logprobs(w, c.tokens, tokenizer_);
      else w.key("logprobs").null();
    } else {
      int64_t offset = 0;
      w.field("text", c.content);
      if (logprobs_ >= 0) write_text_logprobs(w, c.tokens, tokenizer_, logprobs_, &offset);
      else w.key("logprobs").null();
    }
    write_finish(w, c.finish);
    w.end_object();
  }
  w.end_array();
  write_usage(w, usage);
  return w.end_object().take();
}

}  // namespace winnow::server
