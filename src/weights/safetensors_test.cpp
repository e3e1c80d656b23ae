#include "weights/safetensors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace winnow::weights {
namespace {

TEST(Safetensors, WhatIsWrittenIsRead) {
  const std::string path = ::testing::TempDir() + "winnow_written.safetensors";
  const float f[6] = {1, -2, 3.5f, 1e-30f, 0, 7};
  const uint16_t b[3] = {0x3f80, 0x4000, 0xbf80};
  const uint8_t codes[5] = {1, 2, 3, 4, 5};
  const int32_t ids[2] = {-1, 7};
  auto bytes = [](const auto* p) { return reinterpret_cast<const std::byte*>(p); };
  write_safetensors(path, {{"codes \"quoted\"\n", {bytes(codes), DType::e4m3, {5}}},
                           {"b", {bytes(b), DType::bf16, {3, 1}}},
                           {"scalar", {bytes(f), DType::f32, {}}},
                           {"empty", {bytes(f), DType::f32, {0, 4}}},
                           {"ids", {bytes(ids), DType::i32, {2}}},
                           {"f", {bytes(f), DType::f32, {2, 3}}}});
  const auto file = SafetensorsFile::open(path).or_throw();
  EXPECT_EQ(file.tensors().size(), 6u);
  const ConstTensorView v = file.view("f");
  EXPECT_EQ(v.rank, 2);
  EXPECT_EQ(v.shape[1], 3);
  EXPECT_EQ(v.stride[0], 3);
  EXPECT_EQ(v.as<float>()[2], 3.5f);
  EXPECT_EQ(file.view("codes \"quoted\"\n").as<E4m3>()[4].bits, 5);
  EXPECT_EQ(file.view("scalar").elements(), 1);
  EXPECT_EQ(file.view("empty").elements(), 0);
  EXPECT_EQ(file.view("ids").as<int32_t>()[0], -1);
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  std::filesystem::remove(path);
}

TEST(Safetensors, WhereNothingCanBeWrittenIsAnError) {
  const float f = 1;
  EXPECT_THROW(write_safetensors("/nowhere/x.safetensors", {{"f", {reinterpret_cast<const std::byte*>(&f), DType::f32, {1}}}}), Error);
}

TEST(Safetensors, HeaderRules) {
  EXPECT_TRUE(parse_header("{}", 0, "h"));
  EXPECT_TRUE(parse_header(R"({"a":{"dtype":"F4","shape":[2,2],"data_offsets":[0,2]}}   )", 2, "h"));
  EXPECT_FALSE(parse_header(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, "h")) << "a byte and a half";
  EXPECT_TRUE(parse_header(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})", 2, "h"));
  EXPECT_FALSE(parse_header(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3, "h"));
}

}  // namespace
}  // namespace winnow::weights
