#include "ops/rms_norm/rms_norm.h"

#include "ops/conformance.h"

namespace winnow::ops::test {
namespace {

void conform(DType x_type, DType y_type, int64_t tokens, int64_t hidden) {
  SCOPED_TRACE(fmt::format("{} -> {}, {} x {}", winnow::name_of(x_type), winnow::name_of(y_type), tokens, hidden));
  const RmsNorm::Spec spec{x_type, y_type, hidden};
  const Tensor x = random_tensor(x_type, {tokens, hidden}, 1, 3), w = random_tensor(DType::f32, {hidden}, 2);
  const Tensor want(y_type, {tokens, hidden});
  run_reference<RmsNorm>(spec, {want, x, w, 1e-5f});
  std::unique_ptr<Tensor> before;
  for_each_kernel<RmsNorm>(spec, [&](const Kernel<RmsNorm>& k, device::Device& d) {
    Tensor y(y_type, {tokens, hidden});
    run_kernel(k, d, spec, {y, x, w, 1e-5f});
    EXPECT_TRUE(y.canaries_intact());
    expect_close(y, want, 2 * epsilon_of(y_type) + 1e-6);
    if (before) EXPECT_TRUE(same_bits(y, before->view)) << "bits depend on kernel or workers";
    else before = std::make_unique<Tensor>(y.clone());
    for (int64_t t = 0; t < tokens; ++t) {  // a row alone
      Tensor one(y_type, {1, hidden});
      run_kernel(k, d, spec, {one, x.view.rows(t, 1), w, 1e-5f});
      EXPECT_TRUE(same_bits(one, y.view.rows(t, 1))) << "row " << t << " depends on company";
    }
  });
}

TEST(RmsNorm, Conformance) {
  for (DType x : {DType::f32, DType::bf16})
    for (DType y : {DType::f32, DType::bf16})
      for (int64_t hidden : {1, 15, 16, 17, 64, 250, 4096}) conform(x, y, 5, hidden);
}

TEST(RmsNorm, NoRows) {
  const RmsNorm::Spec spec{DType::f32, DType::f32, 8};
  const Tensor x(DType::f32, {0, 8}), w = random_tensor(DType::f32, {8}, 1), y(DType::f32, {0, 8});
  for_each_kernel<RmsNorm>(spec, [&](const Kernel<RmsNorm>& k, device::Device& d) { run_kernel(k, d, spec, {y, x, w, 1e-5f}); });
}

}  // namespace
}  // namespace winnow::ops::test
