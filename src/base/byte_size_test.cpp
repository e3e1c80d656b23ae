#include "base/byte_size.h"

#include <gtest/gtest.h>

namespace winnow {
namespace {

TEST(ByteSize, ReadsWhatPeopleWrite) {
  const std::pair<const char*, int64_t> good[] = {
      {"0", 0},
      {"65536", 65536},
      {"17B", 17},
      {"8GB", 8'000'000'000},
      {"8gb", 8'000'000'000},
      {"8 GB", 8'000'000'000},
      {"1.5GB", 1'500'000'000},
      {"0.5TiB", int64_t{1} << 39},
      {"512MiB", 512 << 20},
      {"1KiB", 1024},
      {"1kB", 1000},
      {"1.25KiB", 1280},
      {"0.001kB", 1},
      {"1.9B", 1},  // half a byte is none
      {"0.999999999TB", 999'999'999'000},
      {"0.999999999TiB", 1'099'511'626'676},
      {"9223372036854775807", INT64_MAX},
      {"8388607.999999999TiB", INT64_MAX - 1099},
      {"00012MB", 12'000'000},
  };
  for (const auto& [text, bytes] : good) {
    const Result<int64_t> r = parse_byte_size(text);
    ASSERT_TRUE(r) << text << ": " << r.error().what();
    EXPECT_EQ(*r, bytes) << text;
  }
}

TEST(ByteSize, RefusesTheRestWithAReason) {
  const std::pair<const char*, const char*> bad[] = {
      {"", "is no size"},
      {"GB", "is no size"},
      {"-1", "is no size"},
      {"-1GB", "is no size"},
      {"+1", "is no size"},
      {"1e9", "is no size"},
      {"1.GB", "is no size"},
      {".5GB", "is no size"},
      {"1..5GB", "is no size"},
      {"1,5GB", "is no size"},
      {"0x10", "is no size"},
      {"1GBs", "is no size"},
      {"1GB 2", "is no size"},
      {" 1GB", "is no size"},
      {"1PB", "is no size"},
      {"8G", "8G"},
      {"8k", "kB or KiB"},
      {"8T", "TB or TiB"},
      {"1.0000000001GB", "decimals"},
      {"nan", "is no size"},
      {"inf", "is no size"},
      {"8388608TiB", "2^63"},
      {"9223372036854775808", "2^63"},
      {"99999999999999999999999", "2^63"},
      {"9223372036854775807kB", "2^63"},
  };
  for (const auto& [text, why] : bad) {
    const Result<int64_t> r = parse_byte_size(text);
    ASSERT_FALSE(r) << text << " = " << *r;
    EXPECT_EQ(r.error().kind(), Failure::usage);
    EXPECT_NE(std::string(r.error().what()).find(why), std::string::npos) << text << ": " << r.error().what();
  }
}

}  // namespace
}  // namespace winnow
