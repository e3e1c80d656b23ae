#include <cstring>

#include "ops/mla/mla.h"
#include "ops/steps.h"

namespace winnow::ops::test {
namespace {

// A step of decode rows, each its own sequence, that attend to `counts[r]` random tokens of `width`.
struct Case {
  SparseMla::Spec spec;
  std::vector<int32_t> counts;
  int64_t width, context, page_tokens;
  Pages pages;
  Step step;
  Tensor q, latent, selected, count;

  static std::vector<Part> parts(size_t rows, int64_t context) {
    std::vector<Part> p;
    for (size_t i = 0; i < rows; ++i) p.push_back({context - 1, 1, static_cast<int64_t>(rows - 1 - i)});
    return p;
  }
  Case(const SparseMla::Spec& s, std::vector<int32_t> n, int64_t width, int64_t context, int64_t page_tokens)
      : spec(s),
        counts(std::move(n)),
        width(width),
        context(context),
        page_tokens(page_tokens),
        pages(static_cast<int64_t>(counts.size()), context, page_tokens, 4),
        step(parts(counts.size(), context), pages),
        q(random_tensor(s.q, {rows(), s.heads, s.dim}, 1, 2)),
        latent(random_tensor(s.latent, {pages.count(), page_tokens, s.dim}, 2)),
        selected(DType::i32, {rows(), width}),
        count(DType::i32, {rows()}) {
    std::mt19937 rng(6);
    for (int64_t r = 0; r < rows(); ++r) {
      std::vector<int32_t> all(static_cast<size_t>(context));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), rng);
      const int32_t n = counts[static_cast<size_t>(r)];
      std::sort(all.begin(), all.begin() + n);
      count.as<int32_t>()[r] = n;
      for (int64_t i = 0; i < width; ++i) selected.as<int32_t>()[r * width + i] = i < n ? all[static_cast<size_t>(i)] : -1;
    }
  }
  int64_t rows() const { return static_cast<int64_t>(counts.size()); }
  SparseMla::Args args(const Tensor& y) const { return {y, q, latent, selected, count, 0, scale(), step.rows}; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(spec.dim)); }
  Tensor output() const { return Tensor(spec.y, {rows(), spec.heads, spec.dim}); }
  // Row r of the step, without the others.
  Tensor part(const Kernel<SparseMla>& k, device::Device& d, int64_t r) const {
    Tensor y(spec.y, {1, spec.heads, spec.dim});
    run_kernel(k, d, spec, {y, q.view.rows(r, 1), latent, selected.view.rows(r, 1), count.view.rows(r, 1), r, scale(), step.rows});
    return y;
  }
  // Row r in a step of its own.
  Tensor alone(const Kernel<SparseMla>& k, device::Device& d, int64_t r) const {
    const Step one({{context - 1, 1, rows() - 1 - r}}, pages);
    Tensor y(spec.y, {1, spec.heads, spec.dim});
    run_kernel(k, d, spec, {y, q.view.rows(r, 1), latent, selected.view.rows(r, 1), count.view.rows(r, 1), 0, scale(), one.rows});
    return y;
  }
};

void conform(const SparseMla::Spec& s, const std::vector<int32_t>& counts, int64_t width, int64_t context, int64_t page_tokens = 16) {
  SCOPED_TRACE(fmt::format("{} {} {}, {} x {}, {} rows", winnow::name_of(s.q), winnow::name_of(s.latent), winnow::name_of(s.y), s.heads, s.dim,
                           counts.size()));
  const Case c(s, counts, width, context, page_tokens);
  const Tensor want = c.output();
  run_reference<SparseMla>(s, c.args(want));
  std::unique_ptr<Tensor> before;
  for_each_kernel<SparseMla>(s, [&](const Kernel<SparseMla>& k, device::Device& d) {
    const Tensor y = c.output();
    run_kernel(k, d, s, c.args(y));
    EXPECT_TRUE(y.canaries_intact());
    expect_close(y, want, 2 * epsilon_of(s.y) + 2e-5);
    EXPECT_TRUE(!before || same_bits(y, before->view)) << "bits depend on kernel or workers";
    if (!before) before = std::make_unique<Tensor>(y.clone());
    for (int64_t r = 0; r < c.rows(); ++r) {
      EXPECT_TRUE(same_bits(c.alone(k, d, r), y.view.rows(r, 1))) << "row " << r << " depends on company";
      EXPECT_TRUE(same_bits(c.part(k, d, r), y.view.rows(r, 1))) << "row " << r << " as part of a step";
    }
  });
}

