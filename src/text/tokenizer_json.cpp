#include "text/tokenizer_json.h"

#include <unicode/uniset.h>

#include <boost/json.hpp>

#include <algorithm>
#include <initializer_list>
#include <unordered_map>

#include "text/byte_level.h"
#include "text/nfc.h"

namespace winnow::text {
namespace {

namespace json = boost::json;

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr int64_t kMaxId = int64_t{1} << 22;  // ids above would only reserve memory
constexpr size_t kMaxAddedTokenBytes = 4096;
constexpr size_t kMaxSteps = 32;

// GPT-2's pattern, which ByteLevel applies unless "use_regex" is false.
constexpr std::string_view kByteLevelPattern = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
// A value of the file and its path in it, for messages. Whatever does not fit throws an Error.
class Field {
 public:
  Field(const json::value* value, std::string path) : value_(value), path_(std::move(path)) {}

  [[noreturn]] void refuse(std::string_view why) const { throw error("{}{}{}", path_, path_.ends_with(": ") ? "" : ": ", why); }
  const std::string& path() const { return path_; }
  bool null() const { return !value_ || value_->is_null(); }

  Field operator[](std::string_view key) const {
    const json::object& o = object();
    const auto* entry = o.if_contains(key);
    return {entry, path_ + "." + std::string(key)};
  }
  // The members must be among these: what we do not know might change the encoding.
  void only(std::initializer_list<std::string_view> keys) const {
    for (const auto& [key, value] : object())
      if (std::ranges::find(keys, std::string_view(key)) == keys.end()) throw error("{}.{}: not known to this engine", path_, std::string_view(key));
  }
  const json::object& object() const {
    if (!value_ || !value_->is_object()) refuse("must be an object");
    return value_->get_object();
  }
  const json::array& array() const {
    if (!value_ || !value_->is_array()) refuse("must be an array");
    return value_->get_array();
  }
  Field at(size_t i) const { return {&array()[i], path_ + "[" + std::to_string(i) + "]"}; }
  std::string_view string() const {
    if (!value_ || !value_->is_string()) refuse("must be a string");
    return value_->get_string();
  }
  bool boolean(bool otherwise) const {
    if (null()) return otherwise;
    if (!value_->is_bool()) refuse("must be true or false");
    return value_->get_bool();
  }
  int64_t id() const {
    int64_t n = -1;
    if (value_ && value_->is_int64()) n = value_->get_int64();
    if (n < 0 || n >= kMaxId) refuse(fmt::format("must be an id from 0 to {}", kMaxId - 1));
    return n;
  }

 private:
  const json::value* value_;
  std::string path_;
};

void read_normalizer(const Field& f, TokenizerFile& out) {
  if (f.null()) return;
  const std::string_view type = f["type"].string();
  if (type == "NFC") {
    out.nfc = true;
  } else if (type == "Sequence") {
    for (size_t i = 0; i < f["normalizers"].array().size(); ++i) {
      const Field part = f["normalizers"].at(i);
      if (part["type"].string() != "NFC") part["type"].refuse("only NFC is supported");
      out.nfc = true;
    }
  } else {
    f["type"].refuse(fmt::format("{} is not supported (NFC and Sequence are)", type));
  }
}

Behavior read_behavior(const Field& f) {
  constexpr std::pair<std::string_view, Behavior> kNames[] = {{"Isolated", Behavior::isolated},
                                                              {"Removed", Behavior::removed},
                                                              {"MergedWithPrevious", Behavior::merged_with_previous},
                                                              {"MergedWithNext", Behavior::merged_with_next},
                                                              {"Contiguous", Behavior::contiguous}};
  const std::string_view name = f.string();
  for (const auto& [known, behavior] : kNames)
    if (known == name) return behavior;
  f.refuse("is no known behavior");
}

SplitStep make_step(std::string_view oniguruma, std::string_view where, Behavior behavior, bool invert) {
  const std::string pattern = to_pcre2(oniguruma, where).or_throw();
  return {Regex::compile(pattern, where).or_throw(), behavior, invert};
}

// What the package's Punctuation splits at: ASCII punctuation and the P categories of Unicode 8, in which two characters
// were punctuation that no longer are.
Regex punctuation(std::string_view where) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::UnicodeSet set(u"[!-/\\:-@\\[-`\\{-~\\u166D\\U000111C9[[:P:]&[:age=8.0:]]]", status);
  if (U_FAILURE(status)) throw error("ICU cannot load its character properties ({}); is libicu installed whole?", u_errorName(status));
  std::string pattern = "[";
  for (int32_t i = 0; i < set.getRangeCount(); ++i)
    pattern += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<uint32_t>(set.getRangeStart(i)), static_cast<uint32_t>(set.getRangeEnd(i)));
  return Regex::compile(pattern + "]", where).or_throw();
}

