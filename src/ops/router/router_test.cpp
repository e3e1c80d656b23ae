#include "ops/router/router.h"

#include <limits>
#include <numeric>

#include "ops/conformance.h"

namespace winnow::ops::test {
namespace {

struct Routed {
  Routed(int64_t tokens, int64_t top_k) : ids(DType::i32, {tokens, top_k}), weights(DType::f32, {tokens, top_k}) {}
  Tensor ids, weights;
};

// Logits on a grid, so that a rounding never decides between two experts, while exact ties are plentiful.
Tensor grid_logits(int64_t tokens, int64_t experts, uint64_t seed, int levels) {
  Tensor t(DType::f32, {tokens, experts});
  std::mt19937_64 rng(seed);
  for (int64_t i = 0; i < tokens * experts; ++i)
    t.as<float>()[i] =
        static_cast<float>(static_cast<int64_t>(rng() % static_cast<uint64_t>(levels)) - levels / 2) * (8.0f / static_cast<float>(levels));
  return t;
}

void conform(const Router::Spec& spec, int64_t tokens, int levels, bool with_bias) {
  SCOPED_TRACE(fmt::format("{} tokens, {} experts in {} groups, top {}", tokens, spec.experts, spec.groups, spec.top_k));
  const Tensor logits = grid_logits(tokens, spec.experts, 5, levels), bias(DType::f32, {spec.experts});
  for (int64_t e = 0; e < spec.experts; ++e) bias.as<float>()[e] = with_bias ? static_cast<float>(e % 5) * 0.371f - 0.9f : 0;
  const Routed want(tokens, spec.top_k);
  run_reference<Router>(spec, {want.ids, want.weights, logits, bias});
  std::unique_ptr<Tensor> before;
  for_each_kernel<Router>(spec, [&](const Kernel<Router>& k, device::Device& d) {
    Routed got(tokens, spec.top_k);
    run_kernel(k, d, spec, {got.ids, got.weights, logits, bias});
    EXPECT_TRUE(got.ids.canaries_intact() && got.weights.canaries_intact());
    EXPECT_TRUE(same_bits(got.ids, want.ids));
    expect_close(got.weights, want.weights, 2e-6);
    if (before) EXPECT_TRUE(same_bits(got.weights, before->view)) << "bits depend on kernel or workers";
    else before = std::make_unique<Tensor>(got.weights.clone());
    for (int64_t t = 0; t < tokens; ++t) {
      Routed one(1, spec.top_k);
      run_kernel(k, d, spec, {one.ids, one.weights, logits.view.rows(t, 1), bias});
      EXPECT_TRUE(same_bits(one.ids, got.ids.view.rows(t, 1)) && same_bits(one.weights, got.weights.view.rows(t, 1)));
    }
  });
}

TEST(Router, Conformance) {
  for (bool normalise : {true, false})
    for (int levels : {9, 1024}) {
      conform({288, 8, 1, 1, normalise, 2.5f}, 7, levels, true);
      conform({1, 1, 1, 1, normalise, 1}, 3, levels, true);
      conform({17, 5, 1, 1, normalise, 2.5f}, 7, levels, false);
      conform({24, 24, 1, 1, normalise, 1}, 5, levels, true);
      conform({64, 6, 8, 3, normalise, 2.5f}, 7, levels, true);
      conform({15, 4, 5, 2, normalise, 1}, 7, levels, false);
      conform({6, 6, 3, 3, normalise, 1}, 7, levels, false);
    }
  conform({288, 8, 1, 1, true, 2.5f}, 0, 9, true);
}

// Every kernel and the reference on one row.
void expect_row(const Router::Spec& spec, const std::vector<float>& logits, const std::vector<float>& bias, const std::vector<int32_t>& ids,
                const std::vector<float>& weights) {
  const Tensor l = tensor_of<float>({1, spec.experts}, logits), b = tensor_of<float>({spec.experts}, bias);
  auto compare = [&](const Routed& r) {
    for (int64_t i = 0; i < spec.top_k; ++i) {
      EXPECT_EQ(r.ids.as<int32_t>()[i], ids[i]) << "rank " << i;
      if (weights.empty()) continue;
      EXPECT_NEAR(r.weights.as<float>()[i], weights[i], 1e-6) << "rank " << i;
    }
  };
  Routed r(1, spec.top_k);
  run_reference<Router>(spec, {r.ids, r.weights, l, b});
  compare(r);
  for_each_kernel<Router>(spec, [&](const Kernel<Router>& k, device::Device& d) {
    run_kernel(k, d, spec, {r.ids, r.weights, l, b});
    compare(r);
  });
}

// The bias chooses, the unbiased score weighs.
TEST(Router, WorkedNumbers) { expect_row({4, 2, 1, 1, true, 2.5f}, {0.5f, -1, 2, 0.1f}, {0, 0.6f, -0.5f, 0}, {1, 0}, {0.754266f, 1.745734f}); }

TEST(Router, TiesGoToTheLowerExpert) {
  expect_row({6, 4, 1, 1, true, 1}, {1, 2, 1, 2, 1, 1}, {0, 0, 0, 0, 0, 0}, {1, 3, 0, 2}, {});
  expect_row({4, 3, 1, 1, false, 1}, {40, 30, 50, 0}, {0, 0, 0, 0}, {0, 1, 2}, {1, 1, 1});  // saturated: equal in f32
}

// Group scores from the two largest: (2 + 1), (3 - 9), (1 + 1) of the biased scores; the best single expert is in a group left out.
TEST(Router, GroupsAreKeptByTheirTwoBest) {
  expect_row({6, 2, 3, 1, false, 1}, {0, 0, 0, 0, 0, 0}, {2, 1, 3, -9, 1, 1}, {0, 1}, {0.5f, 0.5f});
  expect_row({6, 3, 3, 2, false, 1}, {0, 0, 0, 0, 0, 0}, {2, 1, 3, -9, 1, 1}, {0, 1, 4}, {0.5f, 0.5f, 0.5f});
}

// A kept group may hold negative scores only: experts outside never come in, as they would if they were masked with 0.
TEST(Router, NegativeScoresOfAKeptGroupStayInIt) { expect_row({4, 2, 2, 1, false, 1}, {0, 0, 0, 0}, {-3, -4, -2, -9}, {0, 1}, {0.5f, 0.5f}); }

TEST(Router, IdsAreDistinctExpertsWhateverTheLogits) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  expect_row({4, 3, 1, 1, true, 1}, {nan, -inf, nan, inf}, {0, 0, 0, 0}, {3, 1, 0}, {});
  expect_row({4, 4, 1, 1, true, 1}, {nan, nan, nan, nan}, {0, 0, 0, 0}, {0, 1, 2, 3}, {});
  expect_row({4, 2, 2, 1, true, 1}, {nan, nan, nan, 1}, {0, 0, 0, 0}, {0, 1}, {});  // both groups score NaN: the lower one
  expect_row({4, 2, 1, 1, true, 1}, {-1e30f, -1e30f, -1e30f, -1e30f}, {0, 0, 0, 0}, {0, 1}, {0, 0});
}

TEST(Router, FlagsRowsWhoseChoiceMeansNothing) {
  const Router::Spec spec{17, 3, 1, 1, true, 1};
  const Tensor logits = random_tensor(DType::f32, {5, 17}, 1), bias = random_tensor(DType::f32, {17}, 2);
  ref::set(logits, 1, 16, std::numeric_limits<float>::quiet_NaN());
  ref::set(logits, 3, 0, std::numeric_limits<float>::infinity());
  const std::vector<int64_t> want{1, 2, 3};
  const Routed r(5, 3);
  const Tensor of_reference = flags(5, 2);
  run_reference<Router>(spec, {r.ids, r.weights, logits, bias, of_reference});
  EXPECT_EQ(flagged(of_reference), want);
  for_each_kernel<Router>(spec, [&](const Kernel<Router>& k, device::Device& d) {
    const Tensor bad = flags(5, 2);
    run_kernel(k, d, spec, {r.ids, r.weights, logits, bias, bad});
    EXPECT_EQ(flagged(bad), want);
  });
}

}  // namespace
}  // namespace winnow::ops::test
