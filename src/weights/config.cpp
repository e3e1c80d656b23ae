#include "weights/config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "weights/fields.h"
#include "base/file.h"
#include "weights/json.h"

namespace winnow::weights {
namespace {

constexpr int64_t kMaxFileBytes = 16 << 20;

// The limits. Each is far above any published model; together they keep every product of sizes within 64 bits.
namespace limits {
constexpr Range layers{1, 512}, vocab{2, 1 << 24}, hidden{1, 1 << 16}, width{1, 1 << 20}, rank{1, 1 << 16};
constexpr Range heads{1, 1024}, head_dim{1, 4096}, kda_head_dim{1, 1024}, taps{1, 8};
constexpr Range index_heads{1, 1024}, index_dim{1, 1024}, index_topk{1, 1 << 20}, kpool{1, 256};
constexpr Range experts{1, 4096}, experts_per_token{1, 256}, shared_experts{1, 16};
constexpr Range streams{1, 8}, sinkhorn{1, 1000}, context{1, int64_t{1} << 31}, mtp{0, 4}, schedule{0, 1 << 20};
constexpr RealRange norm_eps{1e-20, 0.1}, gate_bound{-100.0, -1e-6}, swiglu{1e-6, 1e6}, scaling{1e-6, 1e6};
constexpr RealRange temperature{0.0, 100.0}, top_p{0.0, 1.0};
constexpr Range vision_depth{1, 256}, patch{1, 64}, merge{1, 16}, channels{1, 16};
}  // namespace limits

const std::string kArchitecture = "Glm5NextForConditionalGeneration";

void read_architecture(const Fields& root, Config& c) {
  const auto type = root.text("model_type");
  if (!type) throw root.wrong("model_type", "is missing");
  if (*type != "glm5_next") throw root.wrong("model_type", fmt::format("is {}; only \"glm5_next\" is supported", quoted(*type)));
  const auto names = root.texts("architectures");
  if (!names || names->empty()) throw root.wrong("architectures", "is missing or empty");
  for (const std::string& n : *names)
    if (n != kArchitecture) throw root.wrong("architectures", fmt::format("has {}; only {} is supported", quoted(n), quoted(kArchitecture)));
  c.model_type = *type;
  c.architecture = kArchitecture;
}

void read_quantization(const Fields& root, Config& c) {
  const auto q = root.object("quantization_config");
  if (!q) return;
  const auto method = q->text("quant_method");
  if (!method) throw q->wrong("quant_method", "is missing");
  if (*method != "fp8") throw q->wrong("quant_method", fmt::format("is {}; only \"fp8\" in blocks of 128 x 128 is supported", quoted(*method)));
  q->require_text("fmt", "e4m3");
  q->require_text("activation_scheme", "dynamic");
  const auto block = q->integers("weight_block_size", {1, 1 << 20});
  if (block != std::vector<int64_t>{128, 128}) throw q->wrong("weight_block_size", "must be [128, 128]; other FP8 forms are not supported");
  // modules_to_not_convert is not needed: a tensor is FP8 exactly if it has a scale.
  c.block_fp8 = true;
}

// A list with an entry a layer, or nothing.
std::optional<std::vector<std::string>> per_layer(const Fields& t, std::string_view key, size_t layers) {
  auto list = t.texts(key);
  if (list && list->size() != layers) throw t.wrong(key, fmt::format("has {} entries for num_hidden_layers = {}", list->size(), layers));
  return list;
}

void read_mixers(const Fields& t, Config& c) {
  const auto types = per_layer(t, "layer_types", c.layers.size());
  for (size_t i = 0; i < c.layers.size(); ++i) {
    if (!types) {
      c.layers[i].mixer = i % 4 == 3 ? Mixer::mla : Mixer::kda;
      continue;
    }
    const std::string& s = (*types)[i];
    if (s == "linear_attention") c.layers[i].mixer = Mixer::kda;
    else if (s == "deepseek_sparse_attention" || s == "full_attention") c.layers[i].mixer = Mixer::mla;
    else
      throw t.wrong("layer_types", fmt::format("has {} at layer {}, which is not supported; known are \"linear_attention\", "
                                               "\"deepseek_sparse_attention\" and its alias \"full_attention\"",
                                               quoted(s), i));
  }
}

void read_feed_forwards(const Fields& t, Config& c) {
  const auto types = per_layer(t, "mlp_layer_types", c.layers.size());
  const auto dense = static_cast<size_t>(t.integer("first_k_dense_replace", {0, limits::layers.max}).value_or(3));
  for (size_t i = 0; i < c.layers.size(); ++i) {
    if (!types) {
      c.layers[i].feed_forward = i < dense ? FeedForward::dense : FeedForward::moe;
      continue;
    }
    const std::string& s = (*types)[i];
    if (s == "dense") c.layers[i].feed_forward = FeedForward::dense;
    else if (s == "sparse") c.layers[i].feed_forward = FeedForward::moe;
    else
      throw t.wrong("mlp_layer_types", fmt::format("has {} at layer {}, which is not supported; known are \"dense\" and \"sparse\"", quoted(s), i));
  }
}

void read_indexers(const Fields& t, Config& c) {
  const auto n = static_cast<int64_t>(c.layers.size());
  std::vector<bool> shared(c.layers.size(), false);
  if (const auto types = per_layer(t, "indexer_types", c.layers.size())) {
    for (size_t i = 0; i < c.layers.size(); ++i) {
      if ((*types)[i] != "full" && (*types)[i] != "shared")
        throw t.wrong("indexer_types",
                      fmt::format("has {} at layer {}, which is not supported; known are \"full\" and \"shared\"", quoted((*types)[i]), i));
      shared[i] = (*types)[i] == "shared";
    }
  } else if (const auto pattern = t.text("index_topk_pattern")) {
    if (static_cast<int64_t>(pattern->size()) != n || pattern->find_first_not_of("FS") != std::string::npos)
      throw t.wrong("index_topk_pattern", fmt::format("is {}; it needs one letter F or S for each of {} layers", quoted(*pattern), n));
    for (size_t i = 0; i < c.layers.size(); ++i) shared[i] = (*pattern)[i] == 'S';
  } else {
    const int64_t freq = std::max<int64_t>(1, t.integer("index_topk_freq", limits::schedule).value_or(1));
    const int64_t offset = t.integer("index_skip_topk_offset", limits::schedule).value_or(2);
    for (int64_t i = 0; i < n; ++i) shared[static_cast<size_t>(i)] = std::max<int64_t>(i - offset + 1, 0) % freq != 0;
  }
  for (size_t i = 0; i < c.layers.size(); ++i) {
    if (c.layers[i].mixer != Mixer::mla) continue;  // what the lists say of KDA layers means nothing
    c.layers[i].indexer = shared[i] ? Indexer::shared : Indexer::full;
    if (shared[i] && (i == 0 || c.layers[i - 1].mixer != Mixer::mla || c.layers[i - 1].indexer != Indexer::full))
      throw t.wrong("indexer_types",
                    fmt::format("makes layer {} shared, but the layer before it is not an attention layer with an indexer of its own", i));
  }
}

void read_attention(const Fields& t, Config& c) {
  c.heads = t.need("num_attention_heads", limits::heads);
  if (const auto kv = t.integer("num_key_value_heads", limits::heads); kv && *kv != c.heads)
    throw t.wrong("num_key_value_heads", fmt::format("is {}; it must equal num_attention_heads = {}", *kv, c.heads));
  c.q_lora_rank = t.need("q_lora_rank", limits::rank);
  c.kv_lora_rank = t.need("kv_lora_rank", limits::rank);
  c.qk_nope_head_dim = t.need("qk_nope_head_dim", limits::head_dim);
  c.v_head_dim = t.need("v_head_dim", limits::head_dim);
  c.qk_rope_head_dim = t.integer("qk_rope_head_dim", {0, limits::head_dim.max}).value_or(0);
  if (c.qk_rope_head_dim != 0)
    throw t.wrong("qk_rope_head_dim", fmt::format("is {}; glm5_next has no rotary part, only 0 is supported", c.qk_rope_head_dim));
  t.require_flag("mla_use_nope", true);
  t.require_flag("attention_bias", false);

  c.index_heads = t.need("index_n_heads", limits::index_heads);
  c.index_head_dim = t.need("index_head_dim", limits::index_dim);
  c.index_topk = t.need("index_topk", limits::index_topk);
  const auto kpool = t.integer("index_kpool", limits::kpool);
  if (!kpool)
    throw t.wrong(
        "index_kpool",
        "is missing: the published checkpoint has 4 and class defaults say 16, so nothing is assumed; write the value the model was trained with");
  c.index_kpool = *kpool;
  if (c.index_topk % c.index_kpool != 0)
    throw t.wrong("index_topk", fmt::format("is {}, not a multiple of index_kpool = {}", c.index_topk, c.index_kpool));
  t.require_flag("index_kpool_compress", true);
  c.index_tail = t.boolean("index_kpool_always_select_tail", true);
}

// linear_attn_config goes before the linear_* mirrors. A bound that is null is the softplus form of the gate (0 here),
// unless safe_gate is true.
void read_kda(const Fields& t, Config& c) {
  const auto own = t.object("linear_attn_config");
  auto size = [&](std::string_view key, std::string_view mirror, Range allowed) {
    if (own && own->has(key)) return own->need(key, allowed);
    if (t.has(mirror)) return t.need(mirror, allowed);
    throw own ? own->wrong(key, "is missing") : t.wrong("linear_attn_config", fmt::format("is missing, and {} as well", mirror));
  };
  c.kda_heads = size("num_heads", "linear_num_heads", limits::heads);
  c.kda_head_dim = size("head_dim", "linear_head_dim", limits::kda_head_dim);
  c.conv_taps = size("short_conv_kernel_size", "linear_conv_kernel_dim", limits::taps);

  const bool safe = own && own->boolean("safe_gate", false);
  const bool unsafe = own && !own->boolean("safe_gate", true);
  std::optional<double> bound;
  if (own && (bound = own->number("gate_lower_bound", limits::gate_bound))) {
  } else if (own && own->is_null("gate_lower_bound")) {
  } else if (own && (bound = own->number("lower_bound", limits::gate_bound))) {
  } else if (own && own->is_null("lower_bound")) {
  } else if ((bound = t.number("linear_lower_bound", limits::gate_bound))) {
  } else if (t.is_null("linear_lower_bound")) {
  } else if (!unsafe) bound = -5.0;
  if (!bound && safe) bound = -5.0;
  c.gate_lower_bound = static_cast<float>(bound.value_or(0.0));
}

void read_experts(const Fields& t, Config& c) {
  c.intermediate_size = t.need("intermediate_size", limits::width);
  c.moe_intermediate_size = t.need("moe_intermediate_size", limits::width);
  c.experts = t.need("n_routed_experts", limits::experts);
  c.shared_experts = t.integer("n_shared_experts", limits::shared_experts).value_or(1);
  const auto top = t.integer("num_experts_per_tok", limits::experts_per_token);
  if (!top)
    throw t.wrong("num_experts_per_tok",
                  "is missing: the published checkpoint has 8 and some class defaults say 7, so nothing is assumed; write the value the model was "
                  "trained with");
  c.experts_per_token = *top;
  if (c.experts_per_token > c.experts)
    throw t.wrong("num_experts_per_tok", fmt::format("is {}, more than n_routed_experts = {}", c.experts_per_token, c.experts));
  t.require_text("scoring_func", "sigmoid");
  t.require_text("topk_method", "noaux_tc");
  t.require_text("hidden_act", "silu");
  c.expert_groups = t.integer("n_group", limits::experts).value_or(1);
  c.kept_groups = t.integer("topk_group", limits::experts).value_or(1);
  if (c.experts % c.expert_groups != 0)
    throw t.wrong("n_group", fmt::format("is {}, which does not divide n_routed_experts = {}", c.expert_groups, c.experts));
  if (c.kept_groups > c.expert_groups) throw t.wrong("topk_group", fmt::format("is {}, more than n_group = {}", c.kept_groups, c.expert_groups));
  const int64_t in_group = c.experts / c.expert_groups;
  if (c.expert_groups > 1 && in_group < 2)
    throw t.wrong("n_group", fmt::format("is {}: a group's score is the sum of its two best experts, but a group has one", c.expert_groups));
  if (c.kept_groups * in_group < c.experts_per_token)
    throw t.wrong("topk_group", fmt::format("is {}: the groups kept have {} experts, fewer than num_experts_per_tok = {}", c.kept_groups,
                                            c.kept_groups * in_group, c.experts_per_token));
  c.normalise_router = t.boolean("norm_topk_prob", true);
  c.routed_scaling = static_cast<float>(t.number("routed_scaling_factor", limits::scaling).value_or(2.5));
  c.swiglu_limit = t.is_null("swiglu_limit") ? std::numeric_limits<float>::infinity()
                                             : static_cast<float>(t.number("swiglu_limit", limits::swiglu).value_or(10.0));
}

void read_text_model(const Fields& t, Config& c) {
  t.require_text("model_type", "glm5_next_text");
  c.vocab_size = t.need("vocab_size", limits::vocab);
  c.hidden_size = t.need("hidden_size", limits::hidden);
  c.layers.resize(static_cast<size_t>(t.need("num_hidden_layers", limits::layers)));
  c.rms_norm_eps = static_cast<float>(t.number("rms_norm_eps", limits::norm_eps).value_or(1e-5));
  c.max_position_embeddings = t.integer("max_position_embeddings", limits::context).value_or(1048576);
  read_mixers(t, c);
  read_feed_forwards(t, c);
  read_indexers(t, c);
  read_attention(t, c);
  read_kda(t, c);
  read_experts(t, c);
  c.hc_streams = t.integer("hc_mult", limits::streams).value_or(4);
  c.hc_iterations = static_cast<int>(t.integer("hc_sinkhorn_iters", limits::sinkhorn).value_or(20));
  c.hc_eps = static_cast<float>(t.number("hc_eps", limits::norm_eps).value_or(1e-6));
  c.mtp_layers = t.integer("num_nextn_predict_layers", limits::mtp).value_or(0);
}

void read_vision(const Fields& root, Config& c) {
  const auto v = root.object("vision_config");
  if (!v) return;
  v->require_text("model_type", "glm5_next_vision");
  v->require_text("hidden_act", "silu");
  VisionConfig& o = c.vision;
  o.depth = v->need("depth", limits::vision_depth);
  o.hidden_size = v->need("hidden_size", limits::hidden);
  o.heads = v->need("num_heads", limits::heads);
  o.intermediate_size = v->need("intermediate_size", limits::width);
  const auto out = v->integer("out_hidden_size", limits::hidden);
  if (!out) throw v->wrong("out_hidden_size", "is missing: class defaults say 1536, the text model needs its hidden_size; write it");
  o.out_hidden_size = *out;
  o.projection_size = v->need("projection_intermediate_size", limits::width);
  o.patch_size = v->integer("patch_size", limits::patch).value_or(14);
  o.temporal_patch_size = v->integer("temporal_patch_size", limits::patch).value_or(2);
  o.merge_size = v->integer("spatial_merge_size", limits::merge).value_or(2);
  o.channels = v->integer("in_channels", limits::channels).value_or(3);
  o.bias = v->boolean("attention_bias", true);
  if (o.out_hidden_size != c.hidden_size)
    throw v->wrong("out_hidden_size", fmt::format("is {}; it must equal text_config.hidden_size = {}", o.out_hidden_size, c.hidden_size));
  if (o.hidden_size % o.heads != 0 || o.hidden_size / o.heads % 4 != 0)
    throw v->wrong("num_heads", fmt::format("is {}: hidden_size = {} must split into heads of a multiple of 4", o.heads, o.hidden_size));
  c.has_vision = true;
}

void read_ids(const Fields& root, const Fields& t, Config& c) {
  const Range id{0, c.vocab_size - 1};
  (void)t.integer("bos_token_id", id);
  (void)t.integer("pad_token_id", id);
  const bool media = c.has_vision;  // a text model may keep the ids of a larger vocabulary
  auto media_id = [&](std::string_view key) {
    return static_cast<int32_t>(root.integer(key, media ? id : Range{0, limits::vocab.max}).value_or(-1));
  };
  c.image_token_id = media_id("image_token_id");
  c.video_token_id = media_id("video_token_id");
  for (const char* key : {"image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id"}) (void)media_id(key);
}

void read_eos(const Fields& f, Config& c) {
  for (int64_t id : f.integers("eos_token_id", {0, c.vocab_size - 1}))
    if (std::find(c.eos_token_ids.begin(), c.eos_token_ids.end(), id) == c.eos_token_ids.end()) c.eos_token_ids.push_back(static_cast<int32_t>(id));
}

void read_generation(std::string_view text, std::string_view where, Config& c) {
  const auto v = parse_json(text, where).or_throw();
  if (!v.is_object()) throw error("{}: not a JSON object", where);
  const Fields g(v.get_object(), fmt::format("{}: ", where));
  read_eos(g, c);
  c.default_temperature = static_cast<float>(g.number("temperature", limits::temperature).value_or(1.0));
  c.default_top_p = static_cast<float>(g.number("top_p", limits::top_p).value_or(1.0));
}

Config parse(std::string_view config_json, std::string_view generation_json, std::string_view where) {
  const auto v = parse_json(config_json, where).or_throw();
  if (!v.is_object()) throw error("{}: not a JSON object", where);
  const Fields root(v.get_object(), fmt::format("{}: ", where));
  Config c;
  read_architecture(root, c);
  const auto text = root.object("text_config");
  if (!text) throw root.wrong("text_config", "is missing: a glm5_next config keeps the language model's fields there");
  read_text_model(*text, c);
  read_vision(root, c);
  read_quantization(root, c);
  read_quantization(*text, c);  // some writers put it there
  c.tied_embeddings = root.boolean("tie_word_embeddings", text->boolean("tie_word_embeddings", false));
  read_ids(root, *text, c);
  if (!generation_json.empty()) {
    std::string file(where);
    if (const size_t slash = file.rfind('/'); slash != std::string::npos) file.resize(slash + 1);
    else file.clear();
    read_generation(generation_json, file + "generation_config.json", c);
  }
  read_eos(root, c);
  read_eos(*text, c);
  return c;
}

}  // namespace

int64_t Config::kda_layers() const {
  return std::count_if(layers.begin(), layers.end(), [](const Layer& l) { return l.mixer == Mixer::kda; });
}

int64_t Config::attention_layers() const { return static_cast<int64_t>(layers.size()) - kda_layers(); }

Result<Config> parse_config(std::string_view config_json, std::string_view generation_json, std::string_view where) {
  try {
    return parse(config_json, generation_json, where);
  } catch (const Error& e) { return e; }
}

Result<Config> read_config(const std::string& dir) {
  auto text = read_text(dir + "/config.json", kMaxFileBytes);
  if (!text) return text.error();
  if (text->empty()) return error("{}/config.json: is empty", dir);
  // Absence is fine; a file that is there but cannot be read is not.
  std::string generation;
  if (exists(dir + "/generation_config.json")) {
    auto g = read_text(dir + "/generation_config.json", kMaxFileBytes);
    if (!g) return g.error();
    if (g->empty()) return error("{}/generation_config.json: is empty", dir);
    generation = *std::move(g);
  }
  return parse_config(*text, generation, dir + "/config.json");
}

}  // namespace winnow::weights
