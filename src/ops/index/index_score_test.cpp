#include <cstring>

#include "ops/index/index.h"
#include "ops/steps.h"

namespace winnow::ops::test {
namespace {

// Random codes of finite values.
Tensor random_codes(std::initializer_list<int64_t> dims, uint64_t seed) { return random_tensor(DType::e4m3, dims, seed, 60); }

IndexPages random_pages(IndexKeys type, const Pages& p, int64_t kpool, int64_t dim, std::vector<Tensor>* owner) {
  const int64_t states = p.page_tokens / kpool;
  if (type != IndexKeys::fp8) {
    owner->push_back(random_tensor(type == IndexKeys::f32 ? DType::f32 : DType::bf16, {p.count(), states, dim}, 21));
    return {owner->back().view, {}};
  }
  owner->push_back(random_codes({p.count(), states, dim}, 21));
  const TensorView keys = owner->back().view;
  owner->emplace_back(DType::f32, std::initializer_list<int64_t>{p.count(), states});
  for (int64_t i = 0; i < p.count() * states; ++i) ref::set(owner->back(), i, std::ldexp(1.0f, static_cast<int>(i % 5) - 8));
  return {keys, owner->back().view};
}

Tensor random_q(DType type, int64_t tokens, int64_t heads, int64_t dim) {
  return type == DType::e4m3 ? random_codes({tokens, heads, dim}, 22) : random_tensor(type, {tokens, heads, dim}, 22);
}

Tensor poisoned(int64_t rows, int64_t columns) { return Tensor(DType::f32, {rows, columns}); }

void conform(const IndexScore::Spec& spec, int64_t page_tokens) {
  SCOPED_TRACE(fmt::format("keys {}, q {}, {} x {}, kpool {}, select {}", static_cast<int>(spec.keys), winnow::name_of(spec.q), spec.heads, spec.dim,
                           spec.kpool, spec.select));
  const Pages pages(3, 50 * spec.kpool, page_tokens, 7);
  const Step step({{spec.select * spec.kpool, 5, 1}, {0, 3, 2}, {35 * spec.kpool - 2, 9, 0}}, pages);
  const int64_t tokens = step.rows.tokens(), first = 1, count = tokens - 2, max_pools = 46;
  std::vector<Tensor> owner;
  owner.reserve(2);
  const IndexPages keys = random_pages(spec.keys, pages, spec.kpool, spec.dim, &owner);
  const Tensor q = random_q(spec.q, tokens, spec.heads, spec.dim), w = random_tensor(DType::f32, {tokens, spec.heads}, 23);
  const float factor = 1 / std::sqrt(static_cast<float>(spec.heads * spec.dim));
  const Tensor want = poisoned(count, max_pools);
  run_reference<IndexScore>(spec, {want, q, w, keys, first, factor, step.rows});
  std::map<bool, Tensor> firsts;  // of either arithmetic
  for_each_kernel<IndexScore>(spec, [&](const Kernel<IndexScore>& k, device::Device& d) {
    const Tensor score = poisoned(count, max_pools);
    run_kernel(k, d, spec, {score, q, w, keys, first, factor, step.rows});
    EXPECT_TRUE(score.canaries_intact());
    expect_close(score, want, 1e-5);  // NaN where nothing may be written
    const auto [before, is_first] = firsts.try_emplace(k.name.ends_with("_bf16"), score.clone());
    EXPECT_TRUE(is_first || same_bits(score, before->second)) << "bits depend on the instruction set or the workers";
    for (int64_t r = 0; r < count; ++r) {  // a row alone, into strided rows
      const Tensor wide = poisoned(1, max_pools + 5);
      run_kernel(k, d, spec, {wide.view.columns(0, max_pools), q, w, keys, first + r, factor, step.rows});
      EXPECT_EQ(std::memcmp(wide.view.data, score.view.rows(r, 1).data, static_cast<size_t>(max_pools * 4)), 0)
          << "row " << r << " depends on company";
    }
  });
}

TEST(IndexScore, Conformance) {
  for (IndexKeys keys : {IndexKeys::f32, IndexKeys::bf16, IndexKeys::fp8})
    for (DType q : {DType::f32, DType::bf16, DType::e4m3}) {
      if (q == DType::e4m3 && keys != IndexKeys::fp8) continue;
      conform({keys, q, 4, 16, 4, 6}, 16);
      for (int64_t page_tokens : {64, 128, 256}) conform({keys, q, 4, 16, 8, 6}, page_tokens);
      conform({keys, q, 19, 37, 8, 3}, 64);
      conform({keys, q, 19, 38, 8, 3}, 64);
      conform({keys, q, 32, 128, 16, 10}, 16);
      conform({keys, q, 1, 1, 1, 1}, 4);
    }
}

// One row of many pools must give the bits that it has with one worker, over all borders of the split.
TEST(IndexScore, OneLongRow) {
  const IndexScore::Spec spec{IndexKeys::bf16, DType::bf16, 8, 32, 4, 512};
  for (int64_t pools : {513, 575, 576, 577, 1001}) {
    const Pages pages(1, pools * 4, 64, 3);
    const Step step({{pools * 4 - 1, 1, 0}}, pages);
    std::vector<Tensor> owner;
    const IndexPages keys = random_pages(spec.keys, pages, 4, 32, &owner);
    const Tensor q = random_q(DType::bf16, 1, 8, 32), w = random_tensor(DType::f32, {1, 8}, 2), want = poisoned(1, pools);
    run_reference<IndexScore>(spec, {want, q, w, keys, 0, 0.1f, step.rows});
    std::map<bool, Tensor> firsts;  // of either arithmetic
    for_each_kernel<IndexScore>(spec, [&](const Kernel<IndexScore>& k, device::Device& d) {
      const Tensor score = poisoned(1, pools);
      run_kernel(k, d, spec, {score, q, w, keys, 0, 0.1f, step.rows});
      EXPECT_TRUE(score.canaries_intact());
      expect_close(score, want, 1e-5);
      const auto [before, is_first] = firsts.try_emplace(k.name.ends_with("_bf16"), score.clone());
      EXPECT_TRUE(is_first || same_bits(score, before->second));
    });
  }
}

struct OnePool {  // scores of a row of dim 1 with one pool of key 1, none skipped
  std::vector<float> q, w;
  float operator()(const Kernel<IndexScore>& k, device::Device& d) const {
    const int64_t heads = static_cast<int64_t>(q.size());
    const Pages pages(1, 1, 1, 1);
    const Step step({{0, 1, 0}}, pages);
    const Tensor key = tensor_of<float>({1, 1, 1}, {1});
    const Tensor qs = tensor_of<float>({1, heads, 1}, q), ws = tensor_of<float>({1, heads}, w), score = poisoned(1, 1);
    run_kernel(k, d, {IndexKeys::f32, DType::f32, heads, 1, 1, 0}, {score, qs, ws, {key.view, {}}, 0, 1.0f, step.rows});
    return ref::get(score, 0);
  }
};

void for_reference_and_kernels(const IndexScore::Spec& spec, const std::function<void(const Kernel<IndexScore>&, device::Device&)>& f) {
  f(kernels(IndexScore{}, Ref{})[0], cpu_with(1));
  for_each_kernel<IndexScore>(spec, f);
}

TEST(IndexScore, NegativeDotsCountForNothing) {
  for_reference_and_kernels({IndexKeys::f32, DType::f32, 2, 1, 1, 0},
                            [&](const Kernel<IndexScore>& k, device::Device& d) { EXPECT_EQ((OnePool{{-3, 2}, {1, -1}})(k, d), -2); });
}

TEST(IndexScore, ScoreIsLinearInTheQueryAndWeightsAreExact) {
  for_reference_and_kernels({IndexKeys::f32, DType::f32, 2, 1, 1, 0}, [&](const Kernel<IndexScore>& k, device::Device& d) {
    EXPECT_EQ((OnePool{{3, 2}, {1, 1}})(k, d) * 2, (OnePool{{6, 4}, {1, 1}})(k, d));
    // Weights 1e-3 apart near 1, which bf16 could not tell apart.
    EXPECT_GT((OnePool{{1, 0}, {1.001f, 0}})(k, d), (OnePool{{1, 0}, {1.0f, 0}})(k, d));
  });
}

// Page offsets beyond 32 bits, counted in elements too.
TEST(IndexScore, G12_FarPages) {
  const FarMemory memory(140'001ll * 38'016);
  Pages pages(1, 4, 4, 1);
  pages.ids[0] = 140'000;
  const Step step({{3, 1, 0}}, pages);
  IndexPages far{TensorView(memory.data, DType::bf16, {140'001, 1, 2}), {}};
  far.keys.stride[0] = 38'016 / 2;
  far.keys.as<Bf16>()[140'000 * far.keys.stride[0] + 1] = to_bf16(5);
  const Tensor q = tensor_of<float>({1, 1, 2}, {1, 2}), w = tensor_of<float>({1, 1}, {1}), score = poisoned(1, 1);
  for_reference_and_kernels({IndexKeys::bf16, DType::f32, 1, 2, 4, 0}, [&](const Kernel<IndexScore>& k, device::Device& d) {
    run_kernel(k, d, {IndexKeys::bf16, DType::f32, 1, 2, 4, 0}, {score, q, w, far, 0, 1.0f, step.rows});
    EXPECT_EQ(ref::get(score, 0), 10);
  });
}

TEST(IndexQuery, ConformanceToTheByte) {
  for (DType x : {DType::f32, DType::bf16})
    for (int64_t dim : {1, 2, 8, 16, 64, 128}) {
      const IndexQuery::Spec spec{x, 5, dim};
      const int64_t tokens = 7;
      const Tensor q = random_tensor(x, {tokens, 5, dim}, 31, 3), w = random_tensor(DType::f32, {tokens, 5}, 32);
      for (int64_t c = 0; c < dim; ++c) {
        ref::set(q, 1, 2, c, 0.0f);                                   // a row of zeros
        ref::set(q, 3, 1, c, std::ldexp(ref::get(q, 3, 1, c), -20));  // below the smallest scale
        ref::set(q, 4, 0, c, c == 5 ? 3.015625f : 3.0f);              // channel 0 large, the rest tiny: denormal codes
      }
      const Tensor want8(DType::e4m3, {tokens, 5, dim}), want_w(DType::f32, {tokens, 5});
      run_reference<IndexQuery>(spec, {want8, want_w, q, w});
      for_each_kernel<IndexQuery>(spec, [&](const Kernel<IndexQuery>& k, device::Device& d) {
        const Tensor q8(DType::e4m3, {tokens, 5, dim}), w8(DType::f32, {tokens, 5});
        run_kernel(k, d, spec, {q8, w8, q, w});
        EXPECT_TRUE(q8.canaries_intact() && w8.canaries_intact());
        EXPECT_TRUE(same_bits(q8, want8)) << winnow::name_of(x) << " " << dim;
        EXPECT_TRUE(same_bits(w8, want_w));
      });
    }
}

// Scores from quantised queries and keys stay close to the plain ones, and hold the query's scale once.
TEST(IndexQuery, ScoresLikeThePlainQuery) {
  constexpr int64_t kHeads = 16, kDim = 64, kPools = 40;
  const Pages pages(1, kPools * 4, 16, 3);
  const std::vector<Part> all{{0, kPools * 4, 0}};
  const Step step(all, pages);
  const int64_t tokens = kPools * 4;
  const Tensor key = random_tensor(DType::f32, {tokens, kDim}, 1), gate = random_tensor(DType::f32, {tokens, kDim}, 2),
               ape = random_tensor(DType::f32, {4, kDim}, 3);
  const Tensor q = random_tensor(DType::f32, {tokens, kHeads, kDim}, 4), w = random_tensor(DType::f32, {tokens, kHeads}, 5);
  auto score = [&](IndexKeys keys, float q_factor) {
    const DType type = keys == IndexKeys::f32 ? DType::f32 : DType::e4m3;
    Tensor k(type, {pages.count(), 4, kDim}), scales(DType::f32, {pages.count(), 4}), ring(DType::f32, {1, 4, 2, kDim}), scaled = q.clone();
    for (int64_t i = 0; i < q.view.elements(); ++i) ref::set(scaled, i, ref::get(q, i) * q_factor);
    const IndexPages p{k, keys == IndexKeys::fp8 ? scales.view : TensorView()};
    run_reference<IndexWrite>({keys, DType::f32, kDim, 4}, {p, ring, key, gate, ape, step.rows});
    Tensor s(DType::f32, {1, kPools}), q8(DType::e4m3, {tokens, kHeads, kDim}), w8(DType::f32, {tokens, kHeads});
    if (keys == IndexKeys::f32) {
      run_reference<IndexScore>({keys, DType::f32, kHeads, kDim, 4, 1}, {s, scaled, w, p, tokens - 1, 1.0f, step.rows});
    } else {
      run_reference<IndexQuery>({DType::f32, kHeads, kDim}, {q8, w8, scaled, w});
      run_reference<IndexScore>({keys, DType::e4m3, kHeads, kDim, 4, 1}, {s, q8, w8, p, tokens - 1, 1.0f, step.rows});
    }
    return s;
  };
  const Tensor plain = score(IndexKeys::f32, 1), quantised = score(IndexKeys::fp8, 1), doubled = score(IndexKeys::fp8, 2);
  double noise = 0, signal = 0;
  for (int64_t p = 0; p < kPools; ++p) {
    noise += std::pow(ref::get(plain, p) - ref::get(quantised, p), 2);
    signal += std::pow(ref::get(plain, p), 2);
    EXPECT_EQ(ref::get(doubled, p), 2 * ref::get(quantised, p));  // a power of two goes into the scale whole
  }
  EXPECT_LT(std::sqrt(noise / signal), 0.06);
}

}  // namespace
}  // namespace winnow::ops::test
