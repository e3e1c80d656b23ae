#include "ops/index/index_world.h"

namespace winnow::ops::test {
namespace {

void reference(const IndexWrite::Spec& s, const IndexWrite::Args& a) { run_reference<IndexWrite>(s, a); }

// Three sequences of more than a page of tokens, cut into steps in several ways; all leave the same bits.
void conform(IndexKeys keys, DType x, int64_t dim, int64_t kpool, int64_t page_tokens, int64_t extra_ring) {
  SCOPED_TRACE(fmt::format("keys {}, x {}, dim {}, kpool {}, page {}", static_cast<int>(keys), winnow::name_of(x), dim, kpool, page_tokens));
  constexpr int64_t kSequences = 3;
  const int64_t tokens = std::max<int64_t>(75, page_tokens + 11);
  const IndexWrite::Spec spec{keys, x, dim, kpool};
  const Pages pages(kSequences, tokens, page_tokens, 5);
  const Raw raw(x, kSequences, tokens, dim);
  const Tensor ape = random_tensor(DType::f32, {kpool, dim}, 13);
  auto fresh = [&] { return Cache(keys, pages, kSequences, dim, kpool, kpool + extra_ring); };
  const std::vector<Part> whole{{0, tokens, 2}, {0, tokens, 0}, {0, tokens, 1}};
  const Cache want = fresh();
  write(reference, spec, want, raw, ape, pages, whole);
  std::unique_ptr<Cache> first;
  for_each_kernel<IndexWrite>(spec, [&](const Kernel<IndexWrite>& k, device::Device& d) {
    const Runner run = [&](const IndexWrite::Spec& s, const IndexWrite::Args& a) { run_kernel(k, d, s, a); };
    auto cache = std::make_unique<Cache>(fresh());
    write(run, spec, *cache, raw, ape, pages, whole);
    EXPECT_TRUE(cache->intact());
    const double tolerance = keys == IndexKeys::f32 ? 2e-6 : keys == IndexKeys::bf16 ? 1.0 / 128 : 1.0 / 8;
    expect_close(values(*cache), values(want), tolerance);
    EXPECT_TRUE(same_bits(cache->ring, want.ring));
    EXPECT_TRUE(!first || same(*cache, *first)) << "bits depend on kernel or workers";
    std::mt19937 rng(static_cast<uint32_t>(dim + kpool));
    for (int most : {1, 3, 20}) {  // 1: decode
      const Cache chunked = fresh();
      std::vector<int64_t> done(kSequences, 0);
      while (*std::min_element(done.begin(), done.end()) < tokens) {
        std::vector<Part> parts;
        for (int64_t s : {1, 0, 2}) {
          const int64_t n = std::min<int64_t>(1 + static_cast<int64_t>(rng()) % most, tokens - done[s]);
          if (n > 0) parts.push_back({done[s], n, s});
          done[s] += n;
        }
        write(run, spec, chunked, raw, ape, pages, parts);
      }
      EXPECT_TRUE(same(chunked, *cache)) << "bits depend on how the tokens were cut into steps of up to " << most;
    }
    if (!first) first = std::move(cache);
  });
}

TEST(IndexWrite, G26_AnyCutLeavesEqualBytes) {
  for (IndexKeys keys : {IndexKeys::f32, IndexKeys::bf16, IndexKeys::fp8})
    for (DType x : {DType::f32, DType::bf16})
      for (int64_t kpool : {4, 8, 16})
        for (int64_t extra : {0, 3}) conform(keys, x, keys == IndexKeys::fp8 ? 32 : 37, kpool, kpool == 16 ? 16 : 32, extra);
  for (int64_t page_tokens : {64, 128, 256})
    for (IndexKeys keys : {IndexKeys::f32, IndexKeys::bf16, IndexKeys::fp8}) conform(keys, DType::f32, 32, 4, page_tokens, 0);
  conform(IndexKeys::fp8, DType::bf16, 128, 4, 64, 0);
  conform(IndexKeys::fp8, DType::f32, 8, 4, 4, 0);
  conform(IndexKeys::f32, DType::f32, 1, 1, 8, 1);
}

// A step may read one ring record and leave everything in another: same pools, and the first record is never needed again.
TEST(IndexWrite, AnotherRecordTakesOverAtAnyStep) {
  constexpr int64_t kTokens = 40, kPool = 4, kDim = 19;
  const IndexWrite::Spec spec{IndexKeys::f32, DType::f32, kDim, kPool};
  const Pages pages(1, kTokens, 16, 5);
  const Raw raw(DType::f32, 2, kTokens, kDim);
  const Tensor ape = random_tensor(DType::f32, {kPool, kDim}, 13);
  for_reference_and_kernels(spec, [&](const Kernel<IndexWrite>& k, device::Device& d) {
    const Runner run = [&](const IndexWrite::Spec& s, const IndexWrite::Args& a) { run_kernel(k, d, s, a); };
    const Cache want(IndexKeys::f32, pages, 2, kDim, kPool, kPool + 1), got(IndexKeys::f32, pages, 2, kDim, kPool, kPool + 1);
    write(run, spec, want, raw, ape, pages, {{0, kTokens, 0}});
    std::mt19937 rng(5);
    int64_t record = 0;
    for (int64_t done = 0, n = 0; done < kTokens; done += n, record = 1 - record) {
      n = std::min<int64_t>(1 + static_cast<int64_t>(rng() % 7), kTokens - done);
      const TensorView old = got.ring.view.rows(1 - record, 1);
      const Tensor before = got.ring.clone();
      write(run, spec, got, raw, ape, pages, {{done, n, 0, record, 1 - record}});
      EXPECT_TRUE(same_bits(old, before.view.rows(1 - record, 1)));
      std::memset(old.data, 0xff, static_cast<size_t>(old.bytes()));
    }
    EXPECT_TRUE(same_bits(got.keys, want.keys));
  });
}

// Writes the pool of one sequence of `window.size()` tokens whose channels all hold the window's values.
struct Constant {
  IndexKeys keys;
  int64_t dim;
  std::vector<float> window, gate, ape;
  Cache operator()(const Kernel<IndexWrite>& k, device::Device& d) const {
    const int64_t kpool = static_cast<int64_t>(window.size());
    const Pages pages(1, kpool, kpool, 1);
    Cache cache(keys, pages, 1, dim, kpool, kpool);
    auto rows = [&](const std::vector<float>& v) {
      Tensor t(DType::f32, {kpool, dim});
      for (int64_t i = 0; i < kpool * dim; ++i) ref::set(t, i, v[static_cast<size_t>(i / dim)]);
      return t;
    };
    const Tensor key = rows(window), g = rows(gate), a = rows(ape);
    const Step step({{0, kpool, 0}}, pages);
    run_kernel(k, d, {keys, DType::f32, dim, kpool}, {cache.pages(), cache.ring, key, g, a, step.rows});
    return cache;
  }
};

TEST(IndexWrite, KnownBytes) {
  struct Case {
    std::vector<float> window;
    float ape2, scale;
    uint8_t code;
  };
  const Case cases[] = {
      {{1, 1, 1, 1}, 0, 0.03125f, 0x7b}, {{1, 2, 3, 4}, 0, 0.125f, 0x76}, {{1, 2, 3, 4}, 100, 0.125f, 0x78}, {{0, 0, 0, 0}, 0, 0x1p-22f, 0x00}};
  for_reference_and_kernels({IndexKeys::fp8, DType::f32, 128, 4}, [&](const Kernel<IndexWrite>& k, device::Device& d) {
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} {} {}", k.name, c.window[3], c.ape2));
      const Cache cache = Constant{IndexKeys::fp8, 128, c.window, {0, 0, 0, 0}, {0, 0, c.ape2, 0}}(k, d);
      EXPECT_EQ(ref::get(cache.scales, 0), c.scale);
      EXPECT_EQ(cache.keys.as<E4m3>()[0].bits, c.code);
      for (int i = 1; i < 128; ++i) EXPECT_EQ(cache.keys.as<E4m3>()[i].bits & 0x7f, 0);
    }
  });
}

