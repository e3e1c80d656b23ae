#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "base/units.h"
#include "grammar/answer_form.h"
#include "grammar/schema.h"

namespace winnow::grammar {
namespace {

namespace json = boost::json;

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer t = text::Tokenizer::load(WINNOW_SOURCE_DIR "/models/winnow-tiny/tokenizer.json").or_throw();
  return t;
}
constexpr int64_t kVocabulary = 6144;
const std::vector<text::Token>& stop_tokens() {
  static const std::vector<text::Token> ids{tokenizer().find("<|endoftext|>"), tokenizer().find("<|user|>"), tokenizer().find("<|observation|>")};
  return ids;
}
Compiler& compiler() {
  static Compiler c(tokenizer(), kVocabulary, stop_tokens(), {.time_limit = std::chrono::minutes(5)});
  return c;
}

Matcher matcher(const AnswerForm& form) { return Matcher(compiler().compile(form.structural_tag, form.strictness).or_throw()); }

AnswerForm form_of(AnswerRules rules, const OutputForm& output = {}, const json::array* tools = nullptr) {
  rules.output = &output;
  rules.tools = tools;
  return answer_form(rules, tokenizer()).value();
}

AnswerForm schema_form(std::string_view schema) {
  const OutputForm output{.kind = OutputForm::Kind::json_schema, .schema = json::parse(schema), .field = "schema"};
  EXPECT_FALSE(check_output(output, {})) << schema;
  return form_of({}, output);
}

bool allows(std::span<const uint32_t> mask, text::Token id) { return mask[static_cast<size_t>(id / 32)] >> (id % 32) & 1; }

// The answer's tokens, its tags as tokens but not those between two \1.
std::vector<text::Token> tokens_of(std::string_view answer) {
  std::vector<text::Piece> pieces;
  for (bool control = true; !answer.empty(); control = !control) {
    pieces.push_back({std::string(answer.substr(0, answer.find('\1'))), control});
    answer.remove_prefix(std::min(answer.size(), pieces.back().text.size() + 1));
  }
  return tokenizer().encode(pieces);
}

// Whether a whole answer is let through: each token by the mask and by accept() alike, and then a stop.
bool lets_through(const AnswerForm& form, std::string_view answer) {
  Matcher m = matcher(form);
  std::vector<uint32_t> mask(ceil_div(kVocabulary, 32));
  for (const text::Token id : tokens_of(answer)) {
    m.mask(mask);
    const bool allowed = allows(mask, id);
    EXPECT_EQ(m.accept(id), allowed) << answer;
    if (!allowed) return false;
  }
  m.mask(mask);
  EXPECT_EQ(allows(mask, stop_tokens()[2]), m.may_stop());
  if (!m.may_stop()) return false;
  EXPECT_FALSE(m.is_done());
  EXPECT_TRUE(m.accept(stop_tokens()[0]));
  EXPECT_TRUE(m.is_done());
  return true;
}

TEST(Grammar, HoldsAnAnswerToASchema) {
  const AnswerForm form = schema_form(R"({"type": "object", "required": ["a", "c"], "properties": {
    "a": {"type": "integer", "minimum": 3, "maximum": 12}, "b": {"type": "array", "items": {"enum": ["x", 1, null]}},
    "c": {"type": "object", "properties": {"ключ": {"type": "string", "pattern": "^[a-z]{2,3}$"}}, "required": ["ключ"]}}})");
  EXPECT_TRUE(lets_through(form, R"({"a": 12, "c": {"ключ": "ab"}})"));
  EXPECT_TRUE(lets_through(form, R"({"a":3,"b":["x",1,null],"c":{"ключ":"abc"}})"));
  EXPECT_FALSE(lets_through(form, R"({"a": 13, "c": {"ключ": "ab"}})"));
  EXPECT_FALSE(lets_through(form, R"({"a": 3, "b": ["y"], "c": {"ключ": "ab"}})"));
  EXPECT_FALSE(lets_through(form, R"({"a": 3, "c": {"ключ": "a"}})"));
  EXPECT_FALSE(lets_through(form, R"({"a": 3, "c": {}})"));
  EXPECT_FALSE(lets_through(form, R"({"a": 3})"));
  EXPECT_FALSE(lets_through(form, R"({"a": 3, "c": {"ключ": "ab"}, "d": 1})"));
  EXPECT_FALSE(lets_through(form, R"({"a": 3, "c": {"ключ": "ab"}} )"));
  EXPECT_FALSE(lets_through(form, "{  \"a\": 3, \"c\": {\"ключ\": \"ab\"}}"));  // white space never goes on and on
}

