#include "ops/kda/kda.h"

#include "ops/kda/kda_world.h"

namespace winnow::ops::test {
namespace {

// Gates of at least -5 add up to 40 within a group, whose last place is 3.8e-6: a decay is that exact, relatively.
constexpr double kTolerance = 8e-6;

// Two tokens worked by hand (one head, dimensions 2, already normalised), then seven that change nothing, so that the
// ninth folds the group and the state can be read.
TEST(Kda, WorkedNumbers) {
  const Kda::Spec spec{1, 2, 2, false};
  constexpr int64_t n = 9;
  const float r = std::sqrt(.5f);
  std::vector<float> qs(2 * n), ks(2 * n), vs(2 * n), gs(2 * n), betas(n);
  const auto put = [](std::vector<float>& to, std::initializer_list<float> x) { std::copy(x.begin(), x.end(), to.begin()); };
  put(qs, {r, 0, 0, r}), put(ks, {.6f, .8f, 1, 0}), put(vs, {1, 2, 2, -1}), put(gs, {-.5f, -1, -.2f, -.3f}), put(betas, {.5f, .8f});
  const Tensor q = tensor_of<float>({n, 1, 2}, qs), k = tensor_of<float>({n, 1, 2}, ks), v = tensor_of<float>({n, 1, 2}, vs),
               g = tensor_of<float>({n, 1, 2}, gs), beta = tensor_of<float>({n, 1}, betas);
  const Tensor first = tensor_of<int32_t>({2}, {0, n}), sequence = tensor_of<int32_t>({n}, std::vector<int32_t>(n)),
               pages = tensor_of<int32_t>({1, 1}, {0}), id = tensor_of<int32_t>({1}, {0}), decode = tensor_of<int32_t>({1}, {0});
  const Tensor position = tensor_of<int64_t>({n}, {0, 1, 2, 3, 4, 5, 6, 7, 8}), folded = tensor_of<int64_t>({1}, {0});
  const auto expect_numbers = [&](const RunKda& run) {
    const Tensor o(DType::f32, {n, 1, 2});
    const Memory m(spec, 1, 9);
    run(spec, {o, m.state, m.ring_k, m.ring_g, m.ring_u, q, k, g, v, beta, {first, sequence, position, position, pages, id, id, folded, decode, 64}});
    const float want[] = {.212132f, .424264f, .209535f, .419070f}, want_state[] = {1.649123f, -.701752f, .296327f, .592655f};
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(o.as<float>()[i], want[i], 1e-6);
      EXPECT_NEAR(m.state.as<float>()[i], want_state[i], 1e-6);
    }
  };
  expect_numbers(reference());
  for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& kda, device::Device& d) { expect_numbers(kernel(kda, d)); });
}

// Three sequences in records out of order, from first token on: prefill chunks and decode rows mixed, rings wrapping.
struct Mixed {
  Sequence a{1, 4}, b{2, 0, 0, 0, Gates::mixed}, c{3, 2, 0, 0, Gates::strong};
  std::vector<std::vector<Piece>> steps() {
    return {{{&a, 5}},
            {{&b, 64}, {&a, 1, true}},
            {{&a, 1, true}, {&c, 17}, {&b, 13}},
            {{&a, 1, true}, {&b, 1, true}, {&c, 1, true}},
            {{&c, 1, true}, {&a, 1, true}, {&b, 1, true}},
            {{&a, 8}, {&c, 1, true}},
            {{&b, 1, true}, {&a, 1, true}, {&c, 30}},
            {{&c, 1, true}}};
  }
};

void conform(const Kda::Spec& spec, int64_t ring_rows) {
  SCOPED_TRACE(fmt::format("{} heads, {} x {}, ring of {}", spec.heads, spec.key_dim, spec.value_dim, ring_rows));
  Outputs wanted(spec);
  Mixed r;
  const Memory m(spec, 5, ring_rows);
  for (const auto& pieces : r.steps()) wanted.step(reference(), m, pieces);
  Plain a(spec, Sequence{1, 0}), b(spec, Sequence{2, 0, 0, 0, Gates::mixed}), c(spec, Sequence{3, 0, 0, 0, Gates::strong});
  wanted.expect_close_to(a, 1, 1e-6), wanted.expect_close_to(b, 2, kTolerance), wanted.expect_close_to(c, 3, kTolerance);

  Outputs got(spec);
  std::unique_ptr<Memory> before;
  for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& k, device::Device& d) {
    Mixed x;
    auto memory = std::make_unique<Memory>(spec, 5, ring_rows);
    for (const auto& pieces : x.steps()) got.step(kernel(k, d), *memory, pieces);
    for (auto [g, w] : {std::pair{&memory->state, &m.state}, {&memory->ring_k, &m.ring_k}})  // records 1 and 3 belong to nobody
      for (int64_t record : {1, 3}) EXPECT_TRUE(same_bits(g->view.rows(record, 1), w->view.rows(record, 1)));
    for (int64_t record : {0, 2, 4}) expect_close(memory->state.view.rows(record, 1), m.state.view.rows(record, 1), kTolerance, "state");
    if (!before) return before.swap(memory);
    EXPECT_TRUE(same_bits(memory->state, before->state)) << "the state's bits depend on kernel or workers";
    EXPECT_TRUE(same_bits(memory->ring_u, before->ring_u));
    EXPECT_TRUE(same_bits(memory->ring_g, before->ring_g));
  });
  got.expect_close_to(a, 1, kTolerance), got.expect_close_to(b, 2, kTolerance), got.expect_close_to(c, 3, kTolerance);
}

