#include "server/answer.h"

#include <boost/json.hpp>

#include "base/json_writer.h"

namespace winnow::server {
namespace {

void write_token(JsonWriter& w, int32_t id, float logprob, const text::Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.bytes(id);
  w.begin_object().field("token", bytes).field("logprob", logprob).key("bytes").begin_array();
  for (char c : bytes) w.value(static_cast<int>(static_cast<unsigned char>(c)));
  w.end_array();
}

}  // namespace

void ChoiceAnswer::open(Block block, std::vector<Change>* changes) {
  close(changes);
  blocks_.push_back(std::move(block));
  open_ = true;
  changes->push_back({Change::What::opened, blocks_.size() - 1});
}

void ChoiceAnswer::close(std::vector<Change>* changes) {
  if (!std::exchange(open_, false)) return;
  changes->push_back({Change::What::closed, blocks_.size() - 1});
}

std::vector<Change> ChoiceAnswer::add(const Delta& delta) {
  using Part = text::AnswerPart::Kind;
  std::vector<Change> changes;
  const auto grow = [&](Block::Kind kind, const std::string& text) {
    if (!open_ || blocks_.back().kind != kind) open({.kind = kind, .text = {}}, &changes);
    blocks_.back().text += text;
    changes.push_back({Change::What::grew, blocks_.size() - 1, text});
  };
  for (const text::AnswerPart& p : delta.parts) {
    switch (p.kind) {
      case Part::reasoning: grow(Block::Kind::reasoning, p.text); break;
      case Part::content: grow(Block::Kind::text, p.text); break;
      case Part::call: open({.kind = Block::Kind::call, .text = {}, .name = p.text}, &changes); break;
      case Part::arguments: grow(Block::Kind::call, p.text); break;
      case Part::call_end:
        blocks_.back().whole = true;
        close(&changes);
        break;
    }
  }
  tokens_.insert(tokens_.end(), delta.tokens.begin(), delta.tokens.end());
  if (delta.finish != engine::FinishReason::none) {
    finish_ = delta.finish;
    stop_string_ = delta.stop_string;
    close(&changes);
  }
  return changes;
}

std::string ChoiceAnswer::text_of(Block::Kind kind) const {
  std::string all;
  for (const Block& b : blocks_)
    if (b.kind == kind) all += b.text;
  return all;
}

bool ChoiceAnswer::ends_with_calls() const {
  if (finish_ != engine::FinishReason::stop || !stop_string_.empty()) return false;
  for (const Block& b : blocks_)
    if (b.kind == Block::Kind::call) return true;
  return false;
}

std::string arguments_object(const Block& call) {
  const std::string& text = call.text;
  if (call.whole) return text;
  std::vector<size_t> ends;  // of whole arguments
  bool in_string = false;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') ++i;
    else if (c == '"') in_string = !in_string;
    else if (in_string) continue;
    else if (c == '{' || c == '[') ++depth;
    else if (c == '}' || c == ']') --depth;
    else if (c == ',' && depth == 1) ends.push_back(i);
  }
  const auto is_object = [](const std::string& s) {
    boost::json::error_code bad;
    boost::json::parse(s, bad);
    return !bad;
  };
  if (is_object(text)) return text;
  if (is_object(text + "}")) return text + "}";
  return ends.empty() ? "{}" : text.substr(0, ends.back()) + "}";
}

void write_logprobs(JsonWriter& w, const std::vector<ops::Sampled>& tokens, const text::Tokenizer& tokenizer) {
  w.begin_array();
  for (const ops::Sampled& t : tokens) {
    write_token(w, t.token, t.logprob, tokenizer);
    w.key("top_logprobs").begin_array();
    for (const auto& [id, logprob] : t.top) {
      write_token(w, id, logprob, tokenizer);
      w.end_object();
    }
    w.end_array().end_object();
  }
  w.end_array();
}

std::string_view shown(cache::Cut cut) { return cache::name_of(cut == cache::Cut::different_salt ? cache::Cut::no_page : cut); }

void write_winnow(JsonWriter& w, const Usage& u) {
  w.key("winnow").begin_object().key("cached").begin_object().field("tokens", u.cached.tokens).key("pages").begin_object();
  for (size_t tier = 0; tier < u.cached.pages_in.size(); ++tier) w.field(cache::name_of(static_cast<cache::Tier>(tier)), u.cached.pages_in[tier]);
  w.end_object().key("snapshot");
  if (u.cached.tokens > 0) w.value(cache::name_of(u.cached.snapshot_in));
  else w.null();
  w.field("cut", shown(u.cached.cut)).end_object();
  w.field("preemptions", u.preemptions).field("queued_s", u.queued_s).field("prefill_s", u.prefill_s).field("decode_s", u.decode_s).end_object();
}

}  // namespace winnow::server
