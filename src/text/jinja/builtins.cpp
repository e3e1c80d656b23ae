#include "text/jinja/builtins.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <ctime>
#include <optional>
#include <span>

#include "text/jinja/interpreter.h"

namespace winnow::text::jinja {
namespace {

// Attributes that Python finds on these types before it looks for a key of the same name.
constexpr std::array<std::string_view, 11> kDictMethods = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                                                           "pop",   "popitem", "setdefault", "update", "values"};
constexpr std::array<std::string_view, 11> kListMethods = {"append", "clear", "copy",   "count",   "extend", "index",
                                                           "insert", "pop",   "remove", "reverse", "sort"};
constexpr std::array<std::string_view, 47> kTextMethods = {
    "capitalize",   "casefold", "center",   "count",   "encode",    "endswith",   "expandtabs",   "find",      "format",    "format_map",
    "index",        "isalnum",  "isalpha",  "isascii", "isdecimal", "isdigit",    "isidentifier", "islower",   "isnumeric", "isprintable",
    "isspace",      "istitle",  "isupper",  "join",    "ljust",     "lower",      "lstrip",       "maketrans", "partition", "removeprefix",
    "removesuffix", "replace",  "rfind",    "rindex",  "rjust",     "rpartition", "rsplit",       "rstrip",    "split",     "splitlines",
    "startswith",   "strip",    "swapcase", "title",   "translate", "upper",      "zfill"};

bool among(std::string_view name, std::span<const std::string_view> names) { return std::ranges::find(names, name) != names.end(); }

const Text& text_of(const Value& v, std::string_view what) {
  const Text* t = v.text();
  if (!t) throw error("{} must be a string, not {}", what, type_name(v));
  return *t;
}

const Text* optional_text(const Value* v, std::string_view what) { return !v || v->none() ? nullptr : &text_of(*v, what); }

int64_t small(const Value& v, std::string_view what) {
  const Int n = integer(v, what);
  if (n > INT32_MAX || n < INT32_MIN) throw error("{} is out of range", what);
  return static_cast<int64_t>(n);
}

Value made(Text t, Budget& budget) {
  budget.bytes(t.size());
  return Value(std::move(t));
}

Value texts(std::vector<Text> parts, Budget& budget) {
  std::vector<Value> out;
  budget.step(parts.size());
  for (Text& t : parts) out.push_back(made(std::move(t), budget));
  return Value::list(std::move(out));
}

Value pair(const Value& a, const Value& b) { return Value::list({a, b}, true); }

Value items_of(const Map& m, Budget& budget) {
  std::vector<Value> out;
  budget.step(m.entries.size());
  for (const auto& [key, v] : m.entries) out.push_back(pair(Value(key), v));
  return Value::list(std::move(out));
}

Int length_of(const Value& v, Budget& budget) {
  if (const Text* t = v.text()) {
    budget.step(t->size() / 64);
    return static_cast<Int>(count_code_points(t->bytes()));
  }
  if (const List* l = v.list()) return static_cast<Int>(l->items.size());
  if (const Map* m = v.map()) return static_cast<Int>(m->entries.size());
  if (v.undefined()) return 0;
  throw error("{} has no length", type_name(v));
}

// ---- filters

Value f_length(const Value& v, Arguments&, Budget& b) { return length_of(v, b); }
Value f_capitalize(const Value& v, Arguments&, Budget& b) { return made(capitalize(to_text(v, b)), b); }
Value f_upper(const Value& v, Arguments&, Budget& b) { return made(upper(to_text(v, b)), b); }
Value f_lower(const Value& v, Arguments&, Budget& b) { return made(lower(to_text(v, b)), b); }
Value f_string(const Value& v, Arguments&, Budget& b) { return v.text() ? v : Value(to_text(v, b)); }
Value f_list(const Value& v, Arguments&, Budget& b) { return Value::list(elements(v, b)); }

Value f_trim(const Value& v, Arguments& a, Budget& b) { return made(strip(to_text(v, b), Side::both, optional_text(a.get(0, "chars"), "chars")), b); }

Text replaced(const Text& s, const Text& from, const Text& to, const Value* count, Budget& b) {
  const int64_t most = count && !count->none() ? small(*count, "count") : -1;
  b.step(s.size() / 64 + 1);
  // Bounds the result before it is made.
  const size_t places = from.empty() ? s.size() + 1 : s.size() / from.size();
  if (to.size() > 1 && places > Limits::bytes / to.size()) b.bytes(places * to.size());
  return replace(s, from, to, most);
}

Value f_replace(const Value& v, Arguments& a, Budget& b) {
  const Text from = to_text(a.need(0, "old"), b), to = to_text(a.need(1, "new"), b);
  return made(replaced(to_text(v, b), from, to, a.get(2, "count"), b), b);
}

Value f_join(const Value& v, Arguments& a, Budget& b) {
  const Value* between = a.get(0, "d");
  const Text separator = between ? to_text(*between, b) : Text();
  const Value* name = a.get(1, "attribute");
  Text out;
  bool first = true;
  for (const Value& element : elements(v, b)) {
    if (!first) write(Value(separator), out, b);
    first = false;
    write(name ? item(element, *name) : element, out, b);
  }
  return Value(std::move(out));
}

Value f_first(const Value& v, Arguments&, Budget& b) {
  const std::vector<Value> all = elements(v, b);
  return all.empty() ? Value(Undefined{"the first item"}) : all.front();
}
Value f_last(const Value& v, Arguments&, Budget& b) {
  const std::vector<Value> all = elements(v, b);
  return all.empty() ? Value(Undefined{"the last item"}) : all.back();
}
Value f_reverse(const Value& v, Arguments&, Budget& b) {
  std::vector<Value> all = elements(v, b);
  std::ranges::reverse(all);
  if (!v.text()) return Value::list(std::move(all));
  Text out;
  for (const Value& c : all) write(c, out, b);
  return Value(std::move(out));
}
Value f_items(const Value& v, Arguments&, Budget& b) {
  if (v.undefined()) return Value::list({});
  if (!v.map()) throw error("items needs a mapping, not {}", type_name(v));
  return items_of(*v.map(), b);
}
Value f_default(const Value& v, Arguments& a, Budget&) {
  const Value* otherwise = a.get(0, "default_value");
  const Value* falsy = a.get(1, "boolean");
  const bool use = v.undefined() || (falsy && truth(*falsy) && !truth(v));
  if (!use) return v;
  return otherwise ? *otherwise : Value(Text());
}
Value f_int(const Value& v, Arguments& a, Budget&) {
  const Value* given = a.get(0, "default");
  const Value otherwise = given ? *given : Value(Int{0});
  if (const Int* n = v.as<Int>()) return *n;
  if (const bool* t = v.as<bool>()) return Int{*t};
  double d = 0;
  if (const double* f = v.as<double>()) {
    d = *f;
  } else if (v.text()) {
    const Text t = strip(*v.text(), Side::both, nullptr);
    const char* begin = t.bytes().data();
    const char* end = begin + t.size();
    if (begin != end && *begin == '+') ++begin;
    int64_t n = 0;
    if (const auto r = std::from_chars(begin, end, n); r.ec == std::errc() && r.ptr == end) return n;
    if (const auto r = std::from_chars(begin, end, d); r.ec != std::errc() || r.ptr != end) return otherwise;
  } else {
    return otherwise;
  }
  if (!(std::fabs(d) < 9e18)) return otherwise;
  return static_cast<Int>(d);
}

Value f_tojson(const Value& v, Arguments& a, Budget& b) {
  JsonOptions o;
  if (const Value* x = a.get(0, "ensure_ascii")) o.ensure_ascii = truth(*x);
  if (const Value* x = a.get(1, "indent"); x && !x->none()) {
    o.indent = static_cast<int>(std::clamp<int64_t>(small(*x, "indent"), 0, 64));
    o.item_separator.resize(1);  // without the space
  }
  if (const Value* x = a.get(2, "separators"); x && !x->none()) {
    const List* l = x->list();
    if (!l || l->items.size() != 2) throw error("separators must be a pair of strings");
    o.item_separator = text_of(l->items[0], "a separator").bytes();
    o.key_separator = text_of(l->items[1], "a separator").bytes();
    if (o.item_separator.size() + o.key_separator.size() > 64) throw error("a separator is too long");
  }
  if (const Value* x = a.get(3, "sort_keys")) o.sort_keys = truth(*x);
  return Value(to_json(v, o, b));
}

// "a.b.0" of an element, as map(attribute=..) and selectattr name it.
Value attribute_path(Value v, const Value& path, Budget& b) {
  if (!path.text()) return item(v, path);
  const Text dot(".", true);
  for (const Text& part : split(*path.text(), &dot, -1)) {
    b.step();
    const std::string& name = part.bytes();
    const bool number = !name.empty() && name.size() < 10 && std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
    v = item(v, number ? Value(static_cast<int64_t>(std::stoi(name))) : Value(part));
  }
  return v;
}

Value f_map(const Value& v, Arguments& a, Budget& b) {
  const Value* path = a.positional().empty() ? a.get(kNamedOnly, "attribute") : nullptr;
  const Value* otherwise = path ? a.get(kNamedOnly, "default") : nullptr;
  std::vector<Value> out;
  std::string name;
  if (!path) {
    name = text_of(a.need(0, "filter"), "the name of a filter").bytes();
    if (!has_filter(name) || name == "map") throw error("the filter {} is not supported", name);
    a.drop_front();
  }
  for (const Value& element : elements(v, b)) {
    Value mapped;
    if (path) {
      mapped = attribute_path(element, *path, b);
      if (otherwise && mapped.undefined()) mapped = *otherwise;
    } else {
      Arguments again(a.positional(), a.named());
      mapped = filter(name, element, again, b);
    }
    out.push_back(std::move(mapped));
  }
  return Value::list(std::move(out));
}

Value select(const Value& v, Arguments& a, Budget& b, bool wanted, bool by_attribute) {
  std::optional<Value> path;
  if (by_attribute) {
    path = a.need(0, "attribute");
    a.drop_front();
  }
  std::string name;
  if (!a.positional().empty()) {
    name = text_of(a.positional().front(), "the name of a test").bytes();
    if (!has_test(name)) throw error("the test {} is not supported", name);
    a.drop_front();
  }
  std::vector<Value> out;
  for (const Value& element : elements(v, b)) {
    const Value subject = path ? attribute_path(element, *path, b) : element;
    Arguments again(a.positional(), a.named());
    if ((name.empty() ? truth(subject) : test(name, subject, again, b)) == wanted) out.push_back(element);
  }
  return Value::list(std::move(out));
}

struct Filter {
  std::string_view name;
  Value (*run)(const Value&, Arguments&, Budget&);
  bool passes_arguments_on = false;
};
constexpr Filter kFilters[] = {{"capitalize", f_capitalize},
                               {"count", f_length},
                               {"d", f_default},
                               {"default", f_default},
                               {"first", f_first},
                               {"int", f_int},
                               {"items", f_items},
                               {"join", f_join},
                               {"last", f_last},
                               {"length", f_length},
                               {"list", f_list},
                               {"lower", f_lower},
                               {"map", f_map, true},
                               {"reject", [](const Value& v, Arguments& a, Budget& b) { return select(v, a, b, false, false); }, true},
                               {"rejectattr", [](const Value& v, Arguments& a, Budget& b) { return select(v, a, b, false, true); }, true},
                               {"replace", f_replace},
                               {"reverse", f_reverse},
                               {"select", [](const Value& v, Arguments& a, Budget& b) { return select(v, a, b, true, false); }, true},
                               {"selectattr", [](const Value& v, Arguments& a, Budget& b) { return select(v, a, b, true, true); }, true},
                               {"string", f_string},
                               {"tojson", f_tojson},
                               {"trim", f_trim},
                               {"upper", f_upper}};

// ---- tests

bool is_number(const Value& v) { return v.as<bool>() || v.as<Int>() || v.as<double>(); }
bool is_iterable(const Value& v) { return v.text() || v.list() || v.map() || v.undefined() || v.loop(); }
bool is_sequence(const Value& v) { return v.text() || v.list() || v.map() || v.undefined(); }
bool is_odd(const Value& v) { return integer(v, "the number") % 2 != 0; }

struct Test {
  std::string_view name;
  bool (*run)(const Value&, Arguments&, Budget&);
};
constexpr Test kTests[] = {{"!=", [](const Value& v, Arguments& a, Budget& b) { return !equal(v, a.need(0, "other"), b); }},
                           {"==", [](const Value& v, Arguments& a, Budget& b) { return equal(v, a.need(0, "other"), b); }},
                           {"boolean", [](const Value& v, Arguments&, Budget&) { return v.as<bool>() != nullptr; }},
                           {"callable", [](const Value& v, Arguments&, Budget&) { return v.as<const Macro*>() || v.as<Method>(); }},
                           {"defined", [](const Value& v, Arguments&, Budget&) { return !v.undefined(); }},
                           {"divisibleby",
                            [](const Value& v, Arguments& a, Budget&) {
                              const Int n = integer(a.need(0, "num"), "the divisor");
                              if (n == 0) throw error("division by zero");
                              return integer(v, "the number") % n == 0;
                            }},
                           {"eq", [](const Value& v, Arguments& a, Budget& b) { return equal(v, a.need(0, "other"), b); }},
                           {"equalto", [](const Value& v, Arguments& a, Budget& b) { return equal(v, a.need(0, "other"), b); }},
                           {"even", [](const Value& v, Arguments&, Budget&) { return !is_odd(v); }},
                           {"false", [](const Value& v, Arguments&, Budget&) { return v.as<bool>() && !*v.as<bool>(); }},
                           {"float", [](const Value& v, Arguments&, Budget&) { return v.as<double>() != nullptr; }},
                           {"ge", [](const Value& v, Arguments& a, Budget&) { return compare(v, a.need(0, "other")) >= 0; }},
                           {"gt", [](const Value& v, Arguments& a, Budget&) { return compare(v, a.need(0, "other")) > 0; }},
                           {"in", [](const Value& v, Arguments& a, Budget& b) { return contains(a.need(0, "seq"), v, b); }},
                           {"integer", [](const Value& v, Arguments&, Budget&) { return v.as<Int>() != nullptr; }},
                           {"iterable", [](const Value& v, Arguments&, Budget&) { return is_iterable(v); }},
                           {"le", [](const Value& v, Arguments& a, Budget&) { return compare(v, a.need(0, "other")) <= 0; }},
                           {"lt", [](const Value& v, Arguments& a, Budget&) { return compare(v, a.need(0, "other")) < 0; }},
                           {"mapping", [](const Value& v, Arguments&, Budget&) { return v.map() != nullptr; }},
                           {"ne", [](const Value& v, Arguments& a, Budget& b) { return !equal(v, a.need(0, "other"), b); }},
                           {"none", [](const Value& v, Arguments&, Budget&) { return v.none(); }},
                           {"number", [](const Value& v, Arguments&, Budget&) { return is_number(v); }},
                           {"odd", [](const Value& v, Arguments&, Budget&) { return is_odd(v); }},
                           {"sequence", [](const Value& v, Arguments&, Budget&) { return is_sequence(v); }},
                           {"string", [](const Value& v, Arguments&, Budget&) { return v.text() != nullptr; }},
                           {"true", [](const Value& v, Arguments&, Budget&) { return v.as<bool>() && *v.as<bool>(); }},
                           {"undefined", [](const Value& v, Arguments&, Budget&) { return v.undefined(); }}};

// ---- functions

Value range(Arguments& a, Budget& budget) {
  const size_t n = a.positional().size();
  Int start = 0, step = 1;
  const Int stop = integer(a.need(n >= 2 ? 1 : 0, "stop"), "a bound of range");
  if (n >= 2) start = integer(a.need(0, "start"), "a bound of range");
  if (n >= 3) step = integer(a.need(2, "step"), "the step of range");
  if (step == 0) throw error("the step of range must not be zero");
  const Int count = step > 0 ? (stop - start + step - 1) / step : (start - stop - step - 1) / -step;
  if (count > Limits::range) throw error("range is longer than {}", Limits::range);
  std::vector<Value> out;
  for (Int i = 0; i < count; ++i) out.emplace_back(start + i * step);
  budget.step(out.size());
  return Value::list(std::move(out));
}

Value strftime_now(Arguments& a, Budget& budget) {
  const std::string& format = text_of(a.need(0, "format"), "the format").bytes();
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[512];
  if (format.size() > 128 || format.find('\0') != std::string::npos) throw error("the format of strftime_now is too long");
  return made(Text(std::string(buffer, std::strftime(buffer, sizeof buffer, format.c_str(), &local)), true), budget);
}

// ---- methods

bool begins_or_ends(const Text& s, const Value& v, bool begins) {
  if (const List* l = v.list(); l && l->tuple) return std::ranges::any_of(l->items, [&](const Value& one) { return begins_or_ends(s, one, begins); });
  const std::string& part = text_of(v, "the argument").bytes();
  return begins ? s.bytes().starts_with(part) : s.bytes().ends_with(part);
}

Value text_method(std::string_view name, const Text& s, Arguments& a, Budget& b) {
  b.step(s.size() / 64);
  const auto stripped = [&](Side side) { return made(strip(s, side, optional_text(a.get(0, "chars"), "chars")), b); };
  if (name == "strip") return stripped(Side::both);
  if (name == "lstrip") return stripped(Side::left);
  if (name == "rstrip") return stripped(Side::right);
  if (name == "upper") return made(upper(s), b);
  if (name == "lower") return made(lower(s), b);
  if (name == "capitalize") return made(capitalize(s), b);
  if (name == "startswith") return begins_or_ends(s, a.need(0, "prefix"), true);
  if (name == "endswith") return begins_or_ends(s, a.need(0, "suffix"), false);
  if (name == "split") {
    const Text* separator = optional_text(a.get(0, "sep"), "the separator");
    const Value* most = a.get(1, "maxsplit");
    if (separator && separator->empty()) throw error("empty separator");
    return texts(split(s, separator, most ? small(*most, "maxsplit") : -1), b);
  }
  if (name == "replace")
    return made(replaced(s, text_of(a.need(0, "old"), "the argument"), text_of(a.need(1, "new"), "the argument"), a.get(2, "count"), b), b);
  if (name == "find") {
    const size_t at = s.bytes().find(text_of(a.need(0, "sub"), "the argument").bytes());
    return at == std::string::npos ? Int{-1} : static_cast<Int>(count_code_points(std::string_view(s.bytes()).substr(0, at)));
  }
  if (name == "join") {
    Text out;
    bool first = true;
    for (const Value& element : elements(a.need(0, "iterable"), b)) {
      if (!first) write(Value(s), out, b);
      first = false;
      text_of(element, "an item of join");
      write(element, out, b);
    }
    return Value(std::move(out));
  }
  throw error("a string's method {} is not supported", name);
}

Value map_method(std::string_view name, const Map& m, Arguments& a, Budget& b) {
  if (name == "items") return items_of(m, b);
  if (name == "get") {
    const Value& key = a.need(0, "key");
    const Value* otherwise = a.get(1, "default");
    b.step(m.entries.size() / 16);
    const Value* found = key.text() ? m.find(key.text()->bytes()) : nullptr;
    return found ? *found : otherwise ? *otherwise : Value();
  }
  std::vector<Value> out;
  b.step(m.entries.size());
  if (name != "keys" && name != "values") throw error("a mapping's method {} is not supported", name);
  for (const auto& [key, v] : m.entries) out.push_back(name == "keys" ? Value(key) : v);
  return Value::list(std::move(out));
}

constexpr std::array<std::string_view, 17> kMethods = {"capitalize", "cycle",   "endswith", "find",  "get",        "items", "join",  "keys",  "lower",
                                                       "lstrip",     "replace", "rstrip",   "split", "startswith", "strip", "upper", "values"};
constexpr std::array<std::string_view, 4> kFunctions = {"dict", "raise_exception", "range", "strftime_now"};

Value loop_attribute(const Loop& l, std::string_view name) {
  const auto n = static_cast<int64_t>(l.items.size()), i = static_cast<int64_t>(l.index);
  if (name == "index0") return i;
  if (name == "index") return i + 1;
  if (name == "first") return i == 0;
  if (name == "last") return i + 1 == n;
  if (name == "length") return n;
  if (name == "revindex") return n - i;
  if (name == "revindex0") return n - i - 1;
  if (name == "depth") return int64_t{1};  // counts recursive loops only
  if (name == "depth0") return int64_t{0};
  if (name == "previtem") return i > 0 ? l.items[l.index - 1] : Value(Undefined{"there is no previous item"});
  if (name == "nextitem") return i + 1 < n ? l.items[l.index + 1] : Value(Undefined{"there is no next item"});
  if (name == "cycle") return Method{};
  throw error("loop.{} is not supported", name);
}

}  // namespace

