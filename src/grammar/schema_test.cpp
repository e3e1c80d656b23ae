#include "grammar/schema.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "grammar/answer_form.h"

namespace winnow::grammar {
namespace {

namespace json = boost::json;

ReadSchema read(std::string_view schema) { return read_schema(json::parse(schema)); }

TEST(Schema, NamesWhatNoGrammarCanHoldTo) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"not": {}})", "#: not"},
      {R"({"type": "object", "properties": {"a/b": {"type": "array", "uniqueItems": true}}})", "#/properties/a~1b: uniqueItems"},
      {R"({"type": "array", "contains": {}})", "#: contains"},
      {R"({"minimum": 3})", "#: minimum needs a type"},
      {R"({"type": "number", "multipleOf": 2})", "#: multipleOf"},
      {R"({"type": "integer", "multipleOf": 0.5})", "#: multipleOf"},
      {R"({"type": "string", "pattern": "a", "maxLength": 3})", "#: minLength and maxLength"},
      {R"({"type": "integer", "enum": [1, "a"]})", "#: type forbids the value \"a\""},
      {R"({"anyOf": [{"type": "string"}], "minLength": 3})", "#: minLength beside anyOf"},
      {R"({"$ref": "other.json"})", "#/$ref: only places"},
      {R"({"$ref": "#/$defs/a", "minimum": 2, "$defs": {"a": {}}})", "#: minimum beside $ref"},
      {R"({"type": "object", "required": ["a"]})", "#: required \"a\""},
      {R"({"items": {"anyOf": [{"type": "null"}, {"if": {}}]}})", "#/items/anyOf/1: if"},
      {R"({"type": "array", "items": [{}]})", "#: items as a list"},
      {R"({"type": "integer", "minimum": 1, "exclusiveMinimum": true})", "#: exclusiveMinimum"},
  };
  for (const auto& [schema, what] : cases) {
    const ReadSchema r = read(schema);
    EXPECT_EQ(r.unsupported.value_or("").substr(0, std::string(what).size()), what) << schema;
    EXPECT_FALSE(r.wrong) << schema << *r.wrong;
  }
}

TEST(Schema, NamesWhatIsNoSchema) {
  for (const auto& [schema, where] : {std::pair{R"({"type": "text"})", "#/type"},
                                      {R"({"type": []})", "#/type"},
                                      {R"({"properties": []})", "#/properties"},
                                      {R"({"enum": []})", "#/enum"},
                                      {R"({"anyOf": {}})", "#/anyOf"},
                                      {R"({"type": "array", "items": 3})", "#/items"},
                                      {R"({"type": "string", "minLength": -1})", "#/minLength"},
                                      {R"({"type": "string", "pattern": 5})", "#/pattern"},
                                      {R"({"type": "object", "required": "a"})", "#/required"},
                                      {"7", "#"},
                                      {R"({"$defs": 1})", "#/$defs"},
                                      {R"({"type": "number", "maximum": "a"})", "#/maximum"}}) {
    const ReadSchema r = read(schema);
    EXPECT_EQ(r.wrong.value_or("").substr(0, r.wrong.value_or("").find(':')), where) << schema;
  }
}

TEST(Schema, HoldsToWhatIsCommon) {
  for (
      const char* schema :
      {R"({"type": "object", "title": "T", "$schema": "x", "description": "d", "properties": {"a": {"type": ["string", "null"], "maxLength": 9,
                                 "default": null}, "b": {"type": "integer", "minimum": 0, "multipleOf": 5}}, "required": ["a"], "additionalProperties": false})",
       R"({"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "$defs": {"A": {"type": "array", "items": {"type": "string", "format": "date"}, "minItems": 1}}})",
       R"({"type": "string", "enum": ["a", "b"], "x-unknown": 3})",
       R"({"type": "object", "anyOf": [{"type": "object"}, {"type": "object", "properties": {"a": {}}}]})", "true"}) {
    const ReadSchema r = read(schema);
    EXPECT_FALSE(r.unsupported) << schema << *r.unsupported;
    EXPECT_FALSE(r.wrong) << schema << *r.wrong;
  }
}

TEST(Schema, LeavesOutWhatSaysNothingAndOpensWhatIsOpen) {
  EXPECT_EQ(read(R"({"title": "t", "type": "array", "description": "d", "examples": [1]})").normal, json::parse(R"({"type": "array", "items": {}})"));
  EXPECT_EQ(read(R"({"type": "object"})").normal, json::parse(R"({"type": "object", "additionalProperties": true})"));
  EXPECT_EQ(read(R"({"properties": {"title": {"type": "string", "title": "x"}}, "additionalProperties": true})").normal,
            json::parse(R"({"properties": {"title": {"type": "string"}}, "additionalProperties": false})"));
  EXPECT_EQ(read(R"({"anyOf": [{}, true], "$defs": {"a": {}}})").schemas, 4);
}

TEST(Schema, ReferencesThatLeadNowhereAreWrong) {
  EXPECT_EQ(read(R"({"$ref": "#"})").wrong, "#/$ref: refers to itself and to nothing else");
  EXPECT_TRUE(read(R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})").wrong);
  EXPECT_FALSE(read(R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}})").wrong);
  EXPECT_FALSE(read(R"({"type": "object", "properties": {"a": {"$ref": "#"}}})").wrong);
}

TEST(Schema, LimitsAndStrictness) {
  const json::value unique = json::parse(R"({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}})");
  EXPECT_FALSE(check_parameters(unique, false, "f", {}));
  EXPECT_EQ(check_parameters(unique, true, "f", {})->message, "#/properties/a: uniqueItems cannot be held to");
  EXPECT_TRUE(check_parameters(json::parse(R"({"type": "string"})"), false, "f", {}));
  EXPECT_TRUE(check_parameters(json::parse(R"({"type": "object", "anyOf": [{"type": "object"}]})"), true, "f", {}));
  EXPECT_TRUE(check_parameters(unique, false, "f", {.schema_bytes = 10}));
  EXPECT_TRUE(check_parameters(unique, false, "f", {.schemas = 1}));
  OutputForm form{.kind = OutputForm::Kind::regex, .source = std::string(100, 'a'), .field = "f"};
  EXPECT_FALSE(check_output(form, {}));
  EXPECT_TRUE(check_output(form, {.source_bytes = 99}));
  form = {.kind = OutputForm::Kind::choice, .choices = {"a", ""}};
  EXPECT_TRUE(check_output(form, {}));
}

}  // namespace
}  // namespace winnow::grammar
