#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <filesystem>

#include "base/units.h"
#include "weights/checkpoint.h"
#include "weights/inventory.h"
#include "weights/tiny_checkpoint.h"

namespace winnow::weights {
namespace {

const std::string kModel = std::string(WINNOW_SOURCE_DIR) + "/models/winnow-tiny";

std::unique_ptr<device::Device> cpu(int threads) { return device::make_cpu({.threads = threads}); }

// Asks for every tensor of the trunk: matrices as they are stored, the rest as f32.
struct Everything {
  std::deque<Matrix> matrices;
  std::deque<ConstTensorView> vectors;
  std::map<std::string, Matrix*> matrix;
  std::map<std::string, ConstTensorView*> f32;

  void ask(const Checkpoint& c, Loader& loader, Part part = Part::trunk) {
    for_each_tensor(c.config(), part, [&](const std::string& name, std::span<const int64_t> shape) {
      if (shape.size() == 2) {
        matrix[name] = &matrices.emplace_back();
        loader.matrix(matrix[name], name, shape[0], shape[1]);
      } else {
        f32[name] = &vectors.emplace_back();
        loader.f32(f32[name], name, {shape.begin(), shape.end()});
      }
    });
  }
};

TEST(Loader, TheSmallModelLoadsAndEqualsItsFiles) {
  auto c = Checkpoint::open(kModel);
  ASSERT_TRUE(c) << c.error().what();
  auto device = cpu(2);
  Everything all;
  Loader loader(*c, *device);
  all.ask(*c, loader);
  int64_t last = -1, total = 0, calls = 0;
  const auto buffers = loader.load([&](int64_t done, int64_t of) {
    EXPECT_GE(done, last);
    last = done;
    total = of;
    ++calls;
  });
  EXPECT_EQ(last, total);
  EXPECT_GE(calls, 2);
  ASSERT_EQ(device->plan().size(), 1u);
  EXPECT_EQ(device->plan()[0].what, "weights");
  for (const auto& [name, m] : all.matrix) {
    const auto& e = c->tensors().find(name)->second;
    ASSERT_EQ(m->data.dtype, e.info->dtype) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(m->data.data) % 64, 0u);
    EXPECT_EQ(std::memcmp(m->data.data, e.file->data(*e.info).data(), static_cast<size_t>(e.info->bytes)), 0) << name;
  }
  const ConstTensorView norm = *all.f32.at("model.language_model.norm.weight");
  const auto& e = c->tensors().find("model.language_model.norm.weight")->second;
  const auto* stored = reinterpret_cast<const Bf16*>(e.file->data(*e.info).data());
  for (int64_t i = 0; i < norm.elements(); ++i) EXPECT_EQ(norm.as<float>()[i], to_float(stored[i]));
}

TEST(Loader, ConvolutionsStoredApartComeAsOne) {
  auto c = Checkpoint::open(kModel);
  ASSERT_TRUE(c) << c.error().what();
  auto device = cpu(1);
  Everything all;
  Loader loader(*c, *device);
  all.ask(*c, loader);
  const auto buffers = loader.load();
  const ConstTensorView w = *all.f32.at("model.language_model.layers.1.self_attn.conv1d.weight");
  const int64_t p = c->config().kda_heads * c->config().kda_head_dim, taps = c->config().conv_taps;
  ASSERT_EQ(w.shape[0], 3 * p);
  int64_t part = 0;
  for (const char* x : {"q", "k", "v"}) {
    const auto& e = c->tensors().find(fmt::format("model.language_model.layers.1.self_attn.{}_conv1d.weight", x))->second;
    const auto* stored = reinterpret_cast<const Bf16*>(e.file->data(*e.info).data());
    for (int64_t i = 0; i < p * taps; ++i) ASSERT_EQ(w.as<float>()[part * p * taps + i], to_float(stored[i])) << x << i;
    ++part;
  }
}

TEST(Loader, WhatIsNotAskedForIsUnused) {
  auto c = Checkpoint::open(kModel);
  ASSERT_TRUE(c) << c.error().what();
  auto device = cpu(1);
  Loader loader(*c, *device);
  ConstTensorView norm;
  loader.f32(&norm, "norm.weight", {c->config().hidden_size});
  try {
    (void)loader.load();
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("unused lm_head.weight in model-00001-of-00003.safetensors"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find(" more"), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find("layers.8."), std::string::npos) << "the MTP layer is not the trunk's: " << e.what();
    EXPECT_EQ(std::string(e.what()).find("visual"), std::string::npos) << e.what();
  }
}

using testing::TinyCheckpoint;
const std::string kText = "model.language_model.";

class TinyLoader : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(dir_); }
  // Every trunk matrix and vector as f32 values by official name.
  std::map<std::string, std::vector<float>> values(const TinyCheckpoint& t, int threads = 2) {
    t.write(dir_);
    const Checkpoint c = Checkpoint::open(dir_).or_throw();
    auto device = cpu(threads);
    Loader loader(c, *device);
    std::map<std::string, std::vector<float>> all;
    std::map<std::string, ConstTensorView> f32;
    for_each_tensor(c.config(), Part::trunk, [&](const std::string& name, std::span<const int64_t> shape) {
      if (shape.size() == 2)
        loader.visit(name, shape[0], shape[1], [&all, name](ConstTensorView v) { all[name].assign(v.as<float>(), v.as<float>() + v.elements()); });
      else loader.f32(&f32[name], name, {shape.begin(), shape.end()});
    });
    const auto buffers = loader.load();
    for (const auto& [name, v] : f32) all[name].assign(v.as<float>(), v.as<float>() + v.elements());
    return all;
  }
  const std::string dir_ = ::testing::TempDir() + "winnow_loader";
};

