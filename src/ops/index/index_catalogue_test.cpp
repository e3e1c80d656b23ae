// Rows of the failure catalogue (docs/failure-catalogue.md) that the index ops could fall to.
#include <cstring>

#include "ops/index/index_world.h"

namespace winnow::ops::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The place of pool p of a sequence, by the page list alone.
int64_t row_of(const Pages& pages, int64_t sequence, int64_t pool, int64_t kpool) {
  const int64_t states = pages.page_tokens / kpool;
  return pages.page(sequence, pool * kpool) * states + pool % states;
}

// Pools of one channel whose keys all tokens share: key(pool) comes out as it went in.
Tensor keys_by_pool(int64_t tokens, int64_t kpool, const std::function<float(int64_t)>& key) {
  Tensor t(DType::f32, {tokens, 1});
  for (int64_t i = 0; i < tokens; ++i) ref::set(t, i, key(i / kpool));
  return t;
}

TEST(IndexWrite, G01_EveryPoolHasAPlaceOfItsOwn) {
  constexpr int64_t kPools = 4096, kPool = 4;
  const IndexWrite::Spec spec{IndexKeys::f32, DType::f32, 1, kPool};
  const Pages pages(1, kPools * kPool, 640, 2);  // 160 pools a page, in no order
  const Step step({{0, kPools * kPool, 0}}, pages);
  const Tensor key = keys_by_pool(kPools * kPool, kPool, [](int64_t p) { return static_cast<float>(p + 1); }),
               gate = random_tensor(DType::f32, {kPools * kPool, 1}, 1, 0), ape = random_tensor(DType::f32, {kPool, 1}, 1, 0);
  for_reference_and_kernels(spec, [&](const Kernel<IndexWrite>& k, device::Device& d) {
    const Cache cache(IndexKeys::f32, pages, 1, 1, kPool, kPool);
    run_kernel(k, d, spec, {cache.pages(), cache.ring, key, gate, ape, step.rows});
    int64_t wrong = 0, written = 0;
    for (int64_t p = 0; p < kPools; ++p) wrong += ref::get(cache.keys, row_of(pages, 0, p, kPool)) != static_cast<float>(p + 1);
    for (int64_t i = 0; i < cache.keys.view.elements(); ++i) written += !std::isnan(ref::get(cache.keys, i));
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(written, kPools);
  });
}

TEST(IndexWrite, G02_TheRingRowIsOfTheOwnRecordAndPosition) {
  for_reference_and_kernels({IndexKeys::f32, DType::f32, 1, 4}, [](const Kernel<IndexWrite>& k, device::Device& d) {
    const Pages pages(1, 64, 64, 1);
    const Step step({{13, 1, 0, 9}}, pages);  // a late token, record 9
    const Cache cache(IndexKeys::f32, pages, 10, 1, 4, 4);
    const Tensor key = tensor_of<float>({1, 1}, {5}), gate = tensor_of<float>({1, 1}, {6}), ape = random_tensor(DType::f32, {4, 1}, 1, 0);
    run_kernel(k, d, {IndexKeys::f32, DType::f32, 1, 4}, {cache.pages(), cache.ring, key, gate, ape, step.rows});
    for (int64_t row = 0; row < 40; ++row) {
      EXPECT_EQ(std::isnan(ref::get(cache.ring, 2 * row)), row != 37) << row;
      EXPECT_EQ(std::isnan(ref::get(cache.ring, 2 * row + 1)), row != 37) << row;
    }
    EXPECT_EQ(ref::get(cache.ring, 74), 5);
    EXPECT_EQ(ref::get(cache.ring, 75), 6);
    EXPECT_TRUE(std::isnan(ref::get(cache.keys, 13 / 4))) << "the pool is not complete";
  });
}

