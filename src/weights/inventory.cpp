#include "weights/inventory.h"

#include <charconv>

namespace winnow::weights {
namespace {

// The tensors under one prefix, "model.language_model.layers.3."
class Names {
 public:
  Names(std::string prefix, const Visit& tensor) : prefix_(std::move(prefix)), tensor_(tensor) {}
  void operator()(std::string_view name, std::initializer_list<int64_t> shape) const {
    tensor_(prefix_ + std::string(name), std::span(shape.begin(), shape.size()));
  }
  Names under(std::string_view name) const { return {prefix_ + std::string(name), tensor_}; }

 private:
  std::string prefix_;
  const Visit& tensor_;
};

void mlp(const Names& t, int64_t hidden, int64_t inter) {
  t("gate_proj.weight", {inter, hidden});
  t("up_proj.weight", {inter, hidden});
  t("down_proj.weight", {hidden, inter});
}

void moe(const Config& c, const Names& t) {
  t("gate.weight", {c.experts, c.hidden_size});
  t("gate.e_score_correction_bias", {c.experts});
  for (int64_t e = 0; e < c.experts; ++e) mlp(t.under(fmt::format("experts.{}.", e)), c.hidden_size, c.moe_intermediate_size);
  mlp(t.under("shared_experts."), c.hidden_size, c.moe_intermediate_size * c.shared_experts);
}

void kda(const Config& c, const Names& t) {
  const int64_t p = c.kda_heads * c.kda_head_dim;
  for (const char* x : {"q_proj.weight", "k_proj.weight", "v_proj.weight"}) t(x, {p, c.hidden_size});
  t("conv1d.weight", {3 * p, 1, c.conv_taps});
  for (const char* x : {"f_a_proj.weight", "g_a_proj.weight"}) t(x, {c.kda_head_dim, c.hidden_size});
  for (const char* x : {"f_b_proj.weight", "g_b_proj.weight"}) t(x, {p, c.kda_head_dim});
  t("b_proj.weight", {c.kda_heads, c.hidden_size});
  t("A_log", {c.kda_heads});
  t("dt_bias", {p});
  t("o_norm.weight", {c.kda_head_dim});
  t("o_proj.weight", {c.hidden_size, p});
}

void mla(const Config& c, const Names& t, bool with_indexer) {
  t("q_a_proj.weight", {c.q_lora_rank, c.hidden_size});
  t("q_a_layernorm.weight", {c.q_lora_rank});
  t("q_b_proj.weight", {c.heads * (c.qk_nope_head_dim + c.qk_rope_head_dim), c.q_lora_rank});
  t("kv_a_proj_with_mqa.weight", {c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size});
  t("kv_a_layernorm.weight", {c.kv_lora_rank});
  t("kv_b_proj.weight", {c.heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank});
  t("o_proj.weight", {c.hidden_size, c.heads * c.v_head_dim});
  if (!with_indexer) return;
  const Names i = t.under("indexer.");
  i("wq_b.weight", {c.index_heads * c.index_head_dim, c.q_lora_rank});
  i("wk.weight", {c.index_head_dim, c.hidden_size});
  i("k_norm.weight", {c.index_head_dim});
  i("k_norm.bias", {c.index_head_dim});
  i("weights_proj.weight", {c.index_heads, c.hidden_size});
  i("index_kpool_compress_ape", {c.index_kpool, c.index_head_dim});
  i("index_kpool_compress_gate", {c.index_head_dim, c.hidden_size});
}

void trunk(const Config& c, const Visit& tensor) {
  const Names t(std::string(kTextPrefix), tensor);
  t("embed_tokens.weight", {c.vocab_size, c.hidden_size});
  t("norm.weight", {c.hidden_size});
  Names("", tensor)("lm_head.weight", {c.vocab_size, c.hidden_size});
  const int64_t m = (2 + c.hc_streams) * c.hc_streams;
  for (size_t l = 0; l < c.layers.size(); ++l) {
    const Layer& layer = c.layers[l];
    const Names n = t.under(fmt::format("layers.{}.", l));
    n("input_layernorm.weight", {c.hidden_size});
    n("post_attention_layernorm.weight", {c.hidden_size});
    for (const char* site : {"hc_attn_", "hc_ffn_"}) {
      n(fmt::format("{}fn", site), {m, c.hc_streams * c.hidden_size});
      n(fmt::format("{}base", site), {m});
      n(fmt::format("{}scale", site), {3});
    }
    if (layer.mixer == Mixer::kda) kda(c, n.under("self_attn."));
    else mla(c, n.under("self_attn."), layer.indexer == Indexer::full);
    if (layer.feed_forward == FeedForward::dense) mlp(n.under("mlp."), c.hidden_size, c.intermediate_size);
    else moe(c, n.under("mlp."));
  }
}

void mtp(const Config& c, const Visit& tensor) {
  for (int64_t l = 0; l < std::max<int64_t>(1, c.mtp_layers); ++l) {
    const Names n(fmt::format("{}layers.{}.", kTextPrefix, static_cast<int64_t>(c.layers.size()) + l), tensor);
    n("eh_proj.weight", {c.hidden_size, 2 * c.hidden_size});
    for (const char* x : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight", "input_layernorm.weight", "post_attention_layernorm.weight"})
      n(x, {c.hidden_size});
    mla(c, n.under("self_attn."), true);
    moe(c, n.under("mlp."));
  }
}

void vision(const Config& c, const Visit& tensor) {
  if (!c.has_vision) return;
  const VisionConfig& v = c.vision;
  const Names t(std::string(kVisionPrefix), tensor);
  auto linear = [&](const Names& n, std::string_view name, int64_t out, int64_t in, bool bias) {
    n(fmt::format("{}.weight", name), {out, in});
    if (bias) n(fmt::format("{}.bias", name), {out});
  };
  t("patch_embed.proj.weight", {v.hidden_size, v.channels, v.temporal_patch_size, v.patch_size, v.patch_size});
  t("patch_embed.proj.bias", {v.hidden_size});
  for (int64_t b = 0; b < v.depth; ++b) {
    const Names n = t.under(fmt::format("blocks.{}.", b));
    n("norm1.weight", {v.hidden_size});
    n("norm2.weight", {v.hidden_size});
    linear(n, "attn.qkv", 3 * v.hidden_size, v.hidden_size, v.bias);
    linear(n, "attn.proj", v.hidden_size, v.hidden_size, v.bias);
    n("attn.q_norm.weight", {v.hidden_size / v.heads});
    n("attn.k_norm.weight", {v.hidden_size / v.heads});
    linear(n, "mlp.gate_proj", v.intermediate_size, v.hidden_size, v.bias);
    linear(n, "mlp.up_proj", v.intermediate_size, v.hidden_size, v.bias);
    linear(n, "mlp.down_proj", v.hidden_size, v.intermediate_size, v.bias);
  }
  t("post_layernorm.weight", {v.hidden_size});
  t("downsample.weight", {v.out_hidden_size, v.hidden_size, v.merge_size, v.merge_size});
  t("downsample.bias", {v.out_hidden_size});
  t("merger.proj.weight", {v.out_hidden_size, v.out_hidden_size});
  t("merger.post_projection_norm.weight", {v.out_hidden_size});
  t("merger.post_projection_norm.bias", {v.out_hidden_size});
  t("merger.gate_proj.weight", {v.projection_size, v.out_hidden_size});
  t("merger.up_proj.weight", {v.projection_size, v.out_hidden_size});
  t("merger.down_proj.weight", {v.out_hidden_size, v.projection_size});
}

}  // namespace

std::string_view name_of(Part p) {
  switch (p) {
    case Part::trunk: return "trunk";
    case Part::mtp: return "MTP";
    case Part::vision: return "vision";
  }
  return "?";
}

void for_each_tensor(const Config& c, Part part, const Visit& tensor) {
  switch (part) {
    case Part::trunk: return trunk(c, tensor);
    case Part::mtp: return mtp(c, tensor);
    case Part::vision: return vision(c, tensor);
  }
}

Part part_of(std::string_view name, const Config& c) {
  if (name.starts_with(kVisionPrefix)) return Part::vision;
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kTextPrefix) || !name.substr(kTextPrefix.size()).starts_with(kLayers)) return Part::trunk;
  const std::string_view rest = name.substr(kTextPrefix.size() + kLayers.size());
  int64_t layer = 0;
  if (std::from_chars(rest.data(), rest.data() + rest.size(), layer).ec != std::errc()) return Part::trunk;
  const auto first = static_cast<int64_t>(c.layers.size());
  return layer >= first && layer < first + std::max<int64_t>(1, c.mtp_layers) ? Part::mtp : Part::trunk;
}

}  // namespace winnow::weights
