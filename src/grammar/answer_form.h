// What the text of an answer must be, as a grammar: reasoning and its budget, calls of tools by their schemas, and the form
// that was asked for. All of it is one structural tag (grammar.h), so that the parts follow each other as the model writes
// them (docs/model.md, Output):
//   reasoning </think> text <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call> ...
// Tags are tokens of their own; within strings nothing but text is allowed. Arguments come in the order of their schema, each
// at most once. JSON is written in one way, as Python's json.dumps does (", " and ": "): white space never goes on and on.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "text/tokenizer.h"

namespace winnow::grammar {

// The form of an answer's content.
struct OutputForm {
  enum class Kind : uint8_t { text, json_schema, regex, choice, ebnf };
  Kind kind = Kind::text;
  boost::json::value schema;         // json_schema
  std::string source;                // regex, ebnf
  std::vector<std::string> choices;  // choice
  Strictness strictness = Strictness::exact;
  std::string field;  // of the request, for errors
};

// Which tools may be called, and whether one must be.
struct CallRules {
  bool required = false;
  bool parallel = true;              // more than one call
  std::vector<std::string> allowed;  // names; empty: all
};

// What a client sends is held to these before anything is compiled.
struct FormLimits {
  size_t schema_bytes = 256 << 10;  // of one schema, as JSON
  int64_t schemas = 2000;           // in one
  size_t source_bytes = 32 << 10;   // of a regular expression or a grammar
  size_t choices = 1024;
  size_t choice_bytes = 4096;
};

// What is wrong with a form and in which field of the request; nothing if it can be tried.
struct FormError {
  std::string field, message;
};
std::optional<FormError> check_output(const OutputForm& form, const FormLimits& limits);
// A tool's schema. Places that no grammar can hold an answer to are an error where `strict`, and may be broken otherwise.
std::optional<FormError> check_parameters(const boost::json::value& schema, bool strict, const std::string& field, const FormLimits& limits);

struct AnswerRules {
  bool starts_in_reasoning = false;           // the prompt ended with <think>
  std::optional<int64_t> reasoning_tokens;    // the reasoning is closed behind so many
  const boost::json::array* tools = nullptr;  // as templates see them: {"function": {"name", "parameters", "strict"}}; null: none
  CallRules calls;
  const OutputForm* output = nullptr;  // null: text
};

struct AnswerForm {
  std::string structural_tag;
  Strictness strictness = Strictness::exact;  // lenient where any part of it is
};
// Whether the vocabulary has the tags of calls.
bool can_call(const text::Tokenizer& tokenizer);
// Nothing where every answer is right, or where the vocabulary lacks the tags. The parts have passed their checks.
std::optional<AnswerForm> answer_form(const AnswerRules& rules, const text::Tokenizer& tokenizer);

}  // namespace winnow::grammar