// Pool 32,832 of a sequence of 131,332 tokens, found by the reader where the writer put it.
TEST(IndexScore, G04_WriterAndReaderAgreeFarOut) {
  constexpr int64_t kTokens = 131'332, kPools = kTokens / 4;
  const IndexWrite::Spec spec{IndexKeys::f32, DType::f32, 1, 4};
  const IndexScore::Spec score_spec{IndexKeys::f32, DType::f32, 1, 1, 4, 16};
  const Pages pages(1, kTokens, 64, 2);
  const Step step({{kTokens - 4, 4, 0}}, pages);
  const Tensor key = tensor_of<float>({4, 1}, {7, 7, 7, 7}), zeros = random_tensor(DType::f32, {4, 1}, 1, 0),
               one = tensor_of<float>({4, 1}, {1, 1, 1, 1}), q = tensor_of<float>({4, 1, 1}, {1, 1, 1, 1});
  for_each_kernel<IndexWrite>(spec, [&](const Kernel<IndexWrite>& k, device::Device& d) {
    const Cache cache(IndexKeys::f32, pages, 1, 1, 4, 4);
    std::fill_n(cache.keys.as<float>(), cache.keys.view.elements(), 1.0f);
    run_kernel(k, d, spec, {cache.pages(), cache.ring, key, zeros, zeros, step.rows});
    for_each_kernel<IndexScore>(score_spec, [&](const Kernel<IndexScore>& reader, device::Device& e) {
      const Tensor score(DType::f32, {1, kPools});
      run_kernel(reader, e, score_spec, {score, q, one, cache.pages(), 3, 1.0f, step.rows});
      for (int64_t p = 0; p < kPools; ++p) ASSERT_EQ(ref::get(score, p), p == 32'832 ? 7 : 1) << p;
    });
  });
}

// Pages of 16, 32 and 64 pools and of one: what was written is what is scored.
TEST(IndexScore, G09_EveryPageSizeGivesBackWhatWasWritten) {
  constexpr int64_t kTokens = 640, kDim = 64;  // where the layouts differ, and what rotation makes of 1 to 16 is exact in e4m3
  const Tensor zeros = random_tensor(DType::f32, {kTokens, kDim}, 1, 0), ape = random_tensor(DType::f32, {4, kDim}, 1, 0);
  for (IndexKeys keys : {IndexKeys::f32, IndexKeys::bf16, IndexKeys::fp8})
    for (IndexLayout layout : {IndexLayout::plain, IndexLayout::shuffled})
      for (int64_t page_tokens : {4, 64, 128, 192, 256}) {
        if (index_layout_why_not(layout, page_tokens / 4, kDim)) continue;
        SCOPED_TRACE(fmt::format("keys {}, {}, pages of {} tokens", static_cast<int>(keys), name_of(layout), page_tokens));
        const IndexWrite::Spec spec{keys, DType::f32, kDim, 4, layout};
        const IndexScore::Spec score_spec{keys, DType::f32, 1, kDim, 4, 1, layout};
        const Pages pages(1, kTokens, page_tokens, 2);
        const Step step({{0, kTokens, 0}}, pages);
        // Key of pool p: its number in channel 0, whose rotation spreads over all channels of fp8 and is undone by the query's.
        const Tensor key = random_tensor(DType::f32, {kTokens, kDim}, 1, 0), q = random_tensor(DType::f32, {kTokens, 1, kDim}, 1, 0),
                     w = random_tensor(DType::f32, {kTokens, 1}, 1, 0, 1);
        for (int64_t t = 0; t < kTokens; ++t) ref::set(key, t, 0, static_cast<float>(t / 4 % 16 + 1)), ref::set(q, t, 0, 0, 1.0f);
        const auto reads = [&](const Cache& cache, const Kernel<IndexScore>& reader, device::Device& e) {
          const Tensor score(DType::f32, {1, kTokens / 4}), query = q.clone();
          if (keys == IndexKeys::fp8)
            for (int64_t c = 0; c < kDim; ++c) ref::set(query, kTokens - 1, 0, c, 0.125f);  // the rotated unit vector
          IndexPages p = cache.pages();
          p.layout = layout;
          run_kernel(reader, e, score_spec, {score, query.view.reshaped({kTokens, 1, kDim}), w, p, kTokens - 1, 1.0f, step.rows});
          for (int64_t i = 0; i < kTokens / 4; ++i) ASSERT_EQ(ref::get(score, i), static_cast<float>(i % 16 + 1)) << i;
        };
        const auto check_writer = [&](const Kernel<IndexWrite>& k, device::Device& d) {
          const Cache cache(keys, pages, 1, kDim, 4, 4);
          IndexPages p = cache.pages();
          p.layout = layout;
          run_kernel(k, d, spec, {p, cache.ring, key, zeros, ape, step.rows});
          reads(cache, kernels(IndexScore{}, Ref{})[0], cpu_with(1));
          if (layout == IndexLayout::plain)
            for_each_kernel<IndexScore>(score_spec, [&](const Kernel<IndexScore>& r, device::Device& e) { reads(cache, r, e); });
        };
        check_writer(kernels(IndexWrite{}, Ref{})[0], cpu_with(1));
        if (layout == IndexLayout::plain) for_each_kernel<IndexWrite>(spec, check_writer);
      }
}

// Pages that are 320 rows apart though they hold 64: row 40 of page 2 is row 680.
TEST(IndexWrite, G11_PagesMayBeFurtherApartThanTheirRows) {
  for_reference_and_kernels({IndexKeys::f32, DType::f32, 1, 4}, [](const Kernel<IndexWrite>& k, device::Device& d) {
    Pages pages(1, 256, 256, 1);
    pages.ids[0] = 2;
    const Step step({{160, 4, 0}}, pages);
    const Tensor memory(DType::f32, {3 * 320}), ring(DType::f32, {1, 4, 2, 1});
    IndexPages far{TensorView(memory.view.data, DType::f32, {3, 64, 1}), {}};
    far.keys.stride[0] = 320;
    const Tensor key = tensor_of<float>({4, 1}, {3, 3, 3, 3}), zeros = random_tensor(DType::f32, {4, 1}, 1, 0);
    run_kernel(k, d, {IndexKeys::f32, DType::f32, 1, 4}, {far, ring, key, zeros, zeros, step.rows});
    for (int64_t i = 0; i < 3 * 320; ++i) EXPECT_EQ(std::isnan(ref::get(memory, i)), i != 680) << i;
  });
}

TEST(IndexScore, G13_EachSequenceReadsItsOwnPages) {
  const IndexScore::Spec spec{IndexKeys::f32, DType::f32, 1, 1, 4, 1};
  Pages pages(2, 32, 16, 1);
  pages.ids = {3, 0, 1, 2};
  const Step step({{31, 1, 1}, {31, 1, 0}}, pages);
  const Tensor keys(DType::f32, {4, 4, 1}), q = tensor_of<float>({2, 1, 1}, {1, 1}), w = tensor_of<float>({2, 1}, {1, 1});
  for (int64_t i = 0; i < 16; ++i) ref::set(keys, i, static_cast<float>(i / 4 * 10 + i % 4));
  const auto expect = [&](const Kernel<IndexScore>& k, device::Device& d) {
    const Tensor score(DType::f32, {2, 8});
    run_kernel(k, d, spec, {score, q, w, {keys.view, {}}, 0, 1.0f, step.rows});
    EXPECT_EQ(std::vector<float>(score.as<float>(), score.as<float>() + 16),
              (std::vector<float>{10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33, 0, 1, 2, 3}));
  };
  expect(kernels(IndexScore{}, Ref{})[0], cpu_with(1));
  for_each_kernel<IndexScore>(spec, expect);
}

// Two pools of a page of two: 128 bytes of each key, then both scales.
TEST(IndexWrite, G14_BytesOfThePlainPage) {
  for_reference_and_kernels({IndexKeys::fp8, DType::f32, 128, 4}, [](const Kernel<IndexWrite>& k, device::Device& d) {
    const Pages pages(1, 8, 8, 1);
    const Step step({{0, 8, 0}}, pages);
    std::vector<std::byte> page(2 * 128 + 8, std::byte{0xee});
    const IndexPages p{TensorView(page.data(), DType::e4m3, {1, 2, 128}), TensorView(page.data() + 256, DType::f32, {1, 2})};
    Tensor key(DType::f32, {8, 128});
    for (int64_t i = 0; i < 8 * 128; ++i) ref::set(key, i, i < 4 * 128 ? 1.0f : static_cast<float>(i / 128 - 3));  // 1 1 1 1, 1 2 3 4
    const Tensor zeros = random_tensor(DType::f32, {8, 128}, 1, 0), ape = random_tensor(DType::f32, {4, 128}, 1, 0), ring(DType::f32, {1, 4, 2, 128});
    run_kernel(k, d, {IndexKeys::fp8, DType::f32, 128, 4}, {p, ring, key, zeros, ape, step.rows});
    for (size_t i = 0; i < 256; ++i) EXPECT_EQ(static_cast<int>(page[i]) & 0x7f, i == 0 ? 0x7b : i == 128 ? 0x76 : 0) << i;
    const float scales[] = {0.03125f, 0.125f};
    EXPECT_EQ(std::memcmp(page.data() + 256, scales, 8), 0);
  });
}

// Pages of one layout are not taken for those of another, though they have one size.
TEST(IndexDeathTest, G15_PagesOfAnotherLayoutAreRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Pages pages(1, 64, 64, 1);
  const Step step({{0, 64, 0}}, pages);
  const Cache cache(IndexKeys::bf16, pages, 1, 16, 4, 4);
  const Tensor rows = random_tensor(DType::f32, {64, 16}, 1), ape = random_tensor(DType::f32, {4, 16}, 1), score(DType::f32, {64, 16}),
               w = random_tensor(DType::f32, {64, 1}, 1);
  IndexPages shuffled = cache.pages();
  shuffled.layout = IndexLayout::shuffled;
  EXPECT_DEATH(run_reference<IndexWrite>({IndexKeys::bf16, DType::f32, 16, 4}, {shuffled, cache.ring, rows, rows, ape, step.rows}), "another layout");
  EXPECT_DEATH(run_reference<IndexScore>({IndexKeys::bf16, DType::f32, 1, 16, 4, 2, IndexLayout::shuffled},
                                         {score, rows.view.reshaped({64, 1, 16}), w, cache.pages(), 0, 1.0f, step.rows}),
               "another layout");
}

// Records that are padded are not written as if they were not.
TEST(IndexDeathTest, G19_ARingOfPaddedRecordsIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Pages pages(1, 64, 64, 1);
  const Step step({{0, 4, 1}}, pages);
  const Cache cache(IndexKeys::f32, pages, 2, 1, 4, 4);
  const Tensor rows = random_tensor(DType::f32, {4, 1}, 1), memory(DType::f32, {2 * 10});
  TensorView padded(memory.view.data, DType::f32, {2, 4, 2, 1});
  padded.stride[0] = 10;
  EXPECT_DEATH(run_reference<IndexWrite>({IndexKeys::f32, DType::f32, 1, 4}, {cache.pages(), padded, rows, rows, rows, step.rows}), "operand ring");
}

TEST(Index, KernelsOfOneLayoutSaySo) {
  const Caps& caps = cpu_with(1).caps();
  for (const Kernel<IndexWrite>& k : kernels(IndexWrite{}, Cpu{}))
    EXPECT_STREQ(k.why_not(caps, {IndexKeys::bf16, DType::f32, 128, 4, IndexLayout::shuffled}), "knows the index layout plain only, not shuffled");
  for (const Kernel<IndexScore>& k : kernels(IndexScore{}, Cpu{}))
    EXPECT_STREQ(k.why_not(caps, {IndexKeys::bf16, DType::f32, 32, 128, 4, 512, IndexLayout::shuffled}),
                 "knows the index layout plain only, not shuffled");
}

// Two prompts of six tokens in one step: both rings hold the last four.
TEST(IndexWrite, G18_EveryRingOfAStepIsFilled) {
  for_reference_and_kernels({IndexKeys::f32, DType::f32, 1, 4}, [](const Kernel<IndexWrite>& k, device::Device& d) {
    const Pages pages(2, 8, 8, 1);
    const Raw raw(DType::f32, 2, 6, 1);
    const Cache cache(IndexKeys::f32, pages, 2, 1, 4, 4);
    write([&](const auto& s, const auto& a) { run_kernel(k, d, s, a); }, {IndexKeys::f32, DType::f32, 1, 4}, cache, raw,
          random_tensor(DType::f32, {4, 1}, 1), pages, {{0, 6, 0}, {0, 6, 1}});
    for (int64_t s : {0, 1})
      for (int64_t pos = 2; pos < 6; ++pos) {
        EXPECT_EQ(ref::get(cache.ring, (s * 4 + pos % 4) * 2), ref::get(raw.key, s * 6 + pos));
        EXPECT_EQ(ref::get(cache.ring, (s * 4 + pos % 4) * 2 + 1), ref::get(raw.gate, s * 6 + pos));
      }
  });
}

// Verify steps of which some rows are taken back: the pools are those of plain decoding, with the ring as long as the formula says.
TEST(IndexWrite, G21_RejectedDraftsLeaveNoTrace) {
  constexpr int64_t kTokens = 40;
  for (int64_t kpool : {4, 16})
    for (int64_t depth : {1, 3, 7}) {
      const IndexWrite::Spec spec{IndexKeys::f32, DType::f32, 1, kpool};
      const Pages pages(1, kTokens + 16, 32, 1);
      const Raw raw(DType::f32, 1, kTokens + 16, 1), drafts(DType::f32, 1, kTokens + 17, 1);
      const Tensor ape = random_tensor(DType::f32, {kpool, 1}, 3);
      for_reference_and_kernels(spec, [&](const Kernel<IndexWrite>& k, device::Device& d) {
        const Runner run = [&](const IndexWrite::Spec& s, const IndexWrite::Args& a) { run_kernel(k, d, s, a); };
        const Cache want(IndexKeys::f32, pages, 1, 1, kpool, kpool), got(IndexKeys::f32, pages, 1, 1, kpool, pool_ring_rows(kpool, depth));
        write(run, spec, want, raw, ape, pages, {{0, kTokens, 0}});
        std::mt19937 rng(static_cast<uint32_t>(depth));
        write(run, spec, got, raw, ape, pages, {{0, 5, 0}});
        for (int64_t done = 5; done < kTokens;) {
          const int64_t accepted = std::min<int64_t>(1 + rng() % (depth + 1), kTokens - done);
          Tensor key(DType::f32, {depth + 1, 1}), gate(DType::f32, {depth + 1, 1});
          for (int64_t i = 0; i <= depth; ++i) {
            const Raw& from = i < accepted ? raw : drafts;
            ref::set(key, i, ref::get(from.key, done + i + (i >= accepted))), ref::set(gate, i, ref::get(from.gate, done + i + (i >= accepted)));
          }
          const Step step({{done, depth + 1, 0}}, pages);
          run(spec, {got.pages(), got.ring, key, gate, ape, step.rows});
          done += accepted;
          // What is complete by now is final.
          for (int64_t p = 0; p < done / kpool; ++p)
            ASSERT_EQ(ref::get(got.keys, row_of(pages, 0, p, kpool)), ref::get(want.keys, row_of(pages, 0, p, kpool)))
                << "pool " << p << " at " << done;
        }
      });
    }
}

// Token by token with a ring of one pool: the fourth completes the pool from the ring, before it takes the place of the oldest.
TEST(IndexWrite, G24_G25_DecodeCompletesPoolsFromTheRingItOverwrites) {
  for_reference_and_kernels({IndexKeys::f32, DType::f32, 1, 4}, [](const Kernel<IndexWrite>& k, device::Device& d) {
    const Pages pages(1, 8, 8, 1);
    const Cache cache(IndexKeys::f32, pages, 1, 1, 4, 4);
    const Tensor zero = tensor_of<float>({1, 1}, {0}), ape = random_tensor(DType::f32, {4, 1}, 1, 0);
    for (int64_t pos = 0; pos < 8; ++pos) {
      const Step step({{pos, 1, 0}}, pages);
      const Tensor key = tensor_of<float>({1, 1}, {std::ldexp(1.0f, static_cast<int>(pos))});
      run_kernel(k, d, {IndexKeys::f32, DType::f32, 1, 4}, {cache.pages(), cache.ring, key, zero, ape, step.rows});
      EXPECT_EQ(std::isnan(ref::get(cache.keys, 0)), pos < 3);
      EXPECT_EQ(std::isnan(ref::get(cache.keys, 1)), pos < 7);
    }
    EXPECT_EQ(ref::get(cache.keys, 0), (1 + 2 + 4 + 8) / 4.0f);
    EXPECT_EQ(ref::get(cache.keys, 1), (16 + 32 + 64 + 128) / 4.0f);
  });
}

// A pool of which no token is in the ring does not look there.
TEST(IndexWrite, G28_StaleRingRowsStayOut) {
  for_reference_and_kernels({IndexKeys::f32, DType::f32, 3, 4}, [](const Kernel<IndexWrite>& k, device::Device& d) {
    const Pages pages(1, 8, 8, 1);
    const Cache cache(IndexKeys::f32, pages, 1, 3, 4, 4);
    std::fill_n(cache.ring.as<float>(), cache.ring.view.elements(), kNan);
    const Step step({{4, 4, 0}}, pages);
    const Tensor rows = random_tensor(DType::f32, {4, 3}, 1), ape = random_tensor(DType::f32, {4, 3}, 2), bad = flags(4);
    run_kernel(k, d, {IndexKeys::f32, DType::f32, 3, 4}, {cache.pages(), cache.ring, rows, rows, ape, step.rows, bad});
    for (int64_t c = 0; c < 3; ++c) EXPECT_TRUE(std::isfinite(ref::get(cache.keys, 0, 1, c)));
    EXPECT_TRUE(flagged(bad).empty());
  });
}

// Ten tokens, three taken back: pool 1 is of tokens 4, 5, 6 and the new one at 7.
TEST(IndexWrite, G30_ALengthIsAllThatIsTakenBack) {
  for_reference_and_kernels({IndexKeys::f32, DType::f32, 1, 4}, [](const Kernel<IndexWrite>& k, device::Device& d) {
    const Pages pages(1, 16, 16, 1);
    const Cache cache(IndexKeys::f32, pages, 1, 1, 4, pool_ring_rows(4, 3));
    const Tensor ape = random_tensor(DType::f32, {4, 1}, 1, 0);
    const auto feed = [&](int64_t position, const std::vector<float>& keys) {
      const int64_t n = static_cast<int64_t>(keys.size());
      const Step step({{position, n, 0}}, pages);
      run_kernel(k, d, {IndexKeys::f32, DType::f32, 1, 4},
                 {cache.pages(), cache.ring, tensor_of<float>({n, 1}, keys), random_tensor(DType::f32, {n, 1}, 1, 0), ape, step.rows});
    };
    feed(0, {1, 2, 3, 4, 5, 6, 7});
    feed(7, {100, 100, 100});
    feed(7, {10});
    EXPECT_EQ(ref::get(cache.keys, 0), 2.5f);
    EXPECT_EQ(ref::get(cache.keys, 1), 7.0f);
  });
}

}  // namespace
}  // namespace winnow::ops::test