TEST(SparseMla, Conformance) {
  for (DType q : {DType::f32, DType::bf16})
    for (DType latent : {DType::f32, DType::bf16})
      for (DType y : {DType::f32, DType::bf16}) {
        conform({q, latent, y, 4, 16}, {1, 0, 63, 64, 65, 7}, 70, 100);
        conform({q, latent, y, 21, 37}, {200, 3, 129}, 200, 300);
      }
  conform({DType::bf16, DType::bf16, DType::bf16, 64, 512}, {515, 300}, 515, 1000, 64);
  conform({DType::f32, DType::f32, DType::f32, 33, 576}, {190}, 190, 190, 64);
  conform({DType::f32, DType::f32, DType::f32, 1, 1}, {5}, 5, 9, 4);
  for (int64_t page_tokens : {64, 128, 256})
    for (DType type : {DType::f32, DType::bf16}) conform({type, type, type, 5, 37}, {200, 3, 129}, 200, 600, page_tokens);
}

// Many segments of one group: more than the slots of scratch, so partial results are carried from wave to wave.
TEST(SparseMla, ManySegments) {
  conform({DType::f32, DType::f32, DType::f32, 16, 8}, {3000}, 3000, 3000);
  conform({DType::f32, DType::f32, DType::f32, 20, 8}, {2900, 1, 3000, 1500, 64}, 3000, 3000);
}

void for_reference_and_kernels(const SparseMla::Spec& spec, const std::function<void(const Kernel<SparseMla>&, device::Device&)>& f) {
  f(kernels(SparseMla{}, Ref{})[0], cpu_with(1));
  for_each_kernel<SparseMla>(spec, f);
}

TEST(SparseMla, NothingSelectedGivesZeros) {
  const SparseMla::Spec spec{DType::f32, DType::f32, DType::f32, 3, 5};
  const Case c(spec, {0, 0, 0}, 4, 10, 4);
  for_reference_and_kernels(spec, [&](const Kernel<SparseMla>& k, device::Device& d) {
    const Tensor y = c.output();
    run_kernel(k, d, spec, c.args(y));
    for (int64_t i = 0; i < y.view.elements(); ++i) EXPECT_EQ(ref::get(y, i), 0);
  });
}

TEST(SparseMla, OneKeyGivesItself) {
  const SparseMla::Spec spec{DType::f32, DType::f32, DType::f32, 3, 5};
  const Case c(spec, {1}, 4, 10, 4);
  for_reference_and_kernels(spec, [&](const Kernel<SparseMla>& k, device::Device& d) {
    const Tensor y = c.output();
    run_kernel(k, d, spec, c.args(y));
    const int64_t u = c.selected.as<int32_t>()[0];
    for (int64_t h = 0; h < 3; ++h)
      for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(ref::get(y, 0, h, i), ref::get(c.latent, c.pages.page(0, u), u % 4, i));
  });
}

