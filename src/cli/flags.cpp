#include "cli/flags.h"

#include <spdlog/spdlog.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <numeric>
#include <random>

#include "base/byte_size.h"
#include "cli/catalog.h"

namespace winnow::cli {
namespace {

constexpr const char* kModel = "model folder in the Hugging Face layout (config.json, *.safetensors, tokenizer.json)";

// What CLI11 would take for one: a minus sign wraps around, and too many digits become the largest number.
const CLI::Validator kSeed(
    [](std::string& word) {
      uint64_t seed = 0;
      const auto [end, bad] = std::from_chars(word.data(), word.data() + word.size(), seed);
      return bad == std::errc{} && end == word.data() + word.size() ? std::string()
                                                                    : fmt::format("'{}' is not a whole number from 0 to 2^64 - 1", word);
    },
    "");

Error wrong_flag(std::string_view flag, std::string_view why) { return Error(fmt::format("{}: {}", flag, why), Failure::usage); }

// Single-character edits from a to b.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

constexpr const char* kModelGroup = "Model";
constexpr const char* kMemoryGroup = "Memory and caches";

// The value of a flag that takes a size, or `otherwise` if it is not given.
int64_t bytes_of(std::string_view flag, const std::string& text, int64_t otherwise) {
  if (text.empty()) return otherwise;
  const Result<int64_t> bytes = parse_byte_size(text);
  if (!bytes) throw wrong_flag(flag, bytes.error().what());
  return *bytes;
}

}  // namespace

void complain(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stderr);  // a stderr that is gone is no reason to stop
}

std::string harmless(std::string text) {
  for (char& c : text)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) c = '?';
  return text;
}

void add_device_flags(CLI::App& verb, ModelFlags& f) {
  constexpr const char* group = "Device";
  verb.add_option("--backend", f.backend, "cpu, cuda, hip, vulkan, sim or ref (the references)")->capture_default_str()->group(group);
  verb.add_option(
          "--kernel", f.kernels,
          "force a kernel: OP=NAME, repeatable (winnow devices lists them); isa=avx2|avx512|avx512_bf16|amx sets the highest instruction set used")
      ->type_name("OP=NAME")
      ->allow_extra_args(false)
      ->group(group);
  verb.add_option("--threads", f.threads, "worker threads; 0: one for each processor that this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group(group);
  verb.add_option("--log-level", f.log_level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str()
      ->group(group);
}

void add_model_flags(CLI::App& verb, ModelFlags& f, ModelArgument argument) {
  CLI::Option* model = verb.add_option(
      "MODEL", f.model,
      argument == ModelArgument::required ? std::string(kModel) : fmt::format("{}; without it the small model that ships with winnow", kModel));
  if (argument == ModelArgument::required) model->required();
  constexpr const char* group = kModelGroup;
  verb.add_option("--profile", f.profile, "fast (bf16 activations) or exact (f32 everywhere: results do not depend on how a prompt was cut)")
      ->capture_default_str()
      ->group(group);
  verb.add_option("--index-keys", f.index_keys, "how the indexer's keys are stored: f32, bf16 or fp8 [bf16; f32 in profile exact]")->group(group);
  verb.add_option("--index-layout", f.index_layout,
                  "how the indexer's keys lie in a page: plain, or shuffled in tiles of 16 rows, for back ends whose kernels want it")
      ->type_name("plain|shuffled")
      ->capture_default_str()
      ->group(group);
  verb.add_option("--page-size", f.page_size, "tokens of a page of the KV cache: 64, 128 or 256 [the least that fits the model]")
      ->type_name("TOKENS")
      ->check(CLI::IsMember({64, 128, 256}))
      ->group(group);
  verb.add_option(
          "--weights", f.weights,
          "copy the weights into huge pages, or map their files: ready without a copy, but decode is slower and the files must not change meanwhile")
      ->type_name("copy|map")
      ->capture_default_str()
      ->group(group);
  add_device_flags(verb, f);
}

void add_context_flag(CLI::App& verb, ModelFlags& f) {
  verb.add_option("--max-context", f.max_context, "tokens of one request, prompt and answer together; 0: what the model states, at most 32768")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str()
      ->group(kModelGroup);
}

void add_reuse_flag(CLI::App& verb, ModelFlags& f) {
  verb.add_option("--reuse", f.reuse,
                  "what a prompt may begin with of earlier requests: none, prefilled (in profile fast too the answers are those of a cold run) or "
                  "computed (answers of the conversation as well)")
      ->type_name("none|prefilled|computed")
      ->capture_default_str()
      ->group(kModelGroup);
}

void add_batch_flag(CLI::App& verb, ModelFlags& f) {
  verb.add_option("--max-batch", f.max_batch, "requests that run at once")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}))
      ->capture_default_str()
      ->group(kModelGroup);
}