TEST(Kda, Conformance) {
  for (auto [heads, key_dim, value_dim] : {std::array<int64_t, 3>{2, 16, 24}, {3, 20, 20}, {1, 7, 5}, {1, 33, 70}, {2, 128, 128}, {5, 1, 1}})
    for (int64_t ring_rows : {kda_ring_rows(0), kda_ring_rows(2)}) conform({heads, key_dim, value_dim, false}, ring_rows);
}

// A step may read one record and leave everything in another: same bits, the first record untouched and never read again.
TEST(Kda, AnotherRecordTakesOverAtAnyStep) {
  constexpr int64_t tokens = 150;
  for (bool chunked : {false, true}) {
    const Kda::Spec spec{2, 20, 24, chunked};
    const auto run = [&](Outputs& wanted, const RunKda& kda, uint64_t cuts, bool moves) {
      const Memory m(spec, 2, kda_ring_rows(0));
      std::mt19937_64 rng(cuts), coin(cuts);
      Sequence x{9, 0};
      while (x.position < tokens) {
        const bool decode = x.position >= 130;
        int64_t count = decode ? 1 : std::min<int64_t>(1 + static_cast<int64_t>(rng() % 70), 130 - x.position);
        if (chunked && !decode && x.position + count < 130)
          count = std::max<int64_t>((x.position + count) / 64, x.position / 64 + 1) * 64 - x.position;
        Memory before(spec, 1, kda_ring_rows(0));
        const auto parts = [&](const Memory& w) { return std::array<const Tensor*, 4>{&w.state, &w.ring_k, &w.ring_g, &w.ring_u}; };
        const bool move = moves && coin() % 3 != 0;
        const int32_t old = x.record;
        if (move) {
          for (size_t i = 0; i < 4; ++i)
            std::memcpy(parts(before)[i]->view.data, parts(m)[i]->view.rows(old, 1).data, parts(before)[i]->view.bytes());
          x.source = old;
          x.record = 1 - old;
        }
        wanted.step(kda, m, {{&x, count, decode}});
        for (size_t i = 0; move && i < 4; ++i) {
          EXPECT_TRUE(same_bits(parts(m)[i]->view.rows(old, 1), *parts(before)[i])) << "the record that was read has changed";
          std::memset(parts(m)[i]->view.rows(old, 1).data, 0xff, static_cast<size_t>(parts(before)[i]->view.bytes()));
        }
      }
    };
    for (uint64_t cuts = 1; cuts < 6; ++cuts) {
      Outputs of_reference(spec), of_kernels(spec);
      for (bool moves : {false, true}) run(of_reference, reference(), cuts, moves);
      for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& k, device::Device& d) {
        for (bool moves : {false, true}) run(of_kernels, kernel(k, d), cuts, moves);
      });
    }
  }
}

// A position's bits are the same in a decode row, in prefill chunks of any size and in company; so are S and the rows
// that wait in the ring, since later tokens are computed from them.
TEST(Kda, G66_BitsDoNotDependOnTheCutOrCompany) {
  const Kda::Spec spec{2, 20, 40, false};
  constexpr int64_t tokens = 100;
  Outputs wanted(spec);
  for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& k, device::Device& d) {
    const Memory m(spec, 3, kda_ring_rows(0));
    Sequence whole{9, 1};
    wanted.step(kernel(k, d), m, {{&whole, tokens}});
    Sequence decoded{9, 0};
    for (int64_t t = 0; t < tokens; ++t) wanted.step(kernel(k, d), m, {{&decoded, 1, true}});
    EXPECT_EQ(decoded.folded, whole.folded);
    EXPECT_TRUE(same_bits(m.state.view.rows(0, 1), m.state.view.rows(1, 1)));
    std::mt19937_64 rng(4);
    for (int round = 0; round < 2; ++round) {
      Sequence cut{9, 2}, other{10, 0};
      while (cut.position < tokens) {
        const int64_t count = std::min<int64_t>(1 + static_cast<int64_t>(rng() % 30), tokens - cut.position);
        if (rng() % 2) wanted.step(kernel(k, d), m, {{&cut, count}, {&other, 1, true}});
        else wanted.step(kernel(k, d), m, {{&other, 3}, {&cut, count}});
      }
      EXPECT_TRUE(same_bits(m.state.view.rows(2, 1), m.state.view.rows(1, 1)));
    }
  });
}

