#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "base/units.h"
#include "weights/checkpoint.h"
#include "weights/inventory.h"

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

}  // namespace
}  // namespace winnow::weights
