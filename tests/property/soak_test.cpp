// Hours in small: a mixed workload at the limit of all pools with random cancellations. Memory does not grow, everything is given back,
// and steps of one size take one time.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "engine/engine.h"
#include "two_layers.h"

namespace winnow::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSteps = 50000;  // of one size that are kept

int64_t resident_bytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * 4096;
}

void ask_for(Engine& engine, uint64_t seed, Clock::time_point end) {
  const sched_param none{};
  pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);  // it stands for somebody on another machine
  std::mt19937_64 random(seed);
  std::vector<std::vector<int32_t>> told(1);
  while (Clock::now() < end) {
    Request r;
    r.prompt = told[random() % told.size()];
    for (uint64_t n = 1 + random() % 90; n > 0; --n) r.prompt.push_back(static_cast<int32_t>(random() % 512));
    if (r.prompt.size() > 400) r.prompt.resize(1 + random() % 100);
    r.max_tokens = 1 + static_cast<int64_t>(random() % 80);
    r.sampling.seed = random();
    r.priority = static_cast<int32_t>(random() % 2);
    std::vector<int32_t> prompt = r.prompt;
    Stream s = engine.submit(std::move(r)).or_throw();
    const uint64_t cancel_after = random() % 8 ? 1000 : random() % 20;
    for (Event e; e.finish == FinishReason::none;) {
      e = s.next();
      EXPECT_EQ(e.error, "");
      if (e.sampled.token >= 0) prompt.push_back(e.sampled.token);
      if (prompt.size() > cancel_after) s.cancel();
    }
    if (told.size() > 20) told.erase(told.begin() + 1);
    told.push_back(std::move(prompt));
  }
}

// WINNOW_SOAK_MINUTES of it.
TEST(Soak, NothingGrowsAndNothingSlows) {
  const auto seconds = std::chrono::seconds(60 * from_environment("WINNOW_SOAK_MINUTES", 0));
  if (seconds.count() == 0) GTEST_SKIP() << "takes as long as WINNOW_SOAK_MINUTES says; ./dev nightly gives it 30";
  const std::unique_ptr<device::Device> device =
      device::make_cpu({.threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / 2)});  // the clients have the rest
  const weights::Config config = two_layers();
  models::Options mo;
  mo.max_context = 1024;
  models::Glm5Next model(*device, config, mo, 7);
  const cache::KvLayout layout(model.kv_spec(), model.options().page_tokens);
  std::map<int, std::vector<double>> steps;  // decode-only ones, by the number of rows: a CPU pads none; the engine's thread
  std::atomic<bool> counts{false};
  EngineOptions o;
  o.max_sequences = 12;
  o.max_context = 512;
  o.kv_bytes = int64_t{1} << 30;
  o.kv_pages = 40;
  o.kv_states = 20;
  o.host_bytes = 8 * (layout.record_bytes() + 8 * layout.page_bytes);
  o.cache_dir = ::testing::TempDir() + "winnow_soak";
  o.cache_dir_bytes = int64_t{16} << 20;
  o.on_step = [&](int64_t decode, int64_t prefill, double s) {
    std::vector<double>& list = steps[static_cast<int>(decode)];
    if (counts && prefill == 0 && list.size() < kSteps) list.push_back(s);
  };
  for (int rows = 0; rows <= o.max_sequences; ++rows) steps[rows].resize(kSteps);
  for (auto& [size, list] : steps) list.clear();  // their memory is there before it is looked at
  std::filesystem::remove_all(o.cache_dir);
  Engine engine(*device, model, o);
  const Clock::time_point start = Clock::now(), end = start + seconds;
  std::vector<std::thread> clients;
  for (uint64_t i = 1; i <= 16; ++i) clients.emplace_back([&, i] { ask_for(engine, i, end); });
  std::this_thread::sleep_for(seconds / 6);
  counts = true;
  std::this_thread::sleep_for(seconds / 60);
  const int64_t before = resident_bytes();
  std::this_thread::sleep_until(end - seconds / 60);
  const int64_t after = resident_bytes();
  for (std::thread& t : clients) t.join();
  Totals t = engine.totals();
  for (int i = 0; i < 100 && t.running + t.swapped + t.waiting > 0; ++i, t = engine.totals())
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  printf("%ld steps, %ld tokens, %ld hits (%ld host, %ld disk), %ld preemptions; resident %.1f MB, then %.1f MB\n", static_cast<long>(t.steps),
         static_cast<long>(t.generated_tokens), static_cast<long>(t.prefix.hits), static_cast<long>(t.prefix.hits_in[1]),
         static_cast<long>(t.prefix.hits_in[2]), static_cast<long>(t.preemptions), static_cast<double>(before) * 1e-6,
         static_cast<double>(after) * 1e-6);
  EXPECT_EQ(t.running + t.swapped + t.waiting, 0);
  EXPECT_EQ(t.pages - t.free_pages, t.prefix.pages_in[0]);
  EXPECT_EQ(t.states - t.free_states, t.prefix.snapshots_in[0]);
  EXPECT_GT(t.preemptions, 100);
  EXPECT_GT(t.prefix.hits_in[1] + t.prefix.hits_in[2], 100);
  EXPECT_LE(after, before + before / 50 + (2 << 20)) << "memory grew";
  for (auto& [size, list] : steps) {
    if (list.size() < 2000) continue;
    std::ranges::sort(list);
    const double median = list[list.size() / 2], p99 = list[list.size() * 99 / 100];
    printf("decode steps of %d rows: %zu, median %.3f ms, 99 %% %.3f ms\n", size, list.size(), median * 1e3, p99 * 1e3);
    EXPECT_LE(p99, 1.5 * median);
  }
  std::filesystem::remove_all(o.cache_dir);
}

}  // namespace
}  // namespace winnow::engine
