// A seeded model of two layers, one of each kind, small enough to answer hundreds of requests a second. Its selection leaves tokens
// out from 64 on.
#pragma once

#include <cstdlib>

#include "weights/config.h"

namespace winnow {

inline weights::Config two_layers() {
  weights::Config c;
  c.architecture = "Glm5NextForConditionalGeneration";
  c.model_type = "glm5_next";
  c.vocab_size = 512;
  c.hidden_size = 128;
  c.max_position_embeddings = 1024;
  c.heads = 2;
  c.q_lora_rank = 64;
  c.kv_lora_rank = 64;
  c.qk_nope_head_dim = 32;
  c.v_head_dim = 32;
  c.index_heads = 2;
  c.index_head_dim = 32;
  c.index_topk = 64;
  c.index_kpool = 4;
  c.kda_heads = 2;
  c.kda_head_dim = 32;
  c.conv_taps = 4;
  c.intermediate_size = 128;
  c.moe_intermediate_size = 32;
  c.experts = 8;
  c.shared_experts = 1;
  c.experts_per_token = 2;
  c.routed_scaling = 2.5f;
  c.swiglu_limit = 10.0f;
  c.hc_streams = 2;
  c.hc_iterations = 4;
  c.layers = {{weights::Mixer::kda, weights::FeedForward::dense, weights::Indexer::full},
              {weights::Mixer::mla, weights::FeedForward::moe, weights::Indexer::full}};
  return c;
}

inline int64_t from_environment(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : otherwise;
}

}  // namespace winnow
