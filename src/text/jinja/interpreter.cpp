#include "text/jinja/interpreter.h"

#include <algorithm>
#include <cmath>

namespace winnow::text::jinja {
namespace {

// An error that already names its line.
struct Located : Error {
  using Error::Error;
};

Value* find(Scope& scope, const std::string& name) {
  for (auto& [key, v] : scope.names)
    if (key == name) return &v;
  return nullptr;
}

Int checked(Int n) {
  if (n > static_cast<Int>(UINT64_MAX) || n < static_cast<Int>(INT64_MIN)) throw error("an integer beyond 64 bits");
  return n;
}

Int floor_div(Int a, Int b) { return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0); }

double floor_mod(double a, double b) {
  const double m = std::fmod(a, b);
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}

Int product(Int a, Int b) {
  Int out;
  if (__builtin_mul_overflow(a, b, &out)) throw error("an integer beyond 64 bits");
  return checked(out);
}

Int power(Int base, Int exponent) {
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  Int out = 1;
  for (; exponent > 0; --exponent) out = product(out, base);
  return out;
}

}  // namespace

// Counts nested evaluations and names the line in errors.
struct Interpreter::Deeper {
  explicit Deeper(Interpreter& i) : interpreter(i) {
    if (++i.depth_ > Limits::depth) {
      --i.depth_;
      throw error("the template nests more than {} deep", Limits::depth);
    }
  }
  ~Deeper() { --interpreter.depth_; }
  Interpreter& interpreter;
};

// A scope that ends with its block, unless a macro was defined meanwhile, which may refer to it later.
struct Interpreter::Frame {
  Frame(Interpreter& i, const Scope* parent) : interpreter(i), scopes(i.scopes_.size()), macros(i.macros_.size()), scope(i.scopes_.emplace_back()) {
    scope.parent = parent;
  }
  ~Frame() {
    if (interpreter.macros_.size() == macros) interpreter.scopes_.resize(scopes);
  }
  Interpreter& interpreter;
  size_t scopes, macros;
  Scope& scope;
};

Interpreter::Interpreter(std::vector<std::pair<std::string, Value>> context) {
  scopes_.push_back({nullptr, std::move(context)});
  scopes_.push_back({&scopes_.front(), {}});
}

Text Interpreter::run(const std::vector<Statement>& body) {
  Text out;
  execute(body, scopes_[1], out);
  return out;
}

