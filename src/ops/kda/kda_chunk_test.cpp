#include "ops/kda/kda_world.h"

namespace winnow::ops::test {
namespace {

// Chunks from zero, chunks from a state with tokens waiting in the ring, and the row form before and after them.
void conform_chunked(const Kda::Spec& spec, Gates gates) {
  SCOPED_TRACE(fmt::format("{} heads, {} x {}, gates {}", spec.heads, spec.key_dim, spec.value_dim, static_cast<int>(gates)));
  Plain plain(spec, Sequence{1, 0, 0, 0, gates}), plain_late(spec, Sequence{2, 0, 0, 0, gates});
  Outputs got(spec);
  std::unique_ptr<Memory> before;
  for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& k, device::Device& d) {
    Sequence s{1, 2, 0, 0, gates}, late{2, 0, 0, 0, gates};
    auto m = std::make_unique<Memory>(spec, 3, kda_ring_rows(0));
    got.step(kernel(k, d), *m, {{&s, 200}, {&late, 29}});
    EXPECT_EQ(s.folded, 192);
    got.step(kernel(k, d), *m, {{&late, 120}, {&s, 1, true}});  // 29 .. 148: rows to 64, a chunk, rows
    EXPECT_EQ(late.folded, 144);
    got.step(kernel(k, d), *m, {{&s, 1, true}, {&late, 43}});  // to the grid at 192, with 8 rows waiting
    got.step(kernel(k, d), *m, {{&late, 64}, {&s, 3}});        // begins on the grid, with 8 rows waiting
    EXPECT_EQ(late.folded, 256);
    got.step(kernel(k, d), *m, {{&s, 1, true}, {&late, 1, true}});
    if (!before) return before.swap(m);
    EXPECT_TRUE(same_bits(m->state, before->state)) << "the state's bits depend on kernel or workers";
  });
  // Cumulative gates are exact to their last place: below 4e-6 for gates of at least -5, 6e-5 for sums near a thousand.
  const double tolerance = gates == Gates::unbounded ? 1e-4 : 1e-5;
  got.expect_close_to(plain, 1, tolerance), got.expect_close_to(plain_late, 2, tolerance);
  ::testing::Test::RecordProperty(fmt::format("worst_{}_{}", spec.key_dim, static_cast<int>(gates)), fmt::format("{:.2e}", got.worst()));
}

TEST(KdaChunk, CloseToThePlainRecurrence) {
  for (Gates gates : {Gates::any, Gates::weak, Gates::strong, Gates::mixed, Gates::unbounded}) {
    conform_chunked({2, 16, 24, true}, gates);
    conform_chunked({1, 20, 20, true}, gates);
    conform_chunked({1, 7, 5, true}, gates);
    conform_chunked({1, 128, 128, true}, gates);
  }
}

// Chunks of one step have the bits that they have in steps of their own, and in company.
TEST(KdaChunk, BitsDoNotDependOnTheCut) {
  const Kda::Spec spec{2, 20, 40, true};
  Outputs wanted(spec);
  for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& k, device::Device& d) {
    const Memory m(spec, 3, kda_ring_rows(0));
    Sequence whole{3, 2};
    wanted.step(kernel(k, d), m, {{&whole, 300}});
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{64, 64, 172}, {128, 172}, {192, 64, 44}, {256, 44}}) {
      Sequence s{3, 0}, other{4, 1};
      for (int64_t n : cuts) wanted.step(kernel(k, d), m, {{&other, 1, true}, {&s, n}});
      EXPECT_EQ(s.folded, whole.folded);
      EXPECT_TRUE(same_bits(m.state.view.rows(0, 1), m.state.view.rows(2, 1)));
    }
  });
}

// Decode rows have the row form's bits whatever the spec says of prefill.
TEST(KdaChunk, DecodeRowsUseTheRowForm) {
  const Kda::Spec spec{2, 16, 24, true}, rows{2, 16, 24, false};
  Outputs wanted(spec);
  for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& k, device::Device& d) {
    const Memory m(spec, 2, kda_ring_rows(0));
    Sequence s{5, 1}, r{5, 0};
    for (int64_t t = 0; t < 80; ++t) wanted.step(kernel(k, d), m, {{&s, 1, true}});
    const Tensor o = run_step(rows, kernel(k, d), m, {{&r, 80}});
    wanted.expect(5, 0, o, 0, 80);
  });
}

// A state that overflows in the last rows of a chunk, which no row of the step reads: every output is a number.
TEST(KdaChunk, FlagsAStateThatNoRowReads) {
  const Kda::Spec spec{1, 2, 1, true};
  const Tensor q(DType::f32, {64, 1, 2}), k = q.clone(), g = q.clone(), v(DType::f32, {64, 1, 1}), beta(DType::f32, {64, 1});
  for (const Tensor* t : {&q, &k, &g, &v, &beta}) std::fill_n(t->as<float>(), t->view.elements(), 0.0f);
  for (int64_t t = 48; t < 64; ++t) {
    k.as<float>()[2 * t] = t == 48 ? 1 : 0.1f;
    v.as<float>()[t] = 3e38f;
    beta.as<float>()[t] = 1;
  }
  std::vector<int64_t> positions(64);
  std::iota(positions.begin(), positions.end(), 0);
  const Tensor first = tensor_of<int32_t>({2}, {0, 64}), zeros = tensor_of<int32_t>({64}, std::vector<int32_t>(64)),
               position = tensor_of<int64_t>({64}, positions), one = tensor_of<int32_t>({1}, {0}), table = tensor_of<int32_t>({1, 1}, {0}),
               folded = tensor_of<int64_t>({1}, {0});
  const auto expect = [&](const RunKda& run) {
    const Memory m(spec, 1, kda_ring_rows(0));
    const Tensor o(DType::f32, {64, 1, 1}), bad = flags(64);
    run(spec,
        {o, m.state, m.ring_k, m.ring_g, m.ring_u, q, k, g, v, beta, {first, zeros, position, position, table, one, one, folded, one, 64}, bad});
    for (int64_t t = 0; t < 64; ++t) EXPECT_TRUE(std::isfinite(o.as<float>()[t])) << t;
    EXPECT_TRUE(std::isinf(m.state.as<float>()[0]));
    EXPECT_EQ(flagged(bad), std::vector<int64_t>{63});
  };
  expect(reference());
  for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& kda, device::Device& d) { expect(kernel(kda, d)); });
}

}  // namespace
}  // namespace winnow::ops::test
