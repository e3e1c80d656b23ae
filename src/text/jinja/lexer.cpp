#include "text/jinja/lexer.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <charconv>

#include "text/utf8.h"

namespace winnow::text::jinja {
namespace {

std::string with_newlines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();  // Jinja drops one newline at the end
  return out;
}

bool name_begins(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool name_goes_on(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
bool digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), in_(source_) {}

  std::vector<Token> run() {
    while (at_ < in_.size()) outside();
    add(Token::end);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string_view why) const { throw error("line {}: {}", line_, why); }
  Token& add(Token::Kind kind, std::string text = {}) {
    tokens_.push_back({kind, line_, std::move(text)});
    return tokens_.back();
  }
  bool follows(std::string_view s) const { return in_.substr(at_).starts_with(s); }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  void advance(size_t n) {
    line_ += static_cast<int>(std::count(in_.begin() + at_, in_.begin() + at_ + n, '\n'));
    at_ += n;
  }

  size_t space_length() const {  // of the white space at at_
    size_t n = 0;
    while (at_ + n < in_.size()) {
      size_t next = at_ + n;
      const char32_t c = code_point_at(in_, next);
      if (!u_isUWhiteSpace(static_cast<UChar32>(c)) && !(c >= 0x1C && c <= 0x1F)) break;
      n = next - at_;
    }
    return n;
  }

  // Text up to the next tag, then the tag.
  void outside() {
    size_t begin = in_.find('{', at_);
    while (begin != std::string_view::npos && (begin + 1 == in_.size() || std::string_view("{%#").find(in_[begin + 1]) == std::string_view::npos))
      begin = in_.find('{', begin + 1);
    if (begin == std::string_view::npos) begin = in_.size();
    const std::string_view text = in_.substr(at_, begin - at_);
    if (begin == in_.size()) {
      add(Token::data, std::string(text));
      return advance(text.size());
    }
    const char kind = in_[begin + 1], mark = begin + 2 < in_.size() ? in_[begin + 2] : '\0';
    const bool marked = mark == '-' || mark == '+';
    emit_data(text, marked ? mark : '\0', kind != '{');
    advance(text.size() + 2 + (marked ? 1 : 0));
    if (kind == '#') return comment();
    if (kind == '%') return block();
    add(Token::print_begin);
    inside("}}", false);
    add(Token::print_end);
  }

  void emit_data(std::string_view text, char mark, bool may_strip_line) {
    if (mark == '-') {
      text = text.substr(0, strip(Text(std::string(text), true), Side::right, nullptr).size());
    } else if (mark != '+' && may_strip_line) {
      const size_t line = text.rfind('\n') + 1;  // 0 if there is none
      if ((line > 0 || line_starting_) && line < text.size() && strip(Text(std::string(text.substr(line)), true), Side::both, nullptr).empty())
        text = text.substr(0, line);
    }
    if (!text.empty()) add(Token::data, std::string(text));
  }

  // Moves past the end of a block or comment with the white space that goes with it.
  void close(std::string_view bracket, bool trims) {
    const size_t begin = at_;
    if (peek() == '-') {
      advance(1 + bracket.size());
      advance(space_length());
    } else if (peek() == '+') {
      advance(1 + bracket.size());
    } else {
      advance(bracket.size());
      if (trims && peek() == '\n') advance(1);
    }
    line_starting_ = at_ > begin && in_[at_ - 1] == '\n';
  }

  bool closes(std::string_view bracket, bool plus) const {
    return follows(bracket) || ((peek() == '-' || (plus && peek() == '+')) && in_.substr(at_ + 1).starts_with(bracket));
  }

  void comment() {
    const size_t end = in_.find("#}", at_);
    if (end == std::string_view::npos) fail("a comment without end");
    const bool marked = end > at_ && (in_[end - 1] == '-' || in_[end - 1] == '+');
    advance(end - at_ - (marked ? 1 : 0));
    close("#}", true);
  }

  void block() {
    const size_t begin = at_;
    const int line = line_;
    advance(space_length());
    if (follows("raw") && !name_goes_on(peek(3))) {
      advance(3);
      advance(space_length());
      if (closes("%}", false)) return raw();
      at_ = begin;
      line_ = line;
    }
    at_ = begin;
    line_ = line;
    add(Token::block_begin);
    inside("%}", true);
    add(Token::block_end);
  }

  void raw() {
    // The beginning does not trim; the end does, like any block.
    const bool strips = peek() == '-';
    advance(strips ? 3 : 2);
    if (strips) advance(space_length());
    line_starting_ = in_[at_ - 1] == '\n';
    for (size_t end = in_.find("{%", at_); end != std::string_view::npos; end = in_.find("{%", end + 1)) {
      const size_t text_begin = at_;
      const int line = line_;
      const char mark = end + 2 < in_.size() ? in_[end + 2] : '\0';
      const bool marked = mark == '-' || mark == '+';
      advance(end - at_ + 2 + (marked ? 1 : 0));
      advance(space_length());
      if (follows("endraw")) {
        advance(6);
        advance(space_length());
        if (closes("%}", true)) {
          emit_data(in_.substr(text_begin, end - text_begin), marked ? mark : '\0', true);
          return close("%}", true);
        }
      }
      at_ = text_begin;
      line_ = line;
    }
    fail("a raw block without end");
  }

  void inside(std::string_view bracket, bool block) {
    std::string open;
    while (true) {
      advance(space_length());
      if (at_ >= in_.size()) fail(block ? "a {% without %}" : "a {{ without }}");
      if (open.empty() && closes(bracket, block)) return close(bracket, block);
      const char c = peek();
      if (digit(c)) number();
      else if (name_begins(c)) take_name();
      else if (c == '\'' || c == '"') string(c);
      else operation(open);
    }
  }

  void take_name() {
    size_t n = 1;
    while (name_goes_on(peek(n))) ++n;
    if (static_cast<unsigned char>(peek(n)) >= 0x80) fail("a name beyond ASCII is not supported");
    add(Token::name, std::string(in_.substr(at_, n)));
    advance(n);
  }

  void number() {
    size_t n = 0;
    while (digit(peek(n))) ++n;
    bool real = false;
    const bool after_dot = !tokens_.empty() && tokens_.back().kind == Token::op && tokens_.back().text == "." && at_ > 0 && in_[at_ - 1] == '.';
    if (!after_dot && peek(n) == '.' && digit(peek(n + 1))) {
      real = true;
      for (++n; digit(peek(n));) ++n;
    }
    if (!after_dot && (peek(n) == 'e' || peek(n) == 'E')) {
      const size_t sign = peek(n + 1) == '+' || peek(n + 1) == '-';
      if (digit(peek(n + 1 + sign))) {
        real = true;
        for (n += 1 + sign; digit(peek(n));) ++n;
      }
    }
    if (name_goes_on(peek(n))) fail("a number followed by a letter is not supported");
    const std::string_view text = in_.substr(at_, n);
    if (!real && text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string_view::npos) fail("a number that begins with 0");
    Token& t = add(real ? Token::real : Token::integer, std::string(text));
    int64_t whole = 0;
    const auto parsed = real ? std::from_chars(text.data(), text.data() + n, t.number) : std::from_chars(text.data(), text.data() + n, whole);
    if (parsed.ec != std::errc()) fail("a number out of range");
    t.whole = whole;
    advance(n);
  }

  void string(char quote) {
    const int line = line_;
    std::string out;
    advance(1);
    while (peek() != quote) {
      if (at_ >= in_.size()) fail("a string without end");
      if (peek() == '\\') {
        escape(out);
      } else {
        out += peek();
        advance(1);
      }
    }
    advance(1);
    add(Token::string, std::move(out)).line = line;
  }

  // Python's "unicode-escape".
  void escape(std::string& out) {
    constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (at_ + 1 >= in_.size()) fail("a string without end");
    const char c = peek(1);
    if (c == '\n') return advance(2);
    if (const size_t k = kFrom.find(c); k != std::string_view::npos) {
      out += kTo[k];
      return advance(2);
    }
    if (c == 'N') fail("the escape \\N is not supported");
    const bool octal = c >= '0' && c <= '7';
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (!octal && !digits) {  // an unknown escape stays as it is
      out += '\\';
      return advance(1);
    }
    size_t n = 0;
    while (octal && n < 3 && peek(1 + n) >= '0' && peek(1 + n) <= '7') ++n;
    const std::string_view text = in_.substr(std::min(at_ + (octal ? 1 : 2), in_.size()), octal ? n : digits);
    uint32_t code = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), code, octal ? 8 : 16);
    if (parsed.ptr != text.data() + text.size() || text.size() < digits) fail("an escape without its digits");
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("an escape that is no character");
    char bytes[4];
    size_t length = 0;
    U8_APPEND_UNSAFE(bytes, length, code);
    out.append(bytes, length);
    advance((octal ? 1 : 2) + text.size());
  }

  void operation(std::string& open) {
    for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="}) {
      if (!follows(two)) continue;
      add(Token::op, std::string(two));
      return advance(2);
    }
    const char c = peek();
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos)
      fail(fmt::format("an unexpected character at \"{}\"", first_line()));
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail(fmt::format("an unexpected {}", c));
      open.pop_back();
    }
    add(Token::op, std::string(1, c));
    advance(1);
  }

  std::string first_line() const { return replace_ill_formed(in_.substr(at_, std::min<size_t>(20, in_.find('\n', at_) - at_))); }

  std::string source_;
  std::string_view in_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // only white space can stand between here and the beginning of the line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (source.size() > Limits::template_bytes) throw error("line 1: the template is longer than {} bytes", Limits::template_bytes);
  if (!is_utf8(source)) throw error("line 1: the template is not UTF-8");
  return Lexer(with_newlines(source)).run();
}

}  // namespace winnow::text::jinja
