#include "server/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

namespace winnow::server {
namespace {

// Lines without a comment, "name{labels}" -> value; checks what every family must have.
std::map<std::string, std::string> samples(const std::string& text) {
  std::map<std::string, std::string> out;
  std::set<std::string> helped, typed;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, what, name;
    if (line.starts_with("#")) {
      words >> hash >> what >> name;
      EXPECT_TRUE((what == "HELP" ? helped : typed).insert(name).second) << "twice: " << line;
      EXPECT_TRUE(name.starts_with("winnow:")) << line;
      if (what == "TYPE") { EXPECT_EQ(line.ends_with(" counter"), name.ends_with("_total")) << line; }
      continue;
    }
    const size_t end = line.rfind(' ');
    EXPECT_NE(end, std::string::npos) << line;
    EXPECT_TRUE(out.emplace(line.substr(0, end), line.substr(end + 1)).second) << "twice: " << line;
  }
  EXPECT_EQ(helped, typed);
  return out;
}

TEST(Metrics, EveryNumberOfTheEngineHasItsPlace) {
  const Metrics m("tiny", "1.2", {.vocab_size = 10, .max_context = 100, .pages = 40, .page_tokens = 64});
  engine::Totals t;
  t.running = 3;
  t.waiting = 4;
  t.swapped = 5;
  t.pages = 40;
  t.held_pages = 10;
  t.preemptions = 6;
  t.prefix.cuts = {1, 2, 3, 4, 5, 6};
  t.prefix.hits_in = {7, 8, 9};
  t.prefix.pages_to = {10, 11, 12};
  t.disk.write_failures = 13;
  t.restored = 14;
  t.index_bytes = int64_t{1} << 40;
  auto s = samples(m.text(t));
  const auto at = [&](const std::string& name) { return s.contains(name) ? s[name] : "missing"; };
  EXPECT_EQ(at("winnow:num_requests_running{model_name=\"tiny\"}"), "3");
  EXPECT_EQ(at("winnow:num_requests_waiting{model_name=\"tiny\"}"), "4");
  EXPECT_EQ(at("winnow:num_requests_swapped{model_name=\"tiny\"}"), "5");
  EXPECT_EQ(at("winnow:kv_cache_usage_perc{model_name=\"tiny\"}"), "0.25");
  EXPECT_EQ(at("winnow:num_preemptions_total{model_name=\"tiny\"}"), "6");
  EXPECT_EQ(at("winnow:prefix_restores_total{model_name=\"tiny\"}"), "14");
  EXPECT_EQ(at("winnow:disk_write_failures_total{model_name=\"tiny\"}"), "13");
  EXPECT_EQ(at("winnow:prefix_index_bytes{model_name=\"tiny\"}"), "1099511627776");
  EXPECT_EQ(at("winnow:build_info{version=\"1.2\",model_name=\"tiny\"}"), "1");
  EXPECT_EQ(at("winnow:cache_config_info{block_size=\"64\",num_gpu_blocks=\"40\",model_name=\"tiny\"}"), "1");
  for (int i = 0; i < cache::kCuts; ++i)
    EXPECT_EQ(at(fmt::format("winnow:prefix_cuts_total{{reason=\"{}\",model_name=\"tiny\"}}", cache::name_of(static_cast<cache::Cut>(i)))),
              std::to_string(i + 1));
  for (int i = 0; i < cache::kTiers; ++i) {
    const std::string label = fmt::format("{{tier=\"{}\",model_name=\"tiny\"}}", cache::name_of(static_cast<cache::Tier>(i)));
    EXPECT_EQ(at("winnow:prefix_tier_hits_total" + label), std::to_string(i + 7));
    EXPECT_EQ(at("winnow:prefix_copied_pages_total" + label), std::to_string(i + 10));
  }
  EXPECT_EQ(at("winnow:request_success_total{finished_reason=\"timeout\",model_name=\"tiny\"}"), "0");
  EXPECT_EQ(at("winnow:time_to_first_token_seconds_bucket{model_name=\"tiny\",le=\"+Inf\"}"), "0");
}

TEST(Metrics, AnEngineWithoutPagesDividesByNothing) {
  auto s = samples(Metrics("m", "", {}).text({}));
  EXPECT_EQ(s["winnow:kv_cache_usage_perc{model_name=\"m\"}"], "0");
}

TEST(Metrics, CountsAnswersByRouteAndStatus) {
  Metrics m("a \"quoted\"\nname\\", "", {});
  m.answered("/health", 200);
  m.answered("/health", 200);
  m.answered("other", 404);
  auto s = samples(m.text({}));
  const std::string name = R"(model_name="a \"quoted\"\nname\\"})";
  EXPECT_EQ(s["winnow:http_requests_total{handler=\"/health\",status=\"200\"," + name], "2");
  EXPECT_EQ(s["winnow:http_requests_total{handler=\"other\",status=\"404\"," + name], "1");
}

}  // namespace
}  // namespace winnow::server
