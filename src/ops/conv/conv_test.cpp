#include "ops/conv/conv.h"

#include <limits>

#include "ops/step_rows.h"

namespace winnow::ops::test {
namespace {

struct Step {
  std::vector<Chunk> chunks;
  int64_t tokens() const {
    int64_t n = 0;
    for (const Chunk& c : chunks) n += c.count;
    return n;
  }
};

// Fresh sequences, continued ones in and before the ring's wrap-around, one longer than the ring, one without rows.
const Step kMixed{{{3, 0, 2}, {0, 5, 1, true}, {1, 2, 9}, {4, 8, 0}, {2, 1, 3}}};

// A ring in which only rows of positions that exist hold numbers; the rest stays poisoned.
Tensor ring_before(DType type, const Step& step, int64_t states, int64_t ring_rows, int64_t channels) {
  Tensor ring(type, {states, ring_rows, channels});
  const Tensor numbers = random_tensor(type, {states, ring_rows, channels}, 9);
  for (const Chunk& c : step.chunks)
    for (int64_t p = std::max<int64_t>(0, c.position - ring_rows); p < c.position; ++p)
      for (int64_t i = 0; i < channels; ++i) ref::set(ring, c.state, p % ring_rows, i, ref::get(numbers, c.state, p % ring_rows, i));
  return ring;
}

void conform(DType x_type, DType y_type, int64_t channels, int64_t taps, int64_t ring_rows) {
  SCOPED_TRACE(
      fmt::format("{} -> {}, {} channels, {} taps, ring of {}", winnow::name_of(x_type), winnow::name_of(y_type), channels, taps, ring_rows));
  const Conv::Spec spec{x_type, y_type, channels, taps};
  const StepRows step(kMixed.chunks);
  const int64_t tokens = kMixed.tokens();
  const Tensor x = random_tensor(x_type, {tokens, channels}, 1), w = random_tensor(DType::f32, {channels, taps}, 2);
  const Tensor before = ring_before(x_type, kMixed, 6, ring_rows, channels);
  const Tensor want(y_type, {tokens, channels}), want_ring = before.clone();
  run_reference<Conv>(spec, {want, want_ring, x, w, step.rows});
  std::unique_ptr<Tensor> first;
  for_each_kernel<Conv>(spec, [&](const Kernel<Conv>& k, device::Device& d) {
    Tensor y(y_type, {tokens, channels}), ring = before.clone();
    run_kernel(k, d, spec, {y, ring, x, w, step.rows});
    EXPECT_TRUE(y.canaries_intact() && ring.canaries_intact());
    expect_close(y, want, 2 * epsilon_of(y_type) + 1e-6);
    EXPECT_TRUE(same_bits(ring, want_ring)) << "the ring holds copies";
    if (first) EXPECT_TRUE(same_bits(y, first->view)) << "bits depend on kernel or workers";
    else first = std::make_unique<Tensor>(y.clone());
  });
}

TEST(Conv, Conformance) {
  for (DType x : {DType::f32, DType::bf16})
    for (DType y : {DType::f32, DType::bf16})
      for (int64_t channels : {1, 15, 17, 128, 129, 300})
        for (auto [taps, ring_rows] : {std::pair{4, 4}, {4, 6}, {1, 1}, {2, 3}, {8, 11}}) conform(x, y, channels, taps, ring_rows);
}

TEST(Conv, NoRows) {
  const Conv::Spec spec{DType::f32, DType::f32, 8, 4};
  const StepRows step({{0, 3, 0}});
  const Tensor x(DType::f32, {0, 8}), w = random_tensor(DType::f32, {8, 4}, 1), y(DType::f32, {0, 8}), ring(DType::f32, {1, 4, 8});
  const Tensor before = ring.clone();
  for_each_kernel<Conv>(spec, [&](const Kernel<Conv>& k, device::Device& d) {
    run_kernel(k, d, spec, {y, ring, x, w, step.rows});
    EXPECT_TRUE(same_bits(ring, before));
  });
}

// Output of one sequence of `state`, cut into steps of the given lengths.
Tensor in_steps(const Kernel<Conv>& k, device::Device& d, const Conv::Spec& spec, const Tensor& x, const Tensor& w, int64_t ring_rows,
                const std::vector<int64_t>& counts) {
  const Tensor y(spec.y, {x.view.shape[0], spec.channels}), ring(spec.x, {2, ring_rows, spec.channels});
  int64_t position = 0;
  for (int64_t count : counts) {
    const StepRows step({{1, position, count}});
    run_kernel(k, d, spec, {y.view.rows(position, count), ring, x.view.rows(position, count), w, step.rows});
    position += count;
  }
  Tensor out = y.clone();
  return out;
}

// Whatever the steps a sequence is cut into, with a poisoned ring before it: the same bits, for every ring length.
TEST(Conv, AnyCutGivesTheSameBits) {
  constexpr int64_t kTokens = 13, kChannels = 19;
  for (DType type : {DType::f32, DType::bf16}) {
    const Conv::Spec spec{type, DType::f32, kChannels, 4};
    const Tensor x = random_tensor(type, {kTokens, kChannels}, 1), w = random_tensor(DType::f32, {kChannels, 4}, 2);
    std::mt19937_64 rng(3);
    for_each_kernel<Conv>(spec, [&](const Kernel<Conv>& k, device::Device& d) {
      for (int64_t ring_rows : {4, 5, 6, 8, 16}) {
        const Tensor whole = in_steps(k, d, spec, x, w, ring_rows, {kTokens});
        EXPECT_TRUE(std::isfinite(ref::get(whole, 0)));
        std::vector<std::vector<int64_t>> cuts{std::vector<int64_t>(kTokens, 1)};
        for (int64_t at = 1; at < kTokens; ++at) cuts.push_back({at, kTokens - at});
        for (int i = 0; i < 20; ++i) {
          cuts.emplace_back();
          for (int64_t left = kTokens; left > 0; left -= cuts.back().back())
            cuts.back().push_back(std::min<int64_t>(left, 1 + static_cast<int64_t>(rng() % 5)));
        }
        for (const std::vector<int64_t>& cut : cuts)
          EXPECT_TRUE(same_bits(in_steps(k, d, spec, x, w, ring_rows, cut), whole)) << cut.size() << " steps, ring of " << ring_rows;
      }
    });
  }
}

// A step may read one record and leave everything in another: same bits, and the first record is never needed again.
TEST(Conv, AnotherRecordTakesOverAtAnyStep) {
  constexpr int64_t kTokens = 13, kChannels = 19, kRing = 6;
  const Conv::Spec spec{DType::bf16, DType::f32, kChannels, 4};
  const Tensor x = random_tensor(DType::bf16, {kTokens, kChannels}, 1), w = random_tensor(DType::f32, {kChannels, 4}, 2);
  const auto moving = [&](auto&& run, const std::vector<int64_t>& counts) {
    const Tensor y(DType::f32, {kTokens, kChannels}), ring(DType::bf16, {2, kRing, kChannels});
    int64_t position = 0;
    int32_t state = 0;
    for (int64_t count : counts) {
      const Tensor before = ring.clone();
      state = 1 - state;
      const StepRows step({{state, position, count, false, 1 - state}});
      run({y.view.rows(position, count), ring, x.view.rows(position, count), w, step.rows});
      EXPECT_TRUE(same_bits(ring.view.rows(1 - state, 1), before.view.rows(1 - state, 1)));
      std::memset(ring.view.rows(1 - state, 1).data, 0xff, static_cast<size_t>(ring.view.rows(0, 1).bytes()));
      position += count;
    }
    return y.clone();
  };
  std::vector<std::vector<int64_t>> cuts{std::vector<int64_t>(kTokens, 1), {2, 1, 3, 1, 6}, {7, 1, 5}, {1, 2, 10}};
  for (const auto& cut : cuts) {
    const Tensor wanted = moving([&](const Conv::Args& a) { run_reference<Conv>(spec, a); }, cut);
    for_each_kernel<Conv>(spec, [&](const Kernel<Conv>& k, device::Device& d) {
      const Tensor got = moving([&](const Conv::Args& a) { run_kernel(k, d, spec, a); }, cut);
      EXPECT_TRUE(same_bits(got, in_steps(k, d, spec, x, w, kRing, {kTokens})));
      expect_close(got, wanted, 1e-5, "y");
    });
  }
}

TEST(Conv, ARowDoesNotDependOnCompany) {
  const Conv::Spec spec{DType::f32, DType::f32, 40, 4};
  const StepRows step(kMixed.chunks);
  const Tensor x = random_tensor(DType::f32, {kMixed.tokens(), 40}, 1), w = random_tensor(DType::f32, {40, 4}, 2);
  const Tensor before = ring_before(DType::f32, kMixed, 6, 4, 40);
  for_each_kernel<Conv>(spec, [&](const Kernel<Conv>& k, device::Device& d) {
    Tensor y(DType::f32, {kMixed.tokens(), 40}), ring = before.clone();
    run_kernel(k, d, spec, {y, ring, x, w, step.rows});
    int64_t row = 0;
    for (const Chunk& c : kMixed.chunks) {
      Tensor one(DType::f32, {c.count, 40}), own_ring = before.clone();
      const StepRows alone({c});
      run_kernel(k, d, spec, {one, own_ring, x.view.rows(row, c.count), w, alone.rows});
      EXPECT_TRUE(same_bits(one, y.view.rows(row, c.count))) << "state " << c.state;
      row += c.count;
    }
  });
}

// Draft rows that are taken back: the step after a rejection reads the accepted rows, if the ring has room for the drafts.
TEST(Conv, G63_RejectedRowsLeaveTheHistoryWhole) {
  constexpr int64_t kChannels = 5, kDepth = 3;
  const Conv::Spec spec{DType::f32, DType::f32, kChannels, 4};
  const int64_t ring_rows = conv_ring_rows(4, kDepth);
  const Tensor x = random_tensor(DType::f32, {20, kChannels}, 1), w = random_tensor(DType::f32, {kChannels, 4}, 2);
  const Tensor drafts = random_tensor(DType::f32, {1 + kDepth, kChannels}, 3, 100);
  for_each_kernel<Conv>(spec, [&](const Kernel<Conv>& k, device::Device& d) {
    const Tensor whole = in_steps(k, d, spec, x, w, ring_rows, {20});
    for (int64_t accepted = 1; accepted <= kDepth; ++accepted) {
      const Tensor y(DType::f32, {20, kChannels}), ring(DType::f32, {2, ring_rows, kChannels}), unused(DType::f32, {1 + kDepth, kChannels});
      int64_t position = 0;
      for (int64_t count = 6; position < 20; position += count, count = std::min(accepted, 20 - position)) {
        if (position > 0) {  // a verify step whose last rows are wrong
          const Tensor mixed = drafts.clone();
          std::memcpy(mixed.view.data, x.view.rows(position, count).data, static_cast<size_t>(count * kChannels) * sizeof(float));
          const StepRows verify({{1, position, 1 + kDepth, true}});
          run_kernel(k, d, spec, {unused, ring, mixed, w, verify.rows});
          std::memcpy(y.view.rows(position, count).data, unused.view.data, static_cast<size_t>(count * kChannels) * sizeof(float));
        } else {
          const StepRows prompt({{1, 0, count}});
          run_kernel(k, d, spec, {y.view.rows(0, count), ring, x.view.rows(0, count), w, prompt.rows});
        }
      }
      EXPECT_TRUE(same_bits(y, whole)) << accepted << " rows accepted a step";
    }
  });
}

TEST(ConvDeathTest, G20_G22_AStateOutsideTheRing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Conv::Spec spec{DType::f32, DType::f32, 4, 4};
  const Tensor x = random_tensor(DType::f32, {1, 4}, 1), w = random_tensor(DType::f32, {4, 4}, 2);
  const Tensor y(DType::f32, {1, 4}), ring(DType::f32, {2, 4, 4});
  for (int32_t state : {-1, 2}) {
    const StepRows step({{state, 0, 1}});
    for_each_kernel<Conv>(spec, [&](const Kernel<Conv>& k, device::Device& d) {
      EXPECT_DEATH(run_kernel(k, d, spec, {y, ring, x, w, step.rows}), "outside the ring");
    });
  }
}

}  // namespace
}  // namespace winnow::ops::test