// True if the step was ByteLevel, which must come last: what follows would see byte symbols instead of text.
bool read_step(const Field& f, std::vector<SplitStep>& steps) {
  const std::string_view type = f["type"].string();
  if (steps.size() >= kMaxSteps) f.refuse("too many steps");
  if (type == "Split") {
    f.only({"type", "pattern", "behavior", "invert"});
    const Field pattern = f["pattern"];
    pattern.only({"Regex", "String"});
    const bool literal = pattern["Regex"].null();
    const Field source = pattern[literal ? "String" : "Regex"];
    if (source.string().empty()) source.refuse("is empty");
    const std::string expression = literal ? literal_pattern(source.string()) : std::string(source.string());
    steps.push_back(make_step(expression, source.path(), read_behavior(f["behavior"]), f["invert"].boolean(false)));
    return false;
  }
  if (type == "Digits") {
    const bool each = f["individual_digits"].boolean(false);
    steps.push_back(make_step("\\p{N}", f.path(), each ? Behavior::isolated : Behavior::contiguous, false));
    return false;
  }
  if (type == "Punctuation") {
    const Behavior behavior = f["behavior"].null() ? Behavior::isolated : read_behavior(f["behavior"]);
    steps.push_back({punctuation(f.path()), behavior, false});
    return false;
  }
  if (type == "ByteLevel") {
    f.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (f["add_prefix_space"].boolean(true)) f["add_prefix_space"].refuse("true is not supported");
    if (f["use_regex"].boolean(true)) steps.push_back(make_step(kByteLevelPattern, f.path(), Behavior::isolated, false));
    return true;
  }
  f["type"].refuse(fmt::format("{} is not supported (Sequence, Split, Digits, Punctuation and ByteLevel are)", type));
}

void read_pre_tokenizer(const Field& f, TokenizerFile& out) {
  if (f.null()) f.refuse("must be ByteLevel, or a Sequence that ends with it");
  bool byte_level = false;
  if (f["type"].string() == "Sequence") {
    const Field parts = f["pretokenizers"];
    for (size_t i = 0; i < parts.array().size(); ++i) {
      if (byte_level) parts.at(i).refuse("a step after ByteLevel is not supported");
      byte_level = read_step(parts.at(i), out.steps);
    }
  } else {
    byte_level = read_step(f, out.steps);
  }
  if (!byte_level) f.refuse("must be ByteLevel, or a Sequence that ends with it");
}

// Post-processors add tokens around a text or move offsets; prompts get the former from the template, nobody asks for the latter.
void check_post_processor(const Field& f) {
  if (f.null()) return;
  const std::string_view type = f["type"].string();
  if (type == "Sequence") {
    for (size_t i = 0; i < f["processors"].array().size(); ++i) {
      const Field part = f["processors"].at(i);
      const std::string_view inner = part["type"].string();
      if (inner != "ByteLevel" && inner != "TemplateProcessing") part["type"].refuse(fmt::format("{} is not supported", inner));
    }
  } else if (type != "ByteLevel" && type != "TemplateProcessing") {
    f["type"].refuse(fmt::format("{} is not supported", type));
  }
}

using Ids = std::unordered_map<std::string_view, Token>;

Ids read_vocab(const Field& f, TokenizerFile& out) {
  Ids ids;
  std::vector<bool> used;
  out.symbols.fill(-1);
  for (const auto& [key, value] : f.object()) {
    const Field entry(&value, f.path() + "[" + std::string(key) + "]");
    const auto id = static_cast<size_t>(entry.id());
    if (id >= used.size()) used.resize(id + 1);
    if (used[id]) entry.refuse("two entries have this id");
    used[id] = true;
    if (id >= out.decoded.size()) {
      out.decoded.resize(id + 1);
      out.encoded.resize(id + 1);
    }
    ids.emplace(key, static_cast<Token>(id));
    const std::optional<std::string> bytes = bytes_of_symbols(key);
    out.decoded[id] = bytes ? *bytes : std::string(key);
    if (!bytes) continue;
    out.encoded[id] = *bytes;
    if (bytes->size() == 1) out.symbols[static_cast<unsigned char>((*bytes)[0])] = static_cast<Token>(id);
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    const bool in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    if (in_utf8 && out.symbols[byte] < 0) f.refuse(fmt::format("has no symbol for byte 0x{:02X}", byte));
  }
  return ids;
}

