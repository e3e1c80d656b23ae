#include <cstring>
#include <limits>

#include "ops/mla/dense_mla.h"
#include "ops/mla/mla.h"
#include "ops/steps.h"

namespace winnow::ops::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr DType f32 = DType::f32, bf16 = DType::bf16;

// Sequences with all their queries and latents; steps take parts of them. Two or more rows of a part are a prefill chunk, one is a
// decode row.
struct World {
  DenseMla::Spec spec;
  int64_t page_tokens, tokens;
  Pages pages;
  Tensor latent, w_k, w_v, queries;

  World(const DenseMla::Spec& s, int64_t sequences, int64_t tokens, int64_t page_tokens)
      : spec(s),
        page_tokens(page_tokens),
        tokens(tokens),
        pages(sequences, tokens, page_tokens, 4),
        latent(random_tensor(s.latent, {pages.count(), page_tokens, s.dim}, 1)),
        w_k(random_tensor(s.w, {s.heads, s.nope, s.dim}, 2, over_root(s.dim))),
        w_v(random_tensor(s.w, {s.heads, s.v, s.dim}, 3, over_root(s.dim))),
        queries(random_tensor(s.q, {sequences * tokens, s.heads, s.nope}, 4, 2)) {
    for (int64_t q = 0; q < sequences; ++q)
      for (int64_t u = tokens; u < pages.pages_each * page_tokens; ++u) spoil(q, u);
  }
  static float over_root(int64_t n) { return 1 / std::sqrt(static_cast<float>(n)); }
  void spoil(int64_t sequence, int64_t u) {
    for (int64_t d = 0; d < spec.dim; ++d) ref::set(latent, pages.page(sequence, u) * latent.view.stride[0] + u % page_tokens * spec.dim + d, kNan);
  }
  Tensor run(const Kernel<DenseMla>& k, device::Device& d, const std::vector<Part>& parts) const {
    const Step step(parts, pages);
    const int64_t rows = step.rows.tokens();
    const Tensor q(spec.q, {rows, spec.heads, spec.nope});
    int64_t r = 0;
    for (const Part& p : parts) {
      const ConstTensorView from = queries.view.rows(p.state * tokens + p.position, p.count);
      std::memcpy(q.view.rows(r, p.count).data, from.data, static_cast<size_t>(from.bytes()));
      r += p.count;
    }
    Tensor y(spec.y, {rows, spec.heads, spec.v});
    run_kernel(k, d, spec, {y, q, latent, w_k, w_v, over_root(spec.nope), step.rows}, {.max_rows = rows});
    EXPECT_TRUE(y.canaries_intact());
    return y;
  }
  // Rows of a sequence from 0 on in chunks of this many.
  Tensor in_chunks(const Kernel<DenseMla>& k, device::Device& d, int64_t sequence, int64_t chunk) const {
    Tensor all(spec.y, {tokens, spec.heads, spec.v});
    for (int64_t p = 0; p < tokens; p += chunk) {
      const int64_t n = std::min(chunk, tokens - p);
      const Tensor y = run(k, d, {{p, n, sequence}});
      std::memcpy(all.view.rows(p, n).data, y.view.data, static_cast<size_t>(y.view.bytes()));
    }
    return all;
  }
};

bool untouched(ConstTensorView v) {
  return std::all_of(v.data, v.data + v.bytes(), [](std::byte b) { return b == std::byte{0xff}; });
}
const Kernel<DenseMla>& reference() { return kernels(DenseMla{}, Ref{})[0]; }
// Kernels with one order of sums have equal bits.
std::string order_of(const Kernel<DenseMla>& k) { return k.name == "dense_mla.cpu_avx2" ? "dense_mla.cpu_avx512" : std::string(k.name); }

void conform(const DenseMla::Spec& s, const std::vector<Part>& parts, int64_t tokens, int64_t page_tokens) {
  SCOPED_TRACE(fmt::format("{} {} {} {}, {} heads, {} -> {} + {}, limit {}", winnow::name_of(s.q), winnow::name_of(s.latent), winnow::name_of(s.w),
                           winnow::name_of(s.y), s.heads, s.dim, s.nope, s.v, s.limit));
  int64_t sequences = 0;
  for (const Part& p : parts) sequences = std::max(sequences, p.state + 1);
  const World world(s, sequences, tokens, page_tokens);
  const Tensor want = world.run(reference(), cpu_with(1), parts);
  std::map<std::string, Tensor> before;
  for_each_kernel<DenseMla>(s, [&](const Kernel<DenseMla>& k, device::Device& d) {
    const Tensor y = world.run(k, d, parts);
    int64_t row = 0;
    for (const Part& p : parts) {
      const int64_t n = p.count == 1 ? 0 : std::clamp<int64_t>(s.limit - p.position, 0, p.count);
      expect_close(y.view.rows(row, n), want.view.rows(row, n), 2 * epsilon_of(s.y) + 3e-5);
      EXPECT_TRUE(untouched(y.view.rows(row + n, p.count - n))) << "wrote rows that are not its own";
      EXPECT_TRUE(same_bits(world.run(k, d, {p}), y.view.rows(row, p.count))) << "depends on company";
      row += p.count;
    }
    const auto [first, is_new] = before.try_emplace(order_of(k), y.clone());
    EXPECT_TRUE(is_new || same_bits(y, first->second)) << "bits depend on kernel or workers";
  });
}

