#include <cmath>

#include "ops/kda/kda.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

// y = x * factor / sqrt(sum x^2 + 1e-6) over `dim` elements from element `first` of qkv.
void unit(Out y, int64_t t, int64_t h, In qkv, int64_t first, int64_t dim, double factor) {
  double squares = 1e-6;
  for (int64_t i = 0; i < dim; ++i) squares += std::pow(double{ref::get(qkv, t, first + i)}, 2);
  for (int64_t i = 0; i < dim; ++i) ref::set(y, t, h, i, static_cast<float>(ref::get(qkv, t, first + i) * factor / std::sqrt(squares)));
}

double log_decay(double a_log, double x, double lower_bound) {
  if (lower_bound != 0) return lower_bound / (1 + std::exp(-std::exp(a_log) * x));
  return -std::exp(a_log) * (x > 20 ? x : std::log1p(std::exp(x)));
}

void run(Queue&, Scratch, const KdaGate::Spec& s, const KdaGate::Args& a) {
  const int64_t keys = s.heads * s.key_dim;
  for (int64_t t = 0; t < a.qkv.shape[0]; ++t) {
    for (int64_t h = 0; h < s.heads; ++h) {
      unit(a.q, t, h, a.qkv, h * s.key_dim, s.key_dim, 1 / std::sqrt(static_cast<double>(s.key_dim)));
      unit(a.k, t, h, a.qkv, keys + h * s.key_dim, s.key_dim, 1);
      for (int64_t i = 0; i < s.value_dim; ++i) ref::set(a.v, t, h, i, ref::get(a.qkv, t, 2 * keys + h * s.value_dim + i));
      for (int64_t i = 0; i < s.key_dim; ++i) {
        const double x = double{ref::get(a.f, t, h * s.key_dim + i)} + ref::get(a.dt_bias, h * s.key_dim + i);
        ref::set(a.g, t, h, i, static_cast<float>(log_decay(ref::get(a.a_log, h), x, a.lower_bound)));
      }
      ref::set(a.beta, t, h, static_cast<float>(1 / (1 + std::exp(-double{ref::get(a.b, t, h)}))));
    }
  }
}

}  // namespace

List<KdaGate> kernels(KdaGate, Ref) {
  static constexpr Kernel<KdaGate> list[] = {{.name = "kda_gate.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