// The names that transformers' modules have, made from the official ones.
void to_module_names(TinyCheckpoint& t) {
  for (auto& x : t.tensors)
    for (const auto& [from, to] : {std::pair<std::string, std::string>{".hc_attn_", ".attn_hc."},
                                   {".hc_ffn_", ".ffn_hc."},
                                   {"self_attn.f_", "self_attn.forget_gate.f_"},
                                   {"self_attn.dt_bias", "self_attn.forget_gate.dt_bias"},
                                   {"self_attn.A_log", "self_attn.forget_gate.A_log"}})
      if (const size_t at = x.name.find(from); at != std::string::npos) x.name.replace(at, from.size(), to);
  const std::string conv = kText + "layers.0.self_attn.";
  std::string data;
  for (const char* x : {"q", "k", "v"}) {
    data += t.tensor(conv + x + "_conv1d.weight").data;
    t.drop(conv + x + "_conv1d.weight");
  }
  t.add(conv + "conv1d.weight", "BF16", {24, 1, 4});
  t.tensor(conv + "conv1d.weight").data = data;
}

void fuse_experts(TinyCheckpoint& t, int layer) {
  const std::string p = fmt::format("{}layers.{}.mlp.experts.", kText, layer);
  std::string gate_up, down;
  for (int e = 0; e < 4; ++e)
    for (const char* x : {"gate", "up", "down"}) {
      const std::string name = fmt::format("{}{}.{}_proj.weight", p, e, x);
      (std::string(x) == "down" ? down : gate_up) += t.tensor(name).data;
      t.drop(name);
    }
  t.add(p + "gate_up_proj", "BF16", {4, 12, 8});
  t.tensor(p + "gate_up_proj").data = gate_up;
  t.add(p + "down_proj", "BF16", {4, 8, 6});
  t.tensor(p + "down_proj").data = down;
}

void experts_to_bf16(TinyCheckpoint& t) {
  std::erase_if(t.tensors, [](auto& x) { return x.name.find("experts.") != std::string::npos && x.name.ends_with("_scale_inv"); });
  uint8_t next = 0;
  for (auto& x : t.tensors)
    if (x.dtype == "F8_E4M3") {
      x.dtype = "BF16";
      x.data.resize(x.data.size() * 2);
      for (char& c : x.data) c = static_cast<char>(next++ % 0x40);
    }
}

TEST_F(TinyLoader, BothNameStylesGiveTheSameValues) {
  TinyCheckpoint official, modules;
  experts_to_bf16(official);
  experts_to_bf16(modules);
  to_module_names(modules);
  for (int layer : {1, 2, 3}) fuse_experts(modules, layer);
  const auto a = values(official), b = values(modules);
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, v] : a) EXPECT_EQ(v, b.at(name)) << name;
  EXPECT_NE(a.at(kText + "layers.1.mlp.experts.0.gate_proj.weight"), a.at(kText + "layers.1.mlp.experts.0.up_proj.weight"));
}

