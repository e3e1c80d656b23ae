#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <vector>

namespace winnow::text {
namespace {

constexpr size_t kMaxPatternBytes = 16384;

// Unicode White_Space as members of a class; PCRE2's own \s differs (it has U+180E).
constexpr std::string_view kWhiteSpace = "\\x09-\\x0d\\x{85}\\p{Z}";

constexpr std::array<std::string_view, 46> kProperties = {
    "L",  "Lu", "Ll", "Lt", "Lm",  "Lo",       "M",        "Mn",     "Mc",    "Me",       "N",     "Nd",     "Nl",   "No",    "P",  "Pc",
    "Pd", "Ps", "Pe", "Pi", "Pf",  "Po",       "S",        "Sm",     "Sc",    "Sk",       "So",    "Z",      "Zs",   "Zl",    "Zp", "C",
    "Cc", "Cf", "Co", "Cs", "Han", "Hiragana", "Katakana", "Hangul", "Latin", "Cyrillic", "Greek", "Arabic", "Thai", "Hebrew"};

// ASCII letter pairs that case folding also finds as one ligature, which the two engines treat differently.
constexpr std::array<std::string_view, 5> kLigatures = {"ss", "ff", "fi", "fl", "st"};

class Translator {
 public:
  Translator(std::string_view pattern, std::string_view where) : in_(pattern), where_(where) {}

  Result<std::string> run() {
    if (in_.size() > kMaxPatternBytes) return error("{}: the pattern is longer than {} bytes", where_, kMaxPatternBytes);
    while (at_ < in_.size() && problem_.empty()) {
      if (class_depth_) in_class();
      else outside();
    }
    if (problem_.empty() && class_depth_) problem_ = "an unclosed [";
    if (!problem_.empty()) return error("{}: the pattern holds {}, which is not supported (offset {})", where_, problem_, at_);
    return std::move(out_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool follows(std::string_view s) const { return in_.substr(at_).starts_with(s); }
  bool folding() const { return !folds_.empty() && folds_.back(); }
  void refuse(std::string what) { problem_ = std::move(what); }
  void take(size_t n) {
    out_ += in_.substr(at_, n);
    at_ += n;
  }

  void outside() {
    const char c = peek();
    if (folding() && (c == '[' || c == '\\')) return refuse("a class or escape without case");
    if (c == '\\') return escape();
    if (c == '[') return open_class();
    if (c == '(') return open_group();
    if (c == ')') {
      if (!folds_.empty()) folds_.pop_back();
      return take(1);
    }
    if (c == '^' || c == '$') return refuse(std::string("the anchor ") + c);
    if (c == '{') return interval();
    if (c == '*' || c == '+' || c == '?') {
      take(1);
      if (peek() == '+' || peek() == '?') take(1);
      return;
    }
    if (folding()) {
      std::string pair;
      for (size_t k = 0; k < 2; ++k) pair += static_cast<char>(std::tolower(static_cast<unsigned char>(peek(k))));
      if (std::ranges::find(kLigatures, pair) != kLigatures.end()) return refuse("the letters \"" + pair + "\" without case");
      if (static_cast<unsigned char>(c) >= 0x80) return refuse("a letter beyond ASCII without case");
    }
    take(1);
  }

  void open_group() {
    for (const std::string_view lead : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"}) {
      if (!follows(lead)) continue;
      folds_.push_back(lead == "(?i:" || folding());
      return take(lead.size());
    }
    if (peek(1) == '?' || peek(1) == '*') return refuse("the group \"" + std::string(in_.substr(at_, 4)) + "\"");
    folds_.push_back(folding());
    take(1);
  }

  void interval() {
    size_t n = 1;
    bool digits = false;
    while (std::isdigit(static_cast<unsigned char>(peek(n))) || peek(n) == ',') digits |= peek(n++) != ',';
    if (!digits || peek(n) != '}' || peek(1) == ',') return refuse("a { that is no {n}, {n,} or {n,m}");
    if (peek(n + 1) == '+' || peek(n + 1) == '?') return refuse("an interval followed by + or ?");
    take(n + 1);
  }

  void open_class() {
    ++class_depth_;
    take(1);
    if (peek() == '^') take(1);
    if (peek() == ']') refuse("a class that begins with ]");
  }

  void in_class() {
    const char c = peek();
    if (c == '\\') return escape();
    if (c == '[') return refuse("a [ inside a class");
    if (follows("&&")) return refuse("&& inside a class");
    if (c == ']') --class_depth_;
    take(1);
  }

  void escape() {
    const char c = peek(1);
    switch (c) {
      case 's':
      case 'S': {
        if (c == 'S' && class_depth_) return refuse("\\S inside a class");
        if (class_depth_) out_ += kWhiteSpace;
        else out_ += (c == 's' ? "[" : "[^") + std::string(kWhiteSpace) + "]";
        at_ += 2;
        return;
      }
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'd':
      case 'D': return take(2);
      case 'p':
      case 'P': return property();
      case 'x':
      case 'u': return code_point(c);
      default:
        if (std::ispunct(static_cast<unsigned char>(c)) || c == ' ') return take(2);
        return refuse(std::string("the escape \\") + c);
    }
  }

  void property() {
    const size_t close = in_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) return refuse("\\p without {..}");
    const std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    if (std::ranges::find(kProperties, name) == kProperties.end()) return refuse("the property \"" + std::string(name) + "\"");
    take(close + 1 - at_);
  }

  void code_point(char kind) {
    size_t first = 2, digits = kind == 'u' ? 4 : 2;
    const bool braces = kind == 'x' && peek(2) == '{';
    if (braces) {
      const size_t close = in_.find('}', at_);
      if (close == std::string_view::npos || close - at_ > 9) return refuse("\\x{..} without an end");
      first = 3;
      digits = close - at_ - 3;
    }
    for (size_t k = 0; k < digits; ++k)
      if (!std::isxdigit(static_cast<unsigned char>(peek(first + k)))) return refuse("an escape without hexadecimal digits");
    if (kind == 'x' && !braces && (peek(2) >= '8')) return refuse("\\x80 or above, which is a byte and not a character");
    out_ += "\\x{" + std::string(in_.substr(at_ + first, digits)) + "}";
    at_ += first + digits + (braces ? 1 : 0);
  }

  std::string_view in_, where_;
  std::string out_, problem_;
  size_t at_ = 0;
  int class_depth_ = 0;
  std::vector<bool> folds_;  // for each open group: is case ignored
};

}  // namespace

Result<std::string> to_pcre2(std::string_view oniguruma, std::string_view where) { return Translator(oniguruma, where).run(); }

std::string literal_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c))) out += '\\';
    out += c;
  }
  return out;
}