void add_memory_flags(CLI::App& verb, ModelFlags& f) {
  verb.add_option("--memory", f.memory,
                  "of the device for everything: weights, workspaces, pages and states, on the CPU what --host-memory is as well; e.g. 64GB or 60GiB "
                  "[half of what weights leave free]")
      ->type_name("BYTES")
      ->group(kMemoryGroup);
  verb.add_option("--host-memory", f.host_memory,
                  "for requests that had to make way for others and for kept prefixes that the device has no room for; 0: none, and a request then "
                  "waits until its longest answer fits [full contexts of half of the requests that run at once, at most an eighth of the caches]")
      ->type_name("BYTES")
      ->group(kMemoryGroup);
  verb.add_option("--snapshot-memory", f.snapshot_memory,
                  "of the device for states kept beyond those of running requests; a prompt can begin only where one was kept [a quarter of what "
                  "those leave]")
      ->type_name("BYTES")
      ->group(kMemoryGroup);
}

void add_cache_flags(CLI::App& verb, ModelFlags& f) {
  verb.add_option("--cache-dir", f.cache_dir,
                  "keep computed prefixes in this folder too, where they outlive the program; it holds what prompts and answers said, for one "
                  "process at a time [nowhere]")
      ->type_name("DIR")
      ->group(kMemoryGroup);
  verb.add_option("--cache-size", f.cache_size, "what --cache-dir may hold [16GiB]")->type_name("BYTES")->group(kMemoryGroup);
  verb.add_option("--snapshot-interval", f.snapshot_interval,
                  "also keep a state every so many tokens of a prompt, a multiple of the page size, for prompts that part from it anywhere; 0: only "
                  "where prompts are likely to part")
      ->type_name("TOKENS")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str()
      ->group(kMemoryGroup);
}

void add_itl_flag(CLI::App& verb, ModelFlags& f) {
  verb.add_option("--max-itl-ms", f.max_itl_ms,
                  "wanted bound on the time between two tokens of an answer: the parts in which prompts are computed beside it follow; 0: none")
      ->type_name("MS")
      ->check(
          CLI::Validator([](std::string& word) { return word.find_first_not_of("0123456789.eE+-") == std::string::npos ? "" : "is no number"; }, "") &
          CLI::Range(0.0, 1e6))
      ->capture_default_str()
      ->group(kModelGroup);
}

device::CpuOptions device_options(const ModelFlags& f) {
  device::CpuOptions o;
  Result<device::Backend> backend = device::parse_backend(f.backend);
  if (!backend) throw Error(fmt::format("--backend: {}", backend.error().what()), backend.error().kind());
  o.backend = *backend;
  o.threads = f.threads;
  bool isa_given = false;
  for (const std::string& k : f.kernels) {
    if (!k.starts_with("isa=")) continue;
    if (std::exchange(isa_given, true)) throw wrong_flag("--kernel", "isa= is given twice");
    Result<device::Isa> isa = device::parse_isa(std::string_view(k).substr(4));
    if (!isa) throw wrong_flag("--kernel", isa.error().what());
    if (*isa > device::detect_isa())
      throw Error(fmt::format("--kernel {}: this machine has {} at most", k, device::name_of(device::detect_isa())), Failure::cannot_run);
    o.isa = *isa;
  }
  return o;
}

