// winnow devices: what this machine offers, and for each op which kernel would be chosen or why none.
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <fstream>

#include "base/json_writer.h"
#include "cli/catalog.h"
#include "cli/flags.h"
#include "cli/verb.h"

namespace winnow::cli {
namespace {

struct DevicesFlags {
  ModelFlags model;
  bool json = false, all = false;
};

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

struct Choice {
  const OpEntry* op;
  std::vector<Candidate> candidates;
  const Candidate* chosen = nullptr;
};

std::vector<Choice> choose(const ModelFlags& f, const device::Device& device) {
  std::vector<Choice> out;
  for (const OpEntry& e : catalog()) {
    Choice c{&e, e.candidates(device.caps(), profile_of(f), index_keys_of(f)), nullptr};
    const auto forced = device.forced.find(e.op);
    for (Candidate& k : c.candidates)
      if (forced != device.forced.end() && k.name != forced->second) k.why_not = "another was forced";
    out.push_back(std::move(c));
    for (const Candidate& k : out.back().candidates)
      if (!k.why_not && !out.back().chosen) out.back().chosen = &k;
  }
  return out;
}

void write_json(const device::Device& device, const std::vector<Choice>& choices) {
  const device::Caps& caps = device.caps();
  JsonWriter w({.spaced = true});
  w.begin_object().field("processor", processor()).field("backend", device::name_of(caps.backend)).field("isa", device::name_of(caps.isa));
  w.field("best_isa", device::name_of(device::detect_isa()))
      .field("workers", caps.workers)
      .field("memory_bytes", caps.memory_bytes)
      .field("free_bytes", caps.free_bytes);
  w.key("ops").begin_array();
  for (const Choice& c : choices) {
    w.begin_object().field("op", c.op->op).key("kernel");
    if (c.chosen) w.value(c.chosen->name);
    else w.null();
    w.key("candidates").begin_array();
    for (const Candidate& k : c.candidates) {
      w.begin_object().field("name", k.name).key("why_not");
      if (k.why_not) w.value(k.why_not);
      else w.null();
      w.end_object();
    }
    w.end_array().end_object();
  }
  w.end_array().end_object();
  fmt::print("{}\n", w.text());
}

void print(const device::Device& device, const std::vector<Choice>& choices, bool all) {
  const device::Caps& caps = device.caps();
  fmt::print("processor   {}\n", processor());
  fmt::print("device      {}\n", device.description());
  fmt::print("threads     {} of {} processors\n", caps.workers, sysconf(_SC_NPROCESSORS_ONLN));
  fmt::print("set         {} (this machine has {})\n", device::name_of(caps.isa), device::name_of(device::detect_isa()));
  fmt::print("memory      {:.1f} GB, {:.1f} GB of it free\n", static_cast<double>(caps.memory_bytes) * 1e-9,
             static_cast<double>(caps.free_bytes) * 1e-9);
  fmt::print("back ends   cpu and ref are in this build; cuda, hip, vulkan and sim are not\n\n");
  fmt::print("{:<14}kernel, at the shapes of GLM-5.3-Flash\n", "op");
  for (const Choice& c : choices) {
    fmt::print("{:<14}{}\n", c.op->op, c.chosen ? c.chosen->name : c.candidates.empty() ? "none: this back end has no kernel of it" : "none fits:");
    for (const Candidate& k : c.candidates)
      if (&k != c.chosen && (all || !c.chosen)) fmt::print("{:<14}  {}: {}\n", "", k.name, k.why_not ? k.why_not : "fits too");
  }
}

int devices(const DevicesFlags& f) {
  apply_log_level(f.model);
  const std::unique_ptr<device::Device> device = device::make_cpu(device_options(f.model));
  device->forced = forced_kernels(f.model);
  const std::vector<Choice> choices = choose(f.model, *device);
  if (f.json) write_json(*device, choices);
  else print(*device, choices, f.all);
  const bool complete = std::all_of(choices.begin(), choices.end(), [](const Choice& c) { return c.chosen || c.candidates.empty(); });
  return complete ? 0 : static_cast<int>(Failure::cannot_run);
}

}  // namespace

Run add_devices(CLI::App& program) {
  auto flags = std::make_shared<DevicesFlags>();
  CLI::App* verb = program.add_subcommand("devices", "What this machine offers, and which kernel each op would use");
  verb->add_option("--profile", flags->model.profile, "fast or exact")->capture_default_str();
  verb->add_option("--index-keys", flags->model.index_keys, "f32, bf16 or fp8 [bf16; f32 in profile exact]");
  add_device_flags(*verb, flags->model);
  verb->add_flag("--all", flags->all, "also the kernels that were passed over, and why");
  verb->add_flag("--json", flags->json, "one JSON object instead of a table");
  verb->footer(
      "Examples:\n"
      "  winnow devices\n"
      "  winnow devices --profile exact --all\n"
      "  winnow devices --kernel isa=avx2\n\n"
      "Exit code 3 if some op has kernels but none that fits.");
  return [flags] { return devices(*flags); };
}

}  // namespace winnow::cli
