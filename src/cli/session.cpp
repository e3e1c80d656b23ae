#include "cli/session.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/file.h"
#include "base/progress.h"
#include "cli/memory_plan.h"

namespace winnow::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDefaultContext = 32768;

int64_t context_of(const ModelFlags& flags, const weights::Config& config) {
  const int64_t most = config.max_position_embeddings;
  if (flags.max_context > most)
    throw Error(fmt::format("--max-context {}: the model was made for {} tokens at most (max_position_embeddings)", flags.max_context, most),
                Failure::usage);
  return flags.max_context ? flags.max_context : std::min(most, kDefaultContext);
}

}  // namespace

std::string small_model() {
  const fs::path below = fs::path("share") / "winnow" / "models" / "winnow-tiny";
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path places[] = {program.parent_path().parent_path() / below, fs::path(WINNOW_MODELS) / "winnow-tiny"};
  for (const fs::path& p : places)
    if (fs::exists(p / "config.json", ignored)) return p.string();
  throw error("the small model is neither in {} nor in {}; name a MODEL folder", places[0].string(), places[1].string());
}

std::string model_folder(const ModelFlags& flags) {
  if (flags.model.empty()) return small_model();
  std::error_code ignored;
  if (!fs::exists(flags.model, ignored)) throw error("MODEL {}: there is no such folder", flags.model);
  if (!fs::is_directory(flags.model, ignored)) throw error("MODEL {}: is not a folder; name the folder that holds config.json", flags.model);
  return flags.model;
}

models::Options model_options(const ModelFlags& flags, const weights::Config& config) {
  models::Options o = model_options(flags);
  o.max_context = context_of(flags, config);
  set_batch(&o, flags.max_batch);
  return o;
}

void set_batch(models::Options* o, int64_t batch) {
  o->max_sequences = batch;
  o->max_logit_rows = batch + kChunkGrid;                                           // of drawn tokens, and of a chunk of a prompt that is scored
  o->max_rows = std::max(models::Options{}.max_rows, round_up(batch, kChunkGrid));  // a step has a row for each
}

engine::EngineOptions engine_options(const ModelFlags& flags, const models::Options& model, const weights::Config& config) {
  engine::EngineOptions e = cache_options(flags, models::page_tokens_of(model, config));
  e.max_batched_tokens = model.max_rows;
  e.max_sequences = model.max_sequences;
  e.max_context = model.max_context;
  return e;
}

Session::Session(const ModelFlags& flags) : flags_(flags), folder_(model_folder(flags)), checkpoint_(weights::Checkpoint::open(folder_).or_throw()) {
  apply_log_level(flags);
  const device::CpuOptions on = device_options(flags);
  const device::ForcedKernels forced = forced_kernels(flags);
  options_ = model_options(flags, config());
  max_context_ = options_.max_context;
  engine_options_ = engine_options(flags, options_, config());

  const fs::path folder(folder_);
  if (exists((folder / "tokenizer.json").string())) tokenizer_.emplace(text::Tokenizer::load((folder / "tokenizer.json").string()).or_throw());
  if (tokenizer_ && (exists((folder / "chat_template.jinja").string()) || exists((folder / "tokenizer_config.json").string())))
    template_.emplace(text::ChatTemplate::load(folder_).or_throw());

  device_ = device::make_cpu(on);
  device_->forced = forced;
  spdlog::info("device: {}", device_->description());
}

void Session::start(const Progress& progress, Bar shown) {
  engine::EngineOptions e = engine_options_;
  const auto start = std::chrono::steady_clock::now();
  if (!e.cache_dir.empty()) cache::check_folder(cache::real_files(), e.cache_dir);  // these two before minutes of loading
  if (e.memory_bytes > 0) plan_memory({.checkpoint = &checkpoint_, .forced = device_->forced}, device_options(flags_), options_, e).or_throw();
  {
    ProgressBar bar("loading " + name(), ProgressBar::Unit::bytes);
    const bool show = shown == Bar::shown;
    model_ = std::make_unique<models::Glm5Next>(*device_, checkpoint_, options_, [&](int64_t done, int64_t total) {
      if (show) bar.update(done, total);
      progress(done, total);
    });
  }
  if (!e.cache_dir.empty()) e.model_identity = checkpoint_.identity() + " " WINNOW_VERSION;  // another version may add in another order
  engine_ = std::make_unique<engine::Engine>(*device_, *model_, e);
  if (!engine_->notice().empty()) spdlog::warn("{}", engine_->notice());
  if (const int64_t room = engine_->limits().pages * engine_->limits().page_tokens; room < options_.max_context) {
    spdlog::warn("the KV cache has room for {} tokens: that is the longest request, not {}", room, options_.max_context);
    max_context_ = room;
  }
  load_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const MemoryPlan plan = memory_plan(*device_, engine_->layout(), engine_->sizes(), e);
  int64_t allocated = engine::disk_buffer_bytes(engine_->layout(), e);
  for (const device::PlanLine& line : device_->plan()) allocated += line.bytes;
  check(plan.total_bytes() + engine_->canary_bytes() == allocated, "the memory plan and what was allocated differ");
  for (const std::string& line : text_of(plan)) spdlog::info("memory: {}", line);
  spdlog::info("{} is ready after {:.2f} s: profile {}, context {}", name(), load_s_, models::name_of(options_.profile), options_.max_context);
}

void Session::stop() { engine_.reset(); }

std::string Session::name() const {
  std::error_code ignored;
  fs::path p = fs::canonical(folder_, ignored);
  if (ignored) p = folder_;
  return p.filename().string();
}

const text::Tokenizer& Session::tokenizer() const {
  if (!tokenizer_) throw error("{}/tokenizer.json is missing; without it only 'winnow run --token-ids' works", folder_);
  return *tokenizer_;
}

const text::ChatTemplate& Session::chat_template() const {
  tokenizer();
  if (!template_) throw error("{} has no chat_template.jinja; use 'winnow run --raw' or put the template there", folder_);
  return *template_;
}

}  // namespace winnow::cli
