#include "server/keys.h"

#include <gtest/gtest.h>

namespace winnow::server {
namespace {

constexpr const char* kA = "0123456789abcdef";
constexpr const char* kB = "fedcba9876543210";

TEST(Keys, OneALineWithNameAndLimits) {
  Keys keys;
  const std::string text =
      fmt::format("# who\n\n{}\r\n  bob:\t{}  concurrent=4 tokens_per_minute=0\n  # end\ncarol: {}x requests_per_minute=7", kA, kB, kB);
  ASSERT_FALSE(keys.add_lines(text, "f", {.requests_per_minute = 60, .tokens_per_minute = 1000}));
  ASSERT_EQ(keys.size(), 3u);
  EXPECT_EQ(keys.name(0), "key-3");
  EXPECT_EQ(keys.name(1), "bob");
  EXPECT_EQ(keys.limits(0).requests_per_minute, 60);
  EXPECT_EQ(keys.limits(0).tokens_per_minute, 1000);
  EXPECT_EQ(keys.limits(1).requests_per_minute, 60);
  EXPECT_EQ(keys.limits(1).tokens_per_minute, 0);
  EXPECT_EQ(keys.limits(1).concurrent, 4);
  EXPECT_EQ(keys.limits(2).requests_per_minute, 7);
  EXPECT_EQ(keys.find(kA), 0u);
  EXPECT_EQ(keys.find(kB), 1u);
  for (const char* other : {"", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeF", "key-3", "bob"}) EXPECT_FALSE(keys.find(other)) << other;
}

TEST(Keys, MistakesNameTheLineAndNeverTheKey) {
  const std::string a = kA, b = kB;
  const std::pair<std::string, std::string> kWrong[] = {
      {"short", "f, line 1: the key is shorter than 16"},
      {"name:", "f, line 1: the key is shorter"},
      {a + "\n" + a, "f, line 2: the key of 'key-1' is here again"},
      {"x: " + a + "\nx: " + b, "f, line 2: another key has the name 'x'"},
      {": " + a, "f, line 1: a name has"},
      {a + " " + b, "f, line 1: behind the key only"},
      {a + " concurrent=-1", "f, line 1: concurrent has to be"},
      {a + " concurrent", "f, line 1: concurrent has to be"},
      {a + " requests_per_minute=9999999999999999999999", "f, line 1: requests_per_minute has to be"},
      {a + " tokens_per_minute=1.5", "f, line 1: tokens_per_minute has to be"},
      {"\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", "f, line 1: a key has printable"},
  };
  for (const auto& [text, why] : kWrong) {
    Keys keys;
    const std::optional<Error> e = keys.add_lines(text, "f", {});
    ASSERT_TRUE(e) << text;
    EXPECT_TRUE(std::string_view(e->what()).starts_with(why)) << e->what();
    EXPECT_EQ(std::string_view(e->what()).find(b), std::string_view::npos) << e->what();
  }
}

TEST(Keys, ComeAsBearerOrAsXApiKey) {
  EXPECT_EQ(shown_key("Bearer abc", ""), "abc");
  EXPECT_EQ(shown_key("bEARER  abc ", "other"), "abc");
  EXPECT_EQ(shown_key("", "abc"), "abc");
  EXPECT_EQ(shown_key("Basic abc", "other"), "other");
  EXPECT_EQ(shown_key("Basic abc", ""), "");
  EXPECT_EQ(shown_key("Bearer", ""), "");
}

}  // namespace
}  // namespace winnow::server