// Verify steps of 1 + depth rows of which some are taken back: accepted rows have the bits of plain decoding.
TEST(Kda, G61_RejectedDraftsLeaveNoTrace) {
  const Kda::Spec spec{2, 16, 24, false};
  constexpr int64_t tokens = 72;
  Outputs wanted(spec);
  for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& k, device::Device& d) {
    const Memory plain(spec, 1, kda_ring_rows(0));
    Sequence s{5, 0};
    for (int64_t t = 0; t < tokens + 8; ++t) wanted.step(kernel(k, d), plain, {{&s, 1, true}});
    for (int64_t depth = 0; depth <= 7; ++depth) {
      SCOPED_TRACE(fmt::format("depth {}", depth));
      std::mt19937_64 rng(static_cast<uint64_t>(depth));
      const Memory m(spec, 1, kda_ring_rows(depth));
      Sequence v{5, 0};
      wanted.step(kernel(k, d), m, {{&v, 3 + depth}});
      while (v.position < tokens) {
        const int64_t count = 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(depth + 1));
        wanted.step(kernel(k, d), m, {{&v, count, true, 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(count))}});
      }
    }
  });
}

// A step goes on from the state and rings that another implementation left.
TEST(Kda, KernelsAndReferenceTakeTurns) {
  const Kda::Spec spec{2, 20, 24, false};
  Plain plain(spec, Sequence{6, 0});
  for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& k, device::Device& d) {
    const Memory m(spec, 2, kda_ring_rows(3));
    Outputs got(spec);
    Sequence s{6, 1};
    std::mt19937_64 rng(8);
    for (int i = 0; i < 40; ++i) {
      const bool decode = rng() % 2;
      const int64_t count = 1 + static_cast<int64_t>(rng() % (decode ? 4 : 20));
      got.step(i % 2 ? reference() : kernel(k, d), m, {{&s, count, decode}});
    }
    got.expect_close_to(plain, 6, kTolerance);
  });
}

TEST(Kda, NoRows) {
  const Kda::Spec spec{2, 16, 24, false};
  for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& k, device::Device& d) {
    const Memory m(spec, 2, 9);
    run_step(spec, kernel(k, d), m, {});
    Sequence idle{1, 0}, busy{2, 1};
    run_step(spec, kernel(k, d), m, {{&idle, 0}, {&busy, 4}});
    EXPECT_TRUE(std::isnan(m.ring_k.as<float>()[0])) << "a sequence without rows was written";
  });
}

// The last row of the sequence is flagged when an S that is not finite is written, in every form, and only then.
TEST(Kda, FlagsSequencesWhoseFoldedStateIsNotFinite) {
  const auto expect = [](const RunKda& run, bool chunked) {
    const Kda::Spec spec{3, 20, 24, chunked};
    const Memory m(spec, 3, kda_ring_rows(0));
    Sequence a{1, 0}, b{2, 2}, c{3, 1};
    const auto flagged_by = [&](const std::vector<Piece>& pieces) {
      int64_t rows = 0;
      for (const Piece& p : pieces) rows += p.count;
      const Tensor bad = flags(rows, 1);
      run_step(spec, run, m, pieces, bad);
      EXPECT_TRUE(bad.canaries_intact());
      return flagged(bad);
    };
    EXPECT_EQ(flagged_by({{&a, 7}, {&b, 14}, {&c, 12}}), (std::vector<int64_t>{1}));
    const int64_t ring_rows = m.ring_u.view.shape[1], row = spec.heads * spec.value_dim;
    m.ring_u.as<float>()[(0 * ring_rows + 3) * row + 50] = std::numeric_limits<float>::infinity();          // token 3 of a, head 2
    m.ring_u.as<float>()[(2 * ring_rows + 9 % ring_rows) * row] = std::numeric_limits<float>::quiet_NaN();  // token 9 of b, head 0
    EXPECT_EQ(flagged_by({{&c, 3}, {&a, 1, true}, {&b, 2}}), (std::vector<int64_t>{1})) << "nothing bad was folded yet";
    EXPECT_EQ(flagged_by({{&c, 1, true}, {&a, 1, true}, {&b, 1, true}}), (std::vector<int64_t>{1, 2}));  // b's fold, where 16 is the next row
    EXPECT_EQ(flagged_by({{&b, 120}, {&c, 2}}), (std::vector<int64_t>{1, 119}));                         // and whatever is folded onto it
  };
  for (bool chunked : {false, true}) {
    expect(reference(), chunked);
    for_each_kernel<Kda>({3, 20, 24, chunked}, [&](const Kernel<Kda>& k, device::Device& d) { expect(kernel(k, d), chunked); });
  }
}