device::ForcedKernels forced_kernels(const ModelFlags& f) {
  device::ForcedKernels forced;
  const device::Backend backend = device_options(f).backend;
  for (const std::string& k : f.kernels) {
    const size_t eq = k.find('=');
    if (eq == std::string::npos || eq == 0 || eq + 1 == k.size())
      throw wrong_flag("--kernel", fmt::format("'{}' is not OP=NAME, e.g. linear=linear.cpu_avx2", k));
    const std::string op = k.substr(0, eq), name = k.substr(eq + 1);
    if (op == "isa") continue;
    std::vector<std::string> ops, names;
    const OpEntry* entry = nullptr;
    for (const OpEntry& e : catalog()) {
      ops.emplace_back(e.op);
      if (e.op == op) entry = &e;
    }
    if (!entry) throw wrong_flag("--kernel", fmt::format("there is no op '{}'{}; winnow devices lists them", op, suggestion(op, ops)));
    for (std::string_view n : entry->kernels(backend)) names.emplace_back(n);
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw wrong_flag("--kernel", fmt::format("op {} has no kernel '{}' on back end {}{} (it has: {})", op, name, device::name_of(backend),
                                               suggestion(name, names), fmt::join(names, ", ")));
    forced[op] = name;
  }
  return forced;
}

models::Profile profile_of(const ModelFlags& f) {
  Result<models::Profile> p = models::parse_profile(f.profile);
  if (!p) throw wrong_flag("--profile", p.error().what());
  return *p;
}

IndexKeys index_keys_of(const ModelFlags& f) {
  const models::Profile profile = profile_of(f);
  if (f.index_keys.empty()) return profile == models::Profile::exact ? IndexKeys::f32 : IndexKeys::bf16;
  if (profile == models::Profile::exact && f.index_keys != "f32")
    throw wrong_flag("--index-keys", "profile exact stores them in f32 only; use --profile fast");
  if (f.index_keys == "f32") return IndexKeys::f32;
  if (f.index_keys == "bf16") return IndexKeys::bf16;
  if (f.index_keys == "fp8") return IndexKeys::fp8;
  throw wrong_flag("--index-keys", fmt::format("unknown '{}' (known: f32, bf16, fp8)", f.index_keys));
}

models::Options model_options(const ModelFlags& f) {
  models::Options o;
  o.profile = profile_of(f);
  o.index_keys = index_keys_of(f);
  Result<IndexLayout> layout = parse_index_layout(f.index_layout);
  if (!layout) throw wrong_flag("--index-layout", layout.error().what());
  o.index_layout = *layout;
  o.page_tokens = f.page_size;
  o.weights = residence_of(f);
  return o;
}

weights::Residence residence_of(const ModelFlags& f) {
  Result<weights::Residence> r = weights::parse_residence(f.weights);
  if (!r) throw wrong_flag("--weights", r.error().what());
  return *r;
}

engine::Reuse reuse_of(const ModelFlags& f) {
  Result<engine::Reuse> r = engine::parse_reuse(f.reuse);
  if (!r) throw wrong_flag("--reuse", r.error().what());
  return *r;
}

