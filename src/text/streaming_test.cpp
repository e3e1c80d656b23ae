// What readers of a stream see: whatever bytes an answer has and however tokens cut them, the deltas are whole code points, together
// they are the text, and no byte of a stop string is among them.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <unordered_map>

#include "text/answer.h"
#include "text/utf8.h"

namespace winnow::text {
namespace {

using Random = std::mt19937;

void put(std::string* to, uint32_t c) {  // RFC 3629
  if (c < 0x80) {
    *to += static_cast<char>(c);
  } else if (c < 0x800) {
    *to += static_cast<char>(0xC0 | c >> 6);
    *to += static_cast<char>(0x80 | (c & 63));
  } else if (c < 0x10000) {
    *to += static_cast<char>(0xE0 | c >> 12);
    *to += static_cast<char>(0x80 | (c >> 6 & 63));
    *to += static_cast<char>(0x80 | (c & 63));
  } else {
    *to += static_cast<char>(0xF0 | c >> 18);
    *to += static_cast<char>(0x80 | (c >> 12 & 63));
    *to += static_cast<char>(0x80 | (c >> 6 & 63));
    *to += static_cast<char>(0x80 | (c & 63));
  }
}

bool is_surrogate(uint32_t c) { return c >= 0xD800 && c < 0xE000; }

uint32_t code_point(Random& random, uint32_t low, uint32_t high) {
  for (;;)
    if (const uint32_t c = low + random() % (high - low + 1); !is_surrogate(c)) return c;
}

// A letter with its marks, a family or a flag of emoji, a word of some script, or anything at all.
std::string written(Random& random) {
  constexpr uint32_t kScripts[][2] = {
      {0x20, 0x7E},       {0xC0, 0x24F},      {0x370, 0x3FF},     {0x400, 0x4FF},      {0x531, 0x58A},     {0x5D0, 0x5EA},     {0x620, 0x6FF},
      {0x904, 0x97F},     {0xB85, 0xBCD},     {0xE01, 0xE5B},     {0xF00, 0xFBC},      {0x1000, 0x109F},   {0x10A0, 0x10FF},   {0x1200, 0x137C},
      {0x13A0, 0x13FD},   {0x1780, 0x17F9},   {0x1820, 0x18AA},   {0x2000, 0x206F},    {0x2200, 0x22FF},   {0x3041, 0x30FF},   {0x4E00, 0x9FFF},
      {0xAC00, 0xD7A3},   {0xE000, 0xF8FF},   {0xFB50, 0xFDFF},   {0xFFF0, 0xFFFF},    {0x10330, 0x1034A}, {0x12000, 0x12399}, {0x1D400, 0x1D7FF},
      {0x1F300, 0x1FAFF}, {0x20000, 0x2A6DF}, {0xE0001, 0xE007F}, {0x10FFF0, 0x10FFFF}};
  std::string s;
  switch (random() % 6) {
    case 0:
      put(&s, code_point(random, 'a', 'z'));
      for (uint32_t n = 1 + random() % 6; n > 0; --n) put(&s, code_point(random, 0x300, 0x36F));
      break;
    case 1:
      for (uint32_t n = 1 + random() % 4; n > 0; --n) {
        put(&s, code_point(random, 0x1F466, 0x1F469));
        if (random() % 2) put(&s, code_point(random, 0x1F3FB, 0x1F3FF));
        if (n > 1) put(&s, 0x200D);
      }
      put(&s, 0xFE0F);
      break;
    case 2:
      put(&s, code_point(random, 0x1F1E6, 0x1F1FF));
      put(&s, code_point(random, 0x1F1E6, 0x1F1FF));
      break;
    case 3: put(&s, code_point(random, 0, 0x10FFFF)); break;
    default: {
      const auto& script = kScripts[random() % std::size(kScripts)];
      for (uint32_t n = 1 + random() % 5; n > 0; --n) put(&s, code_point(random, script[0], script[1]));
    }
  }
  return s;
}

std::string text_of_all_kinds(Random& random) {
  std::string s;
  for (uint32_t n = random() % 12; n > 0; --n) s += written(random);
  return s;
}

std::string bytes_of_all_kinds(Random& random) {
  std::string s = random() % 4 ? text_of_all_kinds(random) : "";
  if (s.empty()) s.resize(random() % 60);
  const uint32_t damage = random() % 3 == 0 ? static_cast<uint32_t>(s.size()) : random() % 4;
  for (uint32_t n = damage; n > 0 && !s.empty(); --n) {
    constexpr unsigned char kEdges[] = {0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xC2, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF};
    const size_t at = random() % s.size();
    if (random() % 4 == 0) s.erase(at, 1);
    else s[at] = static_cast<char>(random() % 2 ? kEdges[random() % std::size(kEdges)] : random());
  }
  return s;
}

class StreamingTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<Token> added = tokenizer_.added_tokens();
    for (Token id = 0; id < tokenizer_.vocab_size(); ++id)
      if (!std::ranges::binary_search(added, id) && !tokenizer_.bytes(id).empty()) tokens_.emplace(tokenizer_.bytes(id), id);
  }

  // Tokens with these bytes, cut anywhere.
  std::vector<Token> cut(std::string_view bytes, Random& random) const {
    std::vector<Token> out;
    while (!bytes.empty()) {
      std::vector<std::pair<size_t, Token>> fit;
      for (size_t n = 1; n <= std::min<size_t>(bytes.size(), 12); ++n)
        if (const auto t = tokens_.find(bytes.substr(0, n)); t != tokens_.end()) fit.emplace_back(n, t->second);
      EXPECT_FALSE(fit.empty()) << "every byte is a token";
      const auto [n, id] = fit[random() % fit.size()];
      out.push_back(id);
      bytes.remove_prefix(n);
    }
    return out;
  }

