#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/units.h"
#include "weights/inventory.h"
#include "weights/tiny_checkpoint.h"

namespace winnow::weights::testing {
namespace json = boost::json;
namespace {

constexpr const char* kConfig = R"({
  "architectures": ["Glm5NextForConditionalGeneration"], "model_type": "glm5_next", "tie_word_embeddings": false,
  "image_token_id": 10, "video_token_id": 11,
  "text_config": {
    "model_type": "glm5_next_text", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 12, "moe_intermediate_size": 6,
    "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2,
    "layer_types": ["linear_attention", "deepseek_sparse_attention", "deepseek_sparse_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"], "indexer_types": ["full", "full", "shared"],
    "q_lora_rank": 4, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 0, "v_head_dim": 3,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "norm_topk_prob": true, "routed_scaling_factor": 2.5, "index_n_heads": 2, "index_head_dim": 4, "index_topk": 8, "index_kpool": 4,
    "linear_attn_config": {"num_heads": 2, "head_dim": 4, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
    "hc_mult": 2, "hc_sinkhorn_iters": 5, "hc_eps": 1e-6, "swiglu_limit": 10.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "max_position_embeddings": 4096, "num_nextn_predict_layers": 1, "eos_token_id": [1], "pad_token_id": 0, "bos_token_id": null},
  "vision_config": {
    "model_type": "glm5_next_vision", "depth": 1, "hidden_size": 8, "num_heads": 2, "intermediate_size": 10, "out_hidden_size": 8,
    "projection_intermediate_size": 12, "patch_size": 2, "temporal_patch_size": 2, "spatial_merge_size": 2, "in_channels": 3,
    "attention_bias": true, "hidden_act": "silu"},
  "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}})";

int64_t size_of(const std::string& dtype) {
  if (dtype == "F64" || dtype == "I64") return 8;
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "BF16" || dtype == "F16") return 2;
  return 1;
}

}  // namespace

int64_t bytes_of_tiny(const std::string& dtype, const std::vector<int64_t>& shape) {
  int64_t n = size_of(dtype);
  for (int64_t d : shape) n *= d;
  return n;
}

void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream f(path, std::ios::binary);
  f.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(f.good()) << path;
}

std::string read_file(const std::string& path) {
  std::ifstream f(path, std::ios::binary);
  std::stringstream s;
  s << f.rdbuf();
  return s.str();
}

TinyCheckpoint::TinyCheckpoint() {
  config = json::parse(kConfig).as_object();
  const auto parsed = parse_config(kConfig, "", "tiny").or_throw();
  for (Part part : {Part::trunk, Part::mtp, Part::vision})
    for_each_tensor(parsed, part, [&](const std::string& name, std::span<const int64_t> shape) {
      const std::vector<int64_t> s(shape.begin(), shape.end());
      if (const size_t at = name.find("conv1d.weight"); at != std::string::npos) {
        for (const char* x : {"q_", "k_", "v_"}) add(std::string(name).insert(at, x), "BF16", {s[0] / 3, s[1], s[2]});
      } else if (name.find("experts.") != std::string::npos) {
        add(name, "F8_E4M3", s);
        add(name + "_scale_inv", "F32", {1, 1});
      } else {
        const bool wide = name.ends_with("A_log") || name.ends_with("dt_bias") || name.ends_with("_base") || name.ends_with("_scale");
        add(name, wide ? "F32" : "BF16", s);
      }
    });
}

void TinyCheckpoint::add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape) {
  TinyTensor t{name, dtype, std::move(shape), {}};
  t.data.resize(static_cast<size_t>(bytes_of_tiny(dtype, t.shape)));
  if (dtype == "F32")
    for (size_t i = 0; i + 4 <= t.data.size(); i += 4) {
      const float v = 0.25f + static_cast<float>(i % 7) * 0.125f;
      std::memcpy(&t.data[i], &v, 4);
    }
  else
    for (size_t i = 0; i < t.data.size(); ++i) t.data[i] = static_cast<char>(0x30 + (i * 5 + name.size()) % 16);
  tensors.push_back(std::move(t));
}

TinyTensor& TinyCheckpoint::tensor(std::string_view name) {
  for (TinyTensor& t : tensors)
    if (t.name == name) return t;
  throw Error(fmt::format("the tiny checkpoint has no tensor {}", name));
}

void TinyCheckpoint::drop(std::string_view name) {
  (void)tensor(name);
  std::erase_if(tensors, [&](const TinyTensor& t) { return t.name == name; });
}

void TinyCheckpoint::rename(std::string_view name, std::string_view to) { tensor(name).name = to; }

void TinyCheckpoint::write(const std::string& dir) const {
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  write_file(dir + "/config.json", config_text.empty() ? json::serialize(config) : config_text);
  if (!generation_text.empty()) write_file(dir + "/generation_config.json", generation_text);
  json::object map;
  for (int s = 0; s < shards; ++s) {
    std::vector<const TinyTensor*> mine;
    for (size_t i = 0; i < tensors.size(); ++i)
      if (static_cast<int>(i) % shards == s) mine.push_back(&tensors[i]);
    std::sort(mine.begin(), mine.end(), [](auto* a, auto* b) { return std::pair(-size_of(a->dtype), a) < std::pair(-size_of(b->dtype), b); });
    const std::string file = shards == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards);
    json::object header{{"__metadata__", {{"format", "pt"}}}};
    std::string data;
    for (const TinyTensor* t : mine) {
      header[t->name] = {{"dtype", t->dtype}, {"shape", json::value_from(t->shape)}, {"data_offsets", {data.size(), data.size() + t->data.size()}}};
      data += t->data;
      map[t->name] = file;
    }
    if (change_header) change_header(s, header);
    std::string text = json::serialize(header);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    text.insert(0, reinterpret_cast<const char*>(&length), 8);
    if (change_bytes) change_bytes(s, text, data);
    write_file(dir + "/" + file, text + data);
  }
  if (shards == 1) return;
  json::object index{{"metadata", {{"total_size", 0}}}, {"weight_map", std::move(map)}};
  if (change_index) change_index(index);
  write_file(dir + "/model.safetensors.index.json", json::serialize(index));
}

void load_whole(const std::string& dir) {
  const Checkpoint c = Checkpoint::open(dir).or_throw();
  const auto device = device::make_cpu({.threads = 2});
  Loader loader(c, *device);
  std::deque<Matrix> matrices;
  std::deque<ConstTensorView> views;
  for_each_tensor(c.config(), Part::trunk, [&](const std::string& name, std::span<const int64_t> shape) {
    if (shape.size() == 2) loader.matrix(&matrices.emplace_back(), name, shape[0], shape[1]);
    else loader.f32(&views.emplace_back(), name, {shape.begin(), shape.end()});
  });
  (void)loader.load();
}

}  // namespace winnow::weights::testing
