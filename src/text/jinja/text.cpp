#include "text/jinja/text.h"

#include <unicode/bytestream.h>
#include <unicode/casemap.h>
#include <unicode/edits.h>
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>

#include "base/error.h"

namespace winnow::text::jinja {
namespace {

// str.isspace(): White_Space and the four separators of ASCII.
bool is_space(char32_t c) { return (c >= 0x1C && c <= 0x1F) || u_isUWhiteSpace(static_cast<UChar32>(c)); }

size_t before(std::string_view s, size_t at) {
  do --at;
  while (at > 0 && U8_IS_TRAIL(static_cast<uint8_t>(s[at])));
  return at;
}

enum class Case { upper, lower, title };

// Full case mapping; a changed character keeps the trust of the first that it came from.
Text mapped(const Text& s, Case to) {
  if (s.size() > INT32_MAX / 4) throw error("a text of {} bytes is too long to change its case", s.size());
  UErrorCode status = U_ZERO_ERROR;
  std::string bytes;
  icu::StringByteSink<std::string> sink(&bytes);
  icu::Edits edits;
  const icu::StringPiece source(s.bytes().data(), static_cast<int32_t>(s.size()));
  if (to == Case::upper) icu::CaseMap::utf8ToUpper("", 0, source, sink, &edits, status);
  if (to == Case::lower) icu::CaseMap::utf8ToLower("", 0, source, sink, &edits, status);
  if (to == Case::title)
    icu::CaseMap::utf8ToTitle("", U_TITLECASE_NO_BREAK_ADJUSTMENT | U_TITLECASE_WHOLE_STRING, nullptr, source, sink, &edits, status);
  if (U_FAILURE(status)) throw error("ICU cannot map the case of a text: {}", u_errorName(status));
  Text out;
  icu::Edits::Iterator i = edits.getFineIterator();
  while (i.next(status)) {
    const std::string_view piece(bytes.data() + i.destinationIndex(), static_cast<size_t>(i.newLength()));
    if (i.hasChange()) {
      out.append(piece, s.trusted_at(static_cast<size_t>(i.sourceIndex())));
    } else {
      out.append(s, static_cast<size_t>(i.sourceIndex()), static_cast<size_t>(i.sourceIndex() + i.oldLength()));
    }
  }
  return out;
}

}  // namespace

void Text::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  bytes_ += bytes;
  if (!runs_.empty() && runs_.back().trusted == trusted) runs_.back().end = bytes_.size();
  else runs_.push_back({bytes_.size(), trusted});
}

void Text::append(const Text& other, size_t begin, size_t end) {
  auto run = std::ranges::upper_bound(other.runs_, begin, {}, &Run::end);
  for (; begin < end; ++run) {
    const size_t last = std::min(run->end, end);
    append(std::string_view(other.bytes_).substr(begin, last - begin), run->trusted);
    begin = last;
  }
}

Text Text::part(size_t begin, size_t end) const {
  Text out;
  out.append(*this, begin, end);
  return out;
}

bool Text::trusted_at(size_t byte) const {
  const auto run = std::ranges::upper_bound(runs_, byte, {}, &Run::end);
  return run != runs_.end() && run->trusted;
}

char32_t code_point_at(std::string_view s, size_t& at) {
  UChar32 c;
  U8_NEXT(s.data(), at, s.size(), c);
  return static_cast<char32_t>(c);
}

std::vector<size_t> code_points(std::string_view s) {
  std::vector<size_t> out;
  for (size_t i = 0; i <= s.size(); ++i)
    if (i == s.size() || !U8_IS_TRAIL(static_cast<uint8_t>(s[i]))) out.push_back(i);
  return out;
}

size_t count_code_points(std::string_view s) {
  return static_cast<size_t>(std::ranges::count_if(s, [](char c) { return !U8_IS_TRAIL(static_cast<uint8_t>(c)); }));
}

Text strip(const Text& s, Side side, const Text* characters) {
  const std::string_view bytes = s.bytes();
  const auto goes = [&](size_t begin, size_t end) {
    if (characters) return characters->bytes().find(bytes.substr(begin, end - begin)) != std::string::npos;
    return is_space(code_point_at(bytes, begin));
  };
  size_t begin = 0, end = bytes.size();
  while (side != Side::right && begin < end) {
    size_t next = begin;
    code_point_at(bytes, next);
    if (!goes(begin, next)) break;
    begin = next;
  }
  while (side != Side::left && end > begin) {
    const size_t last = before(bytes, end);
    if (!goes(last, end)) break;
    end = last;
  }
  return s.part(begin, end);
}

std::vector<Text> split(const Text& s, const Text* separator, int64_t most) {
  const std::string_view bytes = s.bytes();
  std::vector<Text> out;
  size_t at = 0;
  if (separator) {
    for (size_t found; most != 0 && (found = bytes.find(separator->bytes(), at)) != std::string_view::npos; --most) {
      out.push_back(s.part(at, found));
      at = found + separator->size();
    }
    out.push_back(s.part(at, bytes.size()));
    return out;
  }
  while (true) {
    for (size_t next = at; at < bytes.size() && is_space(code_point_at(bytes, next)); at = next) {}
    if (at == bytes.size()) return out;
    size_t end = at;
    if (most-- == 0) {
      out.push_back(s.part(at, bytes.size()));
      return out;
    }
    for (size_t next = end; end < bytes.size() && !is_space(code_point_at(bytes, next)); end = next) {}
    out.push_back(s.part(at, end));
    at = end;
  }
}

Text replace(const Text& s, const Text& from, const Text& to, int64_t most) {
  Text out;
  size_t at = 0;
  if (from.empty()) {  // before each character and at the end
    for (const size_t end : code_points(s.bytes())) {
      out.append(s, at, end);
      if (most-- != 0) out.append(to);
      else ++most;
      at = end;
    }
    return out;
  }
  for (size_t found; most != 0 && (found = s.bytes().find(from.bytes(), at)) != std::string::npos; --most) {
    out.append(s, at, found);
    out.append(to);
    at = found + from.size();
  }
  out.append(s, at, s.size());
  return out;
}

Text upper(const Text& s) { return mapped(s, Case::upper); }
Text lower(const Text& s) { return mapped(s, Case::lower); }

Text capitalize(const Text& s) {
  if (s.empty()) return s;
  size_t first = 0;
  code_point_at(s.bytes(), first);
  const Text rest = mapped(s, Case::lower);  // as a whole: a final sigma depends on what is before it
  Text out = mapped(s.part(0, first), Case::title);
  out.append(rest, mapped(s.part(0, first), Case::lower).size(), rest.size());
  return out;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}

}  // namespace winnow::text::jinja