struct Regex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(const std::string& pcre2, std::string_view where) {
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(pcre2_compile_context_create(nullptr),
                                                                                              pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 50);
  int code = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Code>();
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pcre2.data()), pcre2.size(), PCRE2_UTF | PCRE2_UCP, &code, &offset, context.get());
  if (!compiled->code) {
    PCRE2_UCHAR message[160] = {};
    pcre2_get_error_message(code, message, sizeof message);
    return error("{}: the pattern does not compile: {}", where, reinterpret_cast<const char*>(message));
  }
  uint32_t empty = 0;
  pcre2_pattern_info(compiled->code, PCRE2_INFO_MATCHEMPTY, &empty);
  if (empty) return error("{}: the pattern can match the empty string, which is not supported", where);
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);  // without JIT the same matches are found, slower
  return Regex(std::move(compiled));
}

struct Regex::Search::State {
  const pcre2_code* code;
  pcre2_match_data* data;
  pcre2_match_context* context;
  size_t limit_for = 0;  // the text length that the limits were set for
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
};

Regex::Search::Search(const Regex& regex)
    : state_(new State{regex.code_->code, pcre2_match_data_create(1, nullptr), pcre2_match_context_create(nullptr)}) {
  if (!state_->data || !state_->context) throw std::bad_alloc();
}
Regex::Search::Search(Search&&) noexcept = default;
Regex::Search::~Search() = default;

bool Regex::Search::next(std::string_view subject, size_t from, size_t& begin, size_t& end) {
  State& s = *state_;
  if (subject.size() >= s.limit_for) {
    // A match of the supported families backs up over its own length a few times at most.
    s.limit_for = 2 * subject.size() + 4096;
    const auto limit = static_cast<uint32_t>(std::min<size_t>(UINT32_MAX, 32 * s.limit_for));
    pcre2_set_match_limit(s.context, limit);
    pcre2_set_depth_limit(s.context, limit);
  }
  const auto* text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  int rc = pcre2_match(s.code, text, subject.size(), from, PCRE2_NO_UTF_CHECK, s.data, s.context);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT)  // the interpreter keeps its stack on the heap
    rc = pcre2_match(s.code, text, subject.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s.data, s.context);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0) throw error("tokenizer.json: a pre_tokenizer pattern takes too long on this text (PCRE2 error {})", rc);
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(s.data);
  begin = found[0];
  end = found[1];
  return true;
}

}  // namespace winnow::text