Interpreter::Flow Interpreter::execute(const std::vector<Statement>& body, Scope& scope, Text& out) {
  for (const Statement& s : body) {
    try {
      budget_.step();
      const Flow flow = execute(s, scope, out);
      if (flow != Flow::next) return flow;
    } catch (const Located&) { throw; } catch (const Error& e) {
      throw Located(fmt::format("line {}: {}", s.line, e.what()), Failure::work);
    }
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::execute(const Statement& s, Scope& scope, Text& out) {
  const Deeper deeper(*this);
  switch (s.kind) {
    case Statement::text:
      budget_.bytes(s.name.size());
      out.append(s.name, true);
      return Flow::next;
    case Statement::print: write(evaluate(*s.expression, scope), out, budget_); return Flow::next;
    case Statement::if_: return execute(truth(evaluate(*s.condition, scope)) ? s.body : s.otherwise, scope, out);
    case Statement::for_: loop(s, scope, out); return Flow::next;
    case Statement::set: assign(s.targets, evaluate(*s.expression, scope), scope); return Flow::next;
    case Statement::set_block: {
      Text text;
      execute(s.body, Frame(*this, &scope).scope, text);
      assign(s.targets, Value(std::move(text)), scope);
      return Flow::next;
    }
    case Statement::macro: assign({s.name, {}}, Value(&macros_.emplace_back(Macro{&s, &scope})), scope); return Flow::next;
    case Statement::scope: return execute(s.body, Frame(*this, &scope).scope, out);
    case Statement::break_: return Flow::break_;
    case Statement::continue_: return Flow::continue_;
  }
  return Flow::next;
}

void Interpreter::loop(const Statement& s, Scope& scope, Text& out) {
  std::vector<Value> items = elements(evaluate(*s.expression, scope), budget_);
  if (s.condition) {
    std::vector<Value> chosen;
    for (Value& v : items) {
      const Frame inner(*this, &scope);
      assign(s.targets, v, inner.scope);
      if (truth(evaluate(*s.condition, inner.scope))) chosen.push_back(std::move(v));
    }
    items = std::move(chosen);
  }
  if (items.empty()) {
    execute(s.otherwise, Frame(*this, &scope).scope, out);
    return;
  }
  const auto state = std::make_shared<Loop>(Loop{std::move(items)});
  for (; state->index < state->items.size(); ++state->index) {
    budget_.step();
    const Frame inner(*this, &scope);
    inner.scope.names.emplace_back("loop", Value(std::shared_ptr<const Loop>(state)));
    assign(s.targets, state->items[state->index], inner.scope);
    if (execute(s.body, inner.scope, out) == Flow::break_) break;
  }
}

void Interpreter::assign(const std::vector<Target>& targets, const Value& value, Scope& scope) {
  if (targets.size() == 1) return assign(targets[0], value, scope);
  std::vector<Value> values = elements(value, budget_);
  if (values.size() != targets.size()) throw error("{} values for {} names", values.size(), targets.size());
  for (size_t i = 0; i < targets.size(); ++i) assign(targets[i], std::move(values[i]), scope);
}

void Interpreter::assign(const Target& target, Value value, Scope& scope) {
  if (target.attribute.empty()) {
    if (Value* known = find(scope, target.name)) *known = std::move(value);
    else scope.names.emplace_back(target.name, std::move(value));
    return;
  }
  const Value object = lookup(target.name, scope);
  const auto* space = object.as<Namespace*>();
  if (!space) throw error("attributes can be assigned on a namespace only, {} is a {}", target.name, type_name(object));
  for (auto& [key, v] : (*space)->attributes) {
    if (key != target.attribute) continue;
    v = std::move(value);
    return;
  }
  (*space)->attributes.emplace_back(target.attribute, std::move(value));
}

Value Interpreter::lookup(const std::string& name, const Scope& scope) const {
  for (const Scope* s = &scope; s; s = s->parent)
    for (const auto& [key, v] : s->names)
      if (key == name) return v;
  if (has_function(name) || name == "namespace") return Method{};
  return Undefined{name};
}

Value Interpreter::evaluate(const Expression& e, Scope& scope) {
  const Deeper deeper(*this);
  budget_.step();
  try {
    return evaluate_inner(e, scope);
  } catch (const Located&) { throw; } catch (const Error& failed) {
    throw Located(fmt::format("line {}: {}", e.line, failed.what()), Failure::work);
  }
}

Value Interpreter::evaluate_inner(const Expression& e, Scope& scope) {
  const auto part = [&](size_t i) { return evaluate(*e.parts[i], scope); };
  switch (e.op) {
    case Op::constant: return e.value;
    case Op::name: return lookup(e.name, scope);
    case Op::list:
    case Op::tuple: {
      std::vector<Value> items;
      for (size_t i = 0; i < e.parts.size(); ++i) items.push_back(part(i));
      return Value::list(std::move(items), e.op == Op::tuple);
    }
    case Op::map: {
      std::vector<std::pair<Value::TextPtr, Value>> entries;
      for (size_t i = 0; i < e.parts.size(); i += 2) {
        const Value key = part(i);
        if (!key.text()) throw error("the key of a mapping must be a string, not {}", type_name(key));
        const auto known = std::ranges::find_if(entries, [&](const auto& entry) { return *entry.first == *key.text(); });
        if (known != entries.end()) known->second = part(i + 1);
        else entries.emplace_back(std::make_shared<const Text>(*key.text()), part(i + 1));
      }
      return Value::map(std::move(entries));
    }
    case Op::attribute: return attribute(part(0), e.name);
    case Op::item: {
      const Value object = part(0), key = part(1);
      if (const Text* t = object.text()) budget_.step(t->size() / 64);
      return item(object, key);
    }
    case Op::slice: return slice(e, scope);
    case Op::call: return call(e, scope);
    case Op::filter: {
      const Value subject = part(0);
      Arguments a = arguments(e, scope);
      return filter(e.name, subject, a, budget_);
    }
    case Op::test: {
      const Value subject = part(0);
      Arguments a = arguments(e, scope);
      return test(e.name, subject, a, budget_);
    }
    case Op::negate:
    case Op::plus: {
      const Value v = part(0);
      return arithmetic(e.op == Op::negate ? Op::subtract : Op::add, Value(Int{0}), v);
    }
    case Op::not_: return !truth(part(0));
    case Op::and_: {
      Value left = part(0);
      return truth(left) ? part(1) : left;
    }
    case Op::or_: {
      Value left = part(0);
      return truth(left) ? left : part(1);
    }
    case Op::conditional:
      if (truth(part(0))) return part(1);
      return e.parts[2] ? part(2) : Value(Undefined{"an if expression without else"});
    case Op::concat: {
      Text out;
      for (size_t i = 0; i < e.parts.size(); ++i) write(part(i), out, budget_);
      return Value(std::move(out));
    }
    case Op::compare: return compare_chain(e, scope);
    case Op::add:
    case Op::subtract:
    case Op::multiply:
    case Op::divide:
    case Op::floor_divide:
    case Op::modulo:
    case Op::power: {
      const Value left = part(0);
      return arithmetic(e.op, left, part(1));
    }
  }
  throw error("an expression of unknown kind");
}

Arguments Interpreter::arguments(const Expression& e, Scope& scope) {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  for (size_t i = 1; i < e.parts.size(); ++i) positional.push_back(evaluate(*e.parts[i], scope));
  for (const auto& [name, v] : e.named) named.emplace_back(name, evaluate(*v, scope));
  return {std::move(positional), std::move(named)};
}

Value Interpreter::call(const Expression& e, Scope& scope) {
  const Expression& callee = *e.parts[0];
  if (callee.op == Op::attribute) {
    const Value object = evaluate(*callee.parts[0], scope);
    Arguments a = arguments(e, scope);
    return method(callee.name, object, a, budget_);
  }
  const Value value = lookup(callee.name, scope);
  if (value.undefined()) throw error("{} is undefined", callee.name);
  Arguments a = arguments(e, scope);
  if (const auto* macro = value.as<const Macro*>()) return call_macro(**macro, a);
  if (!value.as<Method>()) throw error("{} is a {} and cannot be called", callee.name, type_name(value));
  if (callee.name == "namespace") return make_namespace(a);
  if (!has_function(callee.name)) throw error("{} cannot be called here", callee.name);
  return function(callee.name, a, budget_);
}

Value Interpreter::make_namespace(Arguments& a) {
  if (!a.positional().empty()) throw error("namespace with an argument without name is not supported");
  budget_.bytes(sizeof(Namespace));
  Namespace& space = namespaces_.emplace_back();
  for (auto& [name, v] : a.named()) {
    if (name.starts_with('_')) throw error("an attribute that begins with _ cannot be assigned");
    space.attributes.emplace_back(name, std::move(v));
  }
  return Value(&space);
}

Value Interpreter::call_macro(const Macro& macro, Arguments& a) {
  const Statement& m = *macro.definition;
  const Frame frame(*this, macro.closure);
  Scope& scope = frame.scope;
  const size_t first_default = m.targets.size() - m.defaults.size();
  for (size_t i = 0; i < m.targets.size(); ++i) {
    const std::string& name = m.targets[i].name;
    if (i < a.positional().size() && std::ranges::any_of(a.named(), [&](const auto& given) { return given.first == name; }))
      throw error("{} gets two values for {}", m.name, name);
    const Value* given = a.get(i, name);
    Value v = given ? *given : i >= first_default ? evaluate(*m.defaults[i - first_default], scope) : Value(Undefined{name});
    scope.names.emplace_back(name, std::move(v));
  }
  a.done();
  Text out;
  execute(m.body, scope, out);
  return Value(std::move(out));
}

Value Interpreter::slice(const Expression& e, Scope& scope) {
  const Value object = evaluate(*e.parts[0], scope);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i)
    if (e.parts[i + 1]) bounds[i] = evaluate(*e.parts[i + 1], scope);
  const Text* text = object.text();
  const List* list = object.list();
  if (!text && !list)
    throw error("{} cannot be sliced", object.undefined() ? object.as<Undefined>()->name + " is undefined and" : std::string(type_name(object)));
  const std::vector<size_t> at = text ? code_points(text->bytes()) : std::vector<size_t>();
  const auto size = static_cast<Int>(text ? at.size() - 1 : list->items.size());
  budget_.step(static_cast<size_t>(size) / (text ? 16 : 1));
  const Int step = bounds[2].none() ? 1 : integer(bounds[2], "a step");
  if (step == 0) throw error("a step must not be zero");
  // Python's slice.indices().
  const Int low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto bound = [&](const Value& v, Int absent) {
    if (v.none()) return absent;
    const Int n = integer(v, "a bound");
    return std::clamp(n < 0 ? n + size : n, low, high);
  };
  const Int start = bound(bounds[0], step > 0 ? low : high), stop = bound(bounds[1], step > 0 ? high : low);
  if (text && step == 1) {
    if (start >= stop) return Text();
    Text part = text->part(at[static_cast<size_t>(start)], at[static_cast<size_t>(stop)]);
    budget_.bytes(part.size());
    return part;
  }
  Text out;
  std::vector<Value> items;
  for (Int i = start; step > 0 ? i < stop : i > stop; i += step) {
    budget_.step();
    const auto k = static_cast<size_t>(i);
    if (text) out.append(*text, at[k], at[k + 1]);
    else items.push_back(list->items[k]);
  }
  budget_.bytes(out.size());
  return text ? Value(std::move(out)) : Value::list(std::move(items), list->tuple);
}

bool Interpreter::compare_chain(const Expression& e, Scope& scope) {
  Value left = evaluate(*e.parts[0], scope);
  for (size_t i = 0; i < e.comparisons.size(); ++i) {
    Value right = evaluate(*e.parts[i + 1], scope);
    bool holds = false;
    switch (e.comparisons[i]) {
      case Comparison::equal: holds = equal(left, right, budget_); break;
      case Comparison::not_equal: holds = !equal(left, right, budget_); break;
      case Comparison::less: holds = compare(left, right) < 0; break;
      case Comparison::less_equal: holds = compare(left, right) <= 0; break;
      case Comparison::greater: holds = compare(left, right) > 0; break;
      case Comparison::greater_equal: holds = compare(left, right) >= 0; break;
      case Comparison::in: holds = contains(right, left, budget_); break;
      case Comparison::not_in: holds = !contains(right, left, budget_); break;
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::multiply_text(const Text& text, Int times) {
  Text out;
  if (times > 0 && !text.empty()) budget_.bytes(times > static_cast<Int>(Limits::bytes) ? SIZE_MAX : text.size() * static_cast<size_t>(times));
  for (Int i = 0; i < times && !text.empty(); ++i) out.append(text);
  return Value(std::move(out));
}

Value Interpreter::arithmetic(Op op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b})
    if (v->undefined()) throw error("{} is undefined", v->as<Undefined>()->name);
  if (op == Op::add) {
    if (const Text *s = a.text(), *t = b.text(); s && t) {
      Text out = *s;
      out.append(*t);
      budget_.bytes(out.size());
      return Value(std::move(out));
    }
    if (const List *k = a.list(), *l = b.list(); k && l && k->tuple == l->tuple) {
      std::vector<Value> items = k->items;
      items.insert(items.end(), l->items.begin(), l->items.end());
      budget_.step(items.size());
      return Value::list(std::move(items), k->tuple);
    }
  }
  if (op == Op::multiply && a.text()) return multiply_text(*a.text(), integer(b, "a factor"));
  if (op == Op::modulo && a.text()) throw error("formatting with % is not supported");
  const auto is_whole = [](const Value& v) { return v.as<Int>() || v.as<bool>(); };
  const auto real = [&](const Value& v) -> double {
    if (v.as<double>()) return *v.as<double>();
    if (!is_whole(v)) throw error("arithmetic with {} and {}", type_name(a), type_name(b));
    return static_cast<double>(integer(v, "an operand"));
  };
  if (!is_whole(a) || !is_whole(b) || op == Op::divide) {
    const double x = real(a), y = real(b);
    if (y == 0 && (op == Op::divide || op == Op::floor_divide || op == Op::modulo)) throw error("division by zero");
    switch (op) {
      case Op::add: return x + y;
      case Op::subtract: return x - y;
      case Op::multiply: return x * y;
      case Op::divide: return x / y;
      case Op::floor_divide: return std::floor(x / y);
      case Op::modulo: return floor_mod(x, y);
      default: return std::pow(x, y);
    }
  }
  const Int x = integer(a, "an operand"), y = integer(b, "an operand");
  if (y == 0 && (op == Op::floor_divide || op == Op::modulo)) throw error("division by zero");
  switch (op) {
    case Op::add: return checked(x + y);
    case Op::subtract: return checked(x - y);
    case Op::multiply: return product(x, y);
    case Op::floor_divide: return checked(floor_div(x, y));
    case Op::modulo: return checked(x - floor_div(x, y) * y);
    default: return y < 0 ? Value(std::pow(static_cast<double>(x), static_cast<double>(y))) : Value(power(x, y));
  }
}

}  // namespace winnow::text::jinja