engine::EngineOptions cache_options(const ModelFlags& f, int64_t page_tokens) {
  engine::EngineOptions o;
  o.reuse = reuse_of(f);
  o.memory_bytes = bytes_of("--memory", f.memory, o.memory_bytes);
  if (!f.memory.empty() && o.memory_bytes == 0) throw wrong_flag("--memory", "0 bytes hold nothing; leave it out or give e.g. 8GB");
  o.host_bytes = bytes_of("--host-memory", f.host_memory, o.host_bytes);
  o.snapshot_bytes = bytes_of("--snapshot-memory", f.snapshot_memory, o.snapshot_bytes);
  o.cache_dir_bytes = bytes_of("--cache-size", f.cache_size, o.cache_dir_bytes);
  o.cache_dir = f.cache_dir;
  o.snapshot_interval = f.snapshot_interval;
  o.max_itl_s = f.max_itl_ms * 1e-3;
  if (!f.cache_size.empty() && f.cache_dir.empty()) throw wrong_flag("--cache-size", "needs --cache-dir, whose size it is");
  if (o.reuse == engine::Reuse::none) {
    constexpr std::string_view kNothing = "with --reuse none nothing is kept; leave one of them out";
    if (!f.cache_dir.empty()) throw wrong_flag("--cache-dir", kNothing);
    if (f.snapshot_interval > 0) throw wrong_flag("--snapshot-interval", kNothing);
    if (!f.snapshot_memory.empty() && o.snapshot_bytes > 0) throw wrong_flag("--snapshot-memory", kNothing);
  }
  if (f.snapshot_interval % page_tokens != 0)
    throw wrong_flag("--snapshot-interval", fmt::format("{} is no multiple of the page size, {} tokens; the next one is {}", f.snapshot_interval,
                                                        page_tokens, round_up(f.snapshot_interval, page_tokens)));
  return o;
}

void apply_log_level(const ModelFlags& f) { spdlog::set_level(spdlog::level::from_str(f.log_level)); }

void add_sampling_flags(CLI::App& verb, SamplingFlags& f) {
  constexpr const char* group = "Sampling";
  verb.add_option("--temperature", f.temperature, "0: always the most likely token [the model's default]")->check(CLI::Range(0.0, 2.0))->group(group);
  verb.add_option("--top-p", f.top_p, "keep the smallest set of tokens with this much probability [the model's default]")
      ->check(CLI::Range(0.0, 1.0))
      ->group(group);
  verb.add_option("--top-k", f.top_k, "keep this many tokens; 0: all")->check(CLI::Range(0, 1 << 20))->group(group);
  verb.add_option("--min-p", f.min_p, "drop tokens less likely than this share of the most likely one")->check(CLI::Range(0.0, 1.0))->group(group);
  verb.add_option("--repetition-penalty", f.repetition_penalty, "over prompt and answer; 1: off")->check(CLI::Range(0.01, 10.0))->group(group);
  verb.add_option("--presence-penalty", f.presence_penalty, "over the answer; 0: off")->check(CLI::Range(-2.0, 2.0))->group(group);
  verb.add_option("--frequency-penalty", f.frequency_penalty, "over the answer; 0: off")->check(CLI::Range(-2.0, 2.0))->group(group);
  verb.add_option("--seed", f.seed, "the same seed draws the same tokens; without it a seed is drawn")->check(kSeed)->group(group);
}

ops::Sampling sampling_of(const SamplingFlags& f, const weights::Config& config) {
  ops::Sampling s;
  s.temperature = f.temperature.value_or(config.default_temperature);
  s.top_p = f.top_p.value_or(config.default_top_p);
  if (s.top_p <= 0) throw wrong_flag("--top-p", "must be greater than 0; for the most likely token use --temperature 0");
  s.top_k = f.top_k.value_or(0);
  s.min_p = f.min_p.value_or(0.0f);
  s.repetition_penalty = f.repetition_penalty.value_or(1.0f);
  s.presence_penalty = f.presence_penalty.value_or(0.0f);
  s.frequency_penalty = f.frequency_penalty.value_or(0.0f);
  s.seed = f.seed ? *f.seed : std::random_device{}();
  return s;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& names) {
  const size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  size_t best = letters / 3 + 1;  // farther than a third of the word is another word
  const std::string* nearest = nullptr;
  for (const std::string& n : names) {
    const size_t d = distance(word, n);
    if (d <= best && (!nearest || d < best)) {
      best = d;
      nearest = &n;
    }
  }
  return nearest ? fmt::format(" (did you mean {}?)", *nearest) : "";
}

}  // namespace winnow::cli
