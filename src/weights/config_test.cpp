#include "weights/config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "weights/tiny_checkpoint.h"

namespace winnow::weights {
namespace {

namespace json = boost::json;

Config parsed(const std::function<void(json::object& text)>& change) {
  testing::TinyCheckpoint t;
  change(t.text());
  return parse_config(json::serialize(t.config), "", "config.json").or_throw();
}

json::object& kda(json::object& t) { return t.at("linear_attn_config").as_object(); }

TEST(Config, TheGatesLowerBound) {
  EXPECT_EQ(parsed([](auto& t) { kda(t)["gate_lower_bound"] = -3; }).gate_lower_bound, -3.0f);
  auto without = [](auto change) {
    return parsed([&](json::object& t) {
             kda(t).erase("gate_lower_bound");
             change(t);
           })
        .gate_lower_bound;
  };
  EXPECT_EQ(without([](auto&) {}), -5.0f);
  EXPECT_EQ(without([](auto& t) { kda(t)["safe_gate"] = true; }), -5.0f);
  EXPECT_EQ(without([](auto& t) { kda(t)["safe_gate"] = false; }), 0.0f) << "the softplus form";
  EXPECT_EQ(without([](auto& t) { kda(t)["lower_bound"] = -2; }), -2.0f) << "the older name";
  EXPECT_EQ(without([](auto& t) {
              kda(t)["lower_bound"] = -2;
              kda(t)["gate_lower_bound"] = -4;
            }),
            -4.0f)
      << "the newer name goes first";
  EXPECT_EQ(without([](auto& t) { kda(t)["gate_lower_bound"] = nullptr; }), 0.0f);
  EXPECT_EQ(without([](auto& t) {
              kda(t)["gate_lower_bound"] = nullptr;
              kda(t)["safe_gate"] = true;
            }),
            -5.0f);
  EXPECT_EQ(without([](auto& t) { t["linear_lower_bound"] = -7; }), -7.0f) << "the mirror";
}

TEST(Config, LinearAttentionGoesBeforeItsMirrors) {
  auto c = parsed([](auto& t) {
    t["linear_num_heads"] = 5;
    t["linear_head_dim"] = 6;
    t["linear_conv_kernel_dim"] = 3;
  });
  EXPECT_EQ(c.kda_heads, 2);
  EXPECT_EQ(c.kda_head_dim, 4);
  EXPECT_EQ(c.conv_taps, 4);
  c = parsed([](auto& t) {
    t.erase("linear_attn_config");
    t["linear_num_heads"] = 5;
    t["linear_head_dim"] = 6;
    t["linear_conv_kernel_dim"] = 3;
  });
  EXPECT_EQ(c.kda_heads, 5);
  EXPECT_EQ(c.kda_head_dim, 6);
  EXPECT_EQ(c.conv_taps, 3);
}

TEST(Config, LayersWithoutLists) {
  const auto c = parsed([](auto& t) {
    t.erase("layer_types");
    t.erase("mlp_layer_types");
    t.erase("indexer_types");
    t["num_hidden_layers"] = 9;
  });
  ASSERT_EQ(c.layers.size(), 9u);
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(c.layers[i].mixer, i % 4 == 3 ? Mixer::mla : Mixer::kda) << i;
    EXPECT_EQ(c.layers[i].feed_forward, i < 3 ? FeedForward::dense : FeedForward::moe) << i;
    EXPECT_EQ(c.layers[i].indexer, Indexer::full) << i;
  }
  EXPECT_EQ(c.kda_layers(), 7);
  EXPECT_EQ(c.attention_layers(), 2);
}

TEST(Config, IndexerSchedules) {
  auto with = [](auto change) {
    return parsed([&](json::object& t) {
      t.erase("indexer_types");
      t["num_hidden_layers"] = 4;
      t["layer_types"] = {"full_attention", "full_attention", "deepseek_sparse_attention", "full_attention"};
      t["mlp_layer_types"] = {"dense", "dense", "dense", "dense"};
      change(t);
    });
  };
  auto shared = [](const Config& c) {
    std::string s;
    for (const Layer& l : c.layers) s += l.indexer == Indexer::shared ? 'S' : 'F';
    return s;
  };
  EXPECT_EQ(shared(with([](auto&) {})), "FFFF");
  EXPECT_EQ(shared(with([](auto& t) { t["index_topk_pattern"] = "FSFS"; })), "FSFS");
  EXPECT_EQ(shared(with([](auto& t) { t["index_topk_freq"] = 2; })), "FFSF");  // max(i - 2 + 1, 0) mod 2: 0 0 1 0
  EXPECT_EQ(shared(with([](auto& t) {
              t["index_topk_freq"] = 2;
              t["index_skip_topk_offset"] = 1;
            })),
            "FSFS");
}

TEST(Config, NullLimitClampsNothing) {
  EXPECT_TRUE(std::isinf(parsed([](auto& t) { t["swiglu_limit"] = nullptr; }).swiglu_limit));
}

TEST(Config, EosIdsOfAllFilesTheGenerationConfigFirst) {
  testing::TinyCheckpoint t;
  t.text()["eos_token_id"] = 7;
  t.config["eos_token_id"] = {5, 7};
  const auto c = parse_config(json::serialize(t.config), R"({"eos_token_id": [3, 5], "top_p": 0.95})", "d/config.json").or_throw();
  EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{3, 5, 7}));
  EXPECT_FLOAT_EQ(c.default_top_p, 0.95f);
}

TEST(Config, ThePublishedNumbersOfTheSmallModel) {
  const auto c = read_config(std::string(WINNOW_SOURCE_DIR) + "/models/winnow-tiny").or_throw();
  EXPECT_EQ(c.layers.size(), 8u);
  EXPECT_EQ(c.index_kpool, 4);
  EXPECT_EQ(c.experts_per_token, 4);
  EXPECT_EQ(c.mtp_layers, 1);
  EXPECT_EQ(c.image_token_id, 6142);
  EXPECT_EQ(c.eos_token_ids, (std::vector<int32_t>{6108, 6115, 6117}));
  EXPECT_FALSE(c.block_fp8);
}

}  // namespace
}  // namespace winnow::weights
