#include "text/answer.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

namespace winnow::text {
namespace {

std::string through(const std::vector<std::string>& stop, const std::vector<std::string>& chunks, bool* found = nullptr) {
  StopStrings s(stop);
  std::string out;
  for (const std::string& c : chunks) out += s.append(c);
  if (!s.found()) out += s.flush();
  if (found) *found = s.found();
  return out;
}

TEST(StopStrings, HoldsBackAPossibleBeginning) {
  StopStrings s({"END"});
  EXPECT_EQ(s.append("abE"), "ab");
  EXPECT_EQ(s.append("N"), "");
  EXPECT_EQ(s.append("x"), "ENx");
  EXPECT_EQ(s.append("EEN"), "E");
  EXPECT_EQ(s.append("D tail"), "");
  EXPECT_TRUE(s.found());
  EXPECT_EQ(s.append("more"), "");
}

TEST(StopStrings, FirstCompletedWins) {
  EXPECT_EQ(through({"abcde", "bc"}, {"xabcdef"}), "xa");
  EXPECT_EQ(through({"bc", "abc"}, {"xabcdef"}), "x");
  EXPECT_EQ(through({"\n\n"}, {"a\n", "b\n", "\nc"}), "a\nb");
  EXPECT_EQ(through({"語"}, {"日本", "\xe8\xaa", "\x9e!"}), "日本");
}

TEST(StopStrings, CutsDoNotMatter) {
  std::mt19937 random(3);
  const auto word = [&](int longest) {
    std::string s(1 + random() % longest, 'a');
    for (char& c : s) c = static_cast<char>('a' + random() % 2);
    return s;
  };
  int stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stop;
    for (uint32_t i = 0; i <= random() % 3; ++i) stop.push_back(word(6));
    const std::string text = word(24);
    std::vector<std::string> bytes, cuts;
    for (char c : text) bytes.emplace_back(1, c);
    for (size_t i = 0; i < text.size();) {
      const size_t n = 1 + random() % 5;
      cuts.push_back(text.substr(i, n));
      i += n;
    }
    bool found = false;
    const std::string once = through(stop, {text}, &found);
    stopped += found;
    EXPECT_EQ(through(stop, bytes), once) << text;
    EXPECT_EQ(through(stop, cuts), once) << text;
    EXPECT_EQ(text.substr(0, once.size()), once);
    for (const std::string& s : stop) EXPECT_EQ(once.find(s), std::string::npos);
  }
  EXPECT_GT(stopped, 500);
}

class AnswerReaderTest : public testing::Test {
 protected:
  Tokenizer tokenizer_ = Tokenizer::load(WINNOW_SOURCE_DIR "/models/winnow-tiny/tokenizer.json").or_throw();

