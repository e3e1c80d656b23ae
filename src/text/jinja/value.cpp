#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "base/json_writer.h"

namespace winnow::text::jinja {
namespace {

std::string digits(Int n) {
  if (n == 0) return "0";
  std::string out;
  for (Int rest = n; rest != 0; rest /= 10) out += static_cast<char>('0' + static_cast<int>(rest < 0 ? -(rest % 10) : rest % 10));
  if (n < 0) out += '-';
  return {out.rbegin(), out.rend()};
}

std::string float_text(double d, bool json) {
  if (std::isnan(d)) return json ? "NaN" : "nan";
  if (std::isinf(d)) return fmt::format("{}{}", d < 0 ? "-" : "", json ? "Infinity" : "inf");
  return JsonWriter().value(d).take();
}

// A number as double; false for other types. bool is a number, as in Python.
bool number(const Value& v, double& d) {
  if (const bool* b = v.as<bool>()) d = *b;
  else if (const Int* n = v.as<Int>()) d = static_cast<double>(*n);
  else if (const double* f = v.as<double>()) d = *f;
  else return false;
  return true;
}

bool whole(const Value& v, Int& n) {
  if (const bool* b = v.as<bool>()) n = *b;
  else if (const Int* i = v.as<Int>()) n = *i;
  else return false;
  return true;
}

template <class T>
int order(const T& a, const T& b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

// repr() of a string.
void write_repr(const Text& s, Text& out) {
  const std::string& bytes = s.bytes();
  const char quote = bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos ? '"' : '\'';
  out.append(std::string(1, quote), true);
  for (size_t i = 0; i < bytes.size();) {
    const size_t begin = i;
    const char32_t c = code_point_at(bytes, i);
    const bool trusted = s.trusted_at(begin);
    if (c == static_cast<unsigned char>(quote) || c == '\\') out.append(fmt::format("\\{}", static_cast<char>(c)), trusted);
    else if (c == '\n') out.append("\\n", trusted);
    else if (c == '\r') out.append("\\r", trusted);
    else if (c == '\t') out.append("\\t", trusted);
    else if (is_printable(c)) out.append(std::string_view(bytes).substr(begin, i - begin), trusted);
    else if (c < 0x100) out.append(fmt::format("\\x{:02x}", static_cast<uint32_t>(c)), trusted);
    else if (c < 0x10000) out.append(fmt::format("\\u{:04x}", static_cast<uint32_t>(c)), trusted);
    else out.append(fmt::format("\\U{:08x}", static_cast<uint32_t>(c)), trusted);
  }
  out.append(std::string(1, quote), true);
}

void write_repr(const Value& v, Text& out, Budget& budget) {
  budget.step();
  if (const Text* t = v.text()) return write_repr(*t, out);
  if (const List* l = v.list()) {
    out.append(l->tuple ? "(" : "[", true);
    for (size_t i = 0; i < l->items.size(); ++i) {
      if (i) out.append(", ", true);
      write_repr(l->items[i], out, budget);
    }
    if (l->tuple && l->items.size() == 1) out.append(",", true);
    return out.append(l->tuple ? ")" : "]", true);
  }
  if (const Map* m = v.map()) {
    out.append("{", true);
    for (size_t i = 0; i < m->entries.size(); ++i) {
      if (i) out.append(", ", true);
      write_repr(*m->entries[i].first, out);
      out.append(": ", true);
      write_repr(m->entries[i].second, out, budget);
    }
    return out.append("}", true);
  }
  if (v.undefined()) return out.append("Undefined", true);
  write(v, out, budget);
}

class JsonText {
 public:
  JsonText(const JsonOptions& options, Budget& budget) : options_(options), budget_(budget) {}

  void write(const Value& v, int level) {
    budget_.step();
    if (const Text* t = v.text()) return quote(*t);
    if (v.none()) return plain("null");
    if (const bool* b = v.as<bool>()) return plain(*b ? "true" : "false");
    if (const Int* n = v.as<Int>()) return plain(digits(*n));
    if (const double* d = v.as<double>()) return plain(float_text(*d, true));
    if (const List* l = v.list()) return write_list(*l, level);
    if (const Map* m = v.map()) return write_map(*m, level);
    throw error("Object of type {} is not JSON serializable", type_name(v));
  }
  Text out;

 private:
  void plain(std::string_view s) { out.append(s, true); }

  void new_line(int level) {
    if (options_.indent >= 0) plain(fmt::format("\n{:{}}", "", options_.indent * level));
  }

  void write_list(const List& l, int level) {
    if (l.items.empty()) return plain("[]");
    plain("[");
    for (size_t i = 0; i < l.items.size(); ++i) {
      if (i) plain(options_.item_separator);
      new_line(level + 1);
      write(l.items[i], level + 1);
    }
    new_line(level);
    plain("]");
  }

  void write_map(const Map& m, int level) {
    if (m.entries.empty()) return plain("{}");
    std::vector<const std::pair<Value::TextPtr, Value>*> entries;
    for (const auto& entry : m.entries) entries.push_back(&entry);
    if (options_.sort_keys) std::ranges::sort(entries, {}, [](const auto* e) -> const std::string& { return e->first->bytes(); });
    plain("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i) plain(options_.item_separator);
      new_line(level + 1);
      quote(*entries[i]->first);
      plain(options_.key_separator);
      write(entries[i]->second, level + 1);
    }
    new_line(level);
    plain("}");
  }

  void quote(const Text& s) {
    plain("\"");
    size_t begin = 0;
    for (const Run& run : s.runs()) {
      JsonWriter writer({.ensure_ascii = options_.ensure_ascii});
      writer.value(std::string_view(s.bytes()).substr(begin, run.end - begin));
      out.append(std::string_view(writer.text()).substr(1, writer.text().size() - 2), run.trusted);
      begin = run.end;
    }
    plain("\"");
  }

  const JsonOptions& options_;
  Budget& budget_;
};

}  // namespace

const Value* Map::find(std::string_view key) const {
  for (const auto& [k, v] : entries)
    if (k->bytes() == key) return &v;
  return nullptr;
}

Value Value::list(std::vector<Value> items, bool tuple) {
  auto l = std::make_shared<List>();
  for (const Value& v : items) l->depth = std::max(l->depth, v.depth() + 1);
  if (l->depth > Limits::value_depth) throw error("lists or mappings are nested more than {} deep", Limits::value_depth);
  l->items = std::move(items);
  l->tuple = tuple;
  Value v;
  v.v_ = ListPtr(std::move(l));
  return v;
}

Value Value::map(std::vector<std::pair<TextPtr, Value>> entries) {
  auto m = std::make_shared<Map>();
  for (const auto& [key, v] : entries) m->depth = std::max(m->depth, v.depth() + 1);
  if (m->depth > Limits::value_depth) throw error("lists or mappings are nested more than {} deep", Limits::value_depth);
  m->entries = std::move(entries);
  Value v;
  v.v_ = MapPtr(std::move(m));
  return v;
}

int Value::depth() const {
  if (const List* l = list()) return l->depth;
  if (const Map* m = map()) return m->depth;
  return 0;
}

std::string_view type_name(const Value& v) {
  if (v.undefined()) return "Undefined";
  if (v.none()) return "NoneType";
  if (v.as<bool>()) return "bool";
  if (v.as<Int>()) return "int";
  if (v.as<double>()) return "float";
  if (v.text()) return "str";
  if (const List* l = v.list()) return l->tuple ? "tuple" : "list";
  if (v.map()) return "dict";
  if (v.as<Namespace*>()) return "namespace";
  if (v.as<const Macro*>()) return "macro";
  if (v.loop()) return "loop";
  return "method";
}

bool truth(const Value& v) {
  if (v.undefined() || v.none()) return false;
  if (const bool* b = v.as<bool>()) return *b;
  if (const Int* n = v.as<Int>()) return *n != 0;
  if (const double* d = v.as<double>()) return *d != 0;
  if (const Text* t = v.text()) return !t->empty();
  if (const List* l = v.list()) return !l->items.empty();
  if (const Map* m = v.map()) return !m->entries.empty();
  return true;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  Int m, n;
  if (whole(a, m) && whole(b, n)) return m == n;
  double x, y;
  if (number(a, x) && number(b, y)) return x == y;
  if (a.undefined() || a.none()) return a.undefined() == b.undefined() && a.none() == b.none();
  if (const Text *s = a.text(), *t = b.text(); s && t) return *s == *t;
  if (const List *k = a.list(), *l = b.list(); k && l) {
    if (k->tuple != l->tuple || k->items.size() != l->items.size()) return false;
    for (size_t i = 0; i < k->items.size(); ++i)
      if (!equal(k->items[i], l->items[i], budget)) return false;
    return true;
  }
  if (const Map *k = a.map(), *l = b.map(); k && l) {
    if (k->entries.size() != l->entries.size()) return false;
    budget.step(k->entries.size() * k->entries.size() / 16);
    for (const auto& [key, v] : k->entries) {
      const Value* other = l->find(key->bytes());
      if (!other || !equal(v, *other, budget)) return false;
    }
    return true;
  }
  if (const auto *k = a.as<Namespace*>(), *l = b.as<Namespace*>(); k && l) return *k == *l;
  if (const auto *k = a.as<const Macro*>(), *l = b.as<const Macro*>(); k && l) return *k == *l;
  return false;
}

int compare(const Value& a, const Value& b) {
  Int m, n;
  if (whole(a, m) && whole(b, n)) return order(m, n);
  double x, y;
  if (number(a, x) && number(b, y)) return order(x, y);
  if (const Text *s = a.text(), *t = b.text(); s && t) return order(s->bytes(), t->bytes());
  throw error("{} and {} have no order", type_name(a), type_name(b));
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (const Text* t = container.text()) {
    const Text* s = item.text();
    if (!s) throw error("'in <string>' needs a string on the left, not {}", type_name(item));
    budget.step(t->size() / 64);
    return t->bytes().find(s->bytes()) != std::string::npos;
  }
  if (const List* l = container.list()) return std::ranges::any_of(l->items, [&](const Value& v) { return equal(v, item, budget); });
  if (const Map* m = container.map()) {
    budget.step(m->entries.size() / 16);
    return item.text() && m->find(item.text()->bytes());
  }
  if (container.undefined()) return false;
  throw error("{} is no container", type_name(container));
}

std::vector<Value> elements(const Value& v, Budget& budget) {
  std::vector<Value> out;
  if (const List* l = v.list()) {
    out = l->items;
  } else if (const Map* m = v.map()) {
    for (const auto& entry : m->entries) out.emplace_back(entry.first);
  } else if (const Text* t = v.text()) {
    budget.step(t->size());
    const std::vector<size_t> at = code_points(t->bytes());
    for (size_t i = 0; i + 1 < at.size(); ++i) out.emplace_back(t->part(at[i], at[i + 1]));
  } else if (!v.undefined()) {
    throw error("{} is not iterable", type_name(v));
  }
  budget.step(out.size());
  return out;
}

Int integer(const Value& v, std::string_view what) {
  Int n;
  if (!whole(v, n)) throw error("{} must be an integer, not {}", what, type_name(v));
  return n;
}

void write(const Value& v, Text& out, Budget& budget) {
  const size_t before = out.size();
  if (const Text* t = v.text()) out.append(*t);
  else if (v.undefined()) return;
  else if (v.none()) out.append("None", true);
  else if (const bool* b = v.as<bool>()) out.append(*b ? "True" : "False", true);
  else if (const Int* n = v.as<Int>()) out.append(digits(*n), true);
  else if (const double* d = v.as<double>()) out.append(float_text(*d, false), true);
  else if (v.list() || v.map()) write_repr(v, out, budget);
  else throw error("a {} cannot be written", type_name(v));
  budget.bytes(out.size() - before);
}

Text to_text(const Value& v, Budget& budget) {
  Text out;
  write(v, out, budget);
  return out;
}

Text to_json(const Value& v, const JsonOptions& options, Budget& budget) {
  JsonText json(options, budget);
  json.write(v, 0);
  budget.bytes(json.out.size());
  return std::move(json.out);
}

}  // namespace winnow::text::jinja
