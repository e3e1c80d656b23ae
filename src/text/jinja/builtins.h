// Filters, tests, functions and methods that templates may use. What is not known here is refused when a template is loaded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace winnow::text::jinja {

inline constexpr size_t kNamedOnly = SIZE_MAX;  // the place of an argument that has only a name

class Arguments {
 public:
  Arguments(std::vector<Value> positional, std::vector<std::pair<std::string, Value>> named)
      : positional_(std::move(positional)), named_(std::move(named)) {}
  // The argument at this place or of this name; null if it was not given.
  const Value* get(size_t place, std::string_view name);
  const Value& need(size_t place, std::string_view name);
  void done() const;  // throws if an argument was given that nobody asked for
  std::vector<Value>& positional() { return positional_; }
  std::vector<std::pair<std::string, Value>>& named() { return named_; }
  void drop_front() { positional_.erase(positional_.begin()); }

 private:
  std::vector<Value> positional_;
  std::vector<std::pair<std::string, Value>> named_;
  size_t taken_positional_ = 0, taken_named_ = 0;
};

bool has_filter(std::string_view name);
bool has_test(std::string_view name);
bool has_function(std::string_view name);  // namespace is the interpreter's
bool has_method(std::string_view name);

Value filter(std::string_view name, const Value& subject, Arguments& arguments, Budget& budget);
bool test(std::string_view name, const Value& subject, Arguments& arguments, Budget& budget);
Value function(std::string_view name, Arguments& arguments, Budget& budget);
Value method(std::string_view name, const Value& object, Arguments& arguments, Budget& budget);

// object.name and object[key] as Jinja's sandbox resolves them; undefined if there is none.
Value attribute(const Value& object, const std::string& name);
Value item(const Value& object, const Value& key);

}  // namespace winnow::text::jinja
