#include "ops/experts/experts.h"

#include <map>

#include "ops/conformance.h"

namespace winnow::ops::test {
namespace {

struct Case {
  Case(const Experts::Spec& s, int64_t tokens, bool with_add, uint64_t seed = 1) : spec(s) {
    for (int64_t e = 0; e < s.experts; ++e) {
      matrix(s.inter, s.hidden, seed + 10 * e);
      matrix(s.inter, s.hidden, seed + 10 * e + 2);
      matrix(s.hidden, s.inter, seed + 10 * e + 4);
    }
    for (int64_t e = 0; e < s.experts; ++e) experts.push_back({of(3 * e), of(3 * e + 1), of(3 * e + 2)});
    x = random_tensor(s.x, {tokens, s.hidden}, seed + 1000);
    weights = random_tensor(DType::f32, {tokens, s.top_k}, seed + 1001);
    if (with_add) add = random_tensor(DType::f32, {tokens, s.hidden}, seed + 1002);
    ids = Tensor(DType::i32, {tokens, s.top_k});
    std::mt19937_64 rng(seed + 1003);
    for (int64_t i = 0; i < tokens * s.top_k; ++i) ids.as<int32_t>()[i] = static_cast<int32_t>(rng() % static_cast<uint64_t>(s.experts));
  }
  Matrix of(size_t i) const { return {data[i], scale[i]}; }
  Experts::Args args(const Tensor& y) const { return {y, x, ids, weights, add, experts}; }
  Experts::Args row(const Tensor& y, int64_t t) const {
    return {y, x.view.rows(t, 1), ids.view.rows(t, 1), weights.view.rows(t, 1), add.view ? add.view.rows(t, 1) : TensorView{}, experts};
  }
  Experts::Spec spec;
  std::vector<Tensor> data, scale;
  std::vector<Expert> experts;
  Tensor x, ids, weights, add;

