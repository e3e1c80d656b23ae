#include "ops/index/index.h"
#include "ops/steps.h"

namespace winnow::ops::test {
namespace {

// int32 memory that holds no -1 yet, which is what unused columns must be set to.
Tensor dirty(std::initializer_list<int64_t> dims) {
  Tensor t(DType::i32, dims);
  std::fill_n(t.as<int32_t>(), t.view.elements(), 123456789);
  return t;
}

// One row each for these numbers of pools (kpool 2): a sequence a row, at the position that completes the last pool.
Step rows_with_pools(const std::vector<int64_t>& pools, const Pages& pages) {
  std::vector<Part> parts;
  for (size_t i = 0; i < pools.size(); ++i) parts.push_back({pools[i] * 2, 1, static_cast<int64_t>(i)});
  return Step(parts, pages);
}

void select(const Kernel<IndexTopK>& k, device::Device& d, int64_t select, const Tensor& score, const Step& step, const Tensor& pools) {
  run_kernel(k, d, {2, select}, {pools, score, 0, step.rows});
  EXPECT_TRUE(pools.canaries_intact());
}

void conform(int64_t wanted, const std::vector<int64_t>& pools, const std::function<float(int64_t row, int64_t pool)>& score_of) {
  const int64_t rows = static_cast<int64_t>(pools.size()), most = *std::max_element(pools.begin(), pools.end());
  const Pages pages(rows, most * 2 + 2, 64, 1);
  const Step step = rows_with_pools(pools, pages);
  const Tensor score(DType::f32, {rows, most + 1});  // beyond a row's pools: NaN
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t p = 0; p < pools[static_cast<size_t>(r)]; ++p) ref::set(score, r, p, score_of(r, p));
  const Tensor want = dirty({rows, wanted});
  run_reference<IndexTopK>({2, wanted}, {want, score, 0, step.rows});
  for_each_kernel<IndexTopK>({2, wanted}, [&](const Kernel<IndexTopK>& k, device::Device& d) {
    const Tensor got = dirty({rows, wanted});
    select(k, d, wanted, score, step, got);
    EXPECT_TRUE(same_bits(got, want)) << "select " << wanted << " of " << most;
    const Tensor part = dirty({rows - 1, wanted});  // rows from the second on
    run_kernel(k, d, {2, wanted}, {part, score.view.rows(1, rows - 1), 1, step.rows});
    EXPECT_TRUE(same_bits(part, got.view.rows(1, rows - 1)));
  });
}

TEST(IndexTopK, Conformance) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (int64_t wanted : {1, 7, 16, 64})
    for (int64_t most : {1, 15, 65, 700}) {
      const std::vector<int64_t> pools{most, 0, most / 2, wanted, wanted + 1, most};
      conform(wanted, pools, [&](int64_t, int64_t) { return normal(rng); });
      conform(wanted, pools, [&](int64_t, int64_t) { return static_cast<float>(rng() % 3) - 1; });                   // ties
      conform(wanted, pools, [&](int64_t, int64_t) { return rng() % 2 ? 0.0f : -0.0f; });                            // equal
      conform(wanted, pools, [&](int64_t, int64_t) { return std::bit_cast<float>(static_cast<uint32_t>(rng())); });  // any float
      conform(wanted, pools, [&](int64_t, int64_t) { return rng() % 3 ? (rng() % 2 ? nan : -inf) : normal(rng); });
      conform(wanted, pools, [&](int64_t, int64_t p) { return 1 + static_cast<float>(p % 50) * 1.2e-7f; });  // only low bits differ
    }
  conform(512, {40'000, 513, 512}, [&](int64_t, int64_t) { return normal(rng) * normal(rng); });
}

TEST(IndexTopK, TiesGoToTheLowerPoolEveryTime) {
  const Pages pages(1, 3000, 64, 1);
  const Step step({{2999, 1, 0}}, pages);
  const Tensor score(DType::f32, {1, 1500});
  for (int64_t p = 0; p < 1500; ++p) ref::set(score, p, 0.25f);
  for_each_kernel<IndexTopK>({2, 100}, [&](const Kernel<IndexTopK>& k, device::Device& d) {
    for (int run = 0; run < 100; ++run) {
      const Tensor got = dirty({1, 100});
      select(k, d, 100, score, step, got);
      for (int32_t i = 0; i < 100; ++i) ASSERT_EQ(got.as<int32_t>()[i], i);
    }
  });
}

// A row divides its own length by kpool: rows at positions 6 and 7 see one pool and two (kpool 4); a row before the
// first complete pool selects nothing, and its whole row is written.
TEST(IndexTopK, EachRowCountsItsOwnPools) {
  const Pages pages(2, 8, 8, 1);
  const Step step({{6, 2, 0}, {0, 1, 1}}, pages);
  const Tensor score(DType::f32, {3, 2});
  auto expect = [&](const Kernel<IndexTopK>& k, device::Device& d) {
    const Tensor got = dirty({3, 3});
    run_kernel(k, d, {4, 3}, {got, score, 0, step.rows});
    EXPECT_EQ(std::vector<int32_t>(got.as<int32_t>(), got.as<int32_t>() + 9), (std::vector<int32_t>{0, -1, -1, 0, 1, -1, -1, -1, -1}));
  };
  expect(kernels(IndexTopK{}, Ref{})[0], cpu_with(1));
  for_each_kernel<IndexTopK>({4, 3}, expect);
}

struct Expanded {
  std::vector<int32_t> tokens;
  int32_t count;
};

Expanded expand(const Kernel<PoolExpand>& k, device::Device& d, const PoolExpand::Spec& spec, int64_t position, const std::vector<int32_t>& ids) {
  const Pages pages(1, position + 1, 8 * spec.kpool, 1);
  const Step step({{position, 1, 0}}, pages);
  const Tensor pools = tensor_of<int32_t>({1, spec.select}, ids), tokens = dirty({1, spec.width()}), count = dirty({1});
  run_kernel(k, d, spec, {tokens, count, pools, 0, step.rows});
  EXPECT_TRUE(tokens.canaries_intact() && count.canaries_intact());
  return {{tokens.as<int32_t>(), tokens.as<int32_t>() + spec.width()}, count.as<int32_t>()[0]};
}

void for_reference_and_kernels(const PoolExpand::Spec& spec, const std::function<void(const Kernel<PoolExpand>&, device::Device&)>& f) {
  f(kernels(PoolExpand{}, Ref{})[0], cpu_with(1));
  for_each_kernel<PoolExpand>(spec, f);
}

using Ids = std::vector<int32_t>;

TEST(PoolExpand, KnownRows) {
  for_reference_and_kernels({4, 2, true}, [](const Kernel<PoolExpand>& k, device::Device& d) {
    const PoolExpand::Spec two{4, 2, true};
    Expanded e = expand(k, d, two, 17, {3, -1});  // pool, then the tail with no gap
    EXPECT_EQ(e.tokens, (Ids{12, 13, 14, 15, 16, 17, -1, -1, -1, -1, -1}));
    EXPECT_EQ(e.count, 6);
    e = expand(k, d, two, 17, {3, 4});  // pool 4 is not complete at position 17
    EXPECT_EQ(e.count, 6);
    e = expand(k, d, two, 10, {0, 1});  // full, and the newest tokens are still there
    EXPECT_EQ(e.tokens, (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
    e = expand(k, d, two, 19, {0, 1});  // the pool that this token completed is a pool like any other
    EXPECT_EQ(e.tokens, (Ids{0, 1, 2, 3, 4, 5, 6, 7, -1, -1, -1}));
    e = expand(k, d, two, 1, {-1, -1});
    EXPECT_EQ(e.tokens, (Ids{0, 1, -1, -1, -1, -1, -1, -1, -1, -1, -1}));
    e = expand(k, d, {4, 2, false}, 1, {-1, -1});  // without the tail a short row is empty
    EXPECT_EQ(e.tokens, (Ids(8, -1)));
    EXPECT_EQ(e.count, 0);
    e = expand(k, d, {4, 8, true}, 17, {0, 1, 2, 3, -1, -1, -1, -1});
    EXPECT_EQ(e.count, 18);
    for (int32_t i = 0; i < 18; ++i) EXPECT_EQ(e.tokens[static_cast<size_t>(i)], i);
    EXPECT_EQ(e.tokens[18], -1);
  });
}

TEST(PoolExpand, Conformance) {
  for (int64_t kpool : {1, 4, 8, 16})
    for (bool tail : {false, true}) {
      const PoolExpand::Spec spec{kpool, 5, tail};
      const Pages pages(2, 12 * kpool, 4 * kpool, 2);
      const Step step({{0, 11 * kpool, 1}, {3, 5 * kpool, 0}}, pages);
      const int64_t first = 2, count = step.rows.tokens() - 3;
      const Tensor pools(DType::i32, {count, 5});
      std::mt19937 rng(3);
      for (int64_t r = 0; r < count; ++r) {
        std::set<int32_t> ids;
        for (int i = 0; i < 5; ++i) ids.insert(static_cast<int32_t>(rng() % 14));  // some beyond the complete ones
        std::vector<int32_t> row(ids.begin(), ids.end());
        row.resize(5, -1);
        std::copy(row.begin(), row.end(), pools.as<int32_t>() + r * 5);
      }
      const Tensor want = dirty({count, spec.width()}), want_count = dirty({count});
      run_reference<PoolExpand>(spec, {want, want_count, pools, first, step.rows});
      for_each_kernel<PoolExpand>(spec, [&](const Kernel<PoolExpand>& k, device::Device& d) {
        const Tensor tokens = dirty({count, spec.width()}), counts = dirty({count});
        run_kernel(k, d, spec, {tokens, counts, pools, first, step.rows});
        EXPECT_TRUE(tokens.canaries_intact() && counts.canaries_intact());
        EXPECT_TRUE(same_bits(tokens, want) && same_bits(counts, want_count)) << kpool;
      });
    }
}

TEST(IndexTopK, FlagsRowsWhoseChoiceMeansNothing) {
  const Pages pages(5, 84, 64, 1);
  const std::vector<int64_t> pools{40, 40, 3, 40, 40};
  const Step step = rows_with_pools(pools, pages);
  const Tensor score(DType::f32, {5, 41});  // beyond a row's pools: NaN
  for (int64_t r = 0; r < 5; ++r)
    for (int64_t p = 0; p < pools[static_cast<size_t>(r)]; ++p) ref::set(score, r, p, static_cast<float>(p % 7));
  ref::set(score, 1, 39, std::numeric_limits<float>::quiet_NaN());
  ref::set(score, 2, 1, std::numeric_limits<float>::infinity());  // selects everything without a look
  ref::set(score, 3, 0, -std::numeric_limits<float>::infinity());
  const auto expect = [&](const Kernel<IndexTopK>& k, device::Device& d) {
    const Tensor got = dirty({4, 3}), bad = flags(5, 4);
    run_kernel(k, d, {2, 3}, {got, score.view.rows(1, 4), 1, step.rows, bad});
    EXPECT_EQ(flagged(bad), (std::vector<int64_t>{1, 3, 4}));
    EXPECT_TRUE(bad.canaries_intact());
  };
  expect(kernels(IndexTopK{}, Ref{})[0], cpu_with(1));
  for_each_kernel<IndexTopK>({2, 3}, expect);
}

}  // namespace
}  // namespace winnow::ops::test
