#include "ops/take_rows/take_rows.h"

#include "ops/conformance.h"

namespace winnow::ops::test {
namespace {

// Bytes that tell every row from every other.
Tensor counted(DType type, std::initializer_list<int64_t> dims) {
  Tensor t(type, dims);
  for (int64_t i = 0; i < t.view.bytes(); ++i) t.view.data[i] = static_cast<std::byte>(i * 37 >> 3);
  return t;
}

void conform(DType type, int64_t tokens, int64_t streams, int64_t hidden, const std::vector<int32_t>& wanted) {
  SCOPED_TRACE(fmt::format("{} of {} rows, {}", wanted.size(), tokens, winnow::name_of(type)));
  const auto shaped = [&](int64_t n) {
    return hidden == 0 ? counted(type, {n}) : streams == 0 ? counted(type, {n, hidden}) : counted(type, {n, streams, hidden});
  };
  const int64_t count = static_cast<int64_t>(wanted.size());
  const Tensor x = shaped(tokens), want = shaped(count), rows = tensor_of<int32_t>({count}, wanted);
  run_reference<TakeRows>({}, {want, x, rows});
  const int64_t bytes = bytes_of(type, x.view.stride[0]);
  for (int64_t i = 0; i < count; ++i)
    EXPECT_EQ(std::memcmp(want.view.data + i * bytes, x.view.data + wanted[static_cast<size_t>(i)] * bytes, static_cast<size_t>(bytes)), 0);
  for_each_kernel<TakeRows>({}, [&](const Kernel<TakeRows>& k, device::Device& d) {
    const Tensor y = shaped(count), same = x.clone();
    run_kernel(k, d, {}, {y, x, rows});
    EXPECT_TRUE(y.canaries_intact());
    EXPECT_TRUE(same_bits(y, want));
    run_kernel(k, d, {}, {same.view.rows(0, count), same, rows});
    EXPECT_TRUE(same.canaries_intact());
    EXPECT_EQ(std::memcmp(same.view.data, want.view.data, static_cast<size_t>(want.view.bytes())), 0) << "y is x";
  });
}

TEST(TakeRows, Conformance) {
  for (DType type : {DType::f32, DType::bf16, DType::i32}) {
    conform(type, 5, 4, 33, {1, 2, 4});
    conform(type, 5, 0, 7, {0, 1, 2, 3, 4});
    conform(type, 9, 0, 0, {8});
    conform(type, 3, 2, 2, {});
  }
}

TEST(TakeRowsDeathTest, ARowOutsideTheStep) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Tensor x = random_tensor(DType::f32, {2, 2}, 1), y(DType::f32, {1, 2});
  for (int32_t row : {-1, 2}) {
    const Tensor rows = tensor_of<int32_t>({1}, {row});
    for_each_kernel<TakeRows>(
        {}, [&](const Kernel<TakeRows>& k, device::Device& d) { EXPECT_DEATH(run_kernel(k, d, {}, {y, x, rows}), "outside the step"); });
  }
}

}  // namespace
}  // namespace winnow::ops::test