const Value* Arguments::get(size_t place, std::string_view name) {
  if (place < positional_.size()) {
    taken_positional_ = std::max(taken_positional_, place + 1);
    return &positional_[place];
  }
  for (const auto& [given, v] : named_) {
    if (given != name) continue;
    ++taken_named_;
    return &v;
  }
  return nullptr;
}

const Value& Arguments::need(size_t place, std::string_view name) {
  const Value* v = get(place, name);
  if (!v) throw error("the argument {} is missing", name);
  return *v;
}

void Arguments::done() const {
  if (taken_positional_ < positional_.size()) throw error("too many arguments");
  if (taken_named_ < named_.size()) throw error("an unknown argument, one of: {}", named_.back().first);
}

bool has_filter(std::string_view name) { return std::ranges::find(kFilters, name, &Filter::name) != std::end(kFilters); }
bool has_test(std::string_view name) { return std::ranges::find(kTests, name, &Test::name) != std::end(kTests); }
bool has_function(std::string_view name) { return among(name, kFunctions); }
bool has_method(std::string_view name) { return among(name, kMethods); }

Value filter(std::string_view name, const Value& subject, Arguments& arguments, Budget& budget) {
  budget.step();
  const Filter* f = std::ranges::find(kFilters, name, &Filter::name);
  Value out = f->run(subject, arguments, budget);
  if (!f->passes_arguments_on) arguments.done();
  return out;
}