void read_merges(const Field& f, const Ids& ids, TokenizerFile& out) {
  const json::array& list = f.array();
  out.merges.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    std::string_view left, right;
    if (const json::string* line = list[i].if_string()) {  // the older form
      const std::string_view text = *line;
      if (text.starts_with("#version")) continue;
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) f.at(i).refuse("must be two entries and one space");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      const Field pair = f.at(i);
      if (pair.array().size() != 2) pair.refuse("must be a pair");
      left = pair.at(0).string();
      right = pair.at(1).string();
    }
    const std::string a(left), b(right);
    const auto find = [&](const std::string& entry) {
      const auto found = ids.find(entry);
      if (found == ids.end()) f.at(i).refuse(fmt::format("\"{}\" is not in model.vocab", entry));
      return found->second;
    };
    out.merges.push_back({find(a), find(b), find(a + b)});
  }
}

Ids read_model(const Field& f, TokenizerFile& out) {
  f.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
          "merges"});
  if (f["type"].string() != "BPE") f["type"].refuse(fmt::format("{} is not supported (BPE is)", f["type"].string()));
  if (!f["dropout"].null()) f["dropout"].refuse("must be null: encoding would be random");
  // unk_token, fuse_unk and byte_fallback say what happens to symbols outside the vocabulary; read_vocab leaves none.
  for (const std::string_view affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!f[affix].null() && !f[affix].string().empty()) f[affix].refuse("is not supported");
  out.ignore_merges = f["ignore_merges"].boolean(false);
  Ids ids = read_vocab(f["vocab"], out);
  read_merges(f["merges"], ids, out);
  return ids;
}

void read_added_tokens(const Field& f, const Ids& ids, TokenizerFile& out) {
  if (f.null()) return;
  Ids seen;
  const auto vocab_size = static_cast<int64_t>(ids.size());
  int64_t largest = -1;
  for (size_t i = 0; i < f.array().size(); ++i) {
    const Field entry = f.at(i);
    entry.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken t{std::string(entry["content"].string()), static_cast<Token>(entry["id"].id()), entry["single_word"].boolean(false),
                 entry["lstrip"].boolean(false),         entry["rstrip"].boolean(false),       entry["normalized"].boolean(true),
                 entry["special"].boolean(false)};
    if (t.content.empty() || t.content.size() > kMaxAddedTokenBytes) entry["content"].refuse("is empty or too long");
    if (!seen.emplace(entry["content"].string(), t.id).second) entry["content"].refuse("occurs twice");
    // The `tokenizers` package numbers them itself and ignores "id"; a file where the two differ means different things to different readers.
    const auto in_vocab = ids.find(t.content);
    const int64_t expected = in_vocab != ids.end() ? in_vocab->second : std::max(largest + 1, vocab_size);
    if (t.id != expected) entry["id"].refuse(fmt::format("is {}, but by its place and model.vocab it must be {}", t.id, expected));
    largest = std::max(largest, expected);
    const auto id = static_cast<size_t>(t.id);
    if (id >= out.decoded.size()) {
      out.decoded.resize(id + 1);
      out.encoded.resize(id + 1);
    }
    if (out.encoded[id].size() == 1) entry["content"].refuse("is also the symbol of a byte, which is not supported");
    const std::optional<std::string> bytes = bytes_of_symbols(t.content);
    out.decoded[id] = bytes ? *bytes : t.content;
    out.encoded[id].clear();  // text never becomes a control token by merging
    out.added.push_back(std::move(t));
  }
  std::vector<bool> control(out.decoded.size());
  for (const AddedToken& t : out.added) control[static_cast<size_t>(t.id)] = true;
  std::erase_if(out.merges, [&](const Merge& m) { return control[static_cast<size_t>(m.product)]; });
}

TokenizerFile read(const Field& root) {
  root.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"});
  if (!root["truncation"].null()) root["truncation"].refuse("must be null");
  if (!root["padding"].null()) root["padding"].refuse("must be null");
  TokenizerFile out;
  read_normalizer(root["normalizer"], out);
  read_pre_tokenizer(root["pre_tokenizer"], out);
  check_post_processor(root["post_processor"]);
  const Field decoder = root["decoder"];
  if (decoder.null() || decoder["type"].string() != "ByteLevel") decoder.refuse("must be ByteLevel");
  const Ids ids = read_model(root["model"], out);
  read_added_tokens(root["added_tokens"], ids, out);
  return out;
}

}  // namespace

Result<TokenizerFile> read_tokenizer_json(std::string_view text, std::string_view where) {
  if (text.size() > kMaxFileBytes) return error("{}: larger than {} MiB", where, kMaxFileBytes >> 20);
  json::monotonic_resource memory;
  boost::system::error_code failed;
  const json::value root = json::parse(text, failed, &memory);
  if (failed) return error("{}: not JSON: {}", where, failed.message());
  try {
    return read(Field(&root, std::string(where) + ": "));
  } catch (const Error& e) { return e; }
}

}  // namespace winnow::text
