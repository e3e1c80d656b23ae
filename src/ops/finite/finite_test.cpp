#include "ops/finite/finite.h"

#include <limits>

#include "ops/conformance.h"

namespace winnow::ops::test {
namespace {

TEST(Finite, OneValueAnywhereIsFoundInItsRowOnly) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (DType type : {DType::f32, DType::bf16})
    for (int64_t n : {1, 15, 64, 250}) {
      const Finite::Spec spec{type, n};
      Tensor x = random_tensor(type, {9, n}, 1, 1e30);
      std::vector<int32_t> want(9, 0);
      int64_t at = 0;
      for (int64_t t : {1, 4, 5, 8}) {
        ref::set(x, t, at++ % n, t == 1 ? kNan : t == 4 ? kInfinity : t == 5 ? -kInfinity : -kNan);
        want[static_cast<size_t>(t)] = 1;
      }
      ref::set(x, 8, n - 1, kNan);  // the last element
      const Tensor expected = tensor_of<int32_t>({9}, want), of_reference = flags(9);
      run_reference<Finite>(spec, {of_reference, x});
      EXPECT_TRUE(same_bits(of_reference, expected));
      for_each_kernel<Finite>(spec, [&](const Kernel<Finite>& k, device::Device& d) {
        const Tensor bad = flags(9), none = flags(0);
        run_kernel(k, d, spec, {bad, x});
        EXPECT_TRUE(bad.canaries_intact());
        EXPECT_TRUE(same_bits(bad, expected)) << n;
        run_kernel(k, d, spec, {none, x.view.rows(0, 0)});
        const Tensor set = flags(2, 0);  // rows 2 and 3 hold numbers
        run_kernel(k, d, spec, {set, x.view.rows(2, 2)});
        EXPECT_EQ(flagged(set), std::vector<int64_t>{0}) << "a flag that another op has set is gone";
      });
    }
}

}  // namespace
}  // namespace winnow::ops::test
