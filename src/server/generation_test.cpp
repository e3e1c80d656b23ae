#include "server/generation.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "server/api_answer.h"
#include "server/sse.h"

namespace winnow::server {
namespace {

namespace json = boost::json;
using engine::FinishReason;
using Part = text::AnswerPart::Kind;

// The data of the first event.
json::value first_of(std::string_view events) {
  const size_t at = events.find("data: ") + 6;
  return json::parse(events.substr(at, events.find('\n', at) - at));
}

class GenerationTest : public testing::Test {
 protected:
  text::Tokenizer tokenizer_ = text::Tokenizer::load(WINNOW_SOURCE_DIR "/models/winnow-tiny/tokenizer.json").or_throw();

  // The deltas of an answer whose tokens spell `text`, one a token, ended by `finish`.
  std::vector<Delta> deltas(std::string_view text, FinishReason finish, text::AnswerOptions options, int64_t min_tokens = 0) {
    ChoiceText choice(0, tokenizer_, std::move(options), min_tokens);
    std::vector<Delta> out;
    std::vector<int32_t> ids = tokenizer_.encode(text, true);
    if (finish == FinishReason::stop) ids.push_back(tokenizer_.find("<|user|>"));
    for (size_t i = 0; i < ids.size() && !choice.stopped(); ++i) {
      engine::Event e;
      e.sampled.token = ids[i];
      e.sampled.logprob = -0.5f;
      e.sampled.top = {{ids[i], -0.5f}};
      if (i + 1 == ids.size()) e.finish = finish;
      out.emplace_back();
      choice.append(e, &out.back());
    }
    tokens_ = choice.tokens();
    return out;
  }

  Request request(Api api, bool logprobs) {
    Request r;
    r.api = api;
    r.prompts = {std::string("x")};
    if (logprobs) r.sampling.logprobs = 1;
    return r;
  }
  OpenAiAnswer answer(const Request& r) { return OpenAiAnswer(r, tokenizer_, "tiny", "id", 7); }