TEST(Grammar, WhatASchemaLeavesOpenIsOpen) {
  const AnswerForm form = schema_form(R"({"type": "object", "properties": {"list": {"type": "array"}, "map": {"type": "object"}, "any": {}}})");
  EXPECT_TRUE(lets_through(form, R"({"list": [1, "a", {}], "map": {"x": [null]}, "any": -1.5e3})"));
  EXPECT_TRUE(lets_through(form, "{}"));
  EXPECT_FALSE(lets_through(form, R"({"list": {}})"));
}

TEST(Grammar, OtherForms) {
  const auto form = [](OutputForm output) { return form_of({}, output); };
  const AnswerForm regex = form({.kind = OutputForm::Kind::regex, .source = "[0-9]{3}-(a|b)+"});
  EXPECT_TRUE(lets_through(regex, "123-abba"));
  EXPECT_FALSE(lets_through(regex, "12-a"));
  EXPECT_FALSE(lets_through(regex, "123-"));
  const AnswerForm choice = form({.kind = OutputForm::Kind::choice, .choices = {"yes", "yes, but", "no \"quoted\"\n"}});
  EXPECT_TRUE(lets_through(choice, "yes"));
  EXPECT_TRUE(lets_through(choice, "yes, but"));
  EXPECT_TRUE(lets_through(choice, "no \"quoted\"\n"));
  EXPECT_FALSE(lets_through(choice, "yes,"));
  const AnswerForm ebnf = form({.kind = OutputForm::Kind::ebnf, .source = "root ::= \"(\" root \")\" | \"x\""});
  EXPECT_TRUE(lets_through(ebnf, "((x))"));
  EXPECT_FALSE(lets_through(ebnf, "((x)"));
}

TEST(Grammar, AReasoningComesFirstAndEndsWithItsBudget) {
  const OutputForm yes{.kind = OutputForm::Kind::choice, .choices = {"yes"}};
  const AnswerForm form = form_of({.starts_in_reasoning = true, .reasoning_tokens = 3}, yes);
  EXPECT_TRUE(lets_through(form, "</think>yes"));
  EXPECT_TRUE(lets_through(form, "{[</think>yes"));
  EXPECT_FALSE(lets_through(form, "yes"));
  EXPECT_FALSE(lets_through(form, "a<think></think>yes"));
  const AnswerForm text = form_of({.starts_in_reasoning = true, .reasoning_tokens = 3});
  EXPECT_TRUE(lets_through(text, "a</think>so it was.</think>Yes"));
  EXPECT_FALSE(lets_through(text, "a</think>so<think>"));
  Matcher m = matcher(form);
  std::vector<uint32_t> mask(ceil_div(kVocabulary, 32));
  const text::Token end = tokenizer().find("</think>");
  for (int i = 0; i < 3; ++i) {
    m.mask(mask);
    EXPECT_TRUE(allows(mask, 'a'));
    EXPECT_FALSE(allows(mask, stop_tokens()[0]));  // not in the middle of a thought
    ASSERT_TRUE(m.accept(tokenizer().encode("a", false).front()));
  }
  m.mask(mask);
  int64_t allowed = 0;
  for (text::Token id = 0; id < kVocabulary; ++id) allowed += allows(mask, id);
  EXPECT_EQ(allowed, 1);
  EXPECT_TRUE(allows(mask, end));
}

json::array tools(std::string_view text) { return json::parse(text).as_array(); }

const char kWeather[] = R"([
  {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "required": ["city"], "properties": {
    "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}, "unit": {"enum": ["C", "F"]},
    "where": {"$ref": "#/$defs/point"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "code": {"type": "string", "pattern": "^[A-Z]{2}$"}},
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}}}}},
  {"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}},
  {"type": "function", "function": {"name": "now"}}])";