// One head, absorbed against naive: k = A c, v = c, so q . k = (A' q) . c; the scale is that of the size before absorption.
TEST(SparseMla, AbsorbedEqualsNaive) {
  constexpr int64_t kLatent = 12, kHead = 6, kKeys = 9;
  const SparseMla::Spec spec{DType::f32, DType::f32, DType::f32, 1, kLatent};
  Case c(spec, {kKeys}, kKeys, kKeys, 4);
  const Tensor a = random_tensor(DType::f32, {kHead, kLatent}, 8), q = random_tensor(DType::f32, {kHead}, 9);
  for (int64_t i = 0; i < kLatent; ++i) {
    double x = 0;
    for (int64_t j = 0; j < kHead; ++j) x += double{ref::get(a, j, i)} * ref::get(q, j);
    ref::set(c.q, i, static_cast<float>(x));
  }
  const float scale = 1 / std::sqrt(static_cast<float>(kHead));
  std::vector<double> want(kLatent), p(kKeys);
  double sum = 0;
  for (int64_t u = 0; u < kKeys; ++u) {
    double dot = 0;
    for (int64_t j = 0; j < kHead; ++j) {
      double k = 0;
      for (int64_t i = 0; i < kLatent; ++i) k += double{ref::get(a, j, i)} * ref::get(c.latent, c.pages.page(0, u), u % 4, i);
      dot += k * ref::get(q, j);
    }
    sum += p[static_cast<size_t>(u)] = std::exp(dot * scale);
  }
  for (int64_t u = 0; u < kKeys; ++u)
    for (int64_t i = 0; i < kLatent; ++i)
      want[static_cast<size_t>(i)] += p[static_cast<size_t>(u)] / sum * ref::get(c.latent, c.pages.page(0, u), u % 4, i);
  for_reference_and_kernels(spec, [&](const Kernel<SparseMla>& k, device::Device& d) {
    const Tensor y = c.output();
    SparseMla::Args args = c.args(y);
    args.scale = scale;
    run_kernel(k, d, spec, args);
    for (int64_t i = 0; i < kLatent; ++i) EXPECT_NEAR(ref::get(y, i), want[static_cast<size_t>(i)], 1e-5);
  });
}

// Large scores in one segment and tiny ones in another: each segment has its own maximum.
TEST(SparseMla, ExtremeScores) {
  const SparseMla::Spec spec{DType::f32, DType::f32, DType::f32, 2, 3};
  Case c(spec, {130}, 130, 130, 8);
  for (int64_t u = 0; u < 130; ++u)
    for (int64_t i = 0; i < 3; ++i) ref::set(c.latent, c.pages.page(0, u), u % 8, i, u == 100 ? 300.0f : u < 64 ? -300.0f : 0.5f);
  for (int64_t i = 0; i < 6; ++i) ref::set(c.q, i, i < 3 ? 100.0f : -100.0f);
  for_reference_and_kernels(spec, [&](const Kernel<SparseMla>& k, device::Device& d) {
    const Tensor y = c.output();
    run_kernel(k, d, spec, c.args(y));
    EXPECT_EQ(ref::get(y, 0), 300);
    EXPECT_NEAR(ref::get(y, 3), -300, 1e-3);
  });
}

TEST(SparseMla, G12_FarPages) {
  const SparseMla::Spec spec{DType::f32, DType::bf16, DType::f32, 1, 4};
  const FarMemory memory(140'001ll * 38'016);
  Pages pages(1, 4, 4, 1);
  pages.ids[0] = 140'000;
  const Step step({{3, 1, 0}}, pages);
  TensorView latent(memory.data, DType::bf16, {140'001, 4, 4});
  latent.stride[0] = 38'016 / 2;
  for (int64_t i = 0; i < 4; ++i) ref::set(latent, 140'000 * latent.stride[0] + 2 * 4 + i, static_cast<float>(i + 1));
  const Tensor q = random_tensor(DType::f32, {1, 1, 4}, 1), selected = tensor_of<int32_t>({1, 2}, {2, -1}), count = tensor_of<int32_t>({1}, {1});
  for_reference_and_kernels(spec, [&](const Kernel<SparseMla>& k, device::Device& d) {
    const Tensor y(DType::f32, {1, 1, 4});
    run_kernel(k, d, spec, {y, q, latent, selected, count, 0, 1.0f, step.rows});
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(ref::get(y, i), i + 1);
  });
}

}  // namespace
}  // namespace winnow::ops::test
