#include <limits>

#include "ops/conformance.h"
#include "ops/kda/kda.h"

namespace winnow::ops::test {
namespace {

struct Outputs {
  Outputs(const KdaGate::Spec& s, int64_t tokens)
      : q(DType::f32, {tokens, s.heads, s.key_dim}),
        k(DType::f32, {tokens, s.heads, s.key_dim}),
        v(DType::f32, {tokens, s.heads, s.value_dim}),
        g(DType::f32, {tokens, s.heads, s.key_dim}),
        beta(DType::f32, {tokens, s.heads}) {}
  Tensor q, k, v, g, beta;
  std::vector<const Tensor*> all() const { return {&q, &k, &v, &g, &beta}; }
};
struct Inputs {
  Inputs(const KdaGate::Spec& s, int64_t tokens)
      : qkv(random_tensor(s.x, {tokens, s.heads * (2 * s.key_dim + s.value_dim)}, 1)),
        f(random_tensor(s.x, {tokens, s.heads * s.key_dim}, 2, 4)),
        b(random_tensor(s.x, {tokens, s.heads}, 3, 2)),
        a_log(random_tensor(DType::f32, {s.heads}, 4, 0.7f)),
        dt_bias(random_tensor(DType::f32, {s.heads * s.key_dim}, 5, 2)) {}
  KdaGate::Args args(const Outputs& o, int64_t row, int64_t count, float lower_bound) const {
    return {o.q, o.k, o.v, o.g, o.beta, qkv.view.rows(row, count), f.view.rows(row, count), b.view.rows(row, count), a_log, dt_bias, lower_bound};
  }
  Tensor qkv, f, b, a_log, dt_bias;
};

void conform(const KdaGate::Spec& spec, int64_t tokens, float lower_bound) {
  SCOPED_TRACE(fmt::format("{}, {} tokens, {} heads of {} and {}, bound {}", winnow::name_of(spec.x), tokens, spec.heads, spec.key_dim,
                           spec.value_dim, lower_bound));
  const Inputs in(spec, tokens);
  const Outputs want(spec, tokens);
  run_reference<KdaGate>(spec, in.args(want, 0, tokens, lower_bound));
  std::unique_ptr<Outputs> before;
  for_each_kernel<KdaGate>(spec, [&](const Kernel<KdaGate>& k, device::Device& d) {
    auto got = std::make_unique<Outputs>(spec, tokens);
    run_kernel(k, d, spec, in.args(*got, 0, tokens, lower_bound));
    for (size_t i = 0; i < got->all().size(); ++i) {
      EXPECT_TRUE(got->all()[i]->canaries_intact());
      expect_close(*got->all()[i], *want.all()[i], 3e-6, fmt::format("output {}", i));
      EXPECT_TRUE(!before || same_bits(*got->all()[i], *before->all()[i])) << "bits of output " << i << " depend on kernel or workers";
    }
    for (int64_t t = 0; t < tokens; ++t) {
      const Outputs one(spec, 1);
      run_kernel(k, d, spec, in.args(one, t, 1, lower_bound));
      for (size_t i = 0; i < one.all().size(); ++i)
        EXPECT_TRUE(same_bits(*one.all()[i], got->all()[i]->view.rows(t, 1))) << "row " << t << " of output " << i << " depends on company";
    }
    before = std::move(got);
  });
}

TEST(KdaGate, Conformance) {
  for (DType x : {DType::f32, DType::bf16})
    for (float lower_bound : {-5.0f, 0.0f})
      for (auto [heads, key_dim, value_dim] : {std::tuple{1, 1, 1}, {3, 16, 16}, {5, 17, 33}, {2, 128, 128}, {9, 8, 15}})
        conform({x, heads, key_dim, value_dim}, 3, lower_bound);
  conform({DType::f32, 2, 16, 16}, 0, -5);
}

// g of one head and one channel, from every kernel and the reference.
void expect_decay(float a_log, float f, float dt_bias, float lower_bound, double want, double tolerance = 1e-6) {
  SCOPED_TRACE(fmt::format("a_log {}, f {}, dt_bias {}, bound {}", a_log, f, dt_bias, lower_bound));
  const KdaGate::Spec spec{DType::f32, 1, 1, 1};
  const Tensor qkv = tensor_of<float>({1, 3}, {1, 1, 1}), ft = tensor_of<float>({1, 1}, {f}), b = tensor_of<float>({1, 1}, {0});
  const Tensor a = tensor_of<float>({1}, {a_log}), dt = tensor_of<float>({1}, {dt_bias});
  const Outputs o(spec, 1);
  auto compare = [&] {
    const double g = o.g.as<float>()[0];
    EXPECT_TRUE(std::isnan(want) ? std::isnan(g) : std::abs(g - want) <= tolerance * std::max(1.0, std::abs(want))) << g << ", not " << want;
  };
  run_reference<KdaGate>(spec, {o.q, o.k, o.v, o.g, o.beta, qkv, ft, b, a, dt, lower_bound});
  compare();
  for_each_kernel<KdaGate>(spec, [&](const Kernel<KdaGate>& k, device::Device& d) {
    run_kernel(k, d, spec, {o.q, o.k, o.v, o.g, o.beta, qkv, ft, b, a, dt, lower_bound});
    compare();
  });
}

TEST(KdaGate, WorkedDecay) { expect_decay(0.3f, 0.7f, -1.2f, -5, -1.686970); }

// The bound scales a sigmoid. As a clamp of -exp(a_log) * softplus it would give -0.693 here and -5 below.
TEST(KdaGate, G68_TheBoundIsAScaleNotAClamp) {
  expect_decay(0, 1, -1, -5, -2.5);
  expect_decay(0, 10, 0, -5, -4.999773);
  expect_decay(0, -10, 0, -5, -0.000227);
}

TEST(KdaGate, WithoutABoundTheDecayIsSoftplus) {
  expect_decay(0, 0, 0, 0, -0.693147);
  expect_decay(0.3f, 0.7f, -1.2f, 0, -1.349859 * 0.474077);
  expect_decay(0, 25, 0, 0, -25);  // the identity above 20
  expect_decay(0, 19.5f, 0, 0, -19.5);
  expect_decay(0, -30, 0, 0, -9.3576e-14, 1e-18);
}

TEST(KdaGate, FarAndBrokenGates) {
  for (float far : {200.0f, 1e4f, 1e30f}) {
    expect_decay(0, far, 0, -5, -5);
    expect_decay(0, -far, 0, -5, 0);
    expect_decay(0, far, 0, 0, -far);
    expect_decay(0, -far, 0, 0, 0);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_decay(0, nan, 0, -5, nan);
  expect_decay(0, nan, 0, 0, nan);
}

// q and k have unit length, q times key_dim^-1/2; a row of zeros stays zeros (the epsilon is inside the root); v is a copy.
TEST(KdaGate, NormalisesQueriesAndKeys) {
  const KdaGate::Spec spec{DType::f32, 1, 2, 2};
  const Tensor qkv = tensor_of<float>({2, 6}, {3, 4, 0, 2, 5, 6, 0, 0, 0, 0, 7, 8}), f = tensor_of<float>({2, 2}, {0, 0, 0, 0});
  const Tensor b = tensor_of<float>({2, 1}, {0, 2}), a = tensor_of<float>({1}, {0}), dt = tensor_of<float>({2}, {0, 0});
  for_each_kernel<KdaGate>(spec, [&](const Kernel<KdaGate>& k, device::Device& d) {
    const Outputs o(spec, 2);
    run_kernel(k, d, spec, {o.q, o.k, o.v, o.g, o.beta, qkv, f, b, a, dt, -5});
    expect_close(o.q, tensor_of<float>({2, 1, 2}, {0.424264f, 0.565685f, 0, 0}), 1e-6);
    expect_close(o.k, tensor_of<float>({2, 1, 2}, {0, 1, 0, 0}), 1e-6);
    EXPECT_TRUE(same_bits(o.v, tensor_of<float>({2, 1, 2}, {5, 6, 7, 8})));
    expect_close(o.beta, tensor_of<float>({2, 1}, {0.5f, 0.880797f}), 1e-6);
  });
}

}  // namespace
}  // namespace winnow::ops::test