TEST_F(TinyLoader, BlockFp8IsCodeTimesItsBlocksScale) {
  TinyCheckpoint t;
  // Sizes over a block, so that four scales are at work: 130 x 136.
  t.text()["moe_intermediate_size"] = 136;
  t.text()["hidden_size"] = 130;
  t.text()["num_hidden_layers"] = 1;
  t.text()["layer_types"] = {"linear_attention"};
  t.text()["mlp_layer_types"] = {"sparse"};
  t.text()["indexer_types"] = {"full"};
  t.config.erase("vision_config");
  t.tensors.clear();
  const Config c = parse_config(boost::json::serialize(t.config), "", "t").or_throw();
  std::vector<uint8_t> codes(130 * 136);
  const float scale[4] = {0.5f, 0.3f, 2.0f, 1e-3f};
  for_each_tensor(c, Part::trunk,
                  [&](const std::string& name, std::span<const int64_t> shape) { t.add(name, "BF16", {shape.begin(), shape.end()}); });
  const std::string name = kText + "layers.0.mlp.experts.2.down_proj.weight";
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 7 % 127);
  t.drop(name);
  t.add(name, "F8_E4M3", {130, 136});
  t.tensor(name).data.assign(reinterpret_cast<const char*>(codes.data()), codes.size());
  t.add(name + "_scale_inv", "F32", {2, 2});
  t.tensor(name + "_scale_inv").data.assign(reinterpret_cast<const char*>(scale), sizeof scale);
  const auto all = values(t);
  const std::vector<float>& v = all.at(name);
  ASSERT_EQ(v.size(), codes.size());
  for (size_t i = 0; i < v.size(); ++i) {
    const size_t row = i / 136, column = i % 136;
    ASSERT_EQ(v[i], to_float(E4m3{codes[i]}) * scale[row / 128 * 2 + column / 128]) << row << ", " << column;
  }
  // As a matrix it stays as it is stored.
  const Checkpoint checkpoint = Checkpoint::open(dir_).or_throw();
  auto device = cpu(1);
  Everything everything;
  Loader loader(checkpoint, *device);
  EXPECT_EQ(loader.type_of("layers.0.mlp.experts.2.down_proj.weight"), DType::e4m3);
  EXPECT_EQ(loader.type_of("layers.0.mlp.experts.1.down_proj.weight"), DType::bf16);
  everything.ask(checkpoint, loader);
  const auto buffers = loader.load();
  const Matrix& m = *everything.matrix.at(name);
  EXPECT_EQ(m.data.dtype, DType::e4m3);
  EXPECT_EQ(std::memcmp(m.data.data, codes.data(), codes.size()), 0);
  EXPECT_EQ(m.scale.shape[0], 2);
  EXPECT_EQ(m.scale.as<float>()[3], 1e-3f);
  EXPECT_FALSE(everything.matrix.at(kText + "layers.0.mlp.experts.1.down_proj.weight")->scale);
}

TEST_F(TinyLoader, F16BecomesF32) {
  TinyCheckpoint t;
  t.tensor("lm_head.weight").dtype = "F16";
  t.write(dir_);
  const Checkpoint c = Checkpoint::open(dir_).or_throw();
  auto device = cpu(1);
  Everything all;
  Loader loader(c, *device);
  EXPECT_EQ(loader.type_of("lm_head.weight"), DType::f32);
  all.ask(c, loader);
  const auto buffers = loader.load();
  const Matrix& m = *all.matrix.at("lm_head.weight");
  ASSERT_EQ(m.data.dtype, DType::f32);
  const auto* stored = reinterpret_cast<const F16*>(t.tensor("lm_head.weight").data.data());
  for (int64_t i = 0; i < m.data.elements(); ++i) EXPECT_EQ(m.data.as<float>()[i], to_float(stored[i]));
}

TEST_F(TinyLoader, TiedHeadIsTheEmbedding) {
  TinyCheckpoint t;
  t.config["tie_word_embeddings"] = true;
  t.drop("lm_head.weight");
  t.write(dir_);
  const Checkpoint c = Checkpoint::open(dir_).or_throw();
  auto device = cpu(1);
  Everything all;
  Loader loader(c, *device);
  all.ask(c, loader);
  const auto buffers = loader.load();
  EXPECT_EQ(all.matrix.at("lm_head.weight")->data.data, all.matrix.at(kText + "embed_tokens.weight")->data.data);
}

