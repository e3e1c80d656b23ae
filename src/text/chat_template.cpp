#include "text/chat_template.h"

#include <boost/json.hpp>

#include <filesystem>

#include "base/file.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/syntax.h"

namespace winnow::text {
namespace {

namespace json = boost::json;
using jinja::Value;

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

using Names = std::vector<std::pair<std::string, Value>>;

Value value_of(const json::value& v, bool trusted, int depth = 1) {
  if (depth > jinja::Limits::value_depth) throw error("the context is nested more than {} deep", jinja::Limits::value_depth);
  switch (v.kind()) {
    case json::kind::null: return {};
    case json::kind::bool_: return v.get_bool();
    case json::kind::int64: return v.get_int64();
    case json::kind::uint64: return static_cast<jinja::Int>(v.get_uint64());
    case json::kind::double_: return v.get_double();
    case json::kind::string: return jinja::Text(replace_ill_formed(std::string_view(v.get_string())), trusted);
    case json::kind::array: {
      std::vector<Value> items;
      for (const json::value& item : v.get_array()) items.push_back(value_of(item, trusted, depth + 1));
      return Value::list(std::move(items));
    }
    case json::kind::object: {
      std::vector<std::pair<Value::TextPtr, Value>> entries;
      for (const auto& [key, item] : v.get_object())
        entries.emplace_back(std::make_shared<const jinja::Text>(replace_ill_formed(std::string_view(key)), trusted),
                             value_of(item, trusted, depth + 1));
      return Value::map(std::move(entries));
    }
  }
  return {};
}

// "bos_token" and the like: strings, or objects with a "content".
Names special_tokens(const json::object& config) {
  Names out;
  for (const auto& [key, v] : config) {
    const json::value* content = v.is_object() ? v.get_object().if_contains("content") : &v;
    if (std::string_view(key).ends_with("_token") && content && content->is_string()) out.emplace_back(key, value_of(*content, true));
  }
  return out;
}

// "chat_template": a string, or a list of {name, template} of which "default" is meant.
Result<std::string> template_of(const json::object& config, const std::string& where) {
  const json::value* v = config.if_contains("chat_template");
  if (v && v->is_array())
    for (const json::value& entry : v->get_array()) {
      const json::object* o = entry.if_object();
      const json::value* name = o ? o->if_contains("name") : nullptr;
      if (name && *name == "default") v = o->if_contains("template");
      if (v && v->is_string()) break;
    }
  if (!v || !v->is_string())
    return error("{}: holds no \"chat_template\", and there is no chat_template.jinja beside it; give the prompt as plain text", where);
  return std::string(v->get_string());
}

}  // namespace

struct ChatTemplate::Impl {
  std::string where;
  std::vector<jinja::Statement> body;
  Names special;
};

ChatTemplate::ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view where) {
  ChatTemplate t;
  t.impl_ = std::make_unique<Impl>();
  t.impl_->where = where;
  try {
    t.impl_->body = jinja::parse(source);
  } catch (const Error& e) { return error("{}: {}", where, e.what()); }
  return t;
}

Result<ChatTemplate> ChatTemplate::load(const std::string& dir) {
  const std::filesystem::path config_path = std::filesystem::path(dir) / "tokenizer_config.json",
                              template_path = std::filesystem::path(dir) / "chat_template.jinja";
  json::value config = json::object();
  if (exists(config_path.string())) {
    const Result<std::string> text = read_text(config_path.string(), kMaxConfigBytes);
    if (!text) return text.error();
    boost::system::error_code failed;
    config = json::parse(*text, failed);
    if (failed) return error("{}: not JSON: {}", config_path.string(), failed.message());
    if (!config.is_object()) return error("{}: must be an object", config_path.string());
  }
  const bool own_file = exists(template_path.string());
  const Result<std::string> source =
      own_file ? read_text(template_path.string(), jinja::Limits::template_bytes) : template_of(config.get_object(), config_path.string());
  if (!source) return source.error();
  if (source->empty())
    return error("{}: the chat template is empty; without one prompts are plain text", (own_file ? template_path : config_path).string());
  Result<ChatTemplate> t = parse(*source, own_file ? template_path.string() : config_path.string() + ": chat_template");
  if (t) t->impl_->special = special_tokens(config.get_object());
  return t;
}

Result<std::vector<Piece>> ChatTemplate::render(const json::object& context) const {
  try {
    Names names;
    for (const auto& [key, v] : context) names.emplace_back(key, value_of(v, false));
    for (const auto& [key, v] : impl_->special)
      if (!context.contains(key)) names.emplace_back(key, v);
    jinja::Interpreter interpreter(std::move(names));
    const jinja::Text text = interpreter.run(impl_->body);
    std::vector<Piece> pieces;
    size_t begin = 0;
    for (const Run& run : text.runs()) {
      pieces.push_back({text.bytes().substr(begin, run.end - begin), run.trusted});
      begin = run.end;
    }
    return pieces;
  } catch (const jinja::Raised& raised) {
    return Error("the chat template refuses the messages: " + raised.message, Failure::work);
  } catch (const Error& e) {
    const std::string where = std::filesystem::path(impl_->where).filename().string();  // no folder: a client may see it
    return Error(fmt::format("{}: {}", where, e.what()), Failure::work);
  }
}

std::string joined(const std::vector<Piece>& pieces) {
  std::string out;
  for (const Piece& p : pieces) out += p.text;
  return out;
}

}  // namespace winnow::text
