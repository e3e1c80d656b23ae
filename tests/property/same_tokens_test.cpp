// The same-tokens harness over a seeded model of two layers, one of each kind, whose selection leaves tokens out from 64 on.
#include "engine/same_tokens.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace winnow::engine {
namespace {

weights::Config two_layers() {
  weights::Config c;
  c.architecture = "Glm5NextForConditionalGeneration";
  c.model_type = "glm5_next";
  c.vocab_size = 512;
  c.hidden_size = 128;
  c.max_position_embeddings = 1024;
  c.heads = 2;
  c.q_lora_rank = 64;
  c.kv_lora_rank = 64;
  c.qk_nope_head_dim = 32;
  c.v_head_dim = 32;
  c.index_heads = 2;
  c.index_head_dim = 32;
  c.index_topk = 64;
  c.index_kpool = 4;
  c.kda_heads = 2;
  c.kda_head_dim = 32;
  c.conv_taps = 4;
  c.intermediate_size = 128;
  c.moe_intermediate_size = 32;
  c.experts = 8;
  c.shared_experts = 1;
  c.experts_per_token = 2;
  c.routed_scaling = 2.5f;
  c.swiglu_limit = 10.0f;
  c.hc_streams = 2;
  c.hc_iterations = 4;
  c.layers = {{weights::Mixer::kda, weights::FeedForward::dense, weights::Indexer::full},
              {weights::Mixer::mla, weights::FeedForward::moe, weights::Indexer::full}};
  return c;
}

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : otherwise;
}

class SameTokensInProfile : public ::testing::TestWithParam<models::Profile> {};
INSTANTIATE_TEST_SUITE_P(, SameTokensInProfile, ::testing::Values(models::Profile::exact, models::Profile::fast),
                         [](const auto& p) { return std::string(models::name_of(p.param)); });

// WINNOW_WORKLOADS of them, from seed WINNOW_SEED on.
TEST_P(SameTokensInProfile, WhateverTheCompanyAndTheCaches) {
  const std::unique_ptr<device::Device> device = device::make_cpu({.threads = 2});
  const weights::Config config = two_layers();
  models::Options o;
  o.profile = GetParam();
  o.max_context = 512;
  models::Glm5Next model(*device, config, o, 7);
  SameTokens harness(*device, model);
  const int64_t workloads = from_environment("WINNOW_WORKLOADS", 6), seed = from_environment("WINNOW_SEED", 1);
  const std::string folder = ::testing::TempDir() + "same_tokens_" + std::string(models::name_of(GetParam()));
  Exercise all;
  for (int64_t i = 0; i < workloads; ++i) {
    Workload w = harness.draw({.seed = static_cast<uint64_t>(seed + i), .folder = folder});
    const std::string wrong = harness.serve(w, &all);
    if (!wrong.empty()) {
      w = harness.shrink(std::move(w), static_cast<double>(from_environment("WINNOW_SHRINK_SECONDS", 60)));
      FAIL() << "seed " << seed + i << ": " << wrong << "\nthe smallest workload that differs:\n" << describe(w);
    }
  }
  std::filesystem::remove_all(folder);
  ::testing::Test::RecordProperty("requests", std::to_string(all.requests));
  printf("%s: %ld requests, %ld cancelled, %ld hits, %ld divergence snapshots, %ld preemptions, %ld hits from the host, %ld from disk, %ld restarts\n",
         std::string(models::name_of(GetParam())).c_str(), static_cast<long>(all.requests), static_cast<long>(all.cancelled), static_cast<long>(all.hits),
         static_cast<long>(all.divergences), static_cast<long>(all.preemptions), static_cast<long>(all.host_hits), static_cast<long>(all.disk_hits),
         static_cast<long>(all.restarts));
  // A cache that never hits would pass too.
  EXPECT_EQ(all.requests, 200 * workloads);
  EXPECT_GE(all.hits, 70 * workloads);
  EXPECT_GE(all.divergences, 3 * workloads);
  EXPECT_GE(all.preemptions, 2 * workloads);
  EXPECT_GE(all.host_hits, 2 * workloads);
  EXPECT_GE(all.disk_hits, 2 * workloads);
  EXPECT_EQ(all.restarts, 2 * workloads);
  EXPECT_GE(all.cancelled, 2 * workloads);
}

}  // namespace
}  // namespace winnow::engine
