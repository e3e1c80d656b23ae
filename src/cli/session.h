// What chat, run and serve start from: a checkpoint opened, a device, the model on it, its tokenizer and template, and the
// engine. Mistakes are found while they are cheap: the constructor reads what is small, the caller checks what it needs of
// that, and start() loads the weights, which may take minutes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cli/flags.h"
#include "device/device.h"
#include "engine/engine.h"
#include "models/glm5_next.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"

namespace winnow::cli {

// The folder of the small model that ships with winnow: beside the installed program, else in the source tree.
std::string small_model();
// The model that the flags ask for: MODEL, or the small one.
std::string model_folder(const ModelFlags& flags);

// What the flags ask of a model of this config, context and batch included.
models::Options model_options(const ModelFlags& flags, const weights::Config& config);
// So many requests at once.
void set_batch(models::Options* options, int64_t batch);
// And of an engine for it.
engine::EngineOptions engine_options(const ModelFlags& flags, const models::Options& model, const weights::Config& config);

class Session {
 public:
  explicit Session(const ModelFlags& flags);                          // throws Error
  using Progress = std::function<void(int64_t done, int64_t total)>;  // bytes of weights
  enum class Bar : uint8_t { shown, hidden };
  // Throws Error; model() and engine() exist only then.
  void start(const Progress& progress = [](int64_t, int64_t) {}, Bar bar = Bar::shown);
  void on_step(std::function<void(int64_t, int64_t, double)> f) { engine_options_.on_step = std::move(f); }  // before start(); EngineOptions

  void stop();  // ends the engine, which writes what its cache folder lacks

  const std::string& folder() const { return folder_; }
  std::string name() const;  // of the model: the last part of its folder's path
  const weights::Config& config() const { return checkpoint_.config(); }
  const weights::Checkpoint& checkpoint() const { return checkpoint_; }
  device::Device& device() { return *device_; }
  models::Glm5Next& model() { return *model_; }
  engine::Engine& engine() { return *engine_; }
  int64_t max_context() const { return max_context_; }  // of one request; after start() no more than the KV cache holds
  double load_s() const { return load_s_; }

  // A checkpoint may come without them; what needs one says so.
  bool has_tokenizer() const { return tokenizer_.has_value(); }
  bool has_chat_template() const { return template_.has_value(); }
  const text::Tokenizer& tokenizer() const;
  const text::ChatTemplate& chat_template() const;

 private:
  const ModelFlags flags_;
  std::string folder_;
  weights::Checkpoint checkpoint_;
  std::optional<text::Tokenizer> tokenizer_;
  std::optional<text::ChatTemplate> template_;
  models::Options options_;
  engine::EngineOptions engine_options_;
  int64_t max_context_ = 0;
  double load_s_ = 0;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<models::Glm5Next> model_;
  std::unique_ptr<engine::Engine> engine_;  // last: it uses all of the above
};

}  // namespace winnow::cli
