#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "text/jinja/builtins.h"
#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace winnow::text::jinja {
namespace {

constexpr std::array<std::string_view, 12> kReserved = {"true", "false", "True", "False", "none", "None", "not", "and", "or", "if", "else", "in"};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  std::vector<Statement> run() {
    std::vector<Statement> out = statements({});
    for (const auto& [name, line] : called_)
      if (!macros_.contains(name) && !has_function(name) && name != "namespace") fail_at(line, fmt::format("the function {} is not supported", name));
    return out;
  }

 private:
  // ---- tokens
  const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_op(std::string_view text, size_t ahead = 0) const { return peek(ahead).kind == Token::op && peek(ahead).text == text; }
  bool is_name(std::string_view text, size_t ahead = 0) const { return peek(ahead).kind == Token::name && peek(ahead).text == text; }
  bool skip_op(std::string_view text) { return is_op(text) && (next(), true); }
  bool skip_name(std::string_view text) { return is_name(text) && (next(), true); }
  [[noreturn]] static void fail_at(int line, std::string_view why) { throw error("line {}: {}", line, why); }
  [[noreturn]] void fail(std::string_view why) const { fail_at(peek().line, why); }
  [[noreturn]] void unexpected() const {
    constexpr std::string_view kNames[] = {"text", "{%", "%}", "{{", "}}", "", "a string", "a number", "a number", "", "the end of the template"};
    const Token& t = peek();
    fail(fmt::format("unexpected {}", t.kind == Token::name || t.kind == Token::op ? t.text : std::string(kNames[t.kind])));
  }
  void expect_op(std::string_view text) {
    if (!skip_op(text)) unexpected();
  }
  std::string expect_name() {
    if (peek().kind != Token::name) unexpected();
    return next().text;
  }

  // ---- nodes
  ExpressionPtr node(Op op, int line, std::vector<ExpressionPtr> parts = {}) {
    auto e = std::make_unique<Expression>();
    e->op = op;
    e->line = line;
    for (ExpressionPtr& p : parts) attach(*e, std::move(p));
    return e;
  }
  void attach(Expression& e, ExpressionPtr part) {
    deepen(e, part.get());
    e.parts.push_back(std::move(part));
  }
  void deepen(Expression& e, const Expression* part) const {
    if (!part) return;
    e.depth = std::max(e.depth, part->depth + 1);
    if (e.depth > Limits::syntax_depth) fail_at(e.line, "an expression is nested too deeply");
  }
  template <class... P>
  static std::vector<ExpressionPtr> list_of(P... p) {
    std::vector<ExpressionPtr> out;
    (out.push_back(std::move(p)), ...);
    return out;
  }
  // Bounds the recursion of the parser itself.
  struct Nested {
    explicit Nested(Parser& p) : parser(p) {
      if (++p.nesting_ > Limits::syntax_depth) p.fail("nested too deeply");
    }
    ~Nested() { --parser.nesting_; }
    Parser& parser;
  };