TEST(Grammar, ACallFollowsTheSchemaOfItsTool) {
  const json::array t = tools(kWeather);
  const AnswerForm form = form_of({}, {}, &t);
  const auto call = [&](std::string_view inside) { return lets_through(form, fmt::format("<tool_call>{}</tool_call>", inside)); };
  const auto arg = [](std::string_view key, std::string_view value) {
    return fmt::format("<arg_key>{}</arg_key><arg_value>{}</arg_value>", key, value);
  };
  EXPECT_TRUE(lets_through(form, "Just text, with </tool_call in it."));
  EXPECT_TRUE(call("now"));
  EXPECT_TRUE(call("get_weather" + arg("city", "Zürich \1</arg_value>\1 \"\n")));  // spelled out it is text
  EXPECT_TRUE(call("get_weather" + arg("city", "") + arg("days", "9") + arg("unit", "F") + arg("where", "{\"x\": 1.5}") + arg("note", "null") +
                   arg("code", "AB")));
  EXPECT_TRUE(call("get" + arg("anything", "at all")));
  EXPECT_TRUE(call("get"));
  EXPECT_TRUE(lets_through(form, "So: <tool_call>now</tool_call><tool_call>now</tool_call>"));
  EXPECT_FALSE(call("new"));
  EXPECT_FALSE(call("now" + arg("a", "b")));
  EXPECT_FALSE(call("get_weather"));
  EXPECT_FALSE(call("get_weather" + arg("days", "1")));
  EXPECT_FALSE(call("get_weather" + arg("city", "x") + arg("days", "10")));
  EXPECT_FALSE(call("get_weather" + arg("city", "x") + arg("unit", "K")));
  EXPECT_FALSE(call("get_weather" + arg("city", "x") + arg("where", "{}")));
  EXPECT_FALSE(call("get_weather" + arg("city", "x") + arg("code", "ab")));
  EXPECT_FALSE(call("get_weather" + arg("city", "x") + arg("city", "x")));
  EXPECT_FALSE(call("get_weather" + arg("city", "a<|user|>b")));
  EXPECT_FALSE(lets_through(form, "<tool_call>now"));
  EXPECT_FALSE(lets_through(form, "a</tool_call>"));
}

TEST(Grammar, StringsOfArgumentsHaveNoQuotes) {
  const auto lets = [](const char* schema, std::string_view value) {
    const json::array t{
        {{"function", {{"name", "f"}, {"strict", true}, {"parameters", {{"properties", {{"a", json::parse(schema)}}}, {"required", {"a", "a"}}}}}}}};
    const json::value& parameters = t[0].at("function").at("parameters");
    EXPECT_FALSE(check_parameters(parameters, true, "f", {})) << schema << check_parameters(parameters, true, "f", {})->message;
    return lets_through(form_of({}, {}, &t), fmt::format("<tool_call>f<arg_key>a</arg_key><arg_value>{}</arg_value></tool_call>", value));
  };
  EXPECT_TRUE(lets(R"({"const": ""})", ""));
  EXPECT_FALSE(lets(R"({"const": ""})", "\"\""));
  EXPECT_TRUE(lets(R"({"enum": ["", "a", "b c"]})", ""));
  EXPECT_TRUE(lets(R"({"enum": ["", "a", "b c"]})", "b c"));
  EXPECT_FALSE(lets(R"({"enum": ["a"]})", ""));
  EXPECT_TRUE(lets(R"({"type": "string", "maxLength": 0})", ""));
  EXPECT_FALSE(lets(R"({"type": "string", "maxLength": 0})", "a"));
  EXPECT_TRUE(lets(R"({"type": ["string"], "minLength": 2, "maxLength": 3})", "ü\n"));
  EXPECT_FALSE(lets(R"({"type": "string", "minLength": 2, "maxLength": 3})", "ü"));
  EXPECT_TRUE(lets(R"({"anyOf": [{"type": "string", "pattern": "^a+$"}, {"const": ""}]})", "aa"));
  EXPECT_FALSE(lets(R"({"anyOf": [{"type": "string", "pattern": "^a+$"}, {"const": ""}]})", "\"aa\""));
  EXPECT_TRUE(lets(R"({"type": ["string", "null"], "pattern": "^a$"})", "\"a\""));  // as JSON, or "null" could not be told from null
  EXPECT_TRUE(lets(R"({"type": ["string", "null"], "pattern": "^a$"})", "null"));
  EXPECT_FALSE(lets(R"({"type": ["string", "null"], "pattern": "^a$"})", "b"));
  EXPECT_TRUE(lets(R"({"type": ["integer", "string"]})", "\"5\""));
  EXPECT_FALSE(lets(R"({"type": ["integer", "string"]})", "five"));
  EXPECT_TRUE(
      check_parameters(json::parse(R"({"properties": {"a": {"allOf": [{"type": "string", "pattern": "a"}, {"type": "string"}]}}})"), true, "f", {}));
}

