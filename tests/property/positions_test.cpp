// Promise 1 at the level of the model: what a position computes depends on its own tokens only. The small model over a prompt that
// is longer than its selection, so that sparse attention is at work.
#include <gtest/gtest.h>

#include <cstring>

#include "cli/runner.h"
#include "weights/safetensors.h"

namespace winnow::cli {
namespace {

using Logits = std::vector<std::vector<float>>;

std::vector<int32_t> prompt(size_t tokens) {
  const weights::SafetensorsFile golden = weights::SafetensorsFile::open(WINNOW_SOURCE_DIR "/models/winnow-tiny/golden.safetensors").or_throw();
  const ConstTensorView ids = golden.view("p9.input_ids");
  return {ids.as<int32_t>(), ids.as<int32_t>() + tokens};
}

struct Machine {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<models::Glm5Next> model;
  std::unique_ptr<Runner> runner;

  explicit Machine(models::Profile profile, device::CpuOptions cpu = {}, int64_t max_rows = 512, int64_t sequences = 2)
      : device(device::make_cpu(cpu)) {
    models::Options o;
    o.profile = profile;
    o.max_rows = max_rows;
    o.max_logit_rows = 64;
    o.max_context = 1024;
    model = std::make_unique<models::Glm5Next>(*device, small(), o);
    runner = std::make_unique<Runner>(*device, *model, sequences, o.max_context);
  }
  // Random weights at the sizes of a config.
  Machine(models::Profile profile, const weights::Config& config) : device(device::make_cpu({})) {
    models::Options o;
    o.profile = profile;
    o.max_logit_rows = 64;
    o.max_context = 1024;
    model = std::make_unique<models::Glm5Next>(*device, config, o, 5);
    runner = std::make_unique<Runner>(*device, *model, 1, o.max_context);
  }
  static weights::Checkpoint small() { return weights::Checkpoint::open(WINNOW_SOURCE_DIR "/models/winnow-tiny").or_throw(); }
  // Logits of the last `last` tokens of a prompt that is prefilled whole, or up to `decoded` tokens before its end.
  Logits run(std::span<const int32_t> tokens, int64_t last, int64_t decoded = 0) {
    Logits rows;
    const auto keep = [&](int64_t, std::span<const float> l) { rows.emplace_back(l.begin(), l.end()); };
    const size_t prefilled = tokens.size() - static_cast<size_t>(decoded);
    runner->reset();
    runner->prefill(tokens.first(prefilled), last - decoded, keep);
    for (size_t i = prefilled; i < tokens.size(); ++i) {
      runner->decode({&tokens[i], 1});
      const ConstTensorView l = model->logits();
      rows.emplace_back(l.as<float>(), l.as<float>() + l.shape[1]);
    }
    return rows;
  }
};

void expect_same_bits(const Logits& a, const Logits& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].size(), b[i].size());
    EXPECT_EQ(std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)), 0) << "row " << i;
  }
}

TEST(Positions, ExactDecodesWhatItPrefills) {
  const std::vector<int32_t> tokens = prompt(700);
  Machine s(models::Profile::exact);
  const Logits prefilled = s.run(tokens, 64);
  for (int64_t decoded : {1, 7, 8, 9, 59, 60}) {
    SCOPED_TRACE(decoded);
    expect_same_bits(prefilled, s.run(tokens, 64, decoded));
  }
}

TEST(Positions, StepsOfAnySizeGiveEqualBits) {
  const std::vector<int32_t> tokens = prompt(600);
  for (models::Profile profile : {models::Profile::exact, models::Profile::fast}) {
    SCOPED_TRACE(models::name_of(profile));
    const Logits whole = Machine(profile, {}, 640).run(tokens, 20);
    for (int64_t rows : {64, 128, 192}) expect_same_bits(whole, Machine(profile, {}, rows).run(tokens, 20));
  }
}

TEST(Positions, ThreadsDoNotMatter) {
  const std::vector<int32_t> tokens = prompt(400);
  for (models::Profile profile : {models::Profile::exact, models::Profile::fast}) {
    SCOPED_TRACE(models::name_of(profile));
    const Logits one = Machine(profile, {.threads = 1}).run(tokens, 20, 5);
    for (int threads : {2, 3, 5}) expect_same_bits(one, Machine(profile, {.threads = threads}).run(tokens, 20, 5));
  }
}

