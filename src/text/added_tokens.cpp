#include "text/added_tokens.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>

namespace winnow::text {
namespace {

// \w of the Rust regex crate, which the `tokenizers` package asks here: UTS 18, annex C.
bool is_word(UChar32 c) {
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL) ||
         (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

struct Character {
  UChar32 code;
  size_t bytes;
};  // code -1: the text is empty

Character first_character(std::string_view s) {
  UChar32 c = -1;
  size_t end = 0;
  if (!s.empty()) U8_NEXT(s.data(), end, s.size(), c);
  return {c, end};
}

Character last_character(std::string_view s) {
  UChar32 c = -1;
  s = s.substr(s.size() - std::min<size_t>(s.size(), 4));  // ICU steps back in 32 bits
  auto begin = static_cast<int32_t>(s.size());
  if (!s.empty()) U8_PREV(s.data(), 0, begin, c);
  return {c, s.size() - static_cast<size_t>(begin)};
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, {}, &AddedToken::content);
  for (const AddedToken& t : tokens_) begins_[static_cast<unsigned char>(t.content[0])] = true;
}

const AddedToken* AddedTokens::longest_at(std::string_view text) const {
  // Narrows the sorted tokens to those that begin with text[0, n), for growing n; the token that ends at n comes first.
  const AddedToken* longest = nullptr;
  auto low = tokens_.begin(), high = tokens_.end();
  const auto byte_at = [](size_t n) {
    return [n](const AddedToken& t) { return n < t.content.size() ? static_cast<int>(static_cast<unsigned char>(t.content[n])) : -1; };
  };
  for (size_t n = 0; n < text.size() && low != high; ++n) {
    const auto range = std::ranges::equal_range(low, high, static_cast<int>(static_cast<unsigned char>(text[n])), {}, byte_at(n));
    low = range.begin();
    high = range.end();
    if (low != high && low->content.size() == n + 1) longest = &*low;
  }
  return longest;
}

void AddedTokens::add(std::string_view text, size_t begin, const AddedToken& token, size_t& covered, std::vector<Part>& parts) const {
  size_t end = begin + token.content.size();
  const auto before = [&] { return last_character(text.substr(0, begin)); };
  const auto after = [&] { return first_character(text.substr(end)); };
  if (token.single_word && ((begin > 0 && is_word(before().code)) || (end < text.size() && is_word(after().code)))) return;
  if (token.lstrip) {
    while (begin > covered && u_isUWhiteSpace(before().code)) begin -= before().bytes;
    begin = std::max(begin, covered);
  }
  if (token.rstrip)
    while (end < text.size() && u_isUWhiteSpace(after().code)) end += after().bytes;
  if (covered < begin) parts.push_back({covered, begin, -1});
  parts.push_back({begin, end, token.id});
  covered = end;
}

std::vector<AddedTokens::Part> AddedTokens::find(std::string_view text, const Runs& runs) const {
  std::vector<Part> parts;
  size_t covered = 0, begin = 0;
  for (size_t r = 0; r < runs.size() && !empty(); ++r) {
    const bool trusted = runs[r].trusted;
    while (r + 1 < runs.size() && runs[r + 1].trusted == trusted) ++r;
    for (size_t i = begin; trusted && i < runs[r].end;) {
      const AddedToken* found = begins_[static_cast<unsigned char>(text[i])] ? longest_at(text.substr(i, runs[r].end - i)) : nullptr;
      if (found) add(text, i, *found, covered, parts);
      i += found ? found->content.size() : 1;
    }
    begin = runs[r].end;
  }
  if (covered != text.size()) parts.push_back({covered, text.size(), -1});
  return parts;
}

}  // namespace winnow::text
