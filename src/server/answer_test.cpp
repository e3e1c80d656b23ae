#include "server/answer.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

#include "server/api_answer.h"

namespace winnow::server {
namespace {

namespace json = boost::json;
using engine::FinishReason;
using Part = text::AnswerPart::Kind;
using What = Change::What;

// An answer with everything, cut into deltas at random.
const text::AnswerParts kAll = {{Part::reasoning, "I should look 語."},
                                {Part::content, "Let me see. "},
                                {Part::call, "get_weather"},
                                {Part::arguments, R"({"city": "Paris"})"},
                                {Part::call_end, ""},
                                {Part::call, "get_time"},
                                {Part::arguments, "{}"},
                                {Part::call_end, ""},
                                {Part::content, "And\n\"done\"."}};

std::vector<Delta> cut(const text::AnswerParts& parts, FinishReason finish, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Delta> deltas(1);
  for (const text::AnswerPart& p : parts) {
    const bool whole = p.kind == Part::call || p.kind == Part::call_end;
    for (size_t i = 0; i < p.text.size() || (whole && i == 0);) {
      size_t n = whole ? std::max<size_t>(p.text.size(), 1) : std::min<size_t>(1 + random() % 5, p.text.size() - i);
      while (i + n < p.text.size() && (static_cast<unsigned char>(p.text[i + n]) & 0xc0) == 0x80) ++n;
      text::push(&deltas.back().parts, p.kind, p.text.substr(std::min(i, p.text.size()), n));
      i += n;
      if (random() % 2) deltas.emplace_back();
    }
  }
  deltas.back().finish = finish;
  return deltas;
}

struct Event {
  std::string name;
  json::object data;
};

std::vector<Event> events_of(std::string_view text) {
  std::vector<Event> all;
  while (!text.empty()) {
    const size_t end = text.find("\n\n");
    EXPECT_NE(end, text.npos);
    std::string_view one = text.substr(0, end);
    text.remove_prefix(end + 2);
    Event e;
    if (one.starts_with("event: ")) {
      e.name = one.substr(7, one.find('\n') - 7);
      one.remove_prefix(one.find('\n') + 1);
    }
    EXPECT_TRUE(one.starts_with("data: "));
    if (one == "data: [DONE]") continue;
    e.data = json::parse(one.substr(6)).as_object();
    all.push_back(std::move(e));
  }
  return all;
}

template <class A>
std::vector<Event> streamed(A answer, const std::vector<Delta>& deltas, const Usage& usage) {
  std::string text = answer.head() + answer.begin(usage);
  for (const Delta& d : deltas) text += answer.events(d);
  return events_of(text + answer.end(usage));
}

template <class A>
json::object whole(A answer, const std::vector<Delta>& deltas, const Usage& usage) {
  for (const Delta& d : deltas) answer.add(d);
  return json::parse(answer.whole(usage)).as_object();
}

class AnswerTest : public testing::Test {
 protected:
  text::Tokenizer tokenizer_ = text::Tokenizer::load(WINNOW_SOURCE_DIR "/models/winnow-tiny/tokenizer.json").or_throw();
  Usage usage_ = [] {
    Usage u{.prompt_tokens = 300, .completion_tokens = 40, .reasoning_tokens = 9};
    u.cached.tokens = 256;
    return u;
  }();
  static Request request(Api api) {
    Request r;
    r.api = api;
    r.context["messages"] = json::array{{{"role", "user"}, {"content", "hi"}}};
    return r;
  }
};

TEST_F(AnswerTest, BlocksAreTheSameHoweverTheyWereCut) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    ChoiceAnswer a;
    std::vector<std::string> grown;
    int open = 0;
    for (const Delta& d : cut(kAll, FinishReason::stop, seed)) {
      for (const Change& c : a.add(d)) {
        if (c.what == What::opened) {
          EXPECT_EQ(c.block, grown.size());
          EXPECT_EQ(open++, 0);
          grown.emplace_back();
        }
        ASSERT_EQ(c.block + 1, grown.size());
        if (c.what == What::grew) grown[c.block] += c.text;
        if (c.what == What::closed) --open;
      }
    }
    EXPECT_EQ(open, 0);
    ASSERT_EQ(a.blocks().size(), 5u);
    for (size_t i = 0; i < grown.size(); ++i) EXPECT_EQ(grown[i], a.blocks()[i].text);
    EXPECT_EQ(a.blocks()[2].name, "get_weather");
    EXPECT_EQ(a.blocks()[2].text, R"({"city": "Paris"})");
    EXPECT_TRUE(a.blocks()[2].whole && a.blocks()[3].whole);
    EXPECT_EQ(a.text_of(Block::Kind::text), "Let me see. And\n\"done\".");
    EXPECT_TRUE(a.ends_with_calls());
  }
}

