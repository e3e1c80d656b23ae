// The plain recurrence in float64, kept between steps as the contract says: S with `folded` tokens, later tokens as
// ring rows. So a sequence can go on from any kernel's state, and any kernel from this one's.
#include <cmath>
#include <vector>

#include "ops/kda/kda.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

// One head of one sequence.
class Head {
 public:
  Head(const Kda::Spec& s, const Kda::Args& a, int64_t sequence, int64_t head)
      : s_(s),
        a_(a),
        sequence_(sequence),
        head_(head),
        state_(a.rows.state.as<int32_t>()[sequence]),
        S_(static_cast<size_t>(s.key_dim * s.value_dim)),
        G_(static_cast<size_t>(s.key_dim)) {
    const int32_t* first = a.rows.first_row.as<int32_t>();
    first_row_ = first[sequence];
    count_ = first[sequence + 1] - first_row_;
    position_ = count_ ? a.rows.position.as<int64_t>()[first_row_] : 0;
    folded_ = a.rows.folded.as<int64_t>()[sequence];
    folded_after_ = folded_after(folded_, TokenPos(position_), count_, a.rows.decode.as<int32_t>()[sequence], s.chunked);
  }

  void run() {
    if (!count_) return;
    carry_over();
    if (folded_ > 0)
      for (int64_t i = 0; i < s_.key_dim * s_.value_dim; ++i) S_[i] = a_.state.as<float>()[state_at() + i];
    for (int64_t t = folded_; t < position_; t += kKdaGroup) {
      fold(t, std::min(t + kKdaGroup, position_));
      if (t + kKdaGroup == folded_after_ && folded_after_ <= position_) write_state();
    }
    for (int64_t t = position_; t < position_ + count_; ++t) {
      if (t % kKdaGroup == 0) std::fill(G_.begin(), G_.end(), 0.0);
      if (t == folded_after_ && t > folded_) write_state();
      step(t);
    }
    if (folded_after_ == position_ + count_) write_state();
  }

 private:
  // From then on the own record is all there is.
  void carry_over() {
    const int64_t source = a_.rows.source.as<int32_t>()[sequence_];
    if (source == state_) return;
    const int64_t K = s_.key_dim, V = s_.value_dim, back = (source - state_) * s_.heads;
    if (folded_ > 0) std::copy_n(a_.state.as<float>() + state_at() + back * K * V, K * V, a_.state.as<float>() + state_at());
    for (int64_t t = folded_; t < position_; ++t)
      for (auto [ring, dim] : {std::pair{a_.ring_k, K}, {a_.ring_g, K}, {a_.ring_u, V}})
        std::copy_n(ring.as<float>() + ring_at(t, dim) + back * a_.ring_k.shape[1] * dim, dim, ring.as<float>() + ring_at(t, dim));
  }
  int64_t state_at() const { return (state_ * s_.heads + head_) * s_.key_dim * s_.value_dim; }
  int64_t ring_at(int64_t t, int64_t dim) const { return ((state_ * a_.ring_k.shape[1] + t % a_.ring_k.shape[1]) * s_.heads + head_) * dim; }
  int64_t row_at(int64_t t, int64_t dim) const { return ((first_row_ + t - position_) * s_.heads + head_) * dim; }

  // S <- e^G_e * S + sum of (e^(G_e - G_s) * k_s) u_s^T over ring rows [begin, end) of one group; G_ becomes G_e.
  void fold(int64_t begin, int64_t end) {
    const float *k = a_.ring_k.as<float>(), *g = a_.ring_g.as<float>(), *u = a_.ring_u.as<float>();
    for (int64_t i = 0; i < s_.key_dim; ++i) {
      G_[i] = g[ring_at(end - 1, s_.key_dim) + i];
      for (int64_t j = 0; j < s_.value_dim; ++j) {
        double sum = std::exp(G_[i]) * S_[i * s_.value_dim + j];
        for (int64_t t = begin; t < end; ++t)
          sum += std::exp(G_[i] - g[ring_at(t, s_.key_dim) + i]) * k[ring_at(t, s_.key_dim) + i] * u[ring_at(t, s_.value_dim) + j];
        S_[i * s_.value_dim + j] = sum;
      }
    }
  }

  void step(int64_t t) {
    const int64_t K = s_.key_dim, V = s_.value_dim;
    const float *q = a_.q.as<float>() + row_at(t, K), *k = a_.k.as<float>() + row_at(t, K), *g = a_.g.as<float>() + row_at(t, K);
    const float* v = a_.v.as<float>() + row_at(t, V);
    const double beta = a_.beta.as<float>()[row_at(t, 1)];
    for (int64_t i = 0; i < K; ++i) {
      G_[i] += g[i];
      for (int64_t j = 0; j < V; ++j) S_[i * V + j] *= std::exp(double{g[i]});
    }
    for (int64_t j = 0; j < V; ++j) {
      double seen = 0, out = 0;
      for (int64_t i = 0; i < K; ++i) seen += S_[i * V + j] * k[i];
      const double u = beta * (v[j] - seen);
      for (int64_t i = 0; i < K; ++i) {
        S_[i * V + j] += k[i] * u;
        out += S_[i * V + j] * q[i];
      }
      a_.o.as<float>()[row_at(t, V) + j] = static_cast<float>(out);
      a_.ring_u.as<float>()[ring_at(t, V) + j] = static_cast<float>(u);
    }
    for (int64_t i = 0; i < K; ++i) {
      a_.ring_k.as<float>()[ring_at(t, K) + i] = k[i];
      a_.ring_g.as<float>()[ring_at(t, K) + i] = static_cast<float>(G_[i]);
    }
  }

  void write_state() {
    for (int64_t i = 0; i < s_.key_dim * s_.value_dim; ++i) {
      const float x = a_.state.as<float>()[state_at() + i] = static_cast<float>(S_[i]);
      if (!std::isfinite(x)) flag_row(a_.bad, first_row_ + count_ - 1);
    }
  }

  const Kda::Spec& s_;
  const Kda::Args& a_;
  const int64_t sequence_, head_, state_;
  int64_t first_row_, count_, position_, folded_, folded_after_;
  std::vector<double> S_;  // [key_dim, value_dim]
  std::vector<double> G_;  // [key_dim], since the group's start
};

void run(Queue&, Scratch, const Kda::Spec& s, const Kda::Args& a) {
  for (int64_t n = 0; n < a.rows.sequences(); ++n)
    for (int64_t h = 0; h < s.heads; ++h) Head(s, a, n, h).run();
}

}  // namespace

List<Kda> kernels(Kda, Ref) {
  static constexpr Kernel<Kda> list[] = {{.name = "kda.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
