#include <cmath>
#include <vector>

#include "ops/mhc/mhc.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// comb: n x n logits in, nearly doubly stochastic out.
void sinkhorn(std::vector<double>& comb, int64_t n, int iterations, double eps) {
  auto divide_rows = [&] {
    for (int64_t i = 0; i < n; ++i) {
      double sum = eps;
      for (int64_t j = 0; j < n; ++j) sum += comb[i * n + j];
      for (int64_t j = 0; j < n; ++j) comb[i * n + j] /= sum;
    }
  };
  auto divide_columns = [&] {
    for (int64_t j = 0; j < n; ++j) {
      double sum = eps;
      for (int64_t i = 0; i < n; ++i) sum += comb[i * n + j];
      for (int64_t i = 0; i < n; ++i) comb[i * n + j] /= sum;
    }
  };
  for (int64_t i = 0; i < n; ++i) {
    double largest = comb[i * n], sum = 0;
    for (int64_t j = 1; j < n; ++j) largest = std::max(largest, comb[i * n + j]);
    for (int64_t j = 0; j < n; ++j) sum += comb[i * n + j] = std::exp(comb[i * n + j] - largest);
    for (int64_t j = 0; j < n; ++j) comb[i * n + j] = comb[i * n + j] / sum + eps;
  }
  divide_columns();
  for (int k = 1; k < iterations; ++k) {
    divide_rows();
    divide_columns();
  }
}

// y[row] = u * w / sqrt(mean(u^2) + eps)
void norm(Out y, int64_t row, const std::vector<double>& u, In w, double eps) {
  double squares = 0;
  for (double v : u) squares += v * v;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(u.size()) + eps);
  for (size_t d = 0; d < u.size(); ++d)
    ref::set(y, row, static_cast<int64_t>(d), static_cast<float>(u[d] * scale * ref::get(w, static_cast<int64_t>(d))));
}

void run_pre(Queue&, Scratch, const MhcPre::Spec& s, const MhcPre::Args& a) {
  const int64_t n = s.streams, width = n * s.hidden;
  for (int64_t t = 0; t < a.x.shape[0]; ++t) {
    double squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += std::pow(double{ref::get(a.x, t * width + i)}, 2);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + a.norm_eps);
    std::vector<double> m(static_cast<size_t>((2 + n) * n));
    for (int64_t r = 0; r < (2 + n) * n; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) sum += double{ref::get(a.fn, r, i)} * ref::get(a.x, t * width + i);
      const int part = r < n ? 0 : r < 2 * n ? 1 : 2;
      m[r] = sum * scale * ref::get(a.scale, part) + ref::get(a.base, r);
    }
    for (int64_t i = 0; i < n; ++i) ref::set(a.post, t, i, static_cast<float>(2 * sigmoid(m[n + i])));
    std::vector<double> comb(m.begin() + 2 * n, m.end());
    sinkhorn(comb, n, s.iterations, a.hc_eps);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) ref::set(a.comb, t, i, j, static_cast<float>(comb[i * n + j]));
    std::vector<double> u(static_cast<size_t>(s.hidden));
    for (int64_t d = 0; d < s.hidden; ++d)
      for (int64_t i = 0; i < n; ++i) u[d] += (sigmoid(m[i]) + a.hc_eps) * ref::get(a.x, t, i, d);
    norm(a.y, t, u, a.norm_w, a.norm_eps);
  }
}

void run_post(Queue&, Scratch, const MhcPost::Spec& s, const MhcPost::Args& a) {
  std::vector<double> mixed(static_cast<size_t>(s.streams));
  for (int64_t t = 0; t < a.y.shape[0]; ++t) {
    for (int64_t d = 0; d < s.hidden; ++d) {
      for (int64_t j = 0; j < s.streams; ++j) {
        mixed[j] = double{ref::get(a.post, t, j)} * ref::get(a.y, t, d);
        for (int64_t i = 0; i < s.streams; ++i) mixed[j] += double{ref::get(a.comb, t, i, j)} * ref::get(a.x, t, i, d);
      }
      for (int64_t j = 0; j < s.streams; ++j) ref::set(a.x, t, j, d, static_cast<float>(mixed[j]));
    }
  }
}

void run_head(Queue&, Scratch, const MhcHead::Spec& s, const MhcHead::Args& a) {
  for (int64_t r = 0; r < a.rows.shape[0]; ++r) {
    const int64_t t = a.rows.as<int32_t>()[r];
    winnow::check(t >= 0 && t < a.x.shape[0], "mhc_head: a chosen row is outside the step");
    std::vector<double> u(static_cast<size_t>(s.hidden));
    for (int64_t d = 0; d < s.hidden; ++d)
      for (int64_t i = 0; i < s.streams; ++i) u[d] += ref::get(a.x, t, i, d) / static_cast<double>(s.streams);
    norm(a.y, r, u, a.w, a.eps);
  }
}

// e4m3 codes mean nothing without their scales.
const char* why_not(const Caps&, const MhcPre::Spec& s) { return s.fn == DType::e4m3 ? "only f32 and bf16" : nullptr; }

}  // namespace

List<MhcPre> kernels(MhcPre, Ref) {
  static constexpr Kernel<MhcPre> list[] = {{.name = "mhc_pre.ref", .why_not = why_not, .run = run_pre}};
  return list;
}
List<MhcPost> kernels(MhcPost, Ref) {
  static constexpr Kernel<MhcPost> list[] = {{.name = "mhc_post.ref", .why_not = always, .run = run_post}};
  return list;
}
List<MhcHead> kernels(MhcHead, Ref) {
  static constexpr Kernel<MhcHead> list[] = {{.name = "mhc_head.ref", .why_not = always, .run = run_head}};
  return list;
}

}  // namespace winnow::ops
