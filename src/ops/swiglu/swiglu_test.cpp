#include "ops/swiglu/swiglu.h"

#include <limits>

#include "ops/conformance.h"

namespace winnow::ops::test {
namespace {

void conform(DType x_type, DType y_type, int64_t tokens, int64_t n, float limit) {
  SCOPED_TRACE(fmt::format("{} -> {}, {} x {}, limit {}", winnow::name_of(x_type), winnow::name_of(y_type), tokens, n, limit));
  const SwiGlu::Spec spec{x_type, y_type, n, limit};
  const Tensor gate = random_tensor(x_type, {tokens, n}, 1, 8), up = random_tensor(x_type, {tokens, n}, 2, 8), want(y_type, {tokens, n});
  run_reference<SwiGlu>(spec, {want, gate, up});
  std::unique_ptr<Tensor> before;
  for_each_kernel<SwiGlu>(spec, [&](const Kernel<SwiGlu>& k, device::Device& d) {
    Tensor y(y_type, {tokens, n});
    run_kernel(k, d, spec, {y, gate, up});
    EXPECT_TRUE(y.canaries_intact());
    expect_close(y, want, 2 * epsilon_of(y_type) + 1e-6);
    if (before) EXPECT_TRUE(same_bits(y, before->view)) << "bits depend on kernel or workers";
    else before = std::make_unique<Tensor>(y.clone());
    for (int64_t t = 0; t < tokens; ++t) {
      Tensor one(y_type, {1, n});
      run_kernel(k, d, spec, {one, gate.view.rows(t, 1), up.view.rows(t, 1)});
      EXPECT_TRUE(same_bits(one, y.view.rows(t, 1))) << "row " << t << " depends on company";
    }
  });
}

TEST(SwiGlu, Conformance) {
  for (DType x : {DType::f32, DType::bf16})
    for (DType y : {DType::f32, DType::bf16})
      for (float limit : {0.0f, 10.0f})
        for (int64_t n : {1, 15, 16, 17, 511, 1030}) conform(x, y, 5, n, limit);
  conform(DType::f32, DType::f32, 0, 16, 10);
}

// Every kernel and the reference on one row of f32.
void expect_row(float limit, const std::vector<float>& gate, const std::vector<float>& up, const std::vector<float>& want, double tolerance) {
  const int64_t n = static_cast<int64_t>(gate.size());
  const SwiGlu::Spec spec{DType::f32, DType::f32, n, limit};
  const Tensor g = tensor_of<float>({1, n}, gate), u = tensor_of<float>({1, n}, up);
  auto compare = [&](const Tensor& y) {
    for (int64_t i = 0; i < n; ++i) {
      const float got = y.as<float>()[i];
      EXPECT_TRUE(std::isnan(want[i]) ? std::isnan(got) : std::abs(got - want[i]) <= tolerance) << i << ": " << got << ", not " << want[i];
    }
  };
  Tensor y(DType::f32, {1, n});
  run_reference<SwiGlu>(spec, {y, g, u});
  compare(y);
  for_each_kernel<SwiGlu>(spec, [&](const Kernel<SwiGlu>& k, device::Device& d) {
    run_kernel(k, d, spec, {y, g, u});
    compare(y);
  });
}

// The gate has no lower bound; `up` has both.
TEST(SwiGlu, WorkedClamp) { expect_row(10, {12, -12, 1, 1}, {-11, 3, 2, 30}, {-99.99546f, -0.000221f, 1.462117f, 7.310586f}, 1e-5); }

TEST(SwiGlu, NoLimit) { expect_row(0, {12, 1}, {-11, 30}, {-131.99919f, 21.931757f}, 2e-5); }

TEST(SwiGlu, FarAndBrokenValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), far = 1e30f;
  expect_row(10, {-far, -300, -100, nan, 1}, {1, 1, 1, 1, nan}, {0, 0, 0, nan, nan}, 1e-30);
  expect_row(0, {-far, -300, nan, 200}, {1, 1, 1, 1}, {0, 0, nan, 200}, 1e-30);
}

}  // namespace
}  // namespace winnow::ops::test