// Several sequences go on from one record in one step: each has the bits of going on alone, and the record stays as it is.
TEST(Kda, G60_SeveralSequencesReadOneRecord) {
  for (bool chunked : {false, true}) {
    const Kda::Spec spec{2, 20, 24, chunked};
    const auto go_on = [&](Outputs& wanted, const RunKda& kda) {
      const Memory m(spec, 4, kda_ring_rows(0)), before(spec, 1, kda_ring_rows(0));
      Sequence first{9, 0};
      wanted.step(kda, m, {{&first, 149}});
      const std::array<std::pair<const Tensor*, const Tensor*>, 4> parts{
          {{&m.state, &before.state}, {&m.ring_k, &before.ring_k}, {&m.ring_g, &before.ring_g}, {&m.ring_u, &before.ring_u}}};
      for (auto [now, then] : parts) std::memcpy(then->view.data, now->view.data, static_cast<size_t>(then->view.bytes()));
      std::array<Sequence, 3> others;
      for (int32_t i = 0; i < 3; ++i) others[static_cast<size_t>(i)] = {9, 3 - i, 149, first.folded, Gates::any, 0};
      wanted.step(kda, m, {{&others[0], 1, true}, {&others[1], 1, true}, {&others[2], 1, true}});
      for (auto [now, then] : parts) EXPECT_TRUE(same_bits(now->view.rows(0, 1), *then)) << "the record that all read has changed";
      for (int i = 0; i < 20; ++i) wanted.step(kda, m, {{&others[1], 1, true}, {&others[0], 1, true}, {&first, 1, true}, {&others[2], 1, true}});
    };
    Outputs of_reference(spec), of_kernels(spec);
    go_on(of_reference, reference());
    for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& k, device::Device& d) { go_on(of_kernels, kernel(k, d)); });
  }
}

TEST(Kda, G64_AThousandSequencesOfManyHeads) {
  const Kda::Spec spec{64, 1, 1, false};
  const auto outputs = [&](const RunKda& kda) {
    std::vector<Sequence> sequences;
    std::vector<Piece> pieces;
    for (int32_t i = 0; i < 1024; ++i) sequences.push_back({static_cast<uint64_t>(i), 1023 - i});
    for (Sequence& s : sequences) pieces.push_back({&s, 1, true});
    const Memory m(spec, 1024, kda_ring_rows(0));
    return run_step(spec, kda, m, pieces);
  };
  const Tensor want = outputs(reference());
  for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& k, device::Device& d) { expect_close(outputs(kernel(k, d)), want, kTolerance); });
}

// A record that another sequence has used, or that holds NaN, gives a new one the bits that it has in a fresh record.
TEST(Kda, G65_ANewSequenceTakesNothingFromItsRecord) {
  for (bool chunked : {false, true}) {
    const Kda::Spec spec{2, 16, 24, chunked};
    const auto reuse = [&](Outputs& wanted, const RunKda& kda) {
      const Memory m(spec, 2, kda_ring_rows(0)), bad(spec, 1, kda_ring_rows(0));  // NaN from the start, but for one
      const TensorView zero = m.state.view.rows(1, 1);
      std::memset(zero.data, 0, static_cast<size_t>(zero.bytes()));
      Sequence fresh{8, 1};
      wanted.step(kda, m, {{&fresh, 70}});
      Sequence old{7, 0};
      wanted.step(kda, m, {{&old, 90}});
      for (int64_t i = 0; i < old.position % 7; ++i) wanted.step(kda, m, {{&old, 1, true}});
      Sequence next{8, 0};
      wanted.step(kda, m, {{&next, 70}});
      Sequence poisoned{8, 0};
      wanted.step(kda, bad, {{&poisoned, 70}});
      EXPECT_TRUE(same_bits(m.state.view.rows(0, 1), m.state.view.rows(1, 1)));
    };
    Outputs of_reference(spec), of_kernels(spec);
    reuse(of_reference, reference());
    for_each_kernel<Kda>(spec, [&](const Kernel<Kda>& k, device::Device& d) { reuse(of_kernels, kernel(k, d)); });
  }
}

}  // namespace
}  // namespace winnow::ops::test
