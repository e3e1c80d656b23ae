#include "text/tool_calls.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

namespace winnow::text {
namespace {

using Kind = AnswerPart::Kind;
namespace json = boost::json;

ToolTypes types_of(std::string_view properties, std::string_view rest = "") {
  return ToolTypes(
      json::parse(fmt::format(R"([{{"type": "function", "function": {{"name": "f", "parameters": {{"properties": {}{}}}}}}}])", properties, rest))
          .as_array());
}

TEST(ToolTypes, FollowTheSchema) {
  using T = ToolTypes;
  const T types = types_of(R"({"s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
    "a": {"type": "array", "items": {"type": "string"}}, "o": {"type": "object"}, "sn": {"type": ["string", "null"]}, "free": {},
    "e": {"enum": ["a", "b"]}, "e2": {"enum": ["a", 1]}, "c": {"const": "x"}, "any": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "ref": {"$ref": "#/$defs/Colour"}, "loop": {"$ref": "#/$defs/Loop"}, "lost": {"$ref": "#/$defs/None"}, "all": {"allOf": [{"$ref": "#/$defs/Colour"}]},
    "no": {"type": "string", "enum": [1]}, "yes": true, " k ": {"type": "string"}})",
                           R"(, "$defs": {"Colour": {"type": "string", "enum": ["red"]}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}]}})");
  EXPECT_EQ(types.of("f", "s"), T::kString);
  EXPECT_EQ(types.of("f", "i"), T::kInteger);
  EXPECT_EQ(types.of("f", "n"), T::kNumber | T::kInteger);
  EXPECT_EQ(types.of("f", "b"), T::kBoolean);
  EXPECT_EQ(types.of("f", "a"), T::kArray);
  EXPECT_EQ(types.of("f", "o"), T::kObject);
  EXPECT_EQ(types.of("f", "sn"), T::kString | T::kNull);
  EXPECT_EQ(types.of("f", "any"), T::kString | T::kNull);
  EXPECT_EQ(types.of("f", "e"), T::kString);
  EXPECT_EQ(types.of("f", "e2"), T::kString | T::kInteger | T::kNumber);
  EXPECT_EQ(types.of("f", "c"), T::kString);
  EXPECT_EQ(types.of("f", "ref"), T::kString);
  EXPECT_EQ(types.of("f", "all"), T::kString);
  EXPECT_EQ(types.of("f", "k"), T::kString);
  for (const char* key : {"free", "loop", "lost", "no", "yes", "unknown"}) EXPECT_EQ(types.of("f", key), T::kAny) << key;
  EXPECT_EQ(types.of("g", "s"), T::kAny);
}

