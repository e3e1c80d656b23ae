#include "ops/conformance.h"
#include "ops/kda/kda.h"

namespace winnow::ops::test {
namespace {

void conform(DType z_type, DType y_type, int64_t tokens, int64_t heads, int64_t dim) {
  SCOPED_TRACE(fmt::format("{} -> {}, {} x {} x {}", winnow::name_of(z_type), winnow::name_of(y_type), tokens, heads, dim));
  const GatedNorm::Spec spec{z_type, y_type, heads, dim};
  const Tensor o = random_tensor(DType::f32, {tokens, heads, dim}, 1, 3), z = random_tensor(z_type, {tokens, heads, dim}, 2, 3);
  const Tensor w = random_tensor(DType::f32, {dim}, 3), want(y_type, {tokens, heads, dim});
  run_reference<GatedNorm>(spec, {want, o, z, w, 1e-5f});
  std::unique_ptr<Tensor> before;
  for_each_kernel<GatedNorm>(spec, [&](const Kernel<GatedNorm>& k, device::Device& d) {
    Tensor y(y_type, {tokens, heads, dim});
    run_kernel(k, d, spec, {y, o, z, w, 1e-5f});
    EXPECT_TRUE(y.canaries_intact());
    expect_close(y, want, 2 * epsilon_of(y_type) + 2e-6);
    if (before) EXPECT_TRUE(same_bits(y, before->view)) << "bits depend on kernel or workers";
    else before = std::make_unique<Tensor>(y.clone());
    for (int64_t t = 0; t < tokens; ++t) {
      Tensor one(y_type, {1, heads, dim});
      run_kernel(k, d, spec, {one, o.view.rows(t, 1), z.view.rows(t, 1), w, 1e-5f});
      EXPECT_TRUE(same_bits(one, y.view.rows(t, 1))) << "row " << t << " depends on company";
    }
  });
}

TEST(GatedNorm, Conformance) {
  for (DType z : {DType::f32, DType::bf16})
    for (DType y : {DType::f32, DType::bf16})
      for (auto [heads, dim] : {std::pair{1, 1}, {3, 15}, {11, 16}, {5, 17}, {2, 128}}) conform(z, y, 3, heads, dim);
  conform(DType::f32, DType::f32, 0, 2, 16);
}

// Each head is normalised alone and gated by a sigmoid (a SiLU would give 0 for z = 0).
TEST(GatedNorm, WorkedHeads) {
  const GatedNorm::Spec spec{DType::f32, DType::f32, 2, 2};
  const Tensor o = tensor_of<float>({1, 2, 2}, {3, 4, 30, -40}), z = tensor_of<float>({1, 2, 2}, {0, 2, 0, -1000}), w = tensor_of<float>({2}, {1, 2});
  for_each_kernel<GatedNorm>(spec, [&](const Kernel<GatedNorm>& k, device::Device& d) {
    Tensor y(DType::f32, {1, 2, 2});
    run_kernel(k, d, spec, {y, o, z, w, 0});
    expect_close(y, tensor_of<float>({1, 2, 2}, {0.424264f, 1.993016f, 0.424264f, 0}), 1e-6);
  });
}

}  // namespace
}  // namespace winnow::ops::test
