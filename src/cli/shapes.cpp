#include "cli/shapes.h"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "base/error.h"

namespace winnow::cli {

void add_shape_flags(CLI::App& verb, ShapeFlags& f) {
  verb.add_option("--shape", f.shape, "Random weights at the sizes of a published model instead of MODEL: glm-5.3-flash");
  verb.add_option("--layers", f.layers, "Layers of --shape (2 layers hold 7.9 GB, each further one 7.5 GB)")
      ->check(CLI::Range(1, 45))
      ->capture_default_str();
}

bool wants_shape(const ShapeFlags& f, const std::string& model) {
  if (f.shape.empty()) return false;
  if (f.shape != "glm-5.3-flash") throw Error(fmt::format("--shape: unknown shape '{}' (known: glm-5.3-flash)", f.shape), Failure::usage);
  if (!model.empty()) throw Error("--shape and MODEL exclude each other", Failure::usage);
  return true;
}

weights::Config glm_5_3_flash(int64_t layers) {
  weights::Config c;
  c.architecture = "Glm5NextForConditionalGeneration";
  c.model_type = "glm5_next";
  c.vocab_size = 154880;
  c.hidden_size = 4096;
  c.max_position_embeddings = 1048576;
  c.heads = 64;
  c.q_lora_rank = 1536;
  c.kv_lora_rank = 512;
  c.qk_nope_head_dim = 256;
  c.v_head_dim = 256;
  c.index_heads = 32;
  c.index_head_dim = 128;
  c.index_topk = 2048;
  c.index_kpool = 4;
  c.kda_heads = 64;
  c.kda_head_dim = 128;
  c.conv_taps = 4;
  c.intermediate_size = 12288;
  c.moe_intermediate_size = 2048;
  c.experts = 288;
  c.shared_experts = 1;
  c.experts_per_token = 8;
  c.routed_scaling = 2.5f;
  c.swiglu_limit = 10.0f;
  c.hc_streams = 4;
  c.hc_iterations = 20;
  c.block_fp8 = true;
  for (int64_t i = 2; i < 2 + layers; ++i)
    c.layers.push_back({.mixer = i % 4 == 3 ? weights::Mixer::mla : weights::Mixer::kda,
                        .feed_forward = i < 3 ? weights::FeedForward::dense : weights::FeedForward::moe,
                        .indexer = weights::Indexer::full});
  return c;
}

}  // namespace winnow::cli
