#include "weights/describe.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace winnow::weights {
namespace {

class Replica : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(dir_); }
  Description made(const std::string& change = "") {
    std::filesystem::remove_all(dir_);
    const std::string command = fmt::format("python3 {}/tools/make_replica.py {} {}", WINNOW_SOURCE_DIR, dir_, change);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return describe(dir_);
  }
  static std::string refused(const Description& d) { return fmt::format("{}", fmt::join(d.refused, "\n")); }
  const std::string dir_ = testing::TempDir() + "winnow_replica";
};

TEST_F(Replica, ThePublishedCheckpointIsAcceptedWhole) {
  const Description d = made();
  EXPECT_TRUE(d.accepted()) << refused(d);
  EXPECT_EQ(d.files, 62);
  EXPECT_EQ(d.tensors, 76108);
  EXPECT_EQ(d.bytes, 328326771576);
  EXPECT_EQ(d.quantisation, "block FP8 (e4m3, 128 x 128)");
  ASSERT_EQ(d.parts.size(), 3u);
  for (const PartSummary& p : d.parts) EXPECT_TRUE(p.present && p.expected) << name_of(p.part);
  EXPECT_NEAR(static_cast<double>(d.parameters), 321.3e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(d.parts[2].parameters), 0.56e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(d.active_parameters), 18e9, 1e9);
  int64_t parameters = 0, bytes = 0, tensors = 0;
  for (const Share& s : d.shares) {
    parameters += s.parameters;
    bytes += s.bytes;
    tensors += s.tensors;
  }
  EXPECT_EQ(parameters, d.parameters);
  EXPECT_EQ(bytes, d.bytes);
  EXPECT_EQ(tensors, 38770);
  EXPECT_EQ(d.shares[0].what, "routed experts");
  tensors = 0;
  for (const TypeShare& t : d.types) tensors += t.tensors;
  EXPECT_EQ(tensors, d.tensors);
  EXPECT_EQ(d.types[0].type, DType::e4m3);
  EXPECT_EQ(d.types[0].tensors, 37338);
}

TEST_F(Replica, ARenamedTensorIsNamed) {
  const std::string name = "model.language_model.layers.7.self_attn.indexer.wk.weight";
  const Description d = made(fmt::format("--rename {} {}", name, "model.language_model.layers.7.self_attn.indexer.w_k.weight"));
  EXPECT_EQ(d.refused_count, 2) << refused(d);
  EXPECT_NE(refused(d).find("missing " + name), std::string::npos) << refused(d);
  EXPECT_NE(refused(d).find("unused model.language_model.layers.7.self_attn.indexer.w_k.weight"), std::string::npos) << refused(d);
}

TEST_F(Replica, AReshapedTensorIsNamedWithBothShapes) {
  const std::string name = "model.language_model.layers.44.mlp.experts.287.down_proj.weight";
  const Description d = made("--reshape " + name);
  EXPECT_EQ(d.refused_count, 2) << refused(d);  // the scale of what is reshaped is then nobody's
  EXPECT_NE(refused(d).find(name + " in model-00061-of-00062.safetensors has the shape [8192, 2048] where the config asks for [4096, 2048]"),
            std::string::npos)
      << refused(d);
}

TEST_F(Replica, ADroppedTensorIsNamedInEveryPart) {
  for (const char* name : {"model.language_model.norm.weight", "model.language_model.layers.45.eh_proj.weight",
                           "model.visual.blocks.23.attn.q_norm.weight", "model.language_model.layers.0.self_attn.v_conv1d.weight"}) {
    const Description d = made(fmt::format("--drop {}", name));
    EXPECT_EQ(d.refused_count, 1) << refused(d);
    EXPECT_EQ(refused(d), fmt::format("missing {}", name));
  }
  const std::string scaled = "model.language_model.layers.45.mlp.experts.3.up_proj.weight";
  const Description d = made(fmt::format("--drop {}_scale_inv", scaled));
  EXPECT_EQ(d.refused_count, 1) << refused(d);
  EXPECT_NE(refused(d).find(scaled + "_scale_inv is missing"), std::string::npos) << refused(d);
}

TEST(Describe, TheSmallModel) {
  const Description d = describe(std::string(WINNOW_SOURCE_DIR) + "/models/winnow-tiny");
  EXPECT_TRUE(d.accepted()) << d.refused[0];
  EXPECT_EQ(d.bytes, 28917664);
  EXPECT_EQ(d.parameters, 14456712);
  EXPECT_TRUE(d.parts[1].present);
  EXPECT_EQ(d.quantisation, "none");
}

TEST(Describe, WhatIsNotThereIsSaid) {
  const Description d = describe("/nowhere/at/all");
  ASSERT_EQ(d.refused.size(), 1u);
  EXPECT_FALSE(d.config);
  EXPECT_NE(d.refused[0].find("/nowhere/at/all/config.json"), std::string::npos) << d.refused[0];
}

}  // namespace
}  // namespace winnow::weights