TEST(ToolTypes, WideSchemasEnd) {
  std::string branches;
  for (int i = 0; i < 200; ++i) branches += fmt::format(R"({}{{"$ref": "#/$defs/L"}})", i ? "," : "");
  EXPECT_EQ(types_of(R"({"x": {"$ref": "#/$defs/L"}})", fmt::format(R"(, "$defs": {{"L": {{"anyOf": [{}]}}}})", branches)).of("f", "x"),
            ToolTypes::kAny);
  ToolTypes(json::parse(R"([1, {}, {"function": 3}, {"function": {"name": "f"}}, {"function": {"name": 1, "parameters": {}}}])").as_array());
}

TEST(TypedValue, IsJsonOfAnAllowedTypeElseAString) {
  using T = ToolTypes;
  EXPECT_EQ(typed_value("12", T::kAny), "12");
  EXPECT_EQ(typed_value("12", T::kString), "\"12\"");
  EXPECT_EQ(typed_value("12", T::kString | T::kNull), "\"12\"");
  EXPECT_EQ(typed_value("null", T::kString | T::kNull), "null");
  EXPECT_EQ(typed_value(" 12 ", T::kInteger), "12");
  EXPECT_EQ(typed_value("12.0", T::kInteger), "12.0");
  EXPECT_EQ(typed_value("1.5", T::kInteger | T::kString), "\"1.5\"");
  EXPECT_EQ(typed_value("{\"a\": [1, \"語\"]}", T::kObject), "{\"a\": [1, \"語\"]}");
  EXPECT_EQ(typed_value("{\"a\": 1", T::kObject), R"("{\"a\": 1")");
  EXPECT_EQ(typed_value("word", T::kAny), "\"word\"");
  EXPECT_EQ(typed_value("", T::kAny), "\"\"");
  EXPECT_EQ(typed_value("[1]", T::kObject), "[1]");  // wrong, but what the model meant
  EXPECT_EQ(typed_value("True", T::kBoolean), "true");
  EXPECT_EQ(typed_value("True", T::kString | T::kNull), "\"True\"");
  EXPECT_EQ(typed_value("None", T::kInteger | T::kNull), "null");
  EXPECT_EQ(typed_value(" keep\n", T::kString), R"(" keep\n")");
}

class ToolCallReaderTest : public testing::Test {
 protected:
  Tokenizer tokenizer_ = Tokenizer::load(WINNOW_SOURCE_DIR "/models/winnow-tiny/tokenizer.json").or_throw();

  // Text within a call goes to the reader in pieces of a token, as the reader of answers does it.
  AnswerParts read(std::string_view text, const ToolTypes& types) {
    ToolCallReader reader(tokenizer_);
    Detokenizer detokenizer(tokenizer_, true);
    AnswerParts all;
    for (Token id : tokenizer_.encode(text, true)) {
      if (reader.is_tag(id)) {
        reader.append(detokenizer.flush(), &all);
        reader.tag(id, types, &all);
      } else {
        reader.append(detokenizer.append(id), &all);
      }
    }
    calls_ = reader.calls();
    return all;
  }
  std::string arguments(std::string_view inner, const ToolTypes& types = types_of("{}")) {
    return text_of(read(fmt::format("<tool_call>f{}</tool_call>", inner), types), Kind::arguments);
  }
  int64_t calls_ = 0;
};

TEST_F(ToolCallReaderTest, ReadsAsItIsWritten) {
  ASSERT_TRUE(ToolCallReader(tokenizer_).can_read());
  const ToolTypes types = types_of(R"({"s": {"type": "string"}, "i": {"type": "integer"}})");
  EXPECT_EQ(
      read("<tool_call> f \n<arg_key> s </arg_key>\n <arg_value> 語 \"q\"\n</arg_value>\n<arg_key>i</arg_key><arg_value>7</arg_value>\n</tool_call>",
           types),
      (AnswerParts{{Kind::call, "f"}, {Kind::arguments, R"({"s": " 語 \"q\"\n", "i": 7})"}, {Kind::call_end, ""}}));
  EXPECT_EQ(calls_, 1);
  EXPECT_EQ(arguments(""), "{}");
  EXPECT_EQ(arguments("<arg_key>s</arg_key><arg_value></arg_value>", types), R"({"s": ""})");
  EXPECT_EQ(arguments("<arg_key>s</arg_key><arg_value>7</arg_value>", types), R"({"s": "7"})");
  EXPECT_EQ(arguments("<arg_key>x</arg_key><arg_value>[1, 2]</arg_value>", types), R"({"x": [1, 2]})");
}

TEST_F(ToolCallReaderTest, TellsStringsAsTheyCome) {
  const ToolTypes types = types_of(R"({"s": {"type": "string"}})");
  const AnswerParts cut = read("<tool_call>f<arg_key>s</arg_key><arg_value>one two", types);
  EXPECT_EQ(cut, (AnswerParts{{Kind::call, "f"}, {Kind::arguments, R"({"s": "one two)"}}));
  EXPECT_EQ(calls_, 0);
  // What is no string waits, so that what broke off is no value.
  EXPECT_EQ(text_of(read("<tool_call>f<arg_key>n</arg_key><arg_value>12", types), Kind::arguments), R"({"n": )");
  EXPECT_EQ(read("<tool_call>f<arg_key>s", types), (AnswerParts{{Kind::call, "f"}}));
}

TEST_F(ToolCallReaderTest, TakesMissingTagsAsWritten) {
  EXPECT_EQ(arguments("<arg_key>a<arg_value>1</arg_value>"), R"({"a": 1})");
  EXPECT_EQ(arguments("<arg_key>a</arg_key><arg_value>1<arg_key>b</arg_key><arg_value>2"), R"({"a": 1, "b": 2})");
  EXPECT_EQ(arguments("<arg_key>a</arg_key><arg_key>b</arg_key><arg_value>2</arg_value>"), R"({"b": 2})");
  EXPECT_EQ(arguments("<arg_key>a</arg_key>"), "{}");
  EXPECT_EQ(arguments("</arg_value></arg_key><arg_value>"), "{}");
  EXPECT_EQ(arguments("<arg_key>a</arg_key><arg_value>x</arg_key><arg_value>y</arg_value>"), R"({"a": "x</arg_key><arg_value>y"})");
  EXPECT_EQ(read("<tool_call>f<tool_call>g<arg_key>a</arg_key><arg_value>1<tool_call>h</tool_call></tool_call>", types_of("{}")),
            (AnswerParts{{Kind::call, "g"},
                         {Kind::arguments, R"({"a": 1})"},
                         {Kind::call_end, ""},
                         {Kind::call, "h"},
                         {Kind::arguments, "{}"},
                         {Kind::call_end, ""}}));
  EXPECT_TRUE(
      read("<tool_call> </tool_call><tool_call><arg_key>a</arg_key><arg_value>1</arg_value></tool_call></tool_call></arg_key>", types_of("{}"))
          .empty());
}

// Whatever tags and words come in whatever order, the arguments of a call that ended are one JSON object.
TEST_F(ToolCallReaderTest, EndedCallsHaveAnObject) {
  const ToolTypes types = types_of(R"({"s": {"type": "string"}, "i": {"type": "integer"}})");
  constexpr const char* kPieces[] = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "s",
                                     "i",           " 12",          "{\"a\":",   "\"\\\n",     "😀 é"};
  std::mt19937 random(7);
  int64_t ended = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = "<tool_call>f";
    for (uint32_t i = 0; i < 4 + random() % 24; ++i) text += kPieces[random() % std::size(kPieces)];
    std::string name, arguments;
    for (const AnswerPart& p : read(text, types)) {
      if (p.kind == Kind::call) {
        EXPECT_FALSE(p.text.empty());
        arguments.clear();
      } else if (p.kind == Kind::arguments) {
        arguments += p.text;
      } else {
        ASSERT_EQ(p.kind, Kind::call_end);
        json::error_code bad;
        EXPECT_TRUE(json::parse(arguments, bad).is_object() && !bad) << text << "\n" << arguments;
        ++ended;
      }
    }
  }
  EXPECT_GT(ended, 1000);
}

}  // namespace
}  // namespace winnow::text
