#include "cli/same_tokens.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/progress.h"
#include "cli/session.h"
#include "engine/same_tokens.h"

namespace winnow::cli {
namespace {

constexpr double kShrinkSeconds = 120;

struct Outcome {
  engine::Exercise exercise;
  int64_t workloads = 0;
  std::string wrong;  // empty: nothing differs
};

Outcome serve(engine::SameTokens& harness, const SameTokensFlags& f) {
  Outcome o;
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / fmt::format("winnow-same-tokens-{}", ::getpid());
  ProgressBar bar("same tokens", ProgressBar::Unit::items);
  while (o.workloads < f.workloads && o.wrong.empty()) {
    const uint64_t seed = f.seed + static_cast<uint64_t>(o.workloads);
    engine::Workload w = harness.draw({.seed = seed, .requests = f.requests, .folder = folder.string()});
    const std::string wrong = harness.serve(w, &o.exercise);
    if (!wrong.empty())
      o.wrong =
          fmt::format("seed {}: {}\nthe smallest workload that differs:\n{}", seed, wrong, describe(harness.shrink(std::move(w), kShrinkSeconds)));
    bar.update(++o.workloads, f.workloads);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
  return o;
}

}  // namespace

int same_tokens(const ModelFlags& flags, const SameTokensFlags& f) {
  const std::unique_ptr<device::Device> device = device::make_cpu(device_options(flags));
  device->forced = forced_kernels(flags);
  models::Options o = model_options(flags);
  o.max_context = 512;
  const std::string name = model_folder(flags);
  models::Glm5Next model(*device, weights::Checkpoint::open(name).or_throw(), o);
  engine::SameTokens harness(*device, model);
  const Outcome done = serve(harness, f);
  const engine::Exercise& e = done.exercise;
  fmt::print(
      "{}, profile {}, {}\n"
      "{} requests in {} workloads: {} cancelled, {} preempted, {} engines restarted on the folder of the one before,\n"
      "{} began with something cached, {} of them from the host and {} from disk; {} snapshots where prompts part\n",
      name, models::name_of(o.profile), device->description(), e.requests, done.workloads, e.cancelled, e.preemptions, e.restarts, e.hits,
      e.host_hits, e.disk_hits, e.divergences);
  fmt::print("{}\n", done.wrong.empty() ? "every token and every bit of every logit is that of the request alone" : done.wrong);
  return done.wrong.empty() ? 0 : static_cast<int>(Failure::work);
}

}  // namespace winnow::cli
