// OpenAI's JSON of /v1/responses: events and whole responses. A block of the answer is an item of the output. Reasoning is
// shown in clear, as `reasoning_text` of a reasoning item; there are no summaries. The events of a response are numbered from 0.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer.h"
#include "server/response_store.h"

namespace winnow::server {

// Puts the messages of the response that the request continues before its own. `owner` stands before the ids of its store.
std::optional<Refusal> continue_previous(Request* request, ResponseStore& store, const std::string& owner, const Limits& limits);
std::string deleted_json(std::string_view id);
// A page of what a kept response was asked. The query, as names and values, has `limit`, `order` and `after`.
using Query = std::vector<std::pair<std::string, std::string>>;
std::variant<std::string, Refusal> input_items_json(const StoredResponse& response, const Query& query);
Refusal unknown_response(std::string_view id);

class ResponsesAnswer {
 public:
  ResponsesAnswer(const Request& request, const text::Tokenizer& tokenizer, std::string model, const std::string& id, int64_t created);
  std::string id() const { return "resp_" + id_; }
  bool stored() const { return fields_.store; }
  bool background() const { return fields_.background; }

  std::string head();
  std::string begin(const Usage&) const { return {}; }
  void add(const Delta& delta) { take(delta); }
  std::string events(const Delta& delta);
  std::string end(const Usage& usage);
  std::string whole(const Usage& usage) const { return json(status(), &usage); }
  std::string failed(const Refusal& why);  // a whole answer tells of it too
  std::string error(const Refusal& why) const;
  void cancelled() { was_cancelled_ = true; }  // by the client's wish: it ends as it is

  std::string json(std::string_view status, const Usage* usage) const;
  std::string_view status() const;
  // For the store: as it is now, or as it ended.
  StoredResponse record(const Usage* usage) const;

 private:
  std::vector<Change> take(const Delta& delta);
  std::string event(std::string_view name, auto write);
  void write_tokens(JsonWriter& w, const std::vector<ops::Sampled>& tokens) const;
  std::string opened(const Block& block, size_t index);
  std::string grew(const Block& block, const Change& change);
  std::string closed(const Block& block, size_t index);
  void write_item(JsonWriter& w, const Block& block, size_t index, bool done) const;
  void write_part(JsonWriter& w, const Block& block, size_t index, bool done) const;
  std::string item_id(const Block& block, size_t index) const;
  std::string call_id(size_t index) const;

  const std::string model_, id_;  // the id without the prefix
  const int64_t created_;
  ResponsesFields fields_;
  boost::json::array messages_;  // of the request, the instructions not among them
  const std::shared_ptr<const std::vector<std::pair<std::string, std::string>>> input_;
  const text::Tokenizer& tokenizer_;
  const int32_t logprobs_;
  const std::optional<int64_t> max_tokens_;
  const float temperature_, top_p_;
  const bool parallel_calls_;
  ChoiceAnswer answer_;
  int64_t events_ = 0;
  bool was_cancelled_ = false, begun_ = false;
  std::optional<Refusal> why_failed_;
  // Tokens that the text of a block is made of, by block; of text that does not show yet, the newest.
  std::vector<std::vector<ops::Sampled>> text_tokens_;
  std::vector<ops::Sampled> hidden_;
};

}  // namespace winnow::server
