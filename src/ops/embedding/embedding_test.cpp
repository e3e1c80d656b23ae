#include "ops/embedding/embedding.h"

#include "ops/conformance.h"

namespace winnow::ops::test {
namespace {

void conform(DType table_type, DType y_type, int64_t tokens, int64_t streams, int64_t hidden) {
  SCOPED_TRACE(fmt::format("{} -> {}, {} x {} x {}", winnow::name_of(table_type), winnow::name_of(y_type), tokens, streams, hidden));
  const Embedding::Spec spec{table_type, y_type, 11, streams, hidden};
  const Tensor table = random_tensor(table_type, {11, hidden}, 1), ids(DType::i32, {tokens}), want(y_type, {tokens, streams, hidden});
  for (int64_t t = 0; t < tokens; ++t) ids.as<int32_t>()[t] = static_cast<int32_t>(t == 0 ? 10 : t * 7 % 11);
  run_reference<Embedding>(spec, {want, ids, table});
  for_each_kernel<Embedding>(spec, [&](const Kernel<Embedding>& k, device::Device& d) {
    Tensor y(y_type, {tokens, streams, hidden});
    run_kernel(k, d, spec, {y, ids, table});
    EXPECT_TRUE(y.canaries_intact());
    EXPECT_TRUE(same_bits(y, want)) << "a copy or one rounding has one result";
  });
}

TEST(Embedding, Conformance) {
  for (DType table : {DType::f32, DType::bf16})
    for (DType y : {DType::f32, DType::bf16})
      for (int64_t streams : {1, 4})
        for (int64_t hidden : {1, 15, 16, 33, 250}) conform(table, y, 9, streams, hidden);
  conform(DType::bf16, DType::f32, 0, 4, 16);
}

TEST(Embedding, EveryStreamStartsAsTheSameRow) {
  const Tensor table = tensor_of<float>({2, 2}, {1, 2, 3, 4}), ids = tensor_of<int32_t>({1}, {1}), y(DType::f32, {1, 3, 2});
  run_reference<Embedding>({DType::f32, DType::f32, 2, 3, 2}, {y, ids, table});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(y.as<float>()[i], i % 2 ? 4 : 3);
}

TEST(Embedding, NoKernelTakesCodesWithoutScales) {
  const Embedding::Spec spec{DType::e4m3, DType::f32, 2, 1, 2};
  for (const Kernel<Embedding>& k : kernels(Embedding{}, Ref{})) EXPECT_NE(k.why_not({}, spec), nullptr) << k.name;
  for (const Kernel<Embedding>& k : kernels(Embedding{}, Cpu{})) EXPECT_NE(k.why_not({}, spec), nullptr) << k.name;
}

TEST(EmbeddingDeathTest, AnIdOutsideTheVocabulary) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Embedding::Spec spec{DType::f32, DType::f32, 2, 1, 2};
  const Tensor table = random_tensor(DType::f32, {2, 2}, 1), y(DType::f32, {1, 1, 2});
  for (int32_t id : {-1, 2}) {
    const Tensor ids = tensor_of<int32_t>({1}, {id});
    for_each_kernel<Embedding>(spec, [&](const Kernel<Embedding>& k, device::Device& d) {
      EXPECT_DEATH(run_kernel(k, d, spec, {y, ids, table}), "outside the vocabulary");
    });
  }
}

}  // namespace
}  // namespace winnow::ops::test
