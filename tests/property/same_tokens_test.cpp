// The same-tokens harness over the seeded model of two layers.
#include "engine/same_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "two_layers.h"

namespace winnow::engine {
namespace {

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
  const int64_t workloads = from_environment("WINNOW_WORKLOADS", 4), seed = from_environment("WINNOW_SEED", 1);
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
  printf(
      "%s: %ld requests, %ld cancelled, %ld hits, %ld divergence snapshots, %ld preemptions, %ld hits from the host, %ld from disk, %ld restarts, "
      "%ld operations on files that failed\n",
      std::string(models::name_of(GetParam())).c_str(), static_cast<long>(all.requests), static_cast<long>(all.cancelled),
      static_cast<long>(all.hits), static_cast<long>(all.divergences), static_cast<long>(all.preemptions), static_cast<long>(all.host_hits),
      static_cast<long>(all.disk_hits), static_cast<long>(all.restarts), static_cast<long>(all.file_faults));
  // A cache that never hits would pass too.
  EXPECT_EQ(all.requests, 200 * workloads);
  EXPECT_GE(all.hits, 70 * workloads);
  EXPECT_GE(all.divergences, 3 * workloads);
  EXPECT_GE(all.preemptions, workloads);
  EXPECT_GE(all.host_hits, 2 * workloads);
  EXPECT_GE(all.disk_hits, 2 * workloads);
  EXPECT_EQ(all.restarts, 2 * workloads);
  EXPECT_GE(all.cancelled, 2 * workloads);
  EXPECT_GE(all.file_faults, 2 * workloads);
}

// G-81: what is brought up from host and disk arrives though the last layer is a KDA layer, which has no pages.
TEST(SameTokens, G81WithAKdaLayerLast) {
  const std::unique_ptr<device::Device> device = device::make_cpu({.threads = 2});
  weights::Config config = two_layers();
  std::ranges::reverse(config.layers);
  models::Glm5Next model(*device, config, {.profile = models::Profile::fast, .max_context = 512}, 7);
  SameTokens harness(*device, model);
  const std::string folder = ::testing::TempDir() + "same_tokens_kda_last";
  Exercise all;
  const Workload w = harness.draw({.seed = 1, .requests = 120, .folder = folder});
  EXPECT_EQ(harness.serve(w, &all), "");
  std::filesystem::remove_all(folder);
  EXPECT_GT(all.host_hits, 0);
  EXPECT_GT(all.disk_hits, 0);
}

}  // namespace
}  // namespace winnow::engine
