// The checkpoint's config.json as numbers, every field validated with limits in one place (config.cpp), every default
// that differs between published sources settled (docs/model.md). Unknown architectures, activations, quantisation
// methods and layer types are refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace winnow::weights {

enum class Mixer : uint8_t { kda, mla };  // linear_attention | deepseek_sparse_attention (alias full_attention)
enum class FeedForward : uint8_t { dense, moe };
enum class Indexer : uint8_t { full, shared };  // shared: reuses the selection of the attention layer just before

struct Layer {
  Mixer mixer;
  FeedForward feed_forward;
  Indexer indexer;  // of mla layers
};

// The image tower, as far as names and shapes of its tensors need it.
struct VisionConfig {
  int64_t depth = 0, hidden_size = 0, heads = 0, intermediate_size = 0, out_hidden_size = 0, projection_size = 0;
  int64_t patch_size = 0, temporal_patch_size = 0, merge_size = 0, channels = 0;
  bool bias = true;  // of the blocks' projections
};

struct Config {
  std::string architecture;  // Glm5NextForConditionalGeneration
  std::string model_type;    // glm5_next
  int64_t vocab_size = 0, hidden_size = 0;
  std::vector<Layer> layers;
  float rms_norm_eps = 1e-5f;
  int64_t max_position_embeddings = 0;

  // MLA
  int64_t heads = 0, q_lora_rank = 0, kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  // indexer
  int64_t index_heads = 0, index_head_dim = 0, index_topk = 0, index_kpool = 0;
  bool index_tail = true;
  // KDA
  int64_t kda_heads = 0, kda_head_dim = 0, conv_taps = 0;
  float gate_lower_bound = -5.0f;  // 0: the softplus form
  // feed-forward
  int64_t intermediate_size = 0, moe_intermediate_size = 0, experts = 0, shared_experts = 0, experts_per_token = 0;
  int64_t expert_groups = 1, kept_groups = 1;
  bool normalise_router = true;
  float routed_scaling = 1.0f, swiglu_limit = 0.0f;  // limit: infinity where the config says null
  // mHC
  int64_t hc_streams = 0;
  int hc_iterations = 0;
  float hc_eps = 1e-6f;

  bool tied_embeddings = false;
  int64_t mtp_layers = 0;   // stored at index layers.size(); absent from re-saved checkpoints
  bool has_vision = false;  // vision_config present
  VisionConfig vision;
  bool block_fp8 = false;              // quantization_config: fp8, e4m3, blocks of 128 x 128
  std::vector<int32_t> eos_token_ids;  // config.json and generation_config.json, the latter first
  // Ids that stand for media in a prompt, -1 where the config names none.
  int32_t image_token_id = -1, video_token_id = -1;
  float default_temperature = 1.0f, default_top_p = 1.0f;  // generation_config.json

  int64_t kda_layers() const;
  int64_t attention_layers() const;
};

// Reads DIR/config.json (and generation_config.json if there).
Result<Config> read_config(const std::string& dir);
// The same from texts, for tests and fuzzing; `where` names the file in messages. generation may be empty.
Result<Config> parse_config(std::string_view config_json, std::string_view generation_json, std::string_view where);

}  // namespace winnow::weights