  int64_t tokens_ = 0;
};

TEST_F(GenerationTest, DeltasSpellTheAnswer) {
  const auto all = deltas("I think 語</think>So 😀 it is.", FinishReason::stop, {.split_reasoning = true, .starts_in_reasoning = true});
  std::string reasoning, content;
  for (const Delta& d : all) {
    reasoning += text_of(d.parts, Part::reasoning);
    content += text_of(d.parts, Part::content);
  }
  EXPECT_EQ(reasoning, "I think 語");
  EXPECT_EQ(content, "So 😀 it is.");
  EXPECT_EQ(all.back().finish, FinishReason::stop);
  EXPECT_TRUE(all.back().parts.empty());  // the stop token has no text
  EXPECT_EQ(tokens_, static_cast<int64_t>(all.size()));
}

TEST_F(GenerationTest, LengthFlushesWhatWasHeldBack) {
  const auto all = deltas("one two th", FinishReason::length, {.stop = {"three"}});
  std::string content;
  for (const Delta& d : all) content += text_of(d.parts, Part::content);
  EXPECT_EQ(content, "one two th");
  EXPECT_EQ(all.back().finish, FinishReason::length);
}

TEST_F(GenerationTest, StopStringEndsAtItsToken) {
  const auto all = deltas("one two three four five", FinishReason::length, {.stop = {"ee f"}});
  std::string content;
  for (const Delta& d : all) content += text_of(d.parts, Part::content);
  EXPECT_EQ(content, "one two thr");
  EXPECT_EQ(all.back().finish, FinishReason::stop);
}

TEST_F(GenerationTest, StreamAndWholeSayTheSame) {
  for (const Api api : {Api::chat, Api::completion}) {
    const Request r = request(api, true);
    OpenAiAnswer stream = answer(r), whole = answer(r);
    std::string content, reasoning;
    json::array logprobs;
    std::string finish;
    for (const Delta& d :
         deltas("hm</think>yes \"quoted\"\n", FinishReason::stop, {.split_reasoning = api == Api::chat, .starts_in_reasoning = true})) {
      const json::value v = first_of(stream.events(d));
      const json::object& c = v.at("choices").at(0).as_object();
      if (api == Api::chat) {
        const json::object& delta = c.at("delta").as_object();
        if (delta.contains("content")) content += delta.at("content").as_string();
        if (delta.contains("reasoning_content")) reasoning += delta.at("reasoning_content").as_string();
        for (const json::value& t : c.at("logprobs").at("content").as_array()) logprobs.push_back(t);
      } else {
        content += c.at("text").as_string();
        for (const json::value& t : c.at("logprobs").at("tokens").as_array()) logprobs.push_back(t);
      }
      if (!c.at("finish_reason").is_null()) finish = c.at("finish_reason").as_string();
      whole.add(d);
    }
    const json::value v = json::parse(whole.whole({.prompt_tokens = 3, .completion_tokens = 4}));
    const json::value& c = v.at("choices").at(0);
    EXPECT_EQ(finish, "stop");
    EXPECT_EQ(c.at("finish_reason").as_string(), "stop");
    EXPECT_EQ(v.at("usage").at("total_tokens").as_int64(), 7);
    EXPECT_EQ(v.at("created").as_int64(), 7);
    if (api == Api::chat) {
      EXPECT_EQ(c.at("message").at("content").as_string(), content);
      EXPECT_EQ(c.at("message").at("reasoning_content").as_string(), reasoning);
      EXPECT_EQ(c.at("logprobs").at("content").as_array(), logprobs);
    } else {
      EXPECT_EQ(c.at("text").as_string(), content);
      EXPECT_EQ(c.at("logprobs").at("tokens").as_array(), logprobs);
    }
  }
}

TEST_F(GenerationTest, OnlyTheFirstChunkHasTheRole) {
  OpenAiAnswer a = answer(request(Api::chat, false));
  EXPECT_NE(a.events({.parts = {{Part::content, "a"}}}).find("\"role\""), std::string::npos);
  EXPECT_EQ(a.events({.parts = {{Part::content, "b"}}}).find("\"role\""), std::string::npos);
}

TEST_F(GenerationTest, UsageSaysWhatWasCachedAndWhere) {
  Usage u{.prompt_tokens = 300, .completion_tokens = 4};
  u.cached = {.tokens = 256, .pages_in = {1, 2, 1}, .snapshot_in = cache::Tier::disk, .cut = cache::Cut::no_snapshot};
  u.preemptions = 2;
  u.queued_s = 0.5;
  const json::value v = json::parse(answer(request(Api::chat, false)).whole(u)).at("usage");
  Request usage_wanted = request(Api::chat, true);
  usage_wanted.include_usage = true;
  EXPECT_EQ(v.at("prompt_tokens_details").at("cached_tokens").as_int64(), 256);
  const json::value& w = v.at("winnow");
  EXPECT_EQ(w.at("cached").at("tokens").as_int64(), 256);
  EXPECT_EQ(w.at("cached").at("pages"), json::parse(R"({"device": 1, "host": 2, "disk": 1})"));
  EXPECT_EQ(w.at("cached").at("snapshot").as_string(), "disk");
  EXPECT_EQ(w.at("cached").at("cut").as_string(), "no_snapshot");
  EXPECT_EQ(w.at("preemptions").as_int64(), 2);
  EXPECT_EQ(w.at("queued_s").as_double(), 0.5);
  EXPECT_TRUE(w.as_object().contains("prefill_s") && w.as_object().contains("decode_s"));
  EXPECT_EQ(first_of(answer(usage_wanted).end(u)).at("usage"), v);
}

TEST_F(GenerationTest, NobodyLearnsThatAnotherSaltHasItsText) {
  for (int i = 0; i < cache::kCuts; ++i) {
    Usage u;
    u.cached.cut = static_cast<cache::Cut>(i);
    const std::string text = answer(request(Api::chat, false)).whole(u);
    EXPECT_EQ(text.find("salt"), std::string::npos) << text;
    const json::value cached = json::parse(text).at("usage").at("winnow").at("cached");
    EXPECT_TRUE(cached.at("snapshot").is_null());
    if (u.cached.cut == cache::Cut::different_salt) {
      EXPECT_EQ(cached.at("cut").as_string(), "no_page");
    } else {
      EXPECT_EQ(cached.at("cut").as_string(), cache::name_of(u.cached.cut));
    }
  }
}

TEST_F(GenerationTest, StopStringsAreNamed) {
  EXPECT_EQ(deltas("one two three", FinishReason::length, {.stop = {"x", "two"}}).back().stop_string, "two");
  EXPECT_EQ(deltas("one two three", FinishReason::stop, {.stop = {"x"}}).back().stop_string, "");
}

TEST(Errors, HaveOpenAisShape) {
  const json::value v = json::parse(openai_error({400, "n: \"bad\"", "n", ""}));
  EXPECT_EQ(v.at("error").at("message").as_string(), "n: \"bad\"");
  EXPECT_EQ(v.at("error").at("type").as_string(), "invalid_request_error");
  EXPECT_EQ(v.at("error").at("param").as_string(), "n");
  EXPECT_TRUE(v.at("error").at("code").is_null());
  EXPECT_EQ(json::parse(openai_error({503, "x", "", "c"})).at("error").at("type").as_string(), "server_error");
}

TEST(Errors, HaveAnthropicsShape) {
  const auto type = [](int status) { return json::parse(anthropic_error({status, "n: \"bad\"", "n", ""})).at("error").at("type").as_string(); };
  EXPECT_EQ(json::parse(anthropic_error({400, "n: \"bad\"", "n", ""})),
            json::parse(R"({"type": "error", "error": {"type": "invalid_request_error", "message": "n: \"bad\""}})"));
  EXPECT_EQ(type(401), "authentication_error");
  EXPECT_EQ(type(404), "not_found_error");
  EXPECT_EQ(type(405), "invalid_request_error");
  EXPECT_EQ(type(413), "request_too_large");
  EXPECT_EQ(type(429), "rate_limit_error");
  EXPECT_EQ(type(500), "api_error");
  EXPECT_EQ(type(503), "overloaded_error");
  EXPECT_EQ(type(504), "timeout_error");
  EXPECT_TRUE(error_json("/v1/messages/count_tokens", {400, "x", "", ""}).starts_with(R"({"type":"error")"));
  EXPECT_TRUE(error_json("/v1/models", {400, "x", "", ""}).starts_with(R"({"error")"));
}

TEST(Sse, FramesOneEvent) {
  EXPECT_EQ(sse_event("done", "{}"), "event: done\ndata: {}\n\n");
  EXPECT_EQ(sse_event("{}"), "data: {}\n\n");
  EXPECT_TRUE(kSsePing.starts_with(":"));
}

}  // namespace
}  // namespace winnow::server