TEST(DenseMla, Conformance) {
  for (DType a : {f32, bf16})
    for (DType w : {f32, bf16})
      for (DType y : {f32, bf16}) {
        conform({a, a, w, y, 3, 21, 13, 19, 64}, {{0, 70, 0}, {64, 66, 1}, {0, 2, 2}}, 130, 16);
        conform({a, a, w, y, 2, 64, 16, 33, 49}, {{0, 130, 1}, {48, 1, 0}, {20, 64, 0}, {48, 2, 2}}, 130, 4);
      }
  conform({bf16, f32, bf16, f32, 4, 32, 24, 16, 35}, {{0, 35, 0}, {34, 5, 1}}, 80, 64);
  conform({f32, f32, f32, f32, 1, 1, 1, 1, 9}, {{0, 9, 0}}, 9, 4);
  for (int64_t page_tokens : {128, 256})
    for (DType type : {f32, bf16}) conform({type, type, bf16, type, 3, 21, 13, 19, 64}, {{0, 70, 0}, {64, 66, 1}, {0, 2, 2}}, 130, page_tokens);
  conform({bf16, bf16, bf16, bf16, 3, 512, 256, 256, 64}, {{0, 64, 0}, {0, 37, 1}}, 101, 64);
  conform({f32, f32, f32, f32, 2, 8, 4, 4, 0}, {{0, 9, 0}}, 9, 4);
}

// More tokens than share a product, with sequences between that have none.
TEST(DenseMla, ManyPrompts) {
  for (DType a : {f32, bf16})
    conform({a, a, bf16, a, 3, 40, 24, 20, 64},
            {{70, 1, 0}, {64, 5, 1}, {0, 64, 2}, {0, 64, 3}, {0, 63, 4}, {0, 2, 5}, {0, 65, 6}, {0, 17, 7}, {0, 100, 8}}, 100, 32);
}

// However the first rows are cut; a model cuts them nowhere.
TEST(DenseMla, CutsDoNotMatter) {
  for (DType act : {f32, bf16}) {
    const DenseMla::Spec s{act, act, bf16, act, 3, 40, 24, 20, 64};
    const World world(s, 2, 100, 32);
    for_each_kernel<DenseMla>(s, [&](const Kernel<DenseMla>& k, device::Device& d) {
      const Tensor whole = world.in_chunks(k, d, 1, 100);
      for (int64_t chunk : {64, 16, 50, 7}) EXPECT_TRUE(same_bits(whole, world.in_chunks(k, d, 1, chunk))) << "in chunks of " << chunk;
    });
  }
}

// A NaN in a latent reaches its own row and later ones, and no earlier row, in a chunk or across.
TEST(DenseMla, LaterTokensAreNotSeen) {
  const DenseMla::Spec s{f32, f32, f32, f32, 2, 16, 8, 18, 64};
  const World world(s, 1, 64, 16);
  for_each_kernel<DenseMla>(s, [&](const Kernel<DenseMla>& k, device::Device& d) {
    World spoilt(s, 1, 64, 16);
    for (int64_t u = 63; u > 0; --u) {
      spoilt.spoil(0, u);
      const Tensor y = spoilt.run(k, d, {{0, 64, 0}});
      EXPECT_TRUE(same_bits(y.view.rows(0, u), world.run(k, d, {{0, 64, 0}}).view.rows(0, u))) << u;
      EXPECT_TRUE(std::isnan(ref::get(y, u, 0, 0))) << u;
    }
  });
}