TEST(Positions, Avx2AndAvx512GiveEqualBitsInExact) {
  if (device::detect_isa() < device::Isa::avx512) GTEST_SKIP() << "this machine has no AVX-512";
  const std::vector<int32_t> tokens = prompt(400);
  expect_same_bits(Machine(models::Profile::exact, {.isa = device::Isa::avx2}).run(tokens, 20, 5),
                   Machine(models::Profile::exact, {.isa = device::Isa::avx512}).run(tokens, 20, 5));
}

// Rows that no logits are wanted of end early in the last layer. Whoever is left, and what they leave for later steps, has the bits that it
// has when more rows go on to the end: behind either mixer, with an indexer of its own or another layer's, in both forms of attention.
TEST(Positions, RowsWithoutLogitsLeaveTheSame) {
  const std::vector<int32_t> all = prompt(420);
  weights::Config own = Machine::small().config(), shared = own, kda = own;
  shared.layers.back().indexer = weights::Indexer::shared;
  kda.layers.resize(5);
  ASSERT_EQ(kda.layers.back().mixer, weights::Mixer::kda);
  for (models::Profile profile : {models::Profile::exact, models::Profile::fast})
    for (const weights::Config& config : {own, shared, kda})
      for (size_t tokens : {size_t{420}, size_t{50}}) {
        SCOPED_TRACE(fmt::format("{}, {} layers, {} tokens", models::name_of(profile), config.layers.size(), tokens));
        const std::span<const int32_t> text = std::span(all).first(tokens);
        Machine s(profile, config);
        const Logits many = s.run(text, 40, 9);  // of 31 rows of the prompt, then of 9 decoded ones
        for (int64_t wanted : {10, 9}) {
          const Logits few = s.run(text, wanted, 9);
          expect_same_bits({many.end() - wanted, many.end()}, few);
        }
      }
}

// A sequence beside others: two sequences decode together and give what each gives alone.
TEST(Positions, CompanyDoesNotMatter) {
  const std::vector<int32_t> tokens = prompt(500);
  for (models::Profile profile : {models::Profile::exact, models::Profile::fast}) {
    SCOPED_TRACE(models::name_of(profile));
    Machine s(profile);
    const Logits alone = s.run(tokens, 10, 10);
    const auto drop = [](int64_t, std::span<const float>) {};
    const std::span<const int32_t> all(tokens);
    s.runner->reset(0);
    s.runner->reset(1);
    s.runner->prefill(all.first(490), 0, drop, nullptr, 0);
    s.runner->prefill(all.first(333), 0, drop, nullptr, 1);
    Logits beside;
    for (size_t i = 0; i < 10; ++i) {
      const int32_t both[] = {tokens[490 + i], tokens[333 + i]};
      s.runner->decode(both);
      const float* l = s.model->logits().as<float>();
      beside.emplace_back(l, l + s.model->logits().shape[1]);
    }
    expect_same_bits(alone, beside);
  }
}

// Prompts of nine lengths that begin in one step, some of whose rows take another form of attention than their neighbours'.
TEST(Positions, PromptsThatBeginTogether) {
  const std::vector<int32_t> tokens = prompt(512);
  const size_t lengths[] = {64, 3, 130, 33, 63, 65, 1, 72, 20};
  for (models::Profile profile : {models::Profile::exact, models::Profile::fast}) {
    SCOPED_TRACE(models::name_of(profile));
    Machine s(profile, {}, 512, 9);
    Logits alone, together;
    const auto keep = [&](int64_t, std::span<const float> l) { alone.emplace_back(l.begin(), l.end()); };
    std::vector<std::vector<int32_t>> prompts;
    for (size_t i = 0; i < 9; ++i) {
      prompts.emplace_back(tokens.begin() + static_cast<int64_t>(17 * i), tokens.begin() + static_cast<int64_t>(17 * i + lengths[i]));
      s.runner->prefill(prompts.back(), 1, keep, nullptr, static_cast<int64_t>(i));
      s.runner->reset(static_cast<int64_t>(i));
    }
    s.runner->prefill_together(prompts);
    const ConstTensorView l = s.model->logits();
    for (int64_t i = 0; i < 9; ++i) together.emplace_back(l.as<float>() + i * l.shape[1], l.as<float>() + (i + 1) * l.shape[1]);
    expect_same_bits(alone, together);
  }
}

}  // namespace
}  // namespace winnow::cli
