// JSON schemas as grammars can hold answers to them. XGrammar reads a schema by the first of $ref, const, enum, anyOf, oneOf,
// allOf and type that it has, passes over much of what stands beside it, and takes what a schema does not name for forbidden.
// So a schema is read here first: everything that would be passed over is found, and what is open is said to be open.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>

namespace winnow::grammar {

struct ReadSchema {
  // The same schema for XGrammar: annotations (draft 2020-12: title, description, examples, ...) left out, arrays without
  // items hold anything, objects without properties as well. Undeclared properties beside declared ones stay forbidden.
  boost::json::value normal;
  // The first thing in it to which no grammar can hold an answer, as "#/place: what"; nothing if there is none.
  std::optional<std::string> unsupported;
  // That it is no JSON schema, in the same form.
  std::optional<std::string> wrong;
  int64_t schemas = 0;  // in it, itself among them
};
ReadSchema read_schema(const boost::json::value& schema);

}  // namespace winnow::grammar
