// GLM-5.3-Flash (glm5_next): Config, Weights, Kernels, forward() (docs/model.md).
//
// forward() computes one step over a mixed batch: prefill chunks and decode rows of many sequences, over token pages,
// recurrent states and rings (base/kv.h). It never branches on a back end. One thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/kv.h"
#include "base/units.h"
#include "device/device.h"
#include "weights/checkpoint.h"

namespace winnow::models {

// exact: f32 activations, states and caches; one form of every op; a position's results are bit-equal whether it was
// prefilled or decoded. fast: bf16 activations and latents; in prefill chunked KDA, and expanded keys and values in
// the first rows of a prompt (docs/architecture.md, Arithmetic).
enum class Profile : uint8_t { exact, fast };
std::string_view name_of(Profile p);
Result<Profile> parse_profile(std::string_view name);

// One sequence's rows in a step.
struct SequenceRows {
  int64_t first_row = 0, count = 0;  // rows in Batch::tokens
  TokenPos position;                 // of its first row; prefill chunks start at a multiple of kChunkGrid in `fast`
  StateId state;
  StateId source{-1};             // the record to read, if not `state`: it stays as it is, and `state` holds everything afterwards
  TokenPos folded;                // tokens that its S holds before the step (0 at the start)
  std::span<const PageId> pages;  // cover positions 0 .. position + count - 1
  bool decode = false;            // the prompt is finished
};

struct Batch {
  std::span<const int32_t> tokens;          // at most max_rows, each in [0, vocab)
  std::span<const SequenceRows> sequences;  // rows contiguous and in this order
  std::span<const int32_t> logit_rows;      // rows whose logits are wanted, ascending, at most max_logit_rows
};

// Looks into a step: what verify compares with reference outputs. Called between ops; host memory.
struct Probe {
  std::function<void(LayerIndex, TensorView streams)> hidden;  // f32 [tokens, streams, hidden] entering a layer; may be overwritten
  std::function<void(LayerIndex, int64_t first_row, ConstTensorView score)> scored;  // [rows, max pools] of rows first_row ..
  std::function<void(LayerIndex, TensorView tokens, TensorView count)> selected;  // of an attention layer; may be overwritten (DenseMla reads none)
  std::function<void(LayerIndex, ConstTensorView logits, TensorView ids, TensorView weights)> routed;  // of a layer with experts; the same
};

struct Options {
  Profile profile = Profile::fast;
  IndexKeys index_keys = IndexKeys::bf16;  // exact uses f32
  weights::Residence weights = weights::Residence::copy;
  IndexLayout index_layout = IndexLayout::plain;
  int64_t page_tokens = 0;  // 0: the least that holds whole chunks (64) and whole pools, and whole tiles of the index layout
  int64_t max_rows = 512, max_sequences = 16, max_logit_rows = 16, max_context = 32768;
};

// Of these options with this config: what page_tokens says, or the least that fits.
int64_t page_tokens_of(const Options& options, const weights::Config& config);

class Glm5Next {
 public:
  // Loads the weights, chooses the kernels, allocates workspaces. Throws Error.
  Glm5Next(device::Device& device, const weights::Checkpoint& checkpoint, const Options& options, const weights::Progress& progress = {});
  // Random weights of a config's shapes, for benchmarks: `types` as the published checkpoint has them (block FP8 and bf16).
  Glm5Next(device::Device& device, const weights::Config& config, const Options& options, uint64_t seed, const weights::Progress& progress = {});
  ~Glm5Next();

  const weights::Config& config() const;
  const Options& options() const;
  const KvSpec& kv_spec() const;
  void forward(const Batch& batch, const KvViews& kv, const Probe* probe = nullptr);
  ConstTensorView logits() const;  // [logit_rows of the last step, vocab] f32
  // [rows of the last step] i32: 1 where something is NaN or infinite: a residual stream behind the last layer, or before it in a row
  // that no wanted logits come from; what a later step reads (a latent, an index key and scale, a folded state: of its sequence's last
  // row); what was chosen by (index scores, router logits).
  ConstTensorView bad_rows() const;
  // What S of a sequence holds after a step (SequenceRows::folded of its next one).
  TokenPos folded_after(const SequenceRows& rows) const;
  struct OpChoice {
    std::string_view op, kernel;
  };
  std::vector<OpChoice> kernels() const;   // each distinct op and the kernel chosen for it
  int64_t weight_bytes_per_token() const;  // bytes of weights that decoding one token reads

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow::models