// What SparseMla gives in latent space over all tokens, between absorbing and expanding.
TEST(DenseMla, EqualsTheAbsorbedForm) {
  const DenseMla::Spec s{f32, f32, f32, f32, 2, 24, 10, 12, 64};
  const int64_t tokens = 60;
  const World world(s, 1, tokens, 16);
  const Tensor y = world.run(reference(), cpu_with(1), {{0, tokens, 0}}), absorbed(f32, {tokens, s.heads, s.dim}),
               attended(f32, {tokens, s.heads, s.dim});
  const Tensor selected(DType::i32, {tokens, tokens}), count(DType::i32, {tokens}), want(f32, {tokens, s.heads, s.v});
  for (int64_t t = 0; t < tokens; ++t) {
    count.as<int32_t>()[t] = static_cast<int32_t>(t + 1);
    for (int64_t u = 0; u < tokens; ++u) selected.as<int32_t>()[t * tokens + u] = u <= t ? static_cast<int32_t>(u) : -1;
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t d = 0; d < s.dim; ++d) {
        double x = 0;
        for (int64_t i = 0; i < s.nope; ++i) x += double{ref::get(world.queries, t, h, i)} * ref::get(world.w_k, h, i, d);
        ref::set(absorbed, t, h, d, static_cast<float>(x));
      }
  }
  const Step step({{0, tokens, 0}}, world.pages);
  run_reference<SparseMla>({f32, f32, f32, s.heads, s.dim},
                           {attended, absorbed, world.latent, selected, count, 0, World::over_root(s.nope), step.rows});
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t i = 0; i < s.v; ++i) {
        double x = 0;
        for (int64_t d = 0; d < s.dim; ++d) x += double{ref::get(attended, t, h, d)} * ref::get(world.w_v, h, i, d);
        ref::set(want, t, h, i, static_cast<float>(x));
      }
  expect_close(y, want, 1e-5);
}

// Scores whose maximum rises and falls beyond the range of exp.
TEST(DenseMla, ExtremeScores) {
  const DenseMla::Spec s{f32, f32, f32, f32, 1, 2, 2, 2, 64};
  World world(s, 1, 64, 64);
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 2; ++j) {
      ref::set(world.w_k, 0, i, j, i == j);
      ref::set(world.w_v, 0, i, j, i == j);
    }
  for (int64_t u = 0; u < 64; ++u) {
    const float x = u < 20 ? -300.0f : u == 40 ? 300.0f : 0.5f;
    for (int64_t i = 0; i < 2; ++i) {
      ref::set(world.latent, world.pages.page(0, u) * 128 + u % 64 * 2 + i, x);
      ref::set(world.queries, u, 0, i, 100.0f);
    }
  }
  for_each_kernel<DenseMla>(s, [&](const Kernel<DenseMla>& k, device::Device& d) {
    const Tensor y = world.run(k, d, {{0, 64, 0}});
    for (int64_t u = 0; u < 64; ++u) EXPECT_NEAR(ref::get(y, u, 0, 0), u < 20 ? -300 : u < 40 ? 0.5 : 300, 1e-3) << u;
  });
}

TEST(DenseMla, FarPages) {
  const DenseMla::Spec s{f32, bf16, bf16, f32, 1, 4, 4, 4, 64};
  const FarMemory memory(140'001ll * 38'016);
  Pages pages(1, 4, 4, 1);
  pages.ids[0] = 140'000;
  const Step step({{0, 2, 0}}, pages);
  TensorView latent(memory.data, bf16, {140'001, 4, 4});
  latent.stride[0] = 38'016 / 2;
  const Tensor w(bf16, {1, 4, 4}), q = random_tensor(f32, {2, 1, 4}, 1);
  for (int64_t i = 0; i < 4; ++i) {
    ref::set(latent, 140'000 * latent.stride[0] + i, static_cast<float>(i + 1));
    for (int64_t j = 0; j < 4; ++j) ref::set(w, 0, i, j, i == j);
  }
  for_each_kernel<DenseMla>(s, [&](const Kernel<DenseMla>& k, device::Device& d) {
    const Tensor y(f32, {2, 1, 4});
    run_kernel(k, d, s, {y, q, latent, w, w, 1.0f, step.rows}, {.max_rows = 2});
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(ref::get(y, 0, 0, i), i + 1);
  });
}

TEST(DenseMla, Limit) {
  EXPECT_EQ(DenseMla::limit_for(512, 256, 256, 2051), 64);  // GLM-5.3-Flash
  EXPECT_EQ(DenseMla::limit_for(512, 256, 256, 35), 35);    // no further than all is selected
  EXPECT_EQ(DenseMla::limit_for(16, 16, 16, 1000), 0);      // heads no narrower than the latent
  EXPECT_EQ(DenseMla::expanded_rows(0, 600, false, 64), 64);
  EXPECT_EQ(DenseMla::expanded_rows(48, 128, false, 64), 16);
  EXPECT_EQ(DenseMla::expanded_rows(64, 64, false, 64), 0);
  EXPECT_EQ(DenseMla::expanded_rows(1000, 64, false, 64), 0);
  EXPECT_EQ(DenseMla::expanded_rows(3, 1, true, 64), 0);
}

}  // namespace
}  // namespace winnow::ops::test
