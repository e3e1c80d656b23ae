#include "ops/layer_norm/layer_norm.h"

#include "ops/conformance.h"

namespace winnow::ops::test {
namespace {

void conform(DType x_type, DType y_type, int64_t tokens, int64_t hidden) {
  SCOPED_TRACE(fmt::format("{} -> {}, {} x {}", winnow::name_of(x_type), winnow::name_of(y_type), tokens, hidden));
  const LayerNorm::Spec spec{x_type, y_type, hidden};
  const Tensor x = random_tensor(x_type, {tokens, hidden}, 1, 3, 5), w = random_tensor(DType::f32, {hidden}, 2);
  const Tensor b = random_tensor(DType::f32, {hidden}, 3), want(y_type, {tokens, hidden});
  run_reference<LayerNorm>(spec, {want, x, w, b, 1e-6f});
  std::unique_ptr<Tensor> before;
  for_each_kernel<LayerNorm>(spec, [&](const Kernel<LayerNorm>& k, device::Device& d) {
    Tensor y(y_type, {tokens, hidden});
    run_kernel(k, d, spec, {y, x, w, b, 1e-6f});
    EXPECT_TRUE(y.canaries_intact());
    expect_close(y, want, 2 * epsilon_of(y_type) + 4e-6);
    if (before) EXPECT_TRUE(same_bits(y, before->view)) << "bits depend on kernel or workers";
    else before = std::make_unique<Tensor>(y.clone());
    for (int64_t t = 0; t < tokens; ++t) {
      Tensor one(y_type, {1, hidden});
      run_kernel(k, d, spec, {one, x.view.rows(t, 1), w, b, 1e-6f});
      EXPECT_TRUE(same_bits(one, y.view.rows(t, 1))) << "row " << t << " depends on company";
    }
  });
}

TEST(LayerNorm, Conformance) {
  for (DType x : {DType::f32, DType::bf16})
    for (DType y : {DType::f32, DType::bf16})
      for (int64_t hidden : {2, 15, 16, 17, 64, 128, 250}) conform(x, y, 7, hidden);
  conform(DType::f32, DType::f32, 0, 16);
}

// One channel: the variance is zero and the result is the bias, whatever the value.
TEST(LayerNorm, AConstantRowIsTheBias) {
  const LayerNorm::Spec spec{DType::f32, DType::f32, 3};
  const Tensor x = tensor_of<float>({1, 3}, {7, 7, 7}), w = tensor_of<float>({3}, {1, 2, 3}), b = tensor_of<float>({3}, {4, 5, 6});
  for_each_kernel<LayerNorm>(spec, [&](const Kernel<LayerNorm>& k, device::Device& d) {
    Tensor y(DType::f32, {1, 3});
    run_kernel(k, d, spec, {y, x, w, b, 1e-6f});
    EXPECT_TRUE(same_bits(y, b));
  });
}

}  // namespace
}  // namespace winnow::ops::test
