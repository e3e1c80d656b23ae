// Runs a template.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/builtins.h"
#include "text/jinja/syntax.h"

namespace winnow::text::jinja {

struct Scope {
  const Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> names;
};

struct Macro {
  const Statement* definition;
  const Scope* closure;
};

struct Loop {
  std::vector<Value> items;
  size_t index = 0;
};

// What raise_exception throws.
struct Raised {
  std::string message;
};

// One rendering. Values point into it, so it outlives them.
class Interpreter {
 public:
  explicit Interpreter(std::vector<std::pair<std::string, Value>> context);
  // Throws Error "line N: ...", or Raised.
  Text run(const std::vector<Statement>& body);

 private:
  enum class Flow { next, break_, continue_ };
  struct Deeper;
  struct Frame;

  Flow execute(const std::vector<Statement>& body, Scope& scope, Text& out);
  Flow execute(const Statement& s, Scope& scope, Text& out);
  void loop(const Statement& s, Scope& scope, Text& out);
  void assign(const std::vector<Target>& targets, const Value& value, Scope& scope);
  void assign(const Target& target, Value value, Scope& scope);

  Value evaluate(const Expression& e, Scope& scope);
  Value evaluate_inner(const Expression& e, Scope& scope);
  Value lookup(const std::string& name, const Scope& scope) const;
  Value call(const Expression& e, Scope& scope);
  Value call_macro(const Macro& macro, Arguments& arguments);
  Value make_namespace(Arguments& arguments);
  Arguments arguments(const Expression& e, Scope& scope);
  Value slice(const Expression& e, Scope& scope);
  bool compare_chain(const Expression& e, Scope& scope);
  Value arithmetic(Op op, const Value& a, const Value& b);
  Value multiply_text(const Text& text, Int times);

  Budget budget_;
  int depth_ = 0;
  std::deque<Scope> scopes_;  // innermost last
  std::deque<Macro> macros_;
  std::deque<Namespace> namespaces_;
};

}  // namespace winnow::text::jinja
