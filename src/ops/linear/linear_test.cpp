#include "ops/linear/linear.h"

#include "ops/conformance.h"

namespace winnow::ops::test {
namespace {

// A weight matrix with e4m3 scales of a checkpoint's kind: powers of ten apart from block to block.
struct Weight {
  Weight(DType type, int64_t n, int64_t k, uint64_t seed) : data(random_tensor(type, {n, k}, seed, type == DType::e4m3 ? 40 : 0.5f)) {
    if (type != DType::e4m3) return;
    scale = random_tensor(DType::f32, {ceil_div(n, kFp8Block), ceil_div(k, kFp8Block)}, seed + 1, 0.01f);
    for (int64_t i = 0; i < n * k; i += 7) data.as<E4m3>()[i].bits &= 0x87;  // some denormals and zeros
  }
  operator Matrix() const { return {data, scale}; }
  Tensor data, scale;
};

// Error of a sum of k products in f32 and of the rounding of the result. Kernels with bf16 pair sums have the same bound.
double tolerance_of(DType y, int64_t k) { return 4e-7 * (4 + std::sqrt(static_cast<double>(k))) + (y == DType::bf16 ? 1.0 / 256 : 0); }

// Kernels of one arithmetic (the names without the instruction set) must agree in every bit.
std::string arithmetic_of(std::string_view kernel) {
  const bool lanes = kernel.ends_with("_avx512") || kernel.ends_with("_avx2");
  return lanes ? "lanes" : std::string(kernel);
}

void conform(Linear::Spec s, int64_t tokens) {
  SCOPED_TRACE(fmt::format("w {} x {} y {}, {} x {} x {}", winnow::name_of(s.w), winnow::name_of(s.x), winnow::name_of(s.y), tokens, s.n, s.k));
  const Weight w(s.w, s.n, s.k, 3);
  const Tensor x = random_tensor(s.x, {tokens, s.k}, 1), want(s.y, {tokens, s.n});
  run_reference<Linear>(s, {want, x, w});
  std::map<std::string, Tensor> first;
  for_each_kernel<Linear>(s, [&](const Kernel<Linear>& k, device::Device& d) {
    Tensor y(s.y, {tokens, s.n});
    run_kernel<Linear>(k, d, s, {y, x, w});
    EXPECT_TRUE(y.canaries_intact());
    expect_close(y, want, tolerance_of(s.y, s.k));
    const auto [before, is_first] = first.try_emplace(arithmetic_of(k.name), y.clone());
    EXPECT_TRUE(is_first || same_bits(y, before->second)) << "bits depend on the instruction set or the workers";
  });
}

TEST(Linear, Conformance) {
  for (DType w : {DType::f32, DType::bf16, DType::e4m3})
    for (DType x : {DType::f32, DType::bf16})
      for (DType y : {DType::f32, DType::bf16})
        for (int64_t tokens : {1, 2, 3, 4, 5, 13, 70})
          for (auto [n, k] : {std::pair{17, 33}, {130, 600}}) conform({w, x, y, n, k}, tokens);
  for (DType w : {DType::f32, DType::bf16, DType::e4m3})
    for (int64_t tokens : {1, 6})
      for (auto [n, k] : {std::pair{1, 1}, {15, 16}, {16, 15}, {66, 129}}) conform({w, DType::bf16, DType::f32, n, k}, tokens);
}

TEST(Linear, ManyColumnsAndOutputs) {
  for (DType w : {DType::f32, DType::bf16, DType::e4m3})
    for (int64_t tokens : {1, 4, 21}) {
      conform({w, DType::f32, DType::f32, 300, 2500}, tokens);
      conform({w, DType::bf16, DType::bf16, 9, 4096 + 24}, tokens);
    }
}

// The bits of a row are those of the row alone, for every number of rows around the borders of blocks and for many.
TEST(Linear, RowsDoNotDependOnTheirNumber) {
  constexpr int64_t kMost = 4096;
  for (DType w_type : {DType::bf16, DType::e4m3}) {
    const Linear::Spec s{w_type, DType::bf16, DType::f32, 37, 700};
    const Weight w(s.w, s.n, s.k, 5);
    const Tensor x = random_tensor(s.x, {kMost, s.k}, 6);
    for (const Kernel<Linear>& k : kernels(Linear{}, Cpu{})) {
      if (k.why_not(cpu_with(1).caps(), s)) continue;
      Tensor all(s.y, {kMost, s.n}), one(s.y, {1, s.n});
      run_kernel<Linear>(k, cpu_with(2), s, {all, x, w});
      for (int64_t t = 0; t < kMost; t += 37) {
        run_kernel<Linear>(k, cpu_with(1), s, {one, x.view.rows(t, 1), w});
        EXPECT_TRUE(same_bits(one, all.view.rows(t, 1))) << k.name << ": row " << t;
      }
      for (int64_t rows : {2, 3, 4, 5, 7, 8, 12, 13, 16, 31, 63, 64, 65, 127, 129, 300, 1000, 4095}) {
        const int64_t first = (kMost - rows) / 3;  // another place in its blocks than among all
        Tensor y(s.y, {rows, s.n});
        run_kernel<Linear>(k, cpu_with(1 + static_cast<int>(rows % 3)), s, {y, x.view.rows(first, rows), w});
        EXPECT_TRUE(same_bits(y, all.view.rows(first, rows))) << k.name << ": " << rows << " rows";
      }
    }
  }
}

// The order of the sum as the contract states it, written down once more, bit for bit.
float sum_in_contract_order(const Matrix& w, int64_t i, ConstTensorView x, int64_t t, int64_t k) {
  float lanes[16] = {};
  for (int64_t j = 0; j < k; ++j) lanes[j % 16] = std::fma(ref::get(x, t, j), ref::get(w, i, j), lanes[j % 16]);
  for (int half = 8; half >= 1; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

TEST(Linear, LanesAddInTheOrderOfTheContract) {
  for (DType w_type : {DType::f32, DType::bf16, DType::e4m3})
    for (int64_t tokens : {1, 9}) {
      const Linear::Spec s{w_type, DType::f32, DType::f32, 150, 1100};
      const Weight w(s.w, s.n, s.k, 8);
      const Tensor x = random_tensor(s.x, {tokens, s.k}, 9);
      for_each_kernel<Linear>(s, [&](const Kernel<Linear>& k, device::Device& d) {
        Tensor y(s.y, {tokens, s.n});
        run_kernel<Linear>(k, d, s, {y, x, w});
        int wrong = 0;
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t i = 0; i < s.n; ++i) wrong += y.as<float>()[t * s.n + i] != sum_in_contract_order(w, i, x, t, s.k);
        EXPECT_EQ(wrong, 0);
      });
    }
}

TEST(Linear, StridedRowsAndUntouchedGaps) {
  for (DType w_type : {DType::f32, DType::bf16, DType::e4m3})
    for (int64_t tokens : {1, 3, 40}) {
      const Linear::Spec s{w_type, DType::bf16, DType::f32, 21, 50};
      const Weight w(s.w, s.n, s.k, 3);
      const Tensor wide = random_tensor(s.x, {tokens, 90}, 1), want(s.y, {tokens, s.n});
      const TensorView x = wide.view.columns(13, s.k);
      run_reference<Linear>(s, {want, x, w});
      for_each_kernel<Linear>(s, [&](const Kernel<Linear>& k, device::Device& d) {
        Tensor y(s.y, {tokens, 40});
        run_kernel<Linear>(k, d, s, {y.view.columns(9, s.n), x, w});
        for (int64_t t = 0; t < tokens; ++t)
          for (int64_t i = 0; i < 40; ++i) {
            const float got = y.as<float>()[t * 40 + i];
            if (i >= 9 && i < 9 + s.n) EXPECT_NEAR(got, ref::get(want, t, i - 9), 1e-3f * (1 + std::abs(got)));
            else EXPECT_TRUE(std::isnan(got)) << "wrote outside its columns";
          }
      });
    }
}

// A NaN stays in its own row; an infinity in the weights in its own output.
TEST(Linear, NanAndInfinityStayWhereTheyBelong) {
  for (int64_t tokens : {3, 18}) {
    const Linear::Spec s{DType::bf16, DType::f32, DType::f32, 20, 40};
    Weight w(s.w, s.n, s.k, 3);
    w.data.as<Bf16>()[7 * s.k + 39] = to_bf16(INFINITY);
    Tensor x = random_tensor(s.x, {tokens, s.k}, 1);
    x.as<float>()[1 * s.k + 17] = NAN;
    for_each_kernel<Linear>(s, [&](const Kernel<Linear>& k, device::Device& d) {
      Tensor y(s.y, {tokens, s.n});
      run_kernel<Linear>(k, d, s, {y, x, w});
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t i = 0; i < s.n; ++i) {
          const float v = y.as<float>()[t * s.n + i];
          EXPECT_TRUE(t == 1 ? std::isnan(v) : i == 7 ? std::isinf(v) : std::isfinite(v)) << t << ", " << i << ": " << v;
        }
    });
  }
}

TEST(Linear, NoRows) {
  const Linear::Spec s{DType::bf16, DType::f32, DType::f32, 8, 8};
  const Weight w(s.w, 8, 8, 1);
  const Tensor x(s.x, {0, 8}), y(s.y, {0, 8});
  for_each_kernel<Linear>(s, [&](const Kernel<Linear>& k, device::Device& d) { run_kernel<Linear>(k, d, s, {y, x, w}); });
}

TEST(Linear, TheForcedKernelRunsAndTheBoundOnTheSetHolds) {
  auto d = device::make_cpu({.threads = 1, .isa = Isa::avx2});
  const Linear::Spec s{DType::bf16, DType::f32, DType::f32, 8, 8};
  EXPECT_EQ(Op<Linear>(*d, s).kernel(), "linear.cpu_avx2");
  d->forced["linear"] = "linear.cpu_avx512";
  EXPECT_THROW(Op<Linear>(*d, s), Error);
  d->forced["linear"] = "linear.cpu_avx2";
  EXPECT_EQ(Op<Linear>(*d, s).kernel(), "linear.cpu_avx2");
}

void conform_heads(HeadLinear::Spec s, int64_t tokens) {
  SCOPED_TRACE(
      fmt::format("w {} x {} y {}, {} x {} x {} x {}", winnow::name_of(s.w), winnow::name_of(s.x), winnow::name_of(s.y), tokens, s.heads, s.n, s.k));
  const Tensor w = random_tensor(s.w, {s.heads, s.n, s.k}, 3), x = random_tensor(s.x, {tokens, s.heads, s.k}, 1);
  const Tensor want(s.y, {tokens, s.heads, s.n});
  run_reference<HeadLinear>(s, {want, x, w});
  std::map<std::string, Tensor> first;
  for_each_kernel<HeadLinear>(s, [&](const Kernel<HeadLinear>& k, device::Device& d) {
    Tensor y(s.y, {tokens, s.heads, s.n});
    run_kernel<HeadLinear>(k, d, s, {y, x, w});
    EXPECT_TRUE(y.canaries_intact());
    expect_close(y, want, tolerance_of(s.y, s.k));
    const auto [before, is_first] = first.try_emplace(arithmetic_of(k.name), y.clone());
    EXPECT_TRUE(is_first || same_bits(y, before->second)) << "bits depend on the instruction set or the workers";
    if (d.caps().workers != 1) return;
    Tensor one(s.y, {1, s.heads, s.n});
    for (int64_t t = 0; t < tokens; t += 5) {
      run_kernel<HeadLinear>(k, d, s, {one, x.view.rows(t, 1), w});
      EXPECT_TRUE(same_bits(one, y.view.rows(t, 1))) << "row " << t << " depends on company";
    }
  });
}

TEST(HeadLinear, Conformance) {
  for (DType w : {DType::f32, DType::bf16})
    for (DType x : {DType::f32, DType::bf16})
      for (DType y : {DType::f32, DType::bf16})
        for (int64_t tokens : {1, 4, 11})
          for (auto [heads, n, k] : {std::tuple{1, 1, 1}, {2, 17, 5}, {3, 16, 33}, {5, 50, 192}}) conform_heads({w, x, y, heads, n, k}, tokens);
}

}  // namespace
}  // namespace winnow::ops::test