TEST(IndexWrite, WorkedPool) {
  for_reference_and_kernels({IndexKeys::f32, DType::f32, 1, 4}, [&](const Kernel<IndexWrite>& k, device::Device& d) {
    const Cache cache = Constant{IndexKeys::f32, 1, {1, 2, 3, 4}, {0, 0.5f, -0.5f, 1}, {0.1f, 0, 0, -0.1f}}(k, d);
    EXPECT_NEAR(ref::get(cache.keys, 0), 2.759544, 1e-6);
  });
}

// The bias belongs to the position inside the pool, however the window was cut into steps.
TEST(IndexWrite, G27_BiasOfThePoolIsByAbsolutePosition) {
  for (int64_t kpool : {4, 8, 16})
    for (int64_t hot = 0; hot < kpool; ++hot)
      for (int64_t cut = 0; cut < kpool; ++cut)
        for_reference_and_kernels({IndexKeys::f32, DType::f32, 5, kpool}, [&](const Kernel<IndexWrite>& k, device::Device& d) {
          const Pages pages(1, kpool, kpool, 1);
          const Cache cache(IndexKeys::f32, pages, 1, 5, kpool, kpool);
          const Raw raw(DType::f32, 1, kpool, 5);
          const Tensor ape = random_tensor(DType::f32, {kpool, 5}, 1, 0);
          for (int64_t c = 0; c < 5; ++c) ref::set(ape, hot, c, 1000);
          const Runner run = [&](const IndexWrite::Spec& s, const IndexWrite::Args& a) { run_kernel(k, d, s, a); };
          if (cut) write(run, {IndexKeys::f32, DType::f32, 5, kpool}, cache, raw, ape, pages, {{0, cut, 0}});
          write(run, {IndexKeys::f32, DType::f32, 5, kpool}, cache, raw, ape, pages, {{cut, kpool - cut, 0}});
          for (int64_t c = 0; c < 5; ++c) EXPECT_EQ(ref::get(cache.keys, 0, 0, c), ref::get(raw.key, hot, c)) << hot << " cut at " << cut;
        });
}