TEST_F(TinyLoader, WithoutMtpAndImageTower) {
  TinyCheckpoint t;
  std::erase_if(t.tensors, [](auto& x) { return x.name.find("layers.3.") != std::string::npos || x.name.starts_with("model.visual."); });
  EXPECT_NO_THROW(values(t));
}

TEST_F(TinyLoader, TheMtpLayerAndTheImageTowerLoadByThemselves) {
  TinyCheckpoint t;
  t.write(dir_);
  const Checkpoint c = Checkpoint::open(dir_).or_throw();
  for (Part part : {Part::mtp, Part::vision}) {
    auto device = cpu(1);
    Loader loader(c, *device);
    std::deque<Matrix> matrices;
    std::deque<ConstTensorView> vectors;
    for_each_tensor(c.config(), part, [&](const std::string& name, std::span<const int64_t> shape) {
      int64_t k = 1;
      for (int64_t d : shape.subspan(1)) k *= d;
      if (shape.size() >= 2) loader.matrix(&matrices.emplace_back(), name, shape[0], k);
      else loader.f32(&vectors.emplace_back(), name, {shape.begin(), shape.end()});
    });
    EXPECT_NO_THROW(loader.load()) << name_of(part);
    EXPECT_GT(matrices.size(), 5u);
  }
}

// What load() of the folder's trunk says; `meanwhile` happens after the checkpoint was opened.
std::string failure(const std::string& dir, Residence residence, const std::function<void()>& meanwhile = {}) {
  const Checkpoint c = Checkpoint::open(dir).or_throw();
  auto device = cpu(2);
  Everything all;
  Loader loader(c, *device, residence);
  all.ask(c, loader);
  if (meanwhile) meanwhile();
  try {
    (void)loader.load();
    return "";
  } catch (const Error& e) { return e.what(); }
}

TEST_F(TinyLoader, AFileThatChangesAfterOpeningIsAnError) {
  const std::string file = dir_ + "/model.safetensors";
  for (Residence r : {Residence::copy, Residence::map}) {
    TinyCheckpoint().write(dir_);
    EXPECT_EQ(failure(dir_, r), "");
    EXPECT_EQ(failure(dir_, r, [&] { std::filesystem::resize_file(file, 20000); }), file + ": the file became shorter");
    TinyCheckpoint().write(dir_);
    const auto later = [&] { std::filesystem::last_write_time(file, std::filesystem::last_write_time(file) + std::chrono::milliseconds(1)); };
    EXPECT_NE(failure(dir_, r, later).find(file + ": the file was changed after it was opened"), std::string::npos);
  }
}

// A matrix long enough to be looked at in streams, with an end that fills none.
TEST_F(TinyLoader, OneBadValueAnywhereIsFoundCopiedAndMapped) {
  struct Type {
    const char* name;
    std::vector<uint32_t> bad;  // NaN and infinity of both signs
  };
  const Type types[] = {{"BF16", {0x7f80, 0xff80, 0x7fc0, 0xff81}},
                        {"F16", {0x7c00, 0xfc00, 0x7e00, 0xfc01}},
                        {"F32", {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001}},
                        {"F8_E4M3", {0x7f, 0xff}}};
  for (const Type& type : types) {
    TinyCheckpoint t;
    t.text()["vocab_size"] = 1001;
    for (const char* name : {"model.language_model.embed_tokens.weight", "lm_head.weight"}) t.drop(name);
    t.add("model.language_model.embed_tokens.weight", "BF16", {1001, 8});
    t.add("lm_head.weight", type.name, {1001, 8});
    if (type.bad.size() == 2) t.add("lm_head.weight_scale_inv", "F32", {8, 1});
    t.write(dir_);
    for (Residence r : {Residence::copy, Residence::map}) EXPECT_EQ(failure(dir_, r), "") << type.name;
    const size_t size = t.tensor("lm_head.weight").data.size() / 8008;
    for (size_t i = 0, round = 0; i < 8008; i = i < 7200 ? i + 1201 : i + 403, ++round) {
      TinyCheckpoint spoiled = t;
      std::memcpy(&spoiled.tensor("lm_head.weight").data[i * size], &type.bad[round % type.bad.size()], size);
      spoiled.write(dir_);
      for (Residence r : {Residence::copy, Residence::map})
        EXPECT_EQ(failure(dir_, r), dir_ + "/model.safetensors: tensor lm_head.weight: a value is NaN or infinite") << type.name << " " << i;
    }
  }
}