  struct Texts {
    std::string reasoning, content;
  };
  AnswerParts parts(const std::string& text, AnswerOptions options) {
    AnswerReader reader(tokenizer_, std::move(options));
    AnswerParts all;
    const auto add = [&](const AnswerParts& more) {
      for (const AnswerPart& p : more) push(&all, p.kind, p.text);
    };
    for (Token t : tokenizer_.encode(text, true)) add(reader.append(t));
    add(reader.finish());
    return all;
  }
  Texts read(const std::string& text, AnswerOptions options) {
    const AnswerParts all = parts(text, std::move(options));
    return {text_of(all, AnswerPart::Kind::reasoning), text_of(all, AnswerPart::Kind::content)};
  }
};

TEST_F(AnswerReaderTest, SplitsReasoning) {
  const AnswerOptions chat{.split_reasoning = true, .starts_in_reasoning = true};
  Texts a = read("thought 語</think>answer 😀", chat);
  EXPECT_EQ(a.reasoning, "thought 語");
  EXPECT_EQ(a.content, "answer 😀");
  a = read("only a thought", chat);
  EXPECT_EQ(a.reasoning, "only a thought");
  EXPECT_EQ(a.content, "");
  a = read("a<think>b</think>c</think>d<think>e</think>f", chat);
  EXPECT_EQ(a.reasoning, "abe");
  EXPECT_EQ(a.content, "cdf");
  a = read("so<tool_call>f</tool_call>", chat);
  EXPECT_EQ(a.reasoning, "so");
  EXPECT_EQ(a.content, "<tool_call>f</tool_call>");
  a = read("x</think>y", {});
  EXPECT_EQ(a.reasoning, "");
  EXPECT_EQ(a.content, "x</think>y");
}

TEST(OpensReasoning, OnlyWhatTheTemplateWroteCounts) {
  EXPECT_TRUE(opens_reasoning(std::vector<Piece>{{"hi", false}, {"<|assistant|><think>", true}, {"", false}}));
  EXPECT_FALSE(opens_reasoning(std::vector<Piece>{{"<|assistant|>", true}, {"<think>", false}}));
  EXPECT_FALSE(opens_reasoning(std::vector<Piece>{{"<think>x", true}}));
  EXPECT_FALSE(opens_reasoning({}));
}

TEST_F(AnswerReaderTest, StopStringsConcernContentOnly) {
  AnswerOptions chat{.split_reasoning = true, .starts_in_reasoning = true, .stop = {"stone", "nd"}};
  Texts a = read("the stone and</think>a stone here", chat);
  EXPECT_EQ(a.reasoning, "the stone and");
  EXPECT_EQ(a.content, "a ");
  a = read("x</think>a sto", chat);
  EXPECT_EQ(a.content, "a sto");
}

TEST_F(AnswerReaderTest, StopStringsWaitForMinTokens) {
  AnswerReader reader(tokenizer_, {.stop = {"1"}});
  std::string text;
  const std::vector<Token> ids = tokenizer_.encode("1 1 1 2", true);
  for (size_t i = 0; i < ids.size(); ++i) text += text_of(reader.append(ids[i], i + 1 >= ids.size() - 2), AnswerPart::Kind::content);
  EXPECT_TRUE(reader.stopped());
  EXPECT_EQ(text.find('2'), std::string::npos);
  EXPECT_NE(text.find('1'), std::string::npos);
}

std::shared_ptr<const ToolTypes> tools(std::string_view json) { return std::make_shared<const ToolTypes>(boost::json::parse(json).as_array()); }

TEST_F(AnswerReaderTest, CallsArePartsInTheirOrder) {
  using Kind = AnswerPart::Kind;
  const AnswerOptions chat{.split_reasoning = true, .starts_in_reasoning = true, .stop = {"Paris"}, .tools = tools("[]")};
  EXPECT_EQ(parts("hm</think>\n\nLet me look.\n<tool_call>f<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>\n"
                  "<tool_call>g</tool_call>\n",
                  chat),
            (AnswerParts{{Kind::reasoning, "hm"},
                         {Kind::content, "\n\nLet me look."},
                         {Kind::call, "f"},
                         {Kind::arguments, R"({"city": "Paris"})"},
                         {Kind::call_end, ""},
                         {Kind::call, "g"},
                         {Kind::arguments, "{}"},
                         {Kind::call_end, ""}}));
  EXPECT_EQ(parts("so<tool_call>f</tool_call>x ", chat),
            (AnswerParts{{Kind::reasoning, "so"}, {Kind::call, "f"}, {Kind::arguments, "{}"}, {Kind::call_end, ""}, {Kind::content, "x"}}));
  EXPECT_EQ(read("a</think>b \n ", chat).content, "b \n ");
  EXPECT_EQ(read("a</think>b \n<tool_call>f</tool_call>c", chat).content, "bc");  // the line's end belonged to the call
  EXPECT_EQ(read("a</think>b Paris", chat).content, "b ");
}

TEST_F(AnswerReaderTest, OneCallEndsTheAnswer) {
  AnswerReader reader(tokenizer_, {.split_reasoning = true, .tools = tools("[]"), .one_call = true});
  AnswerParts all;
  for (Token t : tokenizer_.encode("<tool_call>f</tool_call><tool_call>g</tool_call>", true))
    for (const AnswerPart& p : reader.append(t)) push(&all, p.kind, p.text);
  EXPECT_TRUE(reader.stopped());
  EXPECT_EQ(reader.stop_string(), "");
  EXPECT_EQ(all.size(), 3u);
  EXPECT_TRUE(reader.finish().empty());
}

TEST_F(AnswerReaderTest, ThoughtsWithinACallChangeNothing) {
  const AnswerOptions chat{.split_reasoning = true, .tools = tools("[]")};
  EXPECT_EQ(text_of(parts("<tool_call>f<think><arg_key>a</arg_key></think><arg_value><think>b</think></arg_value></tool_call>", chat),
                    AnswerPart::Kind::arguments),
            R"({"a": "<think>b</think>"})");
}

}  // namespace
}  // namespace winnow::text
