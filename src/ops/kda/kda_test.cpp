#include "ops/kda/kda.h"

#include "ops/conformance.h"

namespace winnow::ops::test {
namespace {

// Two tokens worked by hand (one head, dimensions 2, already normalised), then seven that change nothing, so that the
// ninth folds the group and the state can be read.
TEST(Kda, ReferenceOnWorkedNumbers) {
  const Kda::Spec spec{1, 2, 2, false};
  constexpr int64_t n = 9;
  const float r = std::sqrt(.5f);
  std::vector<float> qs(2 * n), ks(2 * n), vs(2 * n), gs(2 * n), betas(n);
  const auto put = [](std::vector<float>& to, std::initializer_list<float> x) { std::copy(x.begin(), x.end(), to.begin()); };
  put(qs, {r, 0, 0, r}), put(ks, {.6f, .8f, 1, 0}), put(vs, {1, 2, 2, -1}), put(gs, {-.5f, -1, -.2f, -.3f}), put(betas, {.5f, .8f});
  const Tensor q = tensor_of<float>({n, 1, 2}, qs), k = tensor_of<float>({n, 1, 2}, ks), v = tensor_of<float>({n, 1, 2}, vs),
               g = tensor_of<float>({n, 1, 2}, gs), beta = tensor_of<float>({n, 1}, betas);
  const Tensor o(DType::f32, {n, 1, 2}), state(DType::f32, {1, 1, 2, 2}), ring_k(DType::f32, {1, 9, 1, 2}), ring_g(DType::f32, {1, 9, 1, 2}),
      ring_u(DType::f32, {1, 9, 1, 2});
  const Tensor first = tensor_of<int32_t>({2}, {0, n}), sequence = tensor_of<int32_t>({n}, std::vector<int32_t>(n)),
               pages = tensor_of<int32_t>({1, 1}, {0}), id = tensor_of<int32_t>({1}, {0}), decode = tensor_of<int32_t>({1}, {0});
  const Tensor position = tensor_of<int64_t>({n}, {0, 1, 2, 3, 4, 5, 6, 7, 8}), folded = tensor_of<int64_t>({1}, {0});
  run_reference<Kda>(spec, {o, state, ring_k, ring_g, ring_u, q, k, g, v, beta, {first, sequence, position, position, pages, id, folded, decode, 64}});
  const float want[] = {.212132f, .424264f, .209535f, .419070f}, want_state[] = {1.649123f, -.701752f, .296327f, .592655f};
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(o.as<float>()[i], want[i], 1e-6);
    EXPECT_NEAR(state.as<float>()[i], want_state[i], 1e-6);
  }
}

}  // namespace
}  // namespace winnow::ops::test
