#include "cli/config_file.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <charconv>
#include <set>
#include <sstream>

#include "base/file.h"
#include "cli/flags.h"

namespace winnow::cli {
namespace {

constexpr int64_t kMostBytes = 1 << 20;
constexpr const char* kModelKey = "model";

// The key of a flag; empty: it has no place in a file.
std::string key_of(const CLI::Option& o) {
  if (o.get_positional()) return kModelKey;
  const std::string name = o.get_lnames().empty() ? "" : o.get_lnames().front();
  return name == "help" || name == "config" || name == "print-config" ? "" : name;
}

std::vector<CLI::Option*> options_of(CLI::App& verb) {
  std::vector<CLI::Option*> all;
  for (CLI::Option* o : verb.get_options())
    if (!key_of(*o).empty()) all.push_back(o);
  return all;
}

bool is_switch(const CLI::Option& o) { return o.get_items_expected_max() == 0; }

bool is_number(const std::string& s) {
  double n = 0;
  const auto [end, bad] = std::from_chars(s.data(), s.data() + s.size(), n);
  return bad == std::errc{} && end == s.data() + s.size();
}

std::string in_quotes(const std::string& s) {
  if (is_number(s)) return s;
  return s.find('"') == s.npos ? fmt::format("\"{}\"", s) : fmt::format("'{}'", s);
}

}  // namespace

void apply_config(CLI::App& verb, const std::string& path) {
  const Result<std::string> text = read_text(path, kMostBytes);
  if (!text) throw Error(fmt::format("--config: {}", text.error().what()));
  const auto wrong = [&](std::string_view why) { return Error(fmt::format("--config {}: {}", path, why), Failure::usage); };
  const std::vector<CLI::Option*> options = options_of(verb);
  std::vector<std::string> keys;
  for (const CLI::Option* o : options) keys.push_back(key_of(*o));
  std::set<std::string> seen;
  std::istringstream lines(*text);
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(lines)) {
    if (!item.parents.empty()) throw wrong(fmt::format("section [{}]: there are none; the keys stand alone, as 'port = 8080'", item.parents.front()));
    const std::string& name = item.name;
    const size_t at = static_cast<size_t>(std::find(keys.begin(), keys.end(), name) - keys.begin());
    if (!item.parents.empty() || at == keys.size())
      throw wrong(fmt::format("unknown key '{}'{}; keys are the flags of 'winnow {} --help' without dashes, in no section", name,
                              suggestion(name, keys), verb.get_name()));
    if (!seen.insert(name).second) throw wrong(fmt::format("{} stands there twice", name));
    CLI::Option* o = options[at];
    if (o->count() > 0) continue;
    if (is_switch(*o)) {
      if (item.inputs != std::vector<std::string>{"true"} && item.inputs != std::vector<std::string>{"false"})
        throw wrong(fmt::format("{} has to be true or false", name));
      if (item.inputs.front() == "false") continue;
    }
    try {
      for (const std::string& value : item.inputs) o->add_result(value);
      o->run_callback();
    } catch (const CLI::Error& e) {  // of too many values, an empty one, one out of range
      throw wrong(fmt::format("{}: {}; a value with blanks or commas needs quotes", name, e.what()));
    }
  }
}

std::string config_text(const CLI::App& verb) {
  std::string text;
  for (const CLI::Option* o : verb.get_options()) {
    const std::string key = key_of(*o);
    if (key.empty()) continue;
    text += fmt::format("# {}\n", o->get_description());
    std::vector<std::string> values = o->results();
    if (values.empty() && !o->get_default_str().empty()) values = {o->get_default_str()};
    if (is_switch(*o)) text += fmt::format("{} = {}\n\n", key, values.empty() ? "false" : "true");
    else if (values.empty()) text += fmt::format("# {} =\n\n", key);
    else if (o->get_items_expected_max() == 1) text += fmt::format("{} = {}\n\n", key, in_quotes(values.front()));
    else {
      for (std::string& v : values) v = in_quotes(v);
      text += fmt::format("{} = [{}]\n\n", key, fmt::join(values, ", "));
    }
  }
  return text;
}

}  // namespace winnow::cli
