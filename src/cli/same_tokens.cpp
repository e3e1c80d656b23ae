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

Outcome serve(engine::SameTokens& harness, const SameTokensFlags& f, int64_t max_prompt) {
  Outcome o;
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / fmt::format("winnow-same-tokens-{}", ::getpid());
  ProgressBar bar("same tokens", ProgressBar::Unit::items);
  while (o.workloads < f.workloads && o.wrong.empty()) {
    const uint64_t seed = f.seed + static_cast<uint64_t>(o.workloads);
    engine::Workload w = harness.draw({.seed = seed, .requests = f.requests, .max_prompt = max_prompt, .folder = folder.string()});
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

// What has to be at work for agreement to mean something; nullptr: all of it was.
const char* missing(const engine::Exercise& e) {
  if (e.hits == 0) return "nothing was taken over from earlier requests";
  if (e.preemptions == 0) return "nobody was preempted";
  if (e.host_hits + e.disk_hits == 0) return "nothing came from a lower tier";
  if (e.divergences == 0) return "no snapshot was taken where prompts part";
  return nullptr;
}

}  // namespace

int same_tokens(const ModelFlags& flags, const SameTokensFlags& f) {
  const std::unique_ptr<device::Device> device = device::make_cpu(device_options(flags));
  device->forced = forced_kernels(flags);
  models::Options o = model_options(flags);
  const std::string name = model_folder(flags);
  const weights::Checkpoint checkpoint = weights::Checkpoint::open(name).or_throw();
  const int64_t max_prompt = 5 * models::page_tokens_of(o, checkpoint.config()) - 20;  // some pages, and no whole number of them
  o.max_context = 2 * max_prompt;
  models::Glm5Next model(*device, checkpoint, o);
  engine::SameTokens harness(*device, model);
  const Outcome done = serve(harness, f, max_prompt);
  const engine::Exercise& e = done.exercise;
  fmt::print(
      "{}, profile {}, {}\n"
      "{} requests in {} workloads: {} cancelled, {} preempted, {} engines restarted on the folder of the one before,\n"
      "{} operations on files failed,\n"
      "{} began with something cached, {} of them from the host and {} from disk; {} snapshots where prompts part\n",
      name, models::name_of(o.profile), device->description(), e.requests, done.workloads, e.cancelled, e.preemptions, e.restarts, e.file_faults,
      e.hits, e.host_hits, e.disk_hits, e.divergences);
  if (!done.wrong.empty()) {
    fmt::print("{}\n", done.wrong);
    return static_cast<int>(Failure::work);
  }
  fmt::print("every token and every bit of every logit is that of the request alone\n");
  if (const char* idle = missing(e))
    throw Error(fmt::format("--same-tokens: {}, so this proves little; raise --requests or --workloads", idle), Failure::work);
  return 0;
}

}  // namespace winnow::cli
