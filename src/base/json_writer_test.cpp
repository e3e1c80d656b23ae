#include "base/json_writer.h"

#include <gtest/gtest.h>

#include <bit>
#include <charconv>
#include <limits>
#include <random>

namespace winnow {
namespace {

template <class T>
std::string written(T v, JsonStyle style = {}) {
  return JsonWriter(style).value(v).take();
}

TEST(JsonWriter, WritesNumbersAsPython) {  // expected: json.dumps of CPython
  EXPECT_EQ(written(0.0), "0.0");
  EXPECT_EQ(written(-0.0), "-0.0");
  EXPECT_EQ(written(1.0), "1.0");
  EXPECT_EQ(written(100000.0), "100000.0");
  EXPECT_EQ(written(0.1), "0.1");
  EXPECT_EQ(written(0.0001), "0.0001");
  EXPECT_EQ(written(0.00001), "1e-05");
  EXPECT_EQ(written(123456789012345680.0), "1.2345678901234568e+17");
  EXPECT_EQ(written(1e15), "1000000000000000.0");
  EXPECT_EQ(written(1e16), "1e+16");
  EXPECT_EQ(written(-2.5e-9), "-2.5e-09");
  EXPECT_EQ(written(1.5e300), "1.5e+300");
  EXPECT_EQ(written(5e-324), "5e-324");
  EXPECT_EQ(written(3.14159), "3.14159");
  EXPECT_EQ(written(0.1f), "0.1");
  EXPECT_EQ(written(int64_t{-9007199254740993}), "-9007199254740993");
  EXPECT_EQ(written(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(written(true), "true");
}

TEST(JsonWriter, HasNoNanOrInfinity) {
  EXPECT_EQ(written(std::numeric_limits<double>::quiet_NaN()), "null");
  EXPECT_EQ(written(-std::numeric_limits<float>::infinity()), "null");
}

TEST(JsonWriter, NumbersReadBackAsThemselves) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const double d = std::bit_cast<double>(random());
    const float f = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isfinite(d)) {
      const std::string s = written(d);
      double back = 0;
      EXPECT_EQ(std::from_chars(s.data(), s.data() + s.size(), back).ptr, s.data() + s.size());
      EXPECT_EQ(std::bit_cast<uint64_t>(back), std::bit_cast<uint64_t>(d)) << s;
    }
    if (std::isfinite(f)) {
      const std::string s = written(f);
      float back = 0;
      EXPECT_EQ(std::from_chars(s.data(), s.data() + s.size(), back).ptr, s.data() + s.size());
      EXPECT_EQ(std::bit_cast<uint32_t>(back), std::bit_cast<uint32_t>(f)) << s;
    }
  }
}

TEST(JsonWriter, Escapes) {
  const std::string text = "a\"\\\n\r\t\b\f\x01\x7f é 語 😀";
  EXPECT_EQ(written(std::string_view(text)), "\"a\\\"\\\\\\n\\r\\t\\b\\f\\u0001\x7f é 語 😀\"");
  EXPECT_EQ(written(std::string_view(text), {.ensure_ascii = true}), "\"a\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u007f \\u00e9 \\u8a9e \\ud83d\\ude00\"");
}

TEST(JsonWriter, RepairsInvalidUtf8) {
  EXPECT_EQ(written(std::string_view("a\xff"
                                     "b\xe8\xaa")),
            "\"a\xef\xbf\xbd"
            "b\xef\xbf\xbd\"");
  EXPECT_EQ(written(std::string_view("\xed\xa0\x80"), {.ensure_ascii = true}).find("\\ud800"), std::string::npos);
  EXPECT_EQ(written(std::string_view("\0x", 2)), "\"\\u0000x\"");
}

TEST(JsonWriter, Separators) {
  const auto write = [](JsonStyle style) {
    JsonWriter w(style);
    w.begin_object().field("a", 1).key("b").begin_array().value(true).null().begin_object().end_object().end_array().field("c", "x").end_object();
    return w.take();
  };
  EXPECT_EQ(write({}), R"({"a":1,"b":[true,null,{}],"c":"x"})");
  EXPECT_EQ(write({.spaced = true}), R"({"a": 1, "b": [true, null, {}], "c": "x"})");
}

TEST(JsonWriterDeathTest, NestingIsChecked) {
  EXPECT_DEATH(JsonWriter().begin_object().value(1), "needs a key");
  EXPECT_DEATH(JsonWriter().begin_array().end_object(), "do not match");
  EXPECT_DEATH((void)JsonWriter().begin_array().take(), "not finished");
}

}  // namespace
}  // namespace winnow