TEST(Grammar, LongCountsAreForgottenOneByOneWhereNothingIsStrict) {
  const json::array t =
      tools(R"([{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string", "minLength": 2, "maxLength": 5000}}}}}])");
  const AnswerForm form = form_of({}, {}, &t);
  EXPECT_EQ(form.structural_tag.find("5000"), std::string::npos);
  EXPECT_NE(form.structural_tag.find("{2,}"), std::string::npos);
}

TEST(Grammar, NoCallsWithoutTheirTags) {
  EXPECT_TRUE(can_call(tokenizer()));
  std::ifstream file(WINNOW_SOURCE_DIR "/models/winnow-tiny/tokenizer.json");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string tag = "<arg_key>";
  text.replace(text.find(tag), tag.size(), "<arg_kez>");
  EXPECT_FALSE(can_call(text::Tokenizer::parse(text, "here").or_throw()));
}

TEST(Grammar, WhichToolsMayAndMustBeCalled) {
  const json::array t = tools(kWeather);
  const AnswerForm one = form_of({.calls = {.required = true, .parallel = false, .allowed = {"now"}}}, {}, &t);
  EXPECT_TRUE(lets_through(one, "<tool_call>now</tool_call>"));
  EXPECT_FALSE(lets_through(one, "now"));
  EXPECT_FALSE(lets_through(one, "<tool_call>get</tool_call>"));
  EXPECT_FALSE(lets_through(one, "<tool_call>now</tool_call><tool_call>now</tool_call>"));
  const AnswerForm thinking = form_of({.starts_in_reasoning = true, .calls = {.required = true}}, {}, &t);
  EXPECT_TRUE(lets_through(thinking, "Well.</think><tool_call>now</tool_call><tool_call>get</tool_call>"));
  EXPECT_FALSE(lets_through(thinking, "Well.</think>Now<tool_call>now</tool_call>"));
  EXPECT_FALSE(lets_through(thinking, "<tool_call>now</tool_call>"));
  const OutputForm yes{.kind = OutputForm::Kind::choice, .choices = {"yes"}};
  const AnswerForm either = form_of({}, yes, &t);
  EXPECT_TRUE(lets_through(either, "yes"));
  EXPECT_TRUE(lets_through(either, "<tool_call>now</tool_call>"));
  EXPECT_FALSE(lets_through(either, "no"));
}

TEST(Grammar, NothingIsConstrainedWithoutNeed) {
  EXPECT_FALSE(answer_form({}, tokenizer()));
  EXPECT_FALSE(answer_form({.starts_in_reasoning = true}, tokenizer()));
  EXPECT_FALSE(answer_form({.reasoning_tokens = 5}, tokenizer()));  // there is no reasoning
}