bool test(std::string_view name, const Value& subject, Arguments& arguments, Budget& budget) {
  budget.step();
  const bool out = std::ranges::find(kTests, name, &Test::name)->run(subject, arguments, budget);
  arguments.done();
  return out;
}

Value function(std::string_view name, Arguments& arguments, Budget& budget) {
  if (name == "raise_exception") throw Raised{to_text(arguments.need(0, "message"), budget).bytes()};
  if (name == "dict") {
    std::vector<std::pair<Value::TextPtr, Value>> entries;
    for (auto& [key, v] : arguments.named()) entries.emplace_back(std::make_shared<const Text>(key, true), v);
    if (!arguments.positional().empty()) throw error("dict with an argument without name is not supported");
    return Value::map(std::move(entries));
  }
  Value out = name == "range" ? range(arguments, budget) : strftime_now(arguments, budget);
  arguments.done();
  return out;
}

Value method(std::string_view name, const Value& object, Arguments& arguments, Budget& budget) {
  if (object.undefined()) throw error("{} is undefined", object.as<Undefined>()->name);
  Value out;
  if (const Text* s = object.text()) {
    out = text_method(name, *s, arguments, budget);
  } else if (const Map* m = object.map(); m && among(name, kDictMethods)) {
    out = map_method(name, *m, arguments, budget);
  } else if (const Loop* l = object.loop(); l && name == "cycle") {
    if (arguments.positional().empty()) throw error("loop.cycle needs values");
    return arguments.positional()[l->index % arguments.positional().size()];
  } else {
    throw error("a {} has no method {}", type_name(object), name);
  }
  arguments.done();
  return out;
}