// A pool of a later sequence of the step takes its early rows from its own ring, never from its neighbour's rows.
TEST(IndexWrite, G17_NeighboursStayOut) {
  for_reference_and_kernels({IndexKeys::f32, DType::f32, 3, 4}, [&](const Kernel<IndexWrite>& k, device::Device& d) {
    const IndexWrite::Spec spec{IndexKeys::f32, DType::f32, 3, 4};
    const Pages pages(2, 16, 8, 3);
    const Raw raw(DType::f32, 2, 16, 3);
    const Tensor ape = random_tensor(DType::f32, {4, 3}, 1);
    const Runner run = [&](const IndexWrite::Spec& s, const IndexWrite::Args& a) { run_kernel(k, d, s, a); };
    const Cache mixed(IndexKeys::f32, pages, 2, 3, 4, 4), alone(IndexKeys::f32, pages, 2, 3, 4, 4);
    for (const Cache* c : {&mixed, &alone}) write(run, spec, *c, raw, ape, pages, {{0, 6, 1}});
    write(run, spec, mixed, raw, ape, pages, {{0, 5, 0}, {6, 3, 1}});
    write(run, spec, alone, raw, ape, pages, {{6, 3, 1}});
    write(run, spec, alone, raw, ape, pages, {{0, 5, 0}});
    EXPECT_TRUE(same(mixed, alone));
    // Each ring holds its own last rows.
    for (int64_t s : {0, 1})
      for (int64_t pos = s ? 5 : 1; pos < (s ? 9 : 5); ++pos)
        EXPECT_EQ(ref::get(mixed.ring, (s * 4 + pos % 4) * 6), ref::get(raw.key, s * 16 + pos, 0)) << s << ": " << pos;
  });
}

// 70,000 pools in one step.
TEST(IndexWrite, G29_ManyPools) {
  constexpr int64_t kTokens = 280'000;
  const IndexWrite::Spec spec{IndexKeys::bf16, DType::f32, 1, 4};
  const Pages pages(1, kTokens, 8, 9);
  const Raw raw(DType::f32, 1, kTokens, 1);
  const Tensor ape = random_tensor(DType::f32, {4, 1}, 1);
  const Cache want(IndexKeys::bf16, pages, 1, 1, 4, 4);
  write(reference, spec, want, raw, ape, pages, {{0, kTokens, 0}});
  for_each_kernel<IndexWrite>(spec, [&](const Kernel<IndexWrite>& k, device::Device& d) {
    const Cache cache(IndexKeys::bf16, pages, 1, 1, 4, 4);
    write([&](const IndexWrite::Spec& s, const IndexWrite::Args& a) { run_kernel(k, d, s, a); }, spec, cache, raw, ape, pages, {{0, kTokens, 0}});
    expect_close(cache.keys, want.keys, 1.0 / 128);
  });
}