TEST(Grammar, TokensCanBeTakenBack) {
  const OutputForm form{.kind = OutputForm::Kind::regex, .source = "a[bc]d"};
  Matcher m = matcher(form_of({}, form));
  const auto id = [](const char* s) { return tokenizer().encode(s, false).front(); };
  std::vector<uint32_t> before(ceil_div(kVocabulary, 32)), after = before;
  ASSERT_TRUE(m.accept(id("a")));
  m.mask(before);
  ASSERT_TRUE(m.accept(id("b")));
  ASSERT_TRUE(m.accept(id("d")));
  ASSERT_TRUE(m.accept(stop_tokens()[1]));
  ASSERT_TRUE(m.is_done());
  m.rollback(3);
  EXPECT_FALSE(m.is_done());
  m.mask(after);
  EXPECT_EQ(before, after);
  EXPECT_FALSE(m.accept(id("d")));
  EXPECT_TRUE(m.accept(id("c")));
}

TEST(Grammar, EveryWalkAlongTheMaskIsWhole) {
  const json::array t = tools(kWeather);
  std::mt19937_64 random(1);
  for (
      const AnswerForm& form :
      {schema_form(
           R"({"type": "object", "required": ["n"], "properties": {"n": {"type": "number", "minimum": -1.5, "maximum": 20.25}, "s": {"enum": ["a\"b", "ü"]}}})"),
       form_of({.starts_in_reasoning = true, .reasoning_tokens = 4, .calls = {.required = true, .parallel = false, .allowed = {"get_weather"}}}, {},
               &t)}) {
    for (int run = 0; run < 20; ++run) {
      Matcher m = matcher(form);
      std::vector<uint32_t> mask(ceil_div(kVocabulary, 32));
      for (int n = 0; n < 2000 && !m.is_done(); ++n) {
        m.mask(mask);
        std::vector<text::Token> allowed;
        for (text::Token id = 0; id < kVocabulary; ++id)
          if (allows(mask, id)) allowed.push_back(id);
        ASSERT_FALSE(allowed.empty());
        // Tags and ends come more often than by chance: a walk should reach its end.
        const bool end = random() % 3 == 0 && allowed.back() >= 6108;
        ASSERT_TRUE(m.accept(end ? allowed.back() : allowed[random() % allowed.size()]));
      }
    }
  }
}

TEST(Grammar, TheCompilerTellsWhatIsWrongAndKeepsWhatIsUsed) {
  Compiler c(tokenizer(), kVocabulary, stop_tokens(), {.time_limit = std::chrono::minutes(5), .cache_bytes = 1 << 20});
  const auto ebnf = [](std::string source) {
    const OutputForm form{.kind = OutputForm::Kind::ebnf, .source = std::move(source)};
    return form_of({}, form).structural_tag;
  };
  const auto bad = c.compile(ebnf("root ::= \"a"), Strictness::exact);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().kind(), Failure::usage);
  EXPECT_TRUE(c.compile(ebnf("root ::= \"a\""), Strictness::exact));
  EXPECT_TRUE(c.compile(ebnf("root ::= \"a\""), Strictness::exact));
  EXPECT_EQ(c.counts().compiled, 1);
  EXPECT_EQ(c.counts().reused, 1);
  EXPECT_EQ(c.counts().failed, 1);
  for (int i = 0; i < 2000; ++i) EXPECT_TRUE(c.compile(ebnf(fmt::format("root ::= \"a{}\"", i)), Strictness::exact));
  EXPECT_LE(c.counts().kept_bytes, 1 << 20);
  EXPECT_GT(c.counts().kept, 10);
  EXPECT_LT(c.counts().kept, 2000);
}

TEST(Grammar, ManyThreadsShareOneCompiler) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([i] {
      const OutputForm form{.kind = OutputForm::Kind::regex, .source = fmt::format("a{}", i % 3)};
      for (int n = 0; n < 20; ++n) EXPECT_TRUE(lets_through(form_of({}, form), fmt::format("a{}", i % 3)));
    });
  for (std::thread& t : threads) t.join();
}

TEST(Grammar, ACompilationEndsWithItsTime) {
  Compiler c(tokenizer(), kVocabulary, stop_tokens(), {.time_limit = std::chrono::milliseconds(1)});
  const AnswerForm slow = schema_form(R"({"type": "string", "minLength": 1, "maxLength": 20000})");
  const auto late = c.compile(slow.structural_tag, slow.strictness);
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().kind(), Failure::usage);
  EXPECT_EQ(c.counts().late, 1);
}

}  // namespace
}  // namespace winnow::grammar
