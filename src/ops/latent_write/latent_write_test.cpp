#include "ops/latent_write/latent_write.h"

#include "ops/step_rows.h"

namespace winnow::ops::test {
namespace {

// The last token page edge and the first row of the next page, a page in the middle of a sequence, a wider page stride.
void conform(DType x_type, DType pages_type, int64_t dim, int64_t page_tokens, int64_t padding) {
  SCOPED_TRACE(fmt::format("{} -> {}, dim {}, {} tokens a page, {} elements between pages", winnow::name_of(x_type), winnow::name_of(pages_type), dim,
                           page_tokens, padding));
  StepRows step({{0, page_tokens - 2, 5}, {1, 0, 1}, {2, 3 * page_tokens - 1, 2}}, page_tokens);
  const int64_t tokens = step.rows.tokens(), stride = page_tokens * dim + padding;
  const LatentWrite::Spec spec{x_type, pages_type, dim};
  const Tensor x = random_tensor(x_type, {tokens, dim}, 1);
  auto strided = [&](const Tensor& memory) {
    TensorView v = memory;
    v.rank = 3;
    v.shape = {step.pages(), page_tokens, dim};
    v.stride = {stride, dim, 1};
    return v;
  };
  const Tensor want(pages_type, {step.pages() * stride});
  run_reference<LatentWrite>(spec, {strided(want), x, step.rows});
  for_each_kernel<LatentWrite>(spec, [&](const Kernel<LatentWrite>& k, device::Device& d) {
    Tensor pages(pages_type, {step.pages() * stride});
    run_kernel(k, d, spec, {strided(pages), x, step.rows});
    EXPECT_TRUE(pages.canaries_intact());
    EXPECT_TRUE(same_bits(pages, want)) << "a row went elsewhere, or bytes beside it changed";
  });
}

TEST(LatentWrite, Conformance) {
  for (DType x : {DType::f32, DType::bf16})
    for (DType pages : {DType::f32, DType::bf16})
      for (int64_t dim : {1, 17, 64, 513}) {
        conform(x, pages, dim, 64, 0);
        conform(x, pages, dim, 16, 96);
        for (int64_t page_tokens : {128, 256}) conform(x, pages, dim, page_tokens, 0);
      }
}

TEST(LatentWrite, WritesItsSlotsAndNothingElse) {
  StepRows step({{0, 63, 2}});
  const Tensor x = tensor_of<float>({2, 2}, {1, 2, 3, 4});
  Tensor pages(DType::f32, {2, 64, 2});
  run_reference<LatentWrite>({DType::f32, DType::f32, 2}, {pages, x, step.rows});
  for (int64_t i = 0; i < pages.view.elements(); ++i) {
    const float v = pages.as<float>()[i];
    if (i >= 126 && i < 130) EXPECT_EQ(v, static_cast<float>(i - 125));
    else EXPECT_TRUE(std::isnan(v)) << i;
  }
}

TEST(LatentWriteDeathTest, G03_ASlotOutsideThePages) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const LatentWrite::Spec spec{DType::f32, DType::f32, 4};
  const Tensor x = random_tensor(DType::f32, {1, 4}, 1), pages(DType::f32, {2, 64, 4});
  for (int64_t slot : {int64_t{-1}, int64_t{128}, int64_t{1} << 40}) {
    StepRows step({{0, 0, 1}});
    step.slots()[0] = slot;
    for_each_kernel<LatentWrite>(spec, [&](const Kernel<LatentWrite>& k, device::Device& d) {
      EXPECT_DEATH(run_kernel(k, d, spec, {pages, x, step.rows}), "outside the pages");
    });
  }
}

// What is stored counts: the largest floats round to infinity in bf16.
TEST(LatentWrite, FlagsRowsThatAreNotFiniteAsStored) {
  const StepRows step({{0, 62, 4}, {1, 0, 2}});
  for (DType type : {DType::f32, DType::bf16})
    for (int64_t dim : {1, 17, 64}) {
      const LatentWrite::Spec spec{DType::f32, type, dim};
      const Tensor x = random_tensor(DType::f32, {6, dim}, 1);
      ref::set(x, 1, dim - 1, std::numeric_limits<float>::quiet_NaN());
      ref::set(x, 3, 0, -std::numeric_limits<float>::infinity());
      ref::set(x, 4, dim / 2, 3.4e38f);
      const std::vector<int64_t> want = type == DType::f32 ? std::vector<int64_t>{0, 1, 3} : std::vector<int64_t>{0, 1, 3, 4};
      const Tensor of_reference = flags(6, 0), pages(type, {step.pages(), 64, dim});
      run_reference<LatentWrite>(spec, {pages, x, step.rows, of_reference});
      EXPECT_EQ(flagged(of_reference), want);
      for_each_kernel<LatentWrite>(spec, [&](const Kernel<LatentWrite>& k, device::Device& d) {
        const Tensor bad = flags(6, 0);
        run_kernel(k, d, spec, {pages, x, step.rows, bad});
        EXPECT_EQ(flagged(bad), want);
        EXPECT_TRUE(bad.canaries_intact());
      });
    }
}

}  // namespace
}  // namespace winnow::ops::test