// Page offsets beyond 32 bits: page 70,000 of pages that are 38,016 bytes apart begins at byte 2,661,120,000.
TEST(IndexWrite, G12_FarPages) {
  for_reference_and_kernels({IndexKeys::fp8, DType::f32, 16, 4}, [&](const Kernel<IndexWrite>& k, device::Device& d) {
    const FarMemory keys(2'661'120'000 + 38'016), scales(2'661'120'000 + 38'016);
    Pages pages(1, 4, 4, 1);
    pages.ids[0] = 70'000;
    const Step step({{0, 4, 0}}, pages);
    IndexPages far{TensorView(keys.data, DType::e4m3, {70'001, 1, 16}), TensorView(scales.data, DType::f32, {70'001, 1})};
    far.keys.stride[0] = 38'016;
    far.scales.stride[0] = 38'016 / 4;
    const Tensor key = random_tensor(DType::f32, {4, 16}, 1, 0, 1), gate = random_tensor(DType::f32, {4, 16}, 1, 0),
                 ape = random_tensor(DType::f32, {4, 16}, 1, 0);
    const Tensor ring(DType::f32, {1, 4, 2, 16});
    run_kernel(k, d, {IndexKeys::fp8, DType::f32, 16, 4}, {far, ring, key, gate, ape, step.rows});
    float scale;
    std::memcpy(&scale, scales.data + 2'661'120'000, 4);
    EXPECT_EQ(scale, 0x1p-6f);                                    // 4 / 448, rounded up
    EXPECT_EQ(static_cast<int>(keys.data[2'661'120'000]), 0x78);  // 256
  });
}

// A row that is not finite is visible in its scale, and in no other row.
TEST(IndexWrite, NotFiniteShowsInTheScale) {
  for_reference_and_kernels({IndexKeys::fp8, DType::f32, 16, 4}, [&](const Kernel<IndexWrite>& k, device::Device& d) {
    for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const Cache cache = Constant{IndexKeys::fp8, 16, {1, 2, bad, 4}, {0, 0, 0, 0}, {0, 0, 0, 0}}(k, d);
      EXPECT_TRUE(std::isnan(ref::get(cache.scales, 0)));
    }
  });
}

TEST(IndexWrite, RefusesToRotateOddSizes) {
  for (const Kernel<IndexWrite>& k : kernels(IndexWrite{}, Cpu{}))
    EXPECT_STREQ(k.why_not(cpu_with(1).caps(), {IndexKeys::fp8, DType::f32, 96, 4}), "fp8 keys need a power of two");
}

// The row that completes the pool is flagged, whichever row of it is bad, in this step or an earlier one; a pool that is not complete
// says nothing yet.
TEST(IndexWrite, FlagsTheRowThatCompletesABadPool) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (IndexKeys keys : {IndexKeys::f32, IndexKeys::bf16, IndexKeys::fp8}) {
    const IndexWrite::Spec spec{keys, DType::f32, 16, 4};
    for_reference_and_kernels(spec, [&](const Kernel<IndexWrite>& k, device::Device& d) {
      const Pages pages(2, 32, 16, 5);
      const Raw raw(DType::f32, 2, 32, 16);
      const Tensor ape = random_tensor(DType::f32, {4, 16}, 13);
      const Cache cache(keys, pages, 2, 16, 4, 4);
      ref::set(raw.key, 5, 15, nan);      // sequence 0, pool 1
      ref::set(raw.gate, 11, 0, inf);     // pool 2
      ref::set(raw.key, 12, 3, 3.4e38f);  // pool 3: rounds to infinity in bf16, which fp8 goes through
      ref::set(raw.gate, 12, 3, 200);     // and counts alone
      ref::set(raw.key, 17, 3, inf);      // pool 4, not complete below
      const auto flagged_by = [&](const std::vector<Part>& parts) {
        const Step step(parts, pages);
        const Tensor key = Raw::gather(raw.key, raw.tokens, parts), gate = Raw::gather(raw.gate, raw.tokens, parts);
        const Tensor bad = flags(step.rows.tokens(), 0);
        run_kernel(k, d, spec, {cache.pages(), cache.ring, key, gate, ape, step.rows, bad});
        EXPECT_TRUE(bad.canaries_intact());
        return flagged(bad);
      };
      EXPECT_EQ(flagged_by({{0, 6, 1}, {0, 6, 0}}), (std::vector<int64_t>{0}));
      EXPECT_EQ(flagged_by({{6, 5, 1}, {6, 4, 0}}), (std::vector<int64_t>{0, 6}));
      EXPECT_EQ(flagged_by({{11, 1, 1}, {10, 9, 0}}), keys == IndexKeys::f32 ? (std::vector<int64_t>{0, 2}) : (std::vector<int64_t>{0, 2, 6}));
    });
  }
}

}  // namespace
}  // namespace winnow::ops::test