  // The deltas, each checked.
  struct Seen {
    std::string reasoning, content;
  };
  Seen read(const std::vector<Token>& ids, AnswerOptions options, bool* stopped = nullptr) const {
    AnswerReader reader(tokenizer_, std::move(options));
    Seen seen;
    const auto take = [&](const AnswerParts& parts) {
      for (const AnswerPart& p : parts) {
        EXPECT_TRUE(is_utf8(p.text)) << "a delta with half a code point";
        (p.kind == AnswerPart::Kind::reasoning ? seen.reasoning : seen.content) += p.text;
      }
    };
    for (const Token id : ids) take(reader.append(id));
    take(reader.finish());
    if (stopped) *stopped = reader.stopped();
    return seen;
  }

  Tokenizer tokenizer_ = Tokenizer::load(WINNOW_SOURCE_DIR "/models/winnow-tiny/tokenizer.json").or_throw();
  std::unordered_map<std::string_view, Token> tokens_;
};

// What stop strings leave of a text: the first to be completed counts, and of those the longest.
std::string before_stop(const std::string& text, const std::vector<std::string>& stop, bool* found) {
  size_t end = std::string::npos, start = text.size();
  for (const std::string& s : stop) {
    const size_t at = text.find(s);
    if (at == std::string::npos || at + s.size() > end) continue;
    start = at + s.size() < end ? at : std::min(start, at);
    end = at + s.size();
  }
  *found = end != std::string::npos;
  return text.substr(0, start);
}

TEST_F(StreamingTest, DeltasOfRandomBytesAreTheWhole) {
  Random random(1);
  int ill_formed = 0;
  for (int round = 0; round < 10000; ++round) {
    const std::string bytes = bytes_of_all_kinds(random);
    ill_formed += !is_utf8(bytes);
    const std::string whole = replace_ill_formed(bytes);
    const std::vector<Token> ids = cut(bytes, random);
    ASSERT_EQ(read(ids, {}).content, whole);
    ASSERT_EQ(tokenizer_.decode(ids, true), whole);
  }
  EXPECT_GT(ill_formed, 3000);
  EXPECT_LT(ill_formed, 9000);
}

TEST_F(StreamingTest, TextOfAllScriptsStaysAsItIs) {
  Random random(2);
  for (int round = 0; round < 10000; ++round) {
    const std::string text = text_of_all_kinds(random);
    ASSERT_EQ(read(cut(text, random), {}).content, text);
  }
}

TEST_F(StreamingTest, EveryCodePointStaysAsItIs) {
  Random random(3);
  std::string text;
  const auto check = [&] {
    ASSERT_EQ(read(cut(text, random), {}).content, text);
    text.clear();
  };
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (is_surrogate(c)) continue;
    put(&text, c);
    if (text.size() > 200) check();
    if (c >= 0x32000 && c < 0xE0000) c += 61;  // planes without characters
    if (c >= 0xE0200) c += 61;                 // private use
  }
  check();
}

TEST_F(StreamingTest, StopStringsAreFoundAcrossTokensAndNeverLeak) {
  Random random(4);
  int found_some = 0, in_ill_formed = 0;
  for (int round = 0; round < 10000; ++round) {
    const std::string bytes = random() % 3 ? text_of_all_kinds(random) : bytes_of_all_kinds(random);
    const std::string whole = replace_ill_formed(bytes);
    std::vector<std::string> stop;
    for (uint32_t n = 1 + random() % 3; n > 0; --n) {
      if (whole.empty() || random() % 4 == 0) {
        stop.push_back(written(random));
        continue;
      }
      size_t from = random() % whole.size(), to = from + 1 + random() % std::min<size_t>(whole.size() - from, 24);
      while (from > 0 && (static_cast<unsigned char>(whole[from]) & 0xC0) == 0x80) --from;
      while (to < whole.size() && (static_cast<unsigned char>(whole[to]) & 0xC0) == 0x80) ++to;
      stop.push_back(whole.substr(from, to - from));
    }
    bool wanted = false, found = false;
    const std::string shown = before_stop(whole, stop, &wanted);
    const Seen seen = read(cut(bytes, random), {.stop = stop}, &found);
    ASSERT_EQ(seen.content, shown);
    ASSERT_EQ(found, wanted);
    found_some += found;
    in_ill_formed += found && whole != bytes;
  }
  EXPECT_GT(found_some, 6000);
  EXPECT_GT(in_ill_formed, 500);
}

// A tag between tokens ends what may be half a code point, and what may be half a stop string.
TEST_F(StreamingTest, ReasoningAndContentAreWholeEach) {
  Random random(5);
  const Token think = tokenizer_.find("<think>"), end_think = tokenizer_.find("</think>");
  for (int round = 0; round < 5000; ++round) {
    Seen wanted;
    std::vector<Token> ids;
    for (uint32_t n = random() % 5; n > 0; --n) {
      for (const Token tag : {think, end_think}) {
        ids.push_back(tag);
        const std::string bytes = bytes_of_all_kinds(random);
        (tag == think ? wanted.reasoning : wanted.content) += replace_ill_formed(bytes);
        for (const Token id : cut(bytes, random)) ids.push_back(id);
      }
    }
    const Seen seen = read(ids, {.split_reasoning = true, .starts_in_reasoning = random() % 2 == 0, .stop = {"\x01\x02never\x03"}});
    ASSERT_EQ(seen.reasoning, wanted.reasoning);
    ASSERT_EQ(seen.content, wanted.content);
  }
}

}  // namespace
}  // namespace winnow::text