TEST_F(AnswerTest, OnlyAnAnswerThatStoppedWaitsForResults) {
  const auto ends = [&](FinishReason finish, const std::string& stop) {
    ChoiceAnswer a;
    std::vector<Delta> deltas = cut(kAll, finish, 1);
    deltas.back().stop_string = stop;
    for (const Delta& d : deltas) a.add(d);
    return a.ends_with_calls();
  };
  EXPECT_TRUE(ends(FinishReason::stop, ""));
  EXPECT_FALSE(ends(FinishReason::length, ""));
  EXPECT_FALSE(ends(FinishReason::stop, "done"));
  ChoiceAnswer none;
  none.add({.parts = {{Part::content, "x"}}, .finish = FinishReason::stop});
  EXPECT_FALSE(none.ends_with_calls());
}

TEST_F(AnswerTest, BrokenArgumentsBecomeTheWholeOnes) {
  const auto object = [](std::string text) { return arguments_object({.kind = Block::Kind::call, .text = std::move(text)}); };
  EXPECT_EQ(object(""), "{}");
  EXPECT_EQ(object("{"), "{}");
  EXPECT_EQ(object(R"({"a": "par)"), "{}");
  EXPECT_EQ(object(R"({"a": )"), "{}");
  EXPECT_EQ(object(R"({"a": 1, "b": "par, \"x)"), R"({"a": 1})");
  EXPECT_EQ(object(R"({"a": "x, y", "b": [1, 2], "c": )"), R"({"a": "x, y", "b": [1, 2]})");
  EXPECT_EQ(object(R"({"a": "}"  )"), R"({"a": "}"  })");
  EXPECT_EQ(object(R"({"a": 1})"), R"({"a": 1})");
}

TEST_F(AnswerTest, ChatStreamsWhatTheWholeSays) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<Delta> deltas = cut(kAll, FinishReason::stop, seed);
    const OpenAiAnswer answer(request(Api::chat), tokenizer_, "tiny", "i", 7);
    std::string content, reasoning, finish;
    std::vector<json::object> calls;
    for (const Event& e : streamed(answer, deltas, usage_)) {
      const json::object& c = e.data.at("choices").as_array().at(0).as_object();
      const json::object& d = c.at("delta").as_object();
      if (d.contains("content")) content += d.at("content").as_string();
      if (d.contains("reasoning_content")) reasoning += d.at("reasoning_content").as_string();
      if (d.contains("tool_calls"))
        for (const json::value& v : d.at("tool_calls").as_array()) {
          const auto index = static_cast<size_t>(v.at("index").as_int64());
          if (v.as_object().contains("id")) {
            ASSERT_EQ(index, calls.size());
            calls.push_back({{"id", v.at("id")}, {"type", v.at("type")}, {"function", v.at("function")}});
          } else {
            json::string& text = calls.at(index).at("function").at("arguments").as_string();
            text += v.at("function").at("arguments").as_string();
          }
        }
      if (!c.at("finish_reason").is_null()) finish = c.at("finish_reason").as_string();
    }
    EXPECT_EQ(finish, "tool_calls");
    const json::object all = whole(answer, deltas, usage_);
    const json::value& m = all.at("choices").at(0).at("message");
    EXPECT_EQ(m.at("content").as_string(), content);
    EXPECT_EQ(m.at("reasoning_content").as_string(), reasoning);
    EXPECT_EQ(m.at("tool_calls"), json::value(json::array(calls.begin(), calls.end())));
    EXPECT_EQ(all.at("choices").at(0).at("finish_reason").as_string(), "tool_calls");
    EXPECT_NE(calls[0].at("id"), calls[1].at("id"));
  }
}