  // ---- expressions, in Jinja's order of precedence
  ExpressionPtr expression() {
    const Nested nested(*this);
    const int line = peek().line;
    ExpressionPtr e = disjunction();
    while (skip_name("if")) {
      ExpressionPtr condition = disjunction();
      ExpressionPtr otherwise = skip_name("else") ? expression() : nullptr;
      e = node(Op::conditional, line, list_of(std::move(condition), std::move(e), std::move(otherwise)));
    }
    return e;
  }
  ExpressionPtr disjunction() {
    ExpressionPtr left = conjunction();
    for (int line = peek().line; skip_name("or"); line = peek().line) left = node(Op::or_, line, list_of(std::move(left), conjunction()));
    return left;
  }
  ExpressionPtr conjunction() {
    ExpressionPtr left = negation();
    for (int line = peek().line; skip_name("and"); line = peek().line) left = node(Op::and_, line, list_of(std::move(left), negation()));
    return left;
  }
  ExpressionPtr negation() {
    const Nested nested(*this);
    const int line = peek().line;
    if (skip_name("not")) return node(Op::not_, line, list_of(negation()));
    return comparison();
  }
  bool comparison_follows(Comparison& c) {
    constexpr std::pair<std::string_view, Comparison> kOps[] = {{"==", Comparison::equal},  {"!=", Comparison::not_equal},
                                                                {"<", Comparison::less},    {"<=", Comparison::less_equal},
                                                                {">", Comparison::greater}, {">=", Comparison::greater_equal}};
    for (const auto& [text, comparison] : kOps)
      if (skip_op(text)) return c = comparison, true;
    if (skip_name("in")) return c = Comparison::in, true;
    if (is_name("not") && is_name("in", 1)) return next(), next(), c = Comparison::not_in, true;
    return false;
  }
  ExpressionPtr comparison() {
    const int line = peek().line;
    ExpressionPtr first = sum();
    Comparison c;
    if (!comparison_follows(c)) return first;
    ExpressionPtr e = node(Op::compare, line, list_of(std::move(first)));
    do {
      e->comparisons.push_back(c);
      attach(*e, sum());
    } while (comparison_follows(c));
    return e;
  }
  ExpressionPtr sum() {
    ExpressionPtr left = concatenation();
    while (is_op("+") || is_op("-")) {
      const int line = peek().line;
      const Op op = next().text == "+" ? Op::add : Op::subtract;
      left = node(op, line, list_of(std::move(left), concatenation()));
    }
    return left;
  }
  ExpressionPtr concatenation() {
    const int line = peek().line;
    ExpressionPtr first = product();
    if (!is_op("~")) return first;
    ExpressionPtr e = node(Op::concat, line, list_of(std::move(first)));
    while (skip_op("~")) attach(*e, product());
    return e;
  }
  ExpressionPtr product() {
    ExpressionPtr left = power();
    while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
      const int line = peek().line;
      const std::string& text = next().text;
      const Op op = text == "*" ? Op::multiply : text == "/" ? Op::divide : text == "//" ? Op::floor_divide : Op::modulo;
      left = node(op, line, list_of(std::move(left), power()));
    }
    return left;
  }
  ExpressionPtr power() {
    ExpressionPtr left = unary(true);
    for (int line = peek().line; skip_op("**"); line = peek().line) left = node(Op::power, line, list_of(std::move(left), unary(true)));
    return left;
  }
  ExpressionPtr unary(bool with_filters) {
    const Nested nested(*this);
    const int line = peek().line;
    ExpressionPtr e;
    if (skip_op("-")) e = node(Op::negate, line, list_of(unary(false)));
    else if (skip_op("+")) e = node(Op::plus, line, list_of(unary(false)));
    else e = primary();
    e = postfix(std::move(e));
    return with_filters ? filters(std::move(e)) : std::move(e);
  }
  ExpressionPtr constant(Value value) {
    ExpressionPtr e = node(Op::constant, peek().line);
    e->value = std::move(value);
    return e;
  }
  ExpressionPtr primary() {
    const Token& t = peek();
    if (t.kind == Token::name) {
      next();
      if (t.text == "true" || t.text == "True") return constant(true);
      if (t.text == "false" || t.text == "False") return constant(false);
      if (t.text == "none" || t.text == "None") return constant(Value());
      if (t.text == "varargs" || t.text == "kwargs" || t.text == "caller" || t.text == "self" || t.text == "super")
        fail_at(t.line, fmt::format("the name {} is not supported", t.text));
      if (std::ranges::find(kReserved, t.text) != kReserved.end()) fail_at(t.line, fmt::format("unexpected {}", t.text));
      ExpressionPtr e = node(Op::name, t.line);
      e->name = t.text;
      return e;
    }
    if (t.kind == Token::string) {
      std::string text;
      while (peek().kind == Token::string) text += next().text;
      return constant(Text(std::move(text), true));
    }
    if (t.kind == Token::integer) return next(), constant(t.whole);
    if (t.kind == Token::real) return next(), constant(t.number);
    if (skip_op("(")) {
      ExpressionPtr e = tuple(true, [&] { return expression(); });
      expect_op(")");
      return e;
    }
    if (skip_op("[")) {
      ExpressionPtr e = node(Op::list, t.line);
      separated("]", [&] { attach(*e, expression()); });
      return e;
    }
    if (skip_op("{")) {
      ExpressionPtr e = node(Op::map, t.line);
      separated("}", [&] {
        attach(*e, expression());
        expect_op(":");
        attach(*e, expression());
      });
      return e;
    }
    unexpected();
  }
  // Items with commas between them, perhaps one at the end, up to `close`.
  template <class F>
  void separated(std::string_view close, F&& one) {
    for (bool first = true; !is_op(close); first = false) {
      if (!first) expect_op(",");
      if (is_op(close)) break;
      one();
    }
    expect_op(close);
  }
  bool tuple_ends() const { return peek().kind == Token::print_end || peek().kind == Token::block_end || is_op(")") || is_name("in"); }
  template <class F>
  ExpressionPtr tuple(bool may_be_empty, F&& one) {
    const int line = peek().line;
    std::vector<ExpressionPtr> parts;
    bool comma = false;
    while (!tuple_ends()) {
      parts.push_back(one());
      if (!is_op(",")) break;
      comma = true;
      next();
    }
    if (!comma && parts.size() == 1) return std::move(parts[0]);
    if (parts.empty() && !may_be_empty) unexpected();
    return node(Op::tuple, line, std::move(parts));
  }
  ExpressionPtr postfix(ExpressionPtr e) {
    while (true) {
      if (is_op(".") || is_op("[")) e = subscript(std::move(e));
      else if (is_op("(")) e = call(std::move(e));
      else return e;
    }
  }
  ExpressionPtr filters(ExpressionPtr e) {
    while (true) {
      if (is_op("|")) e = filter(std::move(e));
      else if (is_name("is")) e = test(std::move(e));
      else if (is_op("(")) e = call(std::move(e));
      else return e;
    }
  }
  ExpressionPtr subscript(ExpressionPtr object) {
    const int line = peek().line;
    if (skip_op(".")) {
      if (peek().kind == Token::integer) {
        const Int index = next().whole;
        return node(Op::item, line, list_of(std::move(object), constant(index)));
      }
      ExpressionPtr e = node(Op::attribute, line, list_of(std::move(object)));
      e->name = expect_name();
      if (e->name.starts_with('_')) fail_at(line, fmt::format("the attribute {} is not supported", e->name));
      return e;
    }
    expect_op("[");
    ExpressionPtr first = is_op(":") ? nullptr : expression();
    if (!is_op(":")) {
      expect_op("]");
      return node(Op::item, line, list_of(std::move(object), std::move(first)));
    }
    next();
    ExpressionPtr e = node(Op::slice, line, list_of(std::move(object), std::move(first)));
    attach(*e, is_op(":") || is_op("]") ? nullptr : expression());
    const bool step = skip_op(":") && !is_op("]");
    attach(*e, step ? expression() : nullptr);
    expect_op("]");
    return e;
  }
  void arguments(Expression& e) {
    expect_op("(");
    separated(")", [&] {
      if (is_op("*") || is_op("**")) fail("* and ** in a call are not supported");
      if (peek().kind == Token::name && is_op("=", 1)) {
        std::string name = next().text;
        next();
        for (const auto& [other, value] : e.named)
          if (other == name) fail(fmt::format("the argument {} is given twice", name));
        ExpressionPtr value = expression();
        deepen(e, value.get());
        e.named.emplace_back(std::move(name), std::move(value));
      } else {
        if (!e.named.empty()) fail("an argument without name after one with a name");
        attach(e, expression());
      }
    });
  }
  ExpressionPtr call(ExpressionPtr callee) {
    const int line = peek().line;
    if (callee->op == Op::name) called_.emplace_back(callee->name, line);
    else if (callee->op != Op::attribute) fail("only functions, macros and methods can be called");
    else if (!has_method(callee->name)) fail(fmt::format("the method {} is not supported", callee->name));
    ExpressionPtr e = node(Op::call, line, list_of(std::move(callee)));
    arguments(*e);
    return e;
  }
  ExpressionPtr filter(ExpressionPtr subject) {
    expect_op("|");
    ExpressionPtr e = node(Op::filter, peek().line, list_of(std::move(subject)));
    e->name = expect_name();
    if (!has_filter(e->name)) fail_at(e->line, fmt::format("the filter {} is not supported", e->name));
    if (is_op("(")) arguments(*e);
    return e;
  }
  ExpressionPtr test(ExpressionPtr subject) {
    const int line = peek().line;
    next();
    const bool negated = skip_name("not");
    ExpressionPtr e = node(Op::test, line, list_of(std::move(subject)));
    e->name = expect_name();
    if (!has_test(e->name)) fail_at(line, fmt::format("the test {} is not supported", e->name));
    const Token& t = peek();
    const bool argument =
        t.kind == Token::name || t.kind == Token::string || t.kind == Token::integer || t.kind == Token::real || is_op("[") || is_op("{");
    if (is_op("(")) {
      arguments(*e);
    } else if (argument && !is_name("else") && !is_name("or") && !is_name("and")) {
      if (is_name("is")) fail("tests cannot be chained with is");
      attach(*e, postfix(primary()));
    }
    return negated ? node(Op::not_, line, list_of(std::move(e))) : std::move(e);
  }

  // ---- statements
  std::vector<Statement> statements(const std::vector<std::string_view>& ends) {
    const Nested nested(*this);
    std::vector<Statement> out;
    while (true) {
      const Token& t = peek();
      if (t.kind == Token::data) {
        next();
        out.push_back({.kind = Statement::text, .line = t.line, .name = t.text});
      } else if (t.kind == Token::print_begin) {
        next();
        Statement s{.kind = Statement::print, .line = t.line};
        s.expression = tuple(false, [&] { return expression(); });
        if (next().kind != Token::print_end) fail_at(t.line, "a {{ that is not closed after its expression");
        out.push_back(std::move(s));
      } else if (t.kind == Token::block_begin) {
        next();
        if (std::ranges::any_of(ends, [&](std::string_view end) { return is_name(end); })) return out;
        out.push_back(statement());
      } else {
        if (!ends.empty()) fail(fmt::format("the template ends before {}", ends.back()));
        return out;
      }
    }
  }
  void close_block() {
    if (peek().kind != Token::block_end) unexpected();
    next();
  }
  // The statements up to {% end %}, which is consumed.
  std::vector<Statement> body(std::string_view end) {
    close_block();
    std::vector<Statement> out = statements({end});
    next();
    close_block();
    return out;
  }
  Statement statement() {
    const int line = peek().line;
    const std::string tag = expect_name();
    if (tag == "if") return if_statement(line);
    if (tag == "for") return for_statement(line);
    if (tag == "set") return set_statement(line);
    if (tag == "macro") return macro(line);
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail_at(line, fmt::format("{} outside a loop", tag));
      close_block();
      return {.kind = tag == "break" ? Statement::break_ : Statement::continue_, .line = line};
    }
    if (tag == "generation") {  // marks what the model wrote; renders as it is, in a scope of its own
      const int loops = std::exchange(loops_, 0);
      Statement s{.kind = Statement::scope, .line = line};
      s.body = body("endgeneration");
      loops_ = loops;
      return s;
    }
    fail_at(line, fmt::format("the block {} is not supported", tag));
  }
  Statement if_statement(int line) {
    const Nested nested(*this);
    Statement s{.kind = Statement::if_, .line = line};
    s.condition = tuple(false, [&] { return disjunction_only(); });
    close_block();
    s.body = statements({"elif", "else", "endif"});
    const int next_line = peek().line;
    if (skip_name("elif")) {
      s.otherwise.push_back(if_statement(next_line));
      return s;
    }
    if (skip_name("else")) {
      s.otherwise = body("endif");
      return s;
    }
    next();
    close_block();
    return s;
  }
  // Jinja parses the condition of a block without a conditional expression.
  ExpressionPtr disjunction_only() {
    const Nested nested(*this);
    return disjunction();
  }
  Target target() {
    Target t{expect_name(), {}};
    if (std::ranges::find(kReserved, t.name) != kReserved.end()) fail(fmt::format("{} cannot be assigned", t.name));
    return t;
  }
  Statement for_statement(int line) {
    Statement s{.kind = Statement::for_, .line = line};
    do {
      if (is_name("in") && !s.targets.empty()) break;
      if (is_op("(")) fail("parentheses around loop variables are not supported");
      s.targets.push_back(target());
      if (s.targets.back().name == "loop") fail_at(line, "loop cannot be a loop variable");
    } while (skip_op(","));
    if (!skip_name("in")) unexpected();
    s.expression = tuple(false, [&] { return disjunction_only(); });
    if (skip_name("if")) s.condition = expression();
    if (is_name("recursive")) fail("recursive loops are not supported");
    ++loops_;
    close_block();
    s.body = statements({"else", "endfor"});
    --loops_;
    if (skip_name("else")) {
      s.otherwise = body("endfor");
      return s;
    }
    next();
    close_block();
    return s;
  }
  Statement set_statement(int line) {
    Statement s{.kind = Statement::set, .line = line};
    do {
      if (is_op("=")) break;
      s.targets.push_back(target());
      if (skip_op(".")) s.targets.back().attribute = expect_name();
      if (s.targets.back().attribute.starts_with('_')) fail_at(line, "an attribute that begins with _ cannot be assigned");
    } while (skip_op(","));
    if (skip_op("=")) {
      s.expression = tuple(false, [&] { return expression(); });
      close_block();
      return s;
    }
    if (is_op("|")) fail("filters on a set block are not supported");
    if (s.targets.size() != 1) unexpected();
    s.kind = Statement::set_block;
    s.body = body("endset");
    return s;
  }
  Statement macro(int line) {
    Statement s{.kind = Statement::macro, .line = line, .name = target().name};
    macros_.insert(s.name);
    expect_op("(");
    while (!is_op(")")) {
      if (!s.targets.empty()) expect_op(",");
      s.targets.push_back(target());
      if (skip_op("=")) s.defaults.push_back(expression());
      else if (!s.defaults.empty()) fail("a parameter without default after one with a default");
    }
    expect_op(")");
    const int loops = std::exchange(loops_, 0);
    s.body = body("endmacro");
    loops_ = loops;
    return s;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
  std::set<std::string> macros_;
  std::vector<std::pair<std::string, int>> called_;
};

}  // namespace

std::vector<Statement> parse(std::string_view source) { return Parser(tokenize(source)).run(); }

}  // namespace winnow::text::jinja
