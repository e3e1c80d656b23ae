// Flags that several verbs share, and how their values are read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "engine/engine.h"
#include "models/glm5_next.h"
#include "ops/sample/sample.h"

namespace CLI {
class App;
}

namespace winnow::cli {

// Where a model comes from and how it is run.
struct ModelFlags {
  std::string model;  // a folder; empty: the small model that ships
  std::string backend = "cpu", profile = "fast", index_keys, log_level = "warn";
  std::string index_layout{name_of(models::Options{}.index_layout)};
  std::string weights{weights::name_of(models::Options{}.weights)};
  std::string reuse{engine::name_of(engine::EngineOptions{}.reuse)};
  std::vector<std::string> kernels;
  int threads = 0;
  int64_t page_size = 0;    // 0: the least that fits the model
  int64_t max_context = 0;  // 0: what the model states, at most 32768
  int64_t max_batch = 16;
  std::string memory, host_memory, snapshot_memory, cache_size;  // sizes as byte_size.h reads them; empty: what EngineOptions has
  std::string cache_dir;
  int64_t snapshot_interval = 0;
  double max_itl_ms = 0;
};
enum class ModelArgument { required, optional };
void add_model_flags(CLI::App& verb, ModelFlags& flags, ModelArgument argument);
void add_context_flag(CLI::App& verb, ModelFlags& flags);  // chat, run, serve
void add_reuse_flag(CLI::App& verb, ModelFlags& flags);    // chat, plan, run, serve
void add_batch_flag(CLI::App& verb, ModelFlags& flags);    // plan, serve
void add_memory_flags(CLI::App& verb, ModelFlags& flags);  // chat, plan, run, serve: the device's and the host's
void add_cache_flags(CLI::App& verb, ModelFlags& flags);   // chat, plan, run, serve: what is kept for later prompts
void add_itl_flag(CLI::App& verb, ModelFlags& flags);      // serve

// The device flags alone (devices, bench).
void add_device_flags(CLI::App& verb, ModelFlags& flags);

// The flags' values, checked; an Error names the flag.
device::CpuOptions device_options(const ModelFlags& flags);
device::ForcedKernels forced_kernels(const ModelFlags& flags);
models::Profile profile_of(const ModelFlags& flags);
IndexKeys index_keys_of(const ModelFlags& flags);        // without the flag: what the profile uses
models::Options model_options(const ModelFlags& flags);  // profile, index keys, index layout, page size, weights
weights::Residence residence_of(const ModelFlags& flags);
engine::Reuse reuse_of(const ModelFlags& flags);
// What of EngineOptions comes from flags alone, checked against each other and against the page size: sizes, cache_dir, reuse,
// snapshots, max_itl_s.
engine::EngineOptions cache_options(const ModelFlags& flags, int64_t page_tokens);
void complain(std::string_view line);    // to stderr, if anybody listens
std::string harmless(std::string text);  // text of a model may hold anything; a terminal must not obey it
void apply_log_level(const ModelFlags& flags);

// Sampling on the command line; what is not given comes from the checkpoint's generation_config.json.
struct SamplingFlags {
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
};
void add_sampling_flags(CLI::App& verb, SamplingFlags& flags);
ops::Sampling sampling_of(const SamplingFlags& flags, const weights::Config& config);  // draws a seed if none is given

// " (did you mean --seed?)", or nothing if no name is near.
std::string suggestion(std::string_view word, const std::vector<std::string>& names);

}  // namespace winnow::cli