TEST_F(AnswerTest, CallsOfSeveralChoicesHaveIdsOfTheirOwn) {
  Request r = request(Api::chat);
  r.n = 2;
  OpenAiAnswer answer(r, tokenizer_, "tiny", "i", 7);
  for (int64_t choice : {0, 1}) answer.add({.choice = choice, .parts = {{Part::call, "f"}, {Part::call_end, ""}}, .finish = FinishReason::stop});
  const json::value v = json::parse(answer.whole(usage_));
  EXPECT_NE(v.at("choices").at(0).at("message").at("tool_calls").at(0).at("id"), v.at("choices").at(1).at("message").at("tool_calls").at(0).at("id"));
  EXPECT_TRUE(v.at("choices").at(0).at("message").at("content").is_null());
}

TEST_F(AnswerTest, MessagesStreamWhatTheWholeSays) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<Delta> deltas = cut(kAll, FinishReason::stop, seed);
    const AnthropicAnswer answer("tiny", "i");
    const std::vector<Event> events = streamed(answer, deltas, usage_);
    json::object message = events.front().data.at("message").as_object();
    EXPECT_EQ(events.front().name, "message_start");
    EXPECT_EQ(message.at("usage").at("input_tokens").as_int64(), 44);
    EXPECT_EQ(message.at("usage").at("cache_read_input_tokens").as_int64(), 256);
    std::vector<json::object> blocks;
    std::string input;
    for (const Event& e : events) {
      EXPECT_EQ(e.name, std::string_view(e.data.at("type").as_string()));
      if (e.name == "content_block_start") {
        ASSERT_EQ(static_cast<size_t>(e.data.at("index").as_int64()), blocks.size());
        blocks.push_back(e.data.at("content_block").as_object());
        input.clear();
      } else if (e.name == "content_block_delta") {
        for (const auto& [key, value] : e.data.at("delta").as_object()) {
          if (key == "partial_json") input += value.as_string();
          else if (key != "type") blocks.back().at(key).as_string() += value.as_string();
        }
      } else if (e.name == "content_block_stop" && !input.empty()) {
        blocks.back()["input"] = json::parse(input);
      } else if (e.name == "message_delta") {
        for (const auto& [key, value] : e.data.at("delta").as_object()) message[key] = value;
        message["usage"] = e.data.at("usage");
      }
    }
    EXPECT_EQ(events.back().name, "message_stop");
    message["content"] = json::array(blocks.begin(), blocks.end());
    EXPECT_EQ(json::value(message), json::value(whole(answer, deltas, usage_)));
    EXPECT_EQ(message.at("stop_reason").as_string(), "tool_use");
    EXPECT_EQ(message.at("usage").at("output_tokens").as_int64(), 40);
  }
}

TEST_F(AnswerTest, MessagesSayWhyTheyStopped) {
  const auto reason = [&](FinishReason finish, const std::string& stop) {
    AnthropicAnswer a("tiny", "i");
    a.add({.parts = {{Part::content, "x"}}, .finish = finish, .stop_string = stop});
    const json::value v = json::parse(a.whole(usage_));
    return fmt::format("{} {}", std::string_view(v.at("stop_reason").as_string()), json::serialize(v.at("stop_sequence")));
  };
  EXPECT_EQ(reason(FinishReason::stop, ""), "end_turn null");
  EXPECT_EQ(reason(FinishReason::length, ""), "max_tokens null");
  EXPECT_EQ(reason(FinishReason::stop, "END"), "stop_sequence \"END\"");
}

TEST_F(AnswerTest, ResponsesStreamWhatTheWholeSays) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<Delta> deltas = cut(kAll, FinishReason::stop, seed);
    const ResponsesAnswer answer(request(Api::responses), tokenizer_, "tiny", "i", 7);
    const std::vector<Event> events = streamed(answer, deltas, usage_);
    json::array items;
    std::string text;
    for (size_t i = 0; i < events.size(); ++i) {
      const json::object& d = events[i].data;
      const std::string_view name = events[i].name;
      EXPECT_EQ(d.at("sequence_number").as_int64(), static_cast<int64_t>(i));
      EXPECT_EQ(name, std::string_view(d.at("type").as_string()));
      if (name == "response.output_item.added") text.clear();
      if (name.ends_with(".delta")) text += d.at("delta").as_string();
      if (name == "response.function_call_arguments.done") {
        EXPECT_EQ(text, std::string_view(d.at("arguments").as_string()));
      } else if (name.ends_with("text.done")) {
        EXPECT_EQ(text, std::string_view(d.at("text").as_string()));
      }
      if (name == "response.output_item.done") {
        EXPECT_EQ(static_cast<size_t>(d.at("output_index").as_int64()), items.size());
        items.push_back(d.at("item"));
      }
      if (!d.contains("item_id")) continue;
      EXPECT_TRUE(std::string_view(d.at("item_id").as_string()).ends_with(fmt::format("_{}", items.size()))) << name;
    }
    EXPECT_EQ(events[0].name, "response.created");
    EXPECT_EQ(events[1].name, "response.in_progress");
    EXPECT_EQ(events.back().name, "response.completed");
    EXPECT_EQ(events.back().data.at("response"), json::value(whole(answer, deltas, usage_)));
    const json::array& output = events.back().data.at("response").at("output").as_array();
    ASSERT_EQ(output.size(), items.size());
    for (size_t i = 0; i < items.size(); ++i) EXPECT_EQ(output[i], items[i]);
  }
}