 private:
  void matrix(int64_t n, int64_t k, uint64_t seed) {
    const bool scaled = spec.w == DType::e4m3;
    const float size = 1 / std::sqrt(static_cast<float>(k));
    data.push_back(random_tensor(spec.w, {n, k}, seed, scaled ? 40 : 2 * size));
    scale.push_back(scaled ? random_tensor(DType::f32, {ceil_div(n, kFp8Block), ceil_div(k, kFp8Block)}, seed + 1, 0.05f * size) : Tensor());
  }
};

std::string arithmetic_of(std::string_view kernel) {
  const bool lanes = kernel.ends_with("_avx512") || kernel.ends_with("_avx2");
  return lanes ? "lanes" : std::string(kernel);
}

void conform(const Experts::Spec& s, int64_t tokens, bool with_add) {
  SCOPED_TRACE(fmt::format("w {} x {} y {}, {} tokens, {} of {} experts, {} x {}, limit {}", winnow::name_of(s.w), winnow::name_of(s.x),
                           winnow::name_of(s.y), tokens, s.top_k, s.experts, s.hidden, s.inter, s.limit));
  const Case c(s, tokens, with_add);
  const Tensor want(s.y, {tokens, s.hidden});
  const Limits limits{.max_rows = tokens};
  run_reference<Experts>(s, c.args(want));
  // The inner rounding to bf16 may fall on the other side of a tie; its error is one part in 256 of one of `inter` terms.
  const double tolerance = 1e-5 + (s.x == DType::bf16 ? 1.0 / 128 : 0) + (s.y == DType::bf16 ? 1.0 / 256 : 0);
  std::map<std::string, Tensor> first;
  for_each_kernel<Experts>(s, [&](const Kernel<Experts>& k, device::Device& d) {
    Tensor y(s.y, {tokens, s.hidden});
    run_kernel<Experts>(k, d, s, c.args(y), limits);
    EXPECT_TRUE(y.canaries_intact());
    expect_close(y, want, tolerance);
    const auto [before, is_first] = first.try_emplace(arithmetic_of(k.name), y.clone());
    EXPECT_TRUE(is_first || same_bits(y, before->second)) << "bits depend on the instruction set or the workers";
    if (d.caps().workers != 1) return;
    for (int64_t t = 0; t < tokens; t += tokens < 8 ? 1 : 23) {
      Tensor one(s.y, {1, s.hidden});
      run_kernel<Experts>(k, d, s, c.row(one, t), {.max_rows = 1});
      EXPECT_TRUE(same_bits(one, y.view.rows(t, 1))) << "row " << t << " depends on company";
    }
  });
}

TEST(Experts, Conformance) {
  for (DType w : {DType::f32, DType::bf16, DType::e4m3})
    for (DType x : {DType::f32, DType::bf16}) {
      conform({w, x, DType::f32, 4, 2, 33, 17, 1.5f}, 1, true);
      conform({w, x, DType::bf16, 4, 2, 33, 17, 0}, 6, false);
      conform({w, x, DType::f32, 9, 3, 130, 70, 0.7f}, 24, true);  // up to a dozen rows an expert
      conform({w, x, x, 2, 2, 200, 150, 1.5f}, 150, true);         // more rows an expert than a panel has
    }
}

TEST(Experts, OneExpertTakesAllAndOthersNone) {
  const Experts::Spec s{DType::bf16, DType::f32, DType::f32, 5, 1, 40, 24, 10};
  Case c(s, 9, false);
  std::fill(c.ids.as<int32_t>(), c.ids.as<int32_t>() + 9, 3);
  for (size_t e : {0, 1, 2, 4}) c.experts[e] = {};  // never read
  const Tensor want(s.y, {9, s.hidden});
  run_reference<Experts>(s, c.args(want));
  for_each_kernel<Experts>(s, [&](const Kernel<Experts>& k, device::Device& d) {
    Tensor y(s.y, {9, s.hidden});
    run_kernel<Experts>(k, d, s, c.args(y), {.max_rows = 9});
    expect_close(y, want, 1e-5);
  });
}

// The gate has only an upper bound, the value has both; a limit of 0 is none.
TEST(Experts, ClampsOnBothSidesOfTheValueAndOnlyAboveTheGate) {
  for (float limit : {10.0f, 0.0f}) {
    const Experts::Spec s{DType::f32, DType::f32, DType::f32, 1, 1, 2, 3, limit};
    Case c(s, 1, false);
    const auto set = [](Tensor& t, std::vector<float> v) { std::copy(v.begin(), v.end(), t.as<float>()); };
    set(c.data[0], {12, 0, -12, 0, 1, 0});
    set(c.data[1], {-11, 0, 3, 0, 2, 0});
    set(c.data[2], {1, 0, 0, 0, 1, 1});
    set(c.x, {1, 0});
    set(c.weights, {2});
    c.ids.as<int32_t>()[0] = 0;
    for_each_kernel<Experts>(s, [&](const Kernel<Experts>& k, device::Device& d) {
      Tensor y(s.y, {1, 2});
      run_kernel<Experts>(k, d, s, c.args(y));
      EXPECT_NEAR(y.as<float>()[0], 2 * (limit > 0 ? -99.99546f : -131.99919f), 1e-3f);
      EXPECT_NEAR(y.as<float>()[1], 2 * (1.462117f - 0.000221f), 1e-5f);
    });
  }
}

TEST(Experts, ANanReachesTheResultAndOnlyItsOwnRow) {
  for (DType x : {DType::f32, DType::bf16}) {
    const Experts::Spec s{DType::bf16, x, DType::f32, 3, 2, 20, 18, 1};
    Case c(s, 5, true);
    ref::set(c.x, 2, 7, NAN);
    for_each_kernel<Experts>(s, [&](const Kernel<Experts>& k, device::Device& d) {
      Tensor y(s.y, {5, s.hidden});
      run_kernel<Experts>(k, d, s, c.args(y), {.max_rows = 5});
      for (int64_t i = 0; i < 5 * s.hidden; ++i) EXPECT_EQ(std::isnan(y.as<float>()[i]), i / s.hidden == 2) << i;
    });
  }
}

// The clamps compare, and a comparison with a NaN is false: neither side may be lost there.
TEST(Experts, ANanOfTheGateOrOfTheValueAlonePassesTheClamps) {
  for (bool of_gate : {true, false}) {
    const Experts::Spec s{DType::f32, DType::f32, DType::f32, 1, 1, 20, 18, 1};
    Case c(s, 1, false);
    c.ids.as<int32_t>()[0] = 0;
    c.data[of_gate ? 0 : 1].as<float>()[5 * s.hidden + 3] = NAN;
    for_each_kernel<Experts>(s, [&](const Kernel<Experts>& k, device::Device& d) {
      Tensor y(s.y, {1, s.hidden});
      run_kernel<Experts>(k, d, s, c.args(y));
      for (int64_t i = 0; i < s.hidden; ++i) EXPECT_TRUE(std::isnan(y.as<float>()[i])) << i;
    });
  }
}

// Bit for bit: f32 multiply-adds in the order of the ranks, then `add`.
TEST(Experts, RanksAddInAscendingOrder) {
  const Experts::Spec s{DType::bf16, DType::f32, DType::f32, 6, 4, 48, 32, 0};
  const Case c(s, 3, true);
  for_each_kernel<Experts>(s, [&](const Kernel<Experts>& k, device::Device& d) {
    Tensor y(s.y, {3, s.hidden});
    run_kernel<Experts>(k, d, s, c.args(y), {.max_rows = 3});
    std::vector<float> sum(static_cast<size_t>(3 * s.hidden));
    Experts::Spec single = s;
    single.top_k = 1;
    const Tensor one = tensor_of<float>({3, 1}, {1, 1, 1});
    for (int64_t r = 0; r < s.top_k; ++r) {
      Tensor ids(DType::i32, {3, 1}), out(DType::f32, {3, s.hidden});
      for (int64_t t = 0; t < 3; ++t) ids.as<int32_t>()[t] = c.ids.as<int32_t>()[t * s.top_k + r];
      run_kernel<Experts>(k, d, single, {out, c.x, ids, one, {}, c.experts}, {.max_rows = 3});
      for (int64_t i = 0; i < 3 * s.hidden; ++i) sum[i] = std::fma(c.weights.as<float>()[i / s.hidden * s.top_k + r], out.as<float>()[i], sum[i]);
    }
    for (int64_t i = 0; i < 3 * s.hidden; ++i) EXPECT_EQ(y.as<float>()[i], sum[i] + c.add.as<float>()[i]) << i;
  });
}

TEST(Experts, NoRows) {
  const Experts::Spec s{DType::bf16, DType::f32, DType::f32, 2, 1, 8, 8, 0};
  const Case c(s, 0, false);
  const Tensor y(s.y, {0, 8});
  for_each_kernel<Experts>(s, [&](const Kernel<Experts>& k, device::Device& d) { run_kernel<Experts>(k, d, s, c.args(y)); });
}

}  // namespace
}  // namespace winnow::ops::test
