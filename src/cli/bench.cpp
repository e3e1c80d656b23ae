// winnow bench: how fast a model runs here, end to end and op by op, as shares of what this machine was just measured to
// reach. With --shape, random weights at the published sizes: no download.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/json_writer.h"
#include "base/progress.h"
#include "cli/flags.h"
#include "cli/overhead.h"
#include "cli/runner.h"
#include "cli/same_tokens.h"
#include "cli/session.h"
#include "cli/shapes.h"
#include "cli/verb.h"
#include "device/cpu/peaks.h"

namespace winnow::cli {
namespace {

struct BenchFlags {
  ModelFlags model;
  ShapeFlags shape;
  int64_t context = 4096, batch = 1, prompt = 512, steps = 0;
  bool json = false, same_tokens = false, overhead = false;
  SameTokensFlags same;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Section {
  std::string name;
  double seconds = 0;      // of one step: the median
  int64_t tokens = 0;      // of one step
  double weight_gb_s = 0;  // weight bytes of a step over its time
  device::Trace trace;
  int64_t traced_steps = 0;
};

// Runs `step` until a second has passed (at least three times), then once more with the ops traced.
template <class F>
Section measure(const std::string& name, device::Device& device, int64_t tokens, int64_t steps, F&& step) {
  Section s{.name = name, .seconds = 0, .tokens = tokens, .weight_gb_s = 0, .trace = {}, .traced_steps = 0};
  step();  // warm
  std::vector<double> times;
  for (double start = now(); steps > 0 ? static_cast<int64_t>(times.size()) < steps : times.size() < 3 || now() - start < 2.0;) {
    const double t = now();
    step();
    times.push_back(now() - t);
    if (times.size() >= 1000) break;
  }
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
  s.seconds = times[times.size() / 2];
  device.queue().set_trace(&s.trace);
  for (int i = 0; i < 3; ++i, ++s.traced_steps) step();
  device.queue().set_trace(nullptr);
  return s;
}

std::string percent(double part, double whole) { return whole > 0 && part > 0 ? fmt::format("{:.0f} %", 100 * part / whole) : "-"; }

void print(const Section& s, const device::Peaks& peaks) {
  fmt::print("\n{}: {:.3f} ms a step, {:.1f} tokens/s", s.name, s.seconds * 1e3, static_cast<double>(s.tokens) / s.seconds);
  if (s.weight_gb_s > 0) fmt::print(", {:.1f} GB/s of weights = {} of the read rate", s.weight_gb_s, percent(s.weight_gb_s, peaks.read_gb_s));
  fmt::print("\n  {:<52} {:>6} {:>10} {:>7} {:>9} {:>7} {:>9} {:>7}\n", "op", "calls", "ms a step", "share", "GB/s", "of read", "GFLOP/s", "of peak");
  std::vector<std::pair<std::string, device::Trace::Entry>> list(s.trace.entries().begin(), s.trace.entries().end());
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double total = 0;
  for (const auto& [label, e] : list) total += e.seconds;
  for (const auto& [label, e] : list) {
    const double gb = e.bytes / e.seconds * 1e-9, gf = e.flops / e.seconds * 1e-9;
    fmt::print("  {:<52} {:>6} {:>10.3f} {:>7} {:>9} {:>7} {:>9} {:>7}\n", label, e.calls / s.traced_steps,
               e.seconds * 1e3 / static_cast<double>(s.traced_steps), percent(e.seconds, total), e.bytes > 0 ? fmt::format("{:.1f}", gb) : "-",
               percent(gb, peaks.read_gb_s), e.flops > 0 ? fmt::format("{:.0f}", gf) : "-", percent(gf, peaks.best_gflops()));
  }
}

void write(JsonWriter& w, const Section& s, const device::Peaks& peaks) {
  w.begin_object().field("name", s.name).field("ms_a_step", s.seconds * 1e3).field("tokens_s", static_cast<double>(s.tokens) / s.seconds);
  if (s.weight_gb_s > 0) w.field("weight_gb_s", s.weight_gb_s).field("share_of_read", s.weight_gb_s / peaks.read_gb_s);
  w.key("ops").begin_array();
  for (const auto& [label, e] : s.trace.entries()) {
    w.begin_object()
        .field("op", label)
        .field("calls", e.calls / s.traced_steps)
        .field("ms_a_step", e.seconds * 1e3 / static_cast<double>(s.traced_steps));
    if (e.bytes > 0) w.field("gb_s", e.bytes / e.seconds * 1e-9).field("share_of_read", e.bytes / e.seconds * 1e-9 / peaks.read_gb_s);
    if (e.flops > 0) w.field("gflop_s", e.flops / e.seconds * 1e-9).field("share_of_peak", e.flops / e.seconds * 1e-9 / peaks.best_gflops());
    w.end_object();
  }
  w.end_array().end_object();
}

Section decode(device::Device& device, models::Glm5Next& model, Runner& runner, int64_t batch, int64_t context, int64_t steps) {
  for (int64_t s = 0; s < batch; ++s) runner.assume(s, context);
  std::vector<int32_t> tokens(static_cast<size_t>(batch));
  int32_t next = 1;
  Section s = measure(fmt::format("decode, batch {}, context {}", batch, context), device, batch, steps, [&] {
    for (int32_t& t : tokens) t = static_cast<int32_t>((next += 7919) % model.config().vocab_size);
    if (runner.length() + 1 >= model.options().max_context)
      for (int64_t i = 0; i < batch; ++i) runner.assume(i, context);
    runner.decode(tokens);
  });
  if (batch == 1) s.weight_gb_s = static_cast<double>(model.weight_bytes_per_token()) / s.seconds * 1e-9;
  return s;
}

Section prefill(device::Device& device, models::Glm5Next& model, Runner& runner, int64_t prompt, int64_t behind, int64_t steps) {
  std::vector<int32_t> tokens(static_cast<size_t>(prompt));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>((i * 7919 + 1) % static_cast<size_t>(model.config().vocab_size));
  if (behind > 0) runner.assume(0, behind);
  const std::string where = behind > 0 ? fmt::format(" behind {}", behind) : "";
  return measure(fmt::format("prefill, {} tokens{}", prompt, where), device, prompt, steps, [&] {
    if (behind > 0) runner.stand_at(0, behind);
    else runner.reset();
    runner.prefill(tokens, 1, [](int64_t, std::span<const float>) {});
  });
}

int bench(const BenchFlags& f) {
  const std::unique_ptr<device::Device> device = device::make_cpu(device_options(f.model));
  device->forced = forced_kernels(f.model);
  device->pin_caller();
  complain("measuring this machine\n");
  const device::Peaks peaks = device::measure_peaks(*device);

  models::Options o = model_options(f.model);
  o.max_rows = std::max<int64_t>(round_up(std::min<int64_t>(f.prompt, 512), kChunkGrid), kChunkGrid);
  o.max_sequences = o.max_logit_rows = f.batch;
  o.max_context = round_up(f.context + std::max<int64_t>(f.prompt, 1024), kChunkGrid);
  std::unique_ptr<models::Glm5Next> model;
  const bool shape = wants_shape(f.shape, f.model.model);
  std::string name = shape ? fmt::format("{}, {} layers, random weights", f.shape.shape, f.shape.layers) : model_folder(f.model);
  const double start = now();
  if (!shape) {
    model = std::make_unique<models::Glm5Next>(*device, weights::Checkpoint::open(model_folder(f.model)).or_throw(), o);
  } else {
    static const weights::Config config = glm_5_3_flash(f.shape.layers);
    ProgressBar bar(fmt::format("making {} layers of random weights", f.shape.layers), ProgressBar::Unit::bytes);
    model = std::make_unique<models::Glm5Next>(*device, config, o, 1, [&](int64_t done, int64_t total) { bar.update(done, total); });
  }
  const double load_s = now() - start;
  int64_t weight_bytes = 0;
  for (const device::PlanLine& line : device->plan())
    if (line.what.starts_with("weights")) weight_bytes += line.bytes;
  Runner runner(*device, *model, f.batch, o.max_context);

  std::vector<Section> sections;
  sections.push_back(decode(*device, *model, runner, 1, f.context, f.steps));
  if (f.batch > 1) sections.push_back(decode(*device, *model, runner, f.batch, f.context, f.steps));
  sections.push_back(prefill(*device, *model, runner, f.prompt, 0, f.steps));
  if (const int64_t behind = f.context / kChunkGrid * kChunkGrid) sections.push_back(prefill(*device, *model, runner, f.prompt, behind, f.steps));

  if (f.json) {
    JsonWriter w({.spaced = true});
    w.begin_object().field("model", name).field("device", device->description()).field("profile", models::name_of(o.profile));
    w.field("read_gb_s", peaks.read_gb_s).field("f32_gflops", peaks.f32_gflops).field("bf16_gflops", peaks.bf16_gflops);
    w.field("weight_bytes", weight_bytes)
        .field("weight_bytes_per_token", model->weight_bytes_per_token())
        .field("load_s", load_s)
        .key("sections")
        .begin_array();
    for (const Section& s : sections) write(w, s, peaks);
    w.end_array().end_object();
    fmt::print("{}\n", w.text());
    return 0;
  }
  fmt::print("{}\n{}, profile {}\nmeasured here: read {:.1f} GB/s, f32 {:.0f} GFLOP/s{}\n", name, device->description(), models::name_of(o.profile),
             peaks.read_gb_s, peaks.f32_gflops, peaks.bf16_gflops > 0 ? fmt::format(", bf16 {:.0f} GFLOP/s", peaks.bf16_gflops) : "");
  fmt::print("weights: {:.2f} GB ready in {:.2f} s = {:.1f} GB/s, {:.3f} GB read for a token\n", static_cast<double>(weight_bytes) * 1e-9, load_s,
             static_cast<double>(weight_bytes) * 1e-9 / load_s, static_cast<double>(model->weight_bytes_per_token()) * 1e-9);
  for (const Section& s : sections) print(s, peaks);
  return 0;
}

}  // namespace

Run add_bench(CLI::App& program) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* verb = program.add_subcommand("bench", "Measure speed, end to end and op by op, as shares of this machine's measured peaks");
  add_model_flags(*verb, flags->model, ModelArgument::optional);
  add_shape_flags(*verb, flags->shape);
  verb->add_option("--context", flags->context, "Tokens before the decoded one, and before a second prefill")
      ->check(CLI::Range(1, 1048576))
      ->capture_default_str();
  verb->add_option("--batch", flags->batch, "Also decode this many sequences together")->check(CLI::Range(1, 1024))->capture_default_str();
  verb->add_option("--prompt", flags->prompt, "Tokens of the prefill")->check(CLI::Range(1, 1048576))->capture_default_str();
  verb->add_option("--steps", flags->steps, "Steps to time; 0: two seconds' worth")->check(CLI::Range(0, 100000))->capture_default_str();
  verb->add_flag("--json", flags->json, "One JSON object instead of tables");
  verb->add_flag("--overhead", flags->overhead, "Instead: what scheduling and the prefix index take of a step, without a model");
  constexpr const char* same = "Same tokens";
  verb->add_flag(
          "--same-tokens", flags->same_tokens,
          "Instead of speed: serve random workloads with company, caches, preemption and restarts, and compare every logit with the request alone")
      ->group(same);
  verb->add_option("--workloads", flags->same.workloads, "How many")->check(CLI::Range(1, 1000000))->capture_default_str()->group(same);
  verb->add_option("--requests", flags->same.requests, "Requests of each")->check(CLI::Range(4, 100000))->capture_default_str()->group(same);
  verb->add_option("--seed", flags->same.seed, "Of the first; the others follow")->capture_default_str()->group(same);
  verb->footer(
      "Shares of peak are shares of this machine's f32 or bf16 multiply-add rate, measured at the start of the same run.\n\n"
      "  winnow bench                                            the small model\n"
      "  winnow bench --batch 8 --context 1000\n"
      "  winnow bench --shape glm-5.3-flash --layers 2           layers of the real size\n"
      "  winnow bench --same-tokens --profile exact              whether company or caches change an answer");
  return [flags] {
    apply_log_level(flags->model);
    if (wants_shape(flags->shape, flags->model.model) && residence_of(flags->model) == weights::Residence::map)
      throw Error("--weights: --shape makes random weights; there are no files to map", Failure::usage);
    if (flags->same_tokens && wants_shape(flags->shape, flags->model.model))
      throw Error("--same-tokens and --shape exclude each other", Failure::usage);
    if (flags->overhead && (flags->same_tokens || !flags->model.model.empty() || wants_shape(flags->shape, flags->model.model)))
      throw Error("--overhead measures no model; leave MODEL, --shape and --same-tokens out", Failure::usage);
    if (flags->overhead) return overhead();
    return flags->same_tokens ? same_tokens(flags->model, flags->same) : bench(*flags);
  };
}

}  // namespace winnow::cli