TEST_F(AnswerTest, ResponsesSayHowTheyEnded) {
  ResponsesAnswer a(request(Api::responses), tokenizer_, "tiny", "i", 7);
  EXPECT_EQ(json::parse(a.record(nullptr).json).at("status").as_string(), "in_progress");
  EXPECT_TRUE(a.record(nullptr).messages.empty());
  a.add({.parts = {{Part::content, "x"}}, .finish = FinishReason::length});
  const json::value v = json::parse(a.whole(usage_));
  EXPECT_EQ(v.at("status").as_string(), "incomplete");
  EXPECT_EQ(v.at("incomplete_details").at("reason").as_string(), "max_output_tokens");
  EXPECT_EQ(v.at("output").at(0).at("status").as_string(), "incomplete");
  EXPECT_TRUE(events_of(a.end(usage_)).at(0).name == "response.incomplete");

  ResponsesAnswer failed(request(Api::responses), tokenizer_, "tiny", "i", 7);
  const Event e = events_of(failed.failed({500, "the engine is gone", "", ""})).at(0);
  EXPECT_EQ(e.name, "response.failed");
  EXPECT_EQ(e.data.at("response").at("error").at("message").as_string(), "the engine is gone");

  ResponsesAnswer cancelled(request(Api::responses), tokenizer_, "tiny", "i", 7);
  cancelled.cancelled();
  cancelled.add({.parts = {{Part::content, "x"}}, .finish = FinishReason::cancelled});
  EXPECT_EQ(json::parse(cancelled.whole(usage_)).at("status").as_string(), "cancelled");
}

TEST_F(AnswerTest, ResponsesContinueEachOther) {
  const Limits limits;
  ResponseStore store(limits);
  Request first = request(Api::responses);
  first.responses.instructions = true;
  first.context["messages"] = json::array{{{"role", "system"}, {"content", "be kind"}}, {{"role", "user"}, {"content", "hi"}}};
  ResponsesAnswer a(first, tokenizer_, "tiny", "1", 7);
  store.put(a.id(), a.record(nullptr));

  Request second = request(Api::responses);
  second.responses.previous_id = a.id();
  EXPECT_NE(continue_previous(&second, store, "", limits)->message.find("no answer"), std::string::npos);
  for (const Delta& d : cut(kAll, FinishReason::stop, 3)) a.add(d);
  store.put(a.id(), a.record(&usage_));
  second.responses.instructions = true;
  second.context["messages"] = json::array{{{"role", "system"}, {"content", "be brief"}}, {{"role", "user"}, {"content", "and?"}}};
  EXPECT_FALSE(continue_previous(&second, store, "", limits));
  const json::array& m = second.context.at("messages").as_array();
  ASSERT_EQ(m.size(), 4u);
  EXPECT_EQ(m[0].at("content").as_string(), "be brief");
  EXPECT_EQ(m[1].at("content").as_string(), "hi");
  EXPECT_EQ(m[2].at("reasoning_content").as_string(), "I should look 語.");
  EXPECT_EQ(m[2].at("content").as_string(), "Let me see. And\n\"done\".");
  EXPECT_EQ(m[2].at("tool_calls").at(0).at("function").at("arguments").at("city").as_string(), "Paris");
  EXPECT_EQ(m[2].at("tool_calls").at(0).at("id").as_string(), "call_1_2");
  EXPECT_EQ(m[3].at("content").as_string(), "and?");

  Limits few;
  few.messages = 3;
  EXPECT_TRUE(continue_previous(&second, store, "", few));
  second.responses.previous_id = "resp_other";
  EXPECT_EQ(continue_previous(&second, store, "", limits)->code, "previous_response_not_found");
}

}  // namespace
}  // namespace winnow::server