TEST(Loader, MappedMatricesAreTheFilesBytesAndOutliveTheCheckpoint) {
  auto device = cpu(2), other = cpu(2);
  Everything copied, mapped;
  std::vector<device::Buffer> a, b;
  {
    const Checkpoint c = Checkpoint::open(kModel).or_throw();
    Loader copy(c, *device, Residence::copy), map(c, *other, Residence::map);
    copied.ask(c, copy);
    mapped.ask(c, map);
    a = copy.load();
    b = map.load();
  }
  EXPECT_EQ(b.size(), 1u + 2u) << "what is copied, and the two files of the trunk";
  ASSERT_EQ(other->plan().size(), 2u);
  EXPECT_EQ(other->plan()[1].what, "weights, mapped");
  EXPECT_LT(other->plan()[0].bytes, device->plan()[0].bytes / 10);
  EXPECT_NEAR(static_cast<double>(other->plan()[0].bytes + other->plan()[1].bytes), static_cast<double>(device->plan()[0].bytes), 1e5);
  for (const auto& [name, m] : copied.matrix) {
    const ConstTensorView x = m->data, y = mapped.matrix.at(name)->data;
    ASSERT_EQ(x.dtype, y.dtype) << name;
    EXPECT_EQ(std::memcmp(x.data, y.data, static_cast<size_t>(x.bytes())), 0) << name;
    EXPECT_TRUE(y.data < b[0].data() || y.data >= b[0].data() + b[0].bytes()) << name << " was copied";
  }
  for (const auto& [name, v] : copied.f32) EXPECT_EQ(std::memcmp(v->data, mapped.f32.at(name)->data, static_cast<size_t>(v->bytes())), 0) << name;
}

TEST_F(TinyLoader, MappedMatricesMayLieAtAnyElement) {
  TinyCheckpoint t;
  t.text()["hidden_size"] = 9;
  t.text()["moe_intermediate_size"] = 7;
  t.config.erase("vision_config");
  t.tensors.clear();
  for_each_tensor(parse_config(boost::json::serialize(t.config), "", "t").or_throw(), Part::trunk,
                  [&](const std::string& name, std::span<const int64_t> shape) {
                    const bool expert = name.find("experts.") != std::string::npos;
                    t.add(name, expert ? "F8_E4M3" : "BF16", {shape.begin(), shape.end()});
                    if (expert) t.add(name + "_scale_inv", "F32", {1, 1});
                  });
  t.write(dir_);
  const Checkpoint c = Checkpoint::open(dir_).or_throw();
  auto device = cpu(2);
  Everything all;
  Loader loader(c, *device, Residence::map);
  all.ask(c, loader);
  const auto buffers = loader.load();
  int64_t odd = 0, halves = 0;
  for (const auto& [name, m] : all.matrix) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(m->data.data);
    odd += m->data.dtype == DType::e4m3 && at % 2 != 0;
    halves += m->data.dtype == DType::bf16 && at % 4 != 0;
    EXPECT_EQ(std::memcmp(m->data.data, t.tensor(name).data.data(), t.tensor(name).data.size()), 0) << name;
  }
  EXPECT_GT(odd, 0);
  EXPECT_GT(halves, 0);
}

TEST(Loader, ADeviceWithoutHostMemoryRefusesMappedWeights) {
  struct Elsewhere : device::Device {
    const device::Caps& caps() const override { return own; }
    std::string description() const override { return "a card"; }
    device::Buffer allocate(std::string_view, int64_t) override { return {}; }
    device::Queue& queue() override { return none; }
    void pin_caller() override {}
    device::Caps own;
    device::Queue none{nullptr};
  } device;
  const Checkpoint c = Checkpoint::open(kModel).or_throw();
  EXPECT_NO_THROW(Loader(c, device, Residence::copy));
  EXPECT_THROW(Loader(c, device, Residence::map), Error);
}

}  // namespace
}  // namespace winnow::weights
