#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/experts/experts.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

float round_to(DType t, double v) { return t == DType::bf16 ? to_float(to_bf16(static_cast<float>(v))) : static_cast<float>(v); }

// Row i of m times v.
double product(const Matrix& m, int64_t i, const std::vector<float>& v) {
  double sum = 0;
  for (size_t j = 0; j < v.size(); ++j) sum += double{v[j]} * ref::get(m, i, static_cast<int64_t>(j));
  return sum;
}

double swiglu(double gate, double up, float limit) {
  if (limit > 0) {
    gate = std::min<double>(gate, limit);
    up = std::clamp<double>(up, -limit, limit);
  }
  return gate / (1 + std::exp(-gate)) * up;
}

void run(Queue&, Scratch, const Experts::Spec& s, const Experts::Args& a) {
  std::vector<float> x(static_cast<size_t>(s.hidden)), h(static_cast<size_t>(s.inter));
  std::vector<double> y(static_cast<size_t>(s.hidden));
  for (int64_t t = 0; t < a.x.shape[0]; ++t) {
    for (int64_t d = 0; d < s.hidden; ++d) x[d] = ref::get(a.x, t, d);
    std::fill(y.begin(), y.end(), 0.0);
    for (int64_t r = 0; r < s.top_k; ++r) {
      const int32_t id = a.ids.as<int32_t>()[t * s.top_k + r];
      winnow::check(id >= 0 && id < s.experts, "experts: an id is out of range");
      const Expert& e = a.experts[id];
      for (int64_t i = 0; i < s.inter; ++i) h[i] = round_to(s.x, swiglu(product(e.gate, i, x), product(e.up, i, x), s.limit));
      for (int64_t d = 0; d < s.hidden; ++d) y[d] += ref::get(a.weights, t, r) * product(e.down, d, h);
    }
    for (int64_t d = 0; d < s.hidden; ++d) ref::set(a.y, t, d, static_cast<float>(y[d] + (a.add ? ref::get(a.add, t, d) : 0.0f)));
  }
}

}  // namespace

List<Experts> kernels(Experts, Ref) {
  static constexpr Kernel<Experts> list[] = {{.name = "experts.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
