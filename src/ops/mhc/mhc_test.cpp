#include "ops/mhc/mhc.h"

#include <limits>

#include "ops/conformance.h"

namespace winnow::ops::test {
namespace {

struct PreOutputs {
  PreOutputs(const MhcPre::Spec& s, int64_t tokens)
      : y(s.y, {tokens, s.hidden}), post(DType::f32, {tokens, s.streams}), comb(DType::f32, {tokens, s.streams, s.streams}) {}
  bool same(const PreOutputs& o, int64_t row, int64_t count) const {
    return same_bits(y, o.y.view.rows(row, count)) && same_bits(post, o.post.view.rows(row, count)) && same_bits(comb, o.comb.view.rows(row, count));
  }
  Tensor y, post, comb;
};
struct PreInputs {
  PreInputs(const MhcPre::Spec& s, int64_t tokens)
      : x(random_tensor(s.x, {tokens, s.streams, s.hidden}, 1, 2)),
        base(random_tensor(DType::f32, {m(s)}, 3)),
        scale(tensor_of<float>({3}, {0.7f, -1.1f, 1.3f})),
        norm_w(random_tensor(DType::f32, {s.hidden}, 4)),
        // Products of order one, whatever the width.
        fn(random_tensor(s.fn, {m(s), s.streams * s.hidden}, 2, 1 / std::sqrt(static_cast<float>(s.streams * s.hidden)))) {}
  static int64_t m(const MhcPre::Spec& s) { return (2 + s.streams) * s.streams; }
  MhcPre::Args args(const PreOutputs& o, int64_t row, int64_t count) const {
    return {o.y, o.post, o.comb, x.view.rows(row, count), fn, base, scale, norm_w, 1e-5f, 1e-6f};
  }
  Tensor x, base, scale, norm_w, fn;
};

void conform(const MhcPre::Spec& spec, int64_t tokens) {
  SCOPED_TRACE(fmt::format("{} with {} -> {}, {} x {} x {}, {} iterations", winnow::name_of(spec.x), winnow::name_of(spec.fn),
                           winnow::name_of(spec.y), tokens, spec.streams, spec.hidden, spec.iterations));
  const PreInputs in(spec, tokens);
  const PreOutputs want(spec, tokens);
  const Limits limits{.max_rows = tokens};
  run_reference<MhcPre>(spec, in.args(want, 0, tokens), limits);
  std::unique_ptr<PreOutputs> before;
  for_each_kernel<MhcPre>(spec, [&](const Kernel<MhcPre>& k, device::Device& d) {
    auto got = std::make_unique<PreOutputs>(spec, tokens);
    run_kernel(k, d, spec, in.args(*got, 0, tokens), limits);
    EXPECT_TRUE(got->y.canaries_intact() && got->post.canaries_intact() && got->comb.canaries_intact());
    expect_close(got->y, want.y, 2 * epsilon_of(spec.y) + 5e-6, "y");
    expect_close(got->post, want.post, 5e-6, "post");
    expect_close(got->comb, want.comb, 5e-6, "comb");
    EXPECT_TRUE(!before || got->same(*before, 0, tokens)) << "bits depend on kernel or workers";
    for (int64_t t = 0; t < tokens; ++t) {
      const PreOutputs one(spec, 1);
      run_kernel(k, d, spec, in.args(one, t, 1));
      EXPECT_TRUE(one.same(*got, t, 1)) << "row " << t << " depends on company";
    }
    if (tokens > 2) {  // other blocks of tokens
      const PreOutputs some(spec, tokens - 2);
      run_kernel(k, d, spec, in.args(some, 1, tokens - 2), limits);
      EXPECT_TRUE(some.same(*got, 1, tokens - 2)) << "rows depend on the block of tokens they are in";
    }
    before = std::move(got);
  });
}

TEST(MhcPre, Conformance) {
  for (DType x : {DType::f32, DType::bf16})
    for (DType fn : {DType::f32, DType::bf16})
      for (DType y : {DType::f32, DType::bf16})
        for (auto [streams, hidden] : {std::pair{1, 5}, {2, 16}, {3, 33}, {4, 64}, {4, 250}, {8, 17}}) conform({x, fn, y, streams, hidden, 20}, 6);
  conform({DType::f32, DType::bf16, DType::f32, 4, 4096, 20}, 9);
  conform({DType::bf16, DType::bf16, DType::bf16, 4, 1023, 3}, 13);  // segments with a ragged end
  conform({DType::f32, DType::f32, DType::f32, 4, 32, 1}, 5);
  conform({DType::f32, DType::f32, DType::f32, 4, 32, 20}, 0);
}

// fn = 0 leaves the base alone, so L is what the base says.
void expect_sinkhorn(int iterations, const std::vector<float>& want) {
  const MhcPre::Spec spec{DType::f32, DType::f32, DType::f32, 4, 2, iterations};
  const Tensor x = random_tensor(DType::f32, {1, 4, 2}, 1), fn(DType::f32, {24, 8}), scale = tensor_of<float>({3}, {1, 1, 1});
  for (int64_t i = 0; i < fn.view.elements(); ++i) fn.as<float>()[i] = 0;
  const Tensor base = tensor_of<float>({24}, {0, 0, 0, 0, 0, 1, -1, 2, 1, 0, 0, 0, 0, 2, 0, 0, 0.5f, 0, -1, 0, 0, 0, 0, 3});
  const Tensor w = tensor_of<float>({2}, {1, 1}), comb = tensor_of<float>({1, 4, 4}, want);
  const Tensor post = tensor_of<float>({1, 4}, {1, 1.462117f, 0.537883f, 1.761594f});
  auto compare = [&](const PreOutputs& o) {
    for (int i = 0; i < 16; ++i) EXPECT_NEAR(o.comb.as<float>()[i], comb.as<float>()[i], 1e-6) << i;
    expect_close(o.post, post, 1e-6);
  };
  PreOutputs o(spec, 1);
  run_reference<MhcPre>(spec, {o.y, o.post, o.comb, x, fn, base, scale, w, 1e-5f, 1e-6f});
  compare(o);
  for_each_kernel<MhcPre>(spec, [&](const Kernel<MhcPre>& k, device::Device& d) {
    run_kernel(k, d, spec, {o.y, o.post, o.comb, x, fn, base, scale, w, 1e-5f, 1e-6f});
    compare(o);
  });
}

TEST(MhcPre, WorkedSinkhorn) {
  expect_sinkhorn(1, {.463583f, .148403f, .430688f, .125798f, .093870f, .603560f, .237058f, .069241f, .400302f, .211276f, .225568f, .179094f,
                      .042244f, .036760f, .106683f, .625866f});
  expect_sinkhorn(20, {.416004f, .127260f, .372560f, .084175f, .098729f, .606622f, .240345f, .054303f, .419963f, .211814f, .228121f, .140102f,
                       .065303f, .054303f, .158974f, .721419f});
}

// One stream of (3, 4) and fn rows that pick one input each: by hand, m = (3, 4, 0) / sqrt(12.5).
TEST(MhcPre, WorkedSingleStream) {
  const MhcPre::Spec spec{DType::f32, DType::f32, DType::f32, 1, 2, 20};
  const Tensor x = tensor_of<float>({1, 1, 2}, {3, 4}), fn = tensor_of<float>({3, 2}, {1, 0, 0, 1, 0, 0});
  const Tensor base = tensor_of<float>({3}, {0.5f, -0.5f, 7}), scale = tensor_of<float>({3}, {2, 3, 1}), w = tensor_of<float>({2}, {1, 10});
  for_each_kernel<MhcPre>(spec, [&](const Kernel<MhcPre>& k, device::Device& d) {
    PreOutputs o(spec, 1);
    run_kernel(k, d, spec, {o.y, o.post, o.comb, x, fn, base, scale, w, 0, 1e-6f});
    EXPECT_NEAR(o.post.as<float>()[0], 2 / (1 + std::exp(-(3 * 4 / std::sqrt(12.5) - 0.5))), 1e-6);
    EXPECT_NEAR(o.comb.as<float>()[0], 1, 1e-5);
    EXPECT_NEAR(o.y.as<float>()[0], 3 / std::sqrt(12.5), 1e-6);  // the norm undoes the one stream's weight
    EXPECT_NEAR(o.y.as<float>()[1], 40 / std::sqrt(12.5), 1e-5);
  });
}

// Logits far apart saturate; the iteration stays finite and columns add up to one.
TEST(MhcPre, ExtremeLogitsStayFinite) {
  const MhcPre::Spec spec{DType::f32, DType::f32, DType::f32, 4, 3, 20};
  PreInputs in(spec, 2);
  for (int64_t i = 0; i < 24; ++i) in.base.as<float>()[i] = static_cast<float>((i * 7 % 5) - 2) * 400.0f;
  for_each_kernel<MhcPre>(spec, [&](const Kernel<MhcPre>& k, device::Device& d) {
    PreOutputs o(spec, 2);
    run_kernel(k, d, spec, in.args(o, 0, 2), {.max_rows = 2});
    for (int64_t i = 0; i < o.y.view.elements(); ++i) EXPECT_TRUE(std::isfinite(o.y.as<float>()[i]));
    for (int64_t t = 0; t < 2; ++t)
      for (int64_t j = 0; j < 4; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < 4; ++i) sum += ref::get(o.comb, t, i, j);
        EXPECT_NEAR(sum, 1, 0.5);  // a column of nothing but hc_eps adds up to less
        EXPECT_GT(sum, 0);
      }
  });
}

// A token of NaN spoils no other.
TEST(MhcPre, ABrokenRowStaysAlone) {
  const MhcPre::Spec spec{DType::f32, DType::bf16, DType::f32, 4, 40, 20};
  PreInputs in(spec, 6);
  for_each_kernel<MhcPre>(spec, [&](const Kernel<MhcPre>& k, device::Device& d) {
    const PreOutputs clean(spec, 6), got(spec, 6);
    const PreInputs good(spec, 6);
    run_kernel(k, d, spec, good.args(clean, 0, 6), {.max_rows = 6});
    for (int64_t i = 0; i < 160; ++i) in.x.as<float>()[2 * 160 + i] = std::numeric_limits<float>::quiet_NaN();
    run_kernel(k, d, spec, in.args(got, 0, 6), {.max_rows = 6});
    EXPECT_TRUE(std::isnan(got.y.as<float>()[2 * 40]));
    for (int64_t t : {0, 1, 3, 4, 5}) EXPECT_TRUE(same_bits(got.y.view.rows(t, 1), clean.y.view.rows(t, 1))) << t;
  });
}

void conform(const MhcPost::Spec& spec, int64_t tokens) {
  SCOPED_TRACE(fmt::format("{} += {}, {} x {} x {}", winnow::name_of(spec.x), winnow::name_of(spec.y), tokens, spec.streams, spec.hidden));
  const Tensor x = random_tensor(spec.x, {tokens, spec.streams, spec.hidden}, 1), y = random_tensor(spec.y, {tokens, spec.hidden}, 2);
  const Tensor post = random_tensor(DType::f32, {tokens, spec.streams}, 3), comb = random_tensor(DType::f32, {tokens, spec.streams, spec.streams}, 4);
  const Tensor want = x.clone();
  run_reference<MhcPost>(spec, {want, y, post, comb});
  std::unique_ptr<Tensor> before;
  for_each_kernel<MhcPost>(spec, [&](const Kernel<MhcPost>& k, device::Device& d) {
    Tensor got = x.clone();
    run_kernel(k, d, spec, {got, y, post, comb});
    EXPECT_TRUE(got.canaries_intact());
    expect_close(got, want, 2 * epsilon_of(spec.x) + 1e-6);
    EXPECT_TRUE(!before || same_bits(got, *before)) << "bits depend on kernel or workers";
    for (int64_t t = 0; t < tokens; ++t) {
      Tensor one(spec.x, {1, spec.streams, spec.hidden});
      std::memcpy(one.view.data, x.view.rows(t, 1).data, static_cast<size_t>(one.view.bytes()));
      run_kernel(k, d, spec, {one, y.view.rows(t, 1), post.view.rows(t, 1), comb.view.rows(t, 1)});
      EXPECT_TRUE(same_bits(one, got.view.rows(t, 1))) << "row " << t << " depends on company";
    }
    before = std::make_unique<Tensor>(std::move(got));
  });
}

TEST(MhcPost, Conformance) {
  for (DType x : {DType::f32, DType::bf16})
    for (DType y : {DType::f32, DType::bf16})
      for (auto [streams, hidden] : {std::pair{1, 1}, {2, 16}, {3, 33}, {4, 513}, {4, 1030}, {8, 17}})
        conform(MhcPost::Spec{x, y, streams, hidden}, 5);
  conform(MhcPost::Spec{DType::f32, DType::f32, 4, 32}, 0);
}

// comb is applied transposed: stream 1 takes comb[0, 1] of stream 0.
TEST(MhcPost, MixesByTheFirstIndex) {
  const MhcPost::Spec spec{DType::f32, DType::f32, 2, 1};
  const Tensor y = tensor_of<float>({1, 1}, {100}), post = tensor_of<float>({1, 2}, {1, 2}), comb = tensor_of<float>({1, 2, 2}, {3, 5, 7, 11});
  auto run_one = [&](const Kernel<MhcPost>& k, device::Device& d) {
    const Tensor x = tensor_of<float>({1, 2, 1}, {10, 1000});
    run_kernel(k, d, spec, {x, y, post, comb});
    EXPECT_EQ(x.as<float>()[0], 100 + 3 * 10 + 7 * 1000);
    EXPECT_EQ(x.as<float>()[1], 200 + 5 * 10 + 11 * 1000);
  };
  run_one(kernels(MhcPost{}, Ref{})[0], cpu_with(1));
  for_each_kernel<MhcPost>(spec, run_one);
}

void conform(const MhcHead::Spec& spec, const std::vector<int32_t>& chosen) {
  SCOPED_TRACE(fmt::format("{} -> {}, {} x {}", winnow::name_of(spec.x), winnow::name_of(spec.y), spec.streams, spec.hidden));
  const int64_t count = static_cast<int64_t>(chosen.size());
  const Tensor x = random_tensor(spec.x, {5, spec.streams, spec.hidden}, 1), w = random_tensor(DType::f32, {spec.hidden}, 2);
  const Tensor rows = tensor_of<int32_t>({count}, chosen), want(spec.y, {count, spec.hidden});
  run_reference<MhcHead>(spec, {want, x, rows, w, 1e-5f});
  std::unique_ptr<Tensor> before;
  for_each_kernel<MhcHead>(spec, [&](const Kernel<MhcHead>& k, device::Device& d) {
    Tensor y(spec.y, {count, spec.hidden});
    run_kernel(k, d, spec, {y, x, rows, w, 1e-5f});
    EXPECT_TRUE(y.canaries_intact());
    expect_close(y, want, 2 * epsilon_of(spec.y) + 2e-6);
    EXPECT_TRUE(!before || same_bits(y, *before)) << "bits depend on kernel or workers";
    for (int64_t r = 0; r < count; ++r) {
      Tensor one(spec.y, {1, spec.hidden});
      run_kernel(k, d, spec, {one, x, rows.view.rows(r, 1), w, 1e-5f});
      EXPECT_TRUE(same_bits(one, y.view.rows(r, 1))) << "row " << r << " depends on company";
    }
    before = std::make_unique<Tensor>(std::move(y));
  });
}

TEST(MhcHead, Conformance) {
  for (DType x : {DType::f32, DType::bf16})
    for (DType y : {DType::f32, DType::bf16})
      for (auto [streams, hidden] : {std::pair{1, 1}, {3, 33}, {4, 64}, {4, 250}, {8, 17}})
        conform(MhcHead::Spec{x, y, streams, hidden}, {4, 0, 0, 3});
  conform(MhcHead::Spec{DType::f32, DType::f32, 4, 32}, {});
}

TEST(MhcHead, WorkedMean) {
  const MhcHead::Spec spec{DType::f32, DType::f32, 2, 2};
  const Tensor x = tensor_of<float>({2, 2, 2}, {9, 9, 9, 9, 1, 8, 5, 0}), rows = tensor_of<int32_t>({1}, {1}), w = tensor_of<float>({2}, {1, 10});
  for_each_kernel<MhcHead>(spec, [&](const Kernel<MhcHead>& k, device::Device& d) {
    Tensor y(DType::f32, {1, 2});
    run_kernel(k, d, spec, {y, x, rows, w, 0});
    EXPECT_NEAR(y.as<float>()[0], 3 / std::sqrt(12.5), 1e-6);
    EXPECT_NEAR(y.as<float>()[1], 40 / std::sqrt(12.5), 1e-5);
  });
}

TEST(MhcPre, NoKernelTakesCodesWithoutScales) {
  const MhcPre::Spec spec{DType::f32, DType::e4m3, DType::f32, 2, 2, 1};
  for (const Kernel<MhcPre>& k : kernels(MhcPre{}, Ref{})) EXPECT_NE(k.why_not({}, spec), nullptr) << k.name;
  for (const Kernel<MhcPre>& k : kernels(MhcPre{}, Cpu{})) EXPECT_NE(k.why_not({}, spec), nullptr) << k.name;
}

TEST(MhcHeadDeathTest, AChosenRowOutsideTheStep) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const MhcHead::Spec spec{DType::f32, DType::f32, 2, 2};
  const Tensor x = random_tensor(DType::f32, {2, 2, 2}, 1), w = random_tensor(DType::f32, {2}, 2), y(DType::f32, {1, 2});
  for (int32_t row : {-1, 2}) {
    const Tensor rows = tensor_of<int32_t>({1}, {row});
    for_each_kernel<MhcHead>(
        spec, [&](const Kernel<MhcHead>& k, device::Device& d) { EXPECT_DEATH(run_kernel(k, d, spec, {y, x, rows, w, 0}), "outside the step"); });
  }
}

}  // namespace
}  // namespace winnow::ops::test
