// Values of a template: Python's, as far as templates see them, and the bounds on a rendering.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "text/jinja/text.h"

namespace winnow::text::jinja {

// Every bound on a template and on one rendering of it.
struct Limits {
  static constexpr size_t template_bytes = 1 << 20;
  static constexpr int syntax_depth = 200;      // nesting of expressions and blocks
  static constexpr int depth = 1000;            // nested evaluations, macro calls included: bounds the stack
  static constexpr int value_depth = 100;       // lists in lists
  static constexpr int64_t steps = 20'000'000;  // nodes evaluated and elements visited
  static constexpr size_t bytes = 512u << 20;   // text made, output included
  static constexpr int64_t range = 100'000;     // as Jinja's sandbox
};

// What is left of the bounds. Throws Error when they are used up.
class Budget {
 public:
  void step(size_t n = 1) {
    if ((steps_ -= static_cast<int64_t>(n)) < 0) throw error("the template takes more than {} steps", Limits::steps);
  }
  void bytes(size_t n) {
    if (n > bytes_) throw error("the template makes more than {} MiB of text", Limits::bytes >> 20);
    bytes_ -= n;
  }

 private:
  int64_t steps_ = Limits::steps;
  size_t bytes_ = Limits::bytes;
};

class Value;
struct Namespace;
struct Macro;
struct Loop;
using Int = __int128;  // holds all of JSON's 64-bit integers; arithmetic beyond 64 bits is refused

struct Undefined {
  std::string name;
};
struct None {};
struct Method {};  // a bound method that is not called: all a template can do is to test it

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
};
struct Map {
  std::vector<std::pair<std::shared_ptr<const Text>, Value>> entries;  // in order of insertion
  int depth = 1;
  const Value* find(std::string_view key) const;
};

class Value {
 public:
  using TextPtr = std::shared_ptr<const Text>;
  using ListPtr = std::shared_ptr<const List>;
  using MapPtr = std::shared_ptr<const Map>;

  Value() : v_(None{}) {}
  Value(Undefined u) : v_(std::move(u)) {}
  Value(bool b) : v_(b) {}
  Value(const char*) = delete;  // would become a bool
  Value(Int n) : v_(n) {}
  Value(int64_t n) : v_(static_cast<Int>(n)) {}
  Value(double d) : v_(d) {}
  Value(Text t) : v_(std::make_shared<const Text>(std::move(t))) {}
  Value(TextPtr t) : v_(std::move(t)) {}
  Value(Namespace* n) : v_(n) {}
  Value(const Macro* m) : v_(m) {}
  Value(std::shared_ptr<const Loop> l) : v_(std::move(l)) {}
  Value(Method m) : v_(m) {}
  static Value list(std::vector<Value> items, bool tuple = false);
  static Value map(std::vector<std::pair<TextPtr, Value>> entries);  // keys unique

  template <class T>
  const T* as() const {
    return std::get_if<T>(&v_);
  }
  const Text* text() const { return v_.index() == 5 ? std::get<TextPtr>(v_).get() : nullptr; }
  const List* list() const { return v_.index() == 6 ? std::get<ListPtr>(v_).get() : nullptr; }
  const Map* map() const { return v_.index() == 7 ? std::get<MapPtr>(v_).get() : nullptr; }
  bool undefined() const { return v_.index() == 0; }
  bool none() const { return v_.index() == 1; }
  const Loop* loop() const { return v_.index() == 10 ? std::get<std::shared_ptr<const Loop>>(v_).get() : nullptr; }
  int depth() const;

 private:
  std::variant<Undefined, None, bool, Int, double, TextPtr, ListPtr, MapPtr, Namespace*, const Macro*, std::shared_ptr<const Loop>, Method> v_;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
};

std::string_view type_name(const Value& v);  // as Python calls it
bool truth(const Value& v);
bool equal(const Value& a, const Value& b, Budget& budget);
int compare(const Value& a, const Value& b);  // -1, 0, 1; throws for types without order
bool contains(const Value& container, const Value& item, Budget& budget);
// The elements that a for loop sees; throws if there are none to see.
std::vector<Value> elements(const Value& v, Budget& budget);
Int integer(const Value& v, std::string_view what);  // throws unless int or bool

void write(const Value& v, Text& out, Budget& budget);  // str(v)
Text to_text(const Value& v, Budget& budget);

struct JsonOptions {
  bool ensure_ascii = false, sort_keys = false;
  int indent = -1;  // < 0: one line
  std::string item_separator = ", ", key_separator = ": ";
};
Text to_json(const Value& v, const JsonOptions& options, Budget& budget);  // json.dumps

}  // namespace winnow::text::jinja