Value attribute(const Value& object, const std::string& name) {
  if (object.undefined()) throw error("{} is undefined", object.as<Undefined>()->name);
  if (const auto* n = object.as<Namespace*>()) {
    for (const auto& [key, v] : (*n)->attributes)
      if (key == name) return v;
  } else if (const Loop* l = object.loop()) {
    return loop_attribute(*l, name);
  } else if (const Map* m = object.map()) {
    if (among(name, kDictMethods)) return Method{};
    if (const Value* found = m->find(name)) return *found;
  } else if (object.text() ? among(name, kTextMethods) : object.list() ? among(name, kListMethods) : false) {
    return Method{};
  }
  return Undefined{fmt::format("the attribute {} of a {}", name, type_name(object))};
}

Value item(const Value& object, const Value& key) {
  if (object.undefined()) throw error("{} is undefined", object.as<Undefined>()->name);
  if (const Text* name = key.text()) {
    if (const Map* m = object.map())
      if (const Value* found = m->find(name->bytes())) return *found;
    if (name->bytes().starts_with('_')) return Undefined{"an attribute that begins with _"};
    return attribute(object, name->bytes());
  }
  const bool* b = key.as<bool>();
  const Int* n = key.as<Int>();
  if (n || b) {
    Int i = n ? *n : *b;
    if (const List* l = object.list()) {
      const auto size = static_cast<Int>(l->items.size());
      if (i < 0) i += size;
      if (i >= 0 && i < size) return l->items[static_cast<size_t>(i)];
    } else if (const Text* t = object.text()) {
      const std::vector<size_t> at = code_points(t->bytes());
      const auto size = static_cast<Int>(at.size() - 1);
      if (i < 0) i += size;
      if (i >= 0 && i < size) return t->part(at[static_cast<size_t>(i)], at[static_cast<size_t>(i) + 1]);
    }
  }
  return Undefined{fmt::format("an item of a {}", type_name(object))};
}

}  // namespace winnow::text::jinja
