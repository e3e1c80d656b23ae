#include "text/nfc.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>
#include <unicode/utf8.h>

#include <algorithm>

#include "base/error.h"

namespace winnow::text {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;  // ICU counts in 32 bits

// NFC of the Unicode version that the `tokenizers` package normalises by: later characters stay as they are.
const icu::Normalizer2& nfc() {
  static const icu::FilteredNormalizer2 normalizer = [] {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* all = icu::Normalizer2::getNFCInstance(status);
    static const icu::UnicodeSet known = [&] {
      icu::UnicodeSet set(u"[:age=9.0:]", status);
      set.freeze();
      return set;
    }();
    if (U_FAILURE(status)) throw error("ICU cannot load its normalisation data ({}); is libicu installed whole?", u_errorName(status));
    return icu::FilteredNormalizer2(*all, known);
  }();
  return normalizer;
}

struct Place {
  size_t begin, end;
  UChar32 code;
};

Place character_at(std::string_view s, size_t begin) {
  size_t at = begin;
  UChar32 c;
  U8_NEXT(s.data(), at, s.size(), c);
  return {begin, at, c};
}

size_t previous(std::string_view s, size_t at) {
  do --at;
  while (at > 0 && U8_IS_TRAIL(static_cast<uint8_t>(s[at])));
  return at;
}

// Sorts each run of combining marks by class, as normalisation will: ICU does that by insertion, quadratic in the run.
void order_marks(std::string& text) {
  const icu::Normalizer2& n = nfc();
  struct Mark {
    uint8_t combining;
    std::string_view bytes;
  };
  std::vector<Mark> marks;
  std::string ordered;
  for (size_t i = 0; i < text.size();) {
    Place c = character_at(text, i);
    uint8_t combining = c.code < 0x300 ? 0 : n.getCombiningClass(c.code);
    if (!combining) {
      i = c.end;
      continue;
    }
    marks.clear();
    const size_t begin = i;
    while (combining) {
      marks.push_back({combining, std::string_view(text).substr(i, c.end - i)});
      i = c.end;
      if (i == text.size()) break;
      c = character_at(text, i);
      combining = c.code < 0x300 ? 0 : n.getCombiningClass(c.code);
    }
    std::ranges::sort(marks, [](const Mark& a, const Mark& b) {
      return a.combining != b.combining ? a.combining < b.combining : a.bytes.data() < b.bytes.data();  // stable
    });
    ordered.clear();
    for (const Mark& m : marks) ordered += m.bytes;
    text.replace(begin, ordered.size(), ordered);
  }
}

std::string normalised(std::string text) {
  if (text.size() > kMaxBytes) throw error("a text of {} bytes is too long to normalise", text.size());
  order_marks(text);
  UErrorCode status = U_ZERO_ERROR;
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
  nfc().normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr, status);
  if (U_FAILURE(status)) throw error("ICU cannot normalise a text: {}", u_errorName(status));
  return out;
}

bool ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

void to_nfc(std::string& text, Runs& runs) {
  if (ascii(text)) return;
  const icu::Normalizer2& n = nfc();
  // Segments that normalise on their own: cut where trust changes, or around the characters that interact there.
  Runs segments;
  size_t done = 0;
  for (size_t r = 0; r < runs.size(); ++r) {
    const size_t end = std::max(done, runs[r].end);
    if (end == text.size() || n.hasBoundaryBefore(character_at(text, end).code)) {
      segments.push_back({end, runs[r].trusted});
      done = end;
      continue;
    }
    size_t first = end, last = end;
    while (first > done && (first == end || !n.hasBoundaryBefore(character_at(text, first).code))) first = previous(text, first);
    while (last < text.size() && !n.hasBoundaryBefore(character_at(text, last).code)) last = character_at(text, last).end;
    segments.push_back({first, runs[r].trusted});
    segments.push_back({last, false});
    done = last;
  }
  std::string out;
  size_t begin = 0;
  for (Run& s : segments) {
    out += normalised(text.substr(begin, s.end - begin));
    begin = s.end;
    s.end = out.size();
  }
  text = std::move(out);
  runs = std::move(segments);
}

}  // namespace winnow::text
