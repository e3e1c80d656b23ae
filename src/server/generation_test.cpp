#include "server/generation.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "server/openai.h"
#include "server/sse.h"

namespace winnow::server {
namespace {

namespace json = boost::json;
using engine::FinishReason;

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

  Request request(Kind kind, bool logprobs) {
    Request r;
    r.kind = kind;
    r.prompts = {std::string("x")};
    if (logprobs) r.sampling.logprobs = 1;
    return r;
  }
  Answer answer(const Request& r) { return Answer(r, tokenizer_, "tiny", "id", 7); }

  int64_t tokens_ = 0;
};

TEST_F(GenerationTest, DeltasSpellTheAnswer) {
  const auto all = deltas("I think 語</think>So 😀 it is.", FinishReason::stop, {.split_reasoning = true, .starts_in_reasoning = true});
  std::string reasoning, content;
  for (const Delta& d : all) {
    reasoning += d.reasoning;
    content += d.content;
  }
  EXPECT_EQ(reasoning, "I think 語");
  EXPECT_EQ(content, "So 😀 it is.");
  EXPECT_EQ(all.back().finish, FinishReason::stop);
  EXPECT_EQ(all.back().content, "");  // the stop token has no text
  EXPECT_EQ(tokens_, static_cast<int64_t>(all.size()));
}

TEST_F(GenerationTest, LengthFlushesWhatWasHeldBack) {
  const auto all = deltas("one two th", FinishReason::length, {.stop = {"three"}});
  std::string content;
  for (const Delta& d : all) content += d.content;
  EXPECT_EQ(content, "one two th");
  EXPECT_EQ(all.back().finish, FinishReason::length);
}

TEST_F(GenerationTest, StopStringEndsAtItsToken) {
  const auto all = deltas("one two three four five", FinishReason::length, {.stop = {"ee f"}});
  std::string content;
  for (const Delta& d : all) content += d.content;
  EXPECT_EQ(content, "one two thr");
  EXPECT_EQ(all.back().finish, FinishReason::stop);
}

TEST_F(GenerationTest, StreamAndWholeSayTheSame) {
  for (const Kind kind : {Kind::chat, Kind::completion}) {
    const Request r = request(kind, true);
    Answer stream = answer(r), whole = answer(r);
    std::string content, reasoning;
    json::array logprobs;
    std::string finish;
    for (const Delta& d :
         deltas("hm</think>yes \"quoted\"\n", FinishReason::stop, {.split_reasoning = kind == Kind::chat, .starts_in_reasoning = true})) {
      const json::value v = json::parse(stream.chunk(d));
      const json::object& c = v.at("choices").at(0).as_object();
      if (kind == Kind::chat) {
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
    if (kind == Kind::chat) {
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
  Answer a = answer(request(Kind::chat, false));
  EXPECT_NE(a.chunk({.content = "a"}).find("\"role\""), std::string::npos);
  EXPECT_EQ(a.chunk({.content = "b"}).find("\"role\""), std::string::npos);
}

TEST_F(GenerationTest, UsageSaysWhatWasCachedAndWhere) {
  Usage u{.prompt_tokens = 300, .completion_tokens = 4};
  u.cached = {.tokens = 256, .pages_in = {1, 2, 1}, .snapshot_in = cache::Tier::disk, .cut = cache::Cut::no_snapshot};
  u.preemptions = 2;
  u.queued_s = 0.5;
  const json::value v = json::parse(answer(request(Kind::chat, false)).whole(u)).at("usage");
  EXPECT_EQ(v.at("prompt_tokens_details").at("cached_tokens").as_int64(), 256);
  const json::value& w = v.at("winnow");
  EXPECT_EQ(w.at("cached").at("tokens").as_int64(), 256);
  EXPECT_EQ(w.at("cached").at("pages"), json::parse(R"({"device": 1, "host": 2, "disk": 1})"));
  EXPECT_EQ(w.at("cached").at("snapshot").as_string(), "disk");
  EXPECT_EQ(w.at("cached").at("cut").as_string(), "no_snapshot");
  EXPECT_EQ(w.at("preemptions").as_int64(), 2);
  EXPECT_EQ(w.at("queued_s").as_double(), 0.5);
  EXPECT_TRUE(w.as_object().contains("prefill_s") && w.as_object().contains("decode_s"));
  EXPECT_EQ(json::parse(answer(request(Kind::chat, true)).usage_chunk(u)).at("usage"), v);
}

TEST_F(GenerationTest, NobodyLearnsThatAnotherSaltHasItsText) {
  for (int i = 0; i < cache::kCuts; ++i) {
    Usage u;
    u.cached.cut = static_cast<cache::Cut>(i);
    const std::string text = answer(request(Kind::chat, false)).whole(u);
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

TEST(Errors, HaveOpenAisShape) {
  const json::value v = json::parse(error_json({400, "n: \"bad\"", "n", ""}));
  EXPECT_EQ(v.at("error").at("message").as_string(), "n: \"bad\"");
  EXPECT_EQ(v.at("error").at("type").as_string(), "invalid_request_error");
  EXPECT_EQ(v.at("error").at("param").as_string(), "n");
  EXPECT_TRUE(v.at("error").at("code").is_null());
  EXPECT_EQ(json::parse(error_json({503, "x", "", "c"})).at("error").at("type").as_string(), "server_error");
}

TEST(Sse, FramesOneEvent) {
  EXPECT_EQ(sse_event("{}"), "data: {}\n\n");
  EXPECT_TRUE(kSsePing.starts_with(":"));
}

}  // namespace
}  // namespace winnow::server
