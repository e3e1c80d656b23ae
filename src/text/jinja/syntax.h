// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace winnow::text::jinja {

enum class Op {
  constant,
  name,
  list,
  tuple,
  map,  // map: key, value, key, value ...
  attribute,
  item,
  slice,  // object.name, object[i], object[a:b:c] (absent bounds are null)
  call,
  filter,
  test,  // callee(args), subject | name(args), subject is name(args)
  negate,
  plus,
  not_,
  and_,
  or_,
  conditional,  // conditional: condition, then, else (may be null)
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  concat,
  compare,  // parts[0] comparisons[0] parts[1] comparisons[1] ...
};
enum class Comparison { equal, not_equal, less, less_equal, greater, greater_equal, in, not_in };

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  Op op = Op::constant;
  int line = 0;
  int depth = 1;
  std::string name;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;  // keyword arguments
  std::vector<Comparison> comparisons;
};

// Where an assignment goes: a name, or an attribute of a namespace.
struct Target {
  std::string name{}, attribute{};
};

struct Statement {
  enum Kind { text, print, if_, for_, set, set_block, macro, break_, continue_, scope } kind = text;
  int line = 0;
  std::string name{};                          // text; macro
  ExpressionPtr expression{};                  // print, set; what for iterates over
  ExpressionPtr condition{};                   // if, for
  std::vector<Target> targets{};               // set, for; parameters of a macro
  std::vector<ExpressionPtr> defaults{};       // of the last parameters
  std::vector<Statement> body{}, otherwise{};  // an elif is an if in `otherwise`
};

// Throws Error "line N: ...": the template is no Jinja, or uses what this engine does not support.
std::vector<Statement> parse(std::string_view source);

}  // namespace winnow::text::jinja
