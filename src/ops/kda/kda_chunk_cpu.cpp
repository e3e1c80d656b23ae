// Whole chunks of kda in the WY form, a head at a time, in blocks of kKdaBlock rows: with G counted from the block's
// start and S the state there,
//   (I + L) U = beta * (V - (K e^G) S),   L_ij = beta_i e^(G_i - G_j) k_j . k_i for j < i     (forward substitution)
//   O = (Q e^G) S + A U,                  A_ij = e^(G_i - G_j) k_j . q_i for j <= i
// The next block's pass over S folds this one. S advances every block: larger ones would multiply no less (the work
// inside a block grows with its length, the work on S does not shrink) and S stays in the second-level cache.
//
// No exponential of a positive number is formed, whatever the gates: a block is cut into spans of four rows. Inside a
// span decays are exponentials of differences; from span to span they are products of e^H (H: sum of g since the
// span's start), e^(H_last - H_j) and the whole spans between, all at most 1.
#include "ops/kda/kda_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kda/kda_chunk_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/kda/kda_pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kSpan = 4;

class Block {
 public:
  Block(const KdaHead& h, KdaScratch& x, int64_t row) : h_(h), x_(x), row_(row) {}

  // L, A, and what S is to be applied to and folded with.
  void prepare() {
    for (int64_t first = 0; first < kKdaBlock; first += kSpan) {
      for (int64_t n = first; n < first + kSpan; ++n) open_row(n, n == first);
      for (int64_t n = first; n < first + kSpan; ++n) {
        for (int64_t s = 0; s < first; ++s) dots_before(n, s);
        for (int64_t s = first; s < n; ++s) dots_inside(n, s);
        of_q(n)[n] = dot(k(n), q(n), h_.key_dim);
      }
      close_span(first);
    }
  }

  // U and O from seen = S^T a, sixteen value channels at a time.
  void solve() {
    for (int64_t j = 0; j < h_.value_dim; j += kLanes)
      for (int64_t first = 0; first < kKdaBlock; first += kSpan) solve_span(first, j);
  }

 private:
  void open_row(int64_t n, bool starts) {
    prefetch_keys(h_, row_ + n);
    const float *key = h_.k + h_.key_row(row_ + n), *gate = h_.g + h_.key_row(row_ + n);
    for (int64_t i = 0; i < h_.key_dim; i += kLanes) {
      const int64_t left = h_.key_dim - i;
      const Lanes own = load(gate + i, left), sum = starts ? own : add(load(g(n - 1) + i), own), decay = exp(sum), kn = load(key + i, left);
      store(sum, g(n) + i);
      store(kn, k(n) + i);
      store(mul(decay, kn), a(n) + i);
      store(mul(decay, load(q(n) + i, left)), a(n) + x_.key_pad + i);
    }
  }

  // Row n with a row of an earlier span, whose weight reaches to the start of n's span.
  void dots_before(int64_t n, int64_t s) {
    Lanes sum_k = zero(), sum_q = zero();
    for (int64_t i = 0; i < h_.key_dim; i += kLanes) {
      const Lanes ws = load(weight(s) + i);
      sum_k = fma(ws, load(a(n) + i), sum_k);
      sum_q = fma(ws, load(a(n) + x_.key_pad + i), sum_q);
    }
    of_k(n)[s] = -sum(sum_k);
    of_q(n)[s] = sum(sum_q);
  }
  void dots_inside(int64_t n, int64_t s) {
    Lanes sum_k = zero(), sum_q = zero();
    for (int64_t i = 0; i < h_.key_dim; i += kLanes) {
      const Lanes ks = mul(exp(sub(load(g(n) + i), load(g(s) + i))), load(k(s) + i));
      sum_k = fma(ks, load(k(n) + i), sum_k);
      sum_q = fma(ks, load(q(n) + i, h_.key_dim - i), sum_q);
    }
    of_k(n)[s] = -sum(sum_k);
    of_q(n)[s] = sum(sum_q);
  }

  // Weights now reach to the span's end, a to the block's start.
  void close_span(int64_t first) {
    const int64_t last = first + kSpan - 1;
    for (int64_t i = 0; i < h_.key_dim; i += kLanes) {
      const Lanes h_last = load(g(last) + i), span = exp(h_last);
      for (int64_t s = 0; s < first; ++s) store(mul(span, load(weight(s) + i)), weight(s) + i);
      for (int64_t s = first; s < last; ++s) store(mul(exp(sub(h_last, load(g(s) + i))), load(k(s) + i)), weight(s) + i);
      store(load(k(last) + i), weight(last) + i);
      if (first == 0) {
        store(span, x_.decay + i);
        continue;
      }
      const Lanes before = load(x_.decay + i);
      for (float* p = a(first); p < a(last + 1); p += x_.key_pad) store(mul(before, load(p + i)), p + i);
      store(mul(before, span), x_.decay + i);
    }
  }

  void solve_span(int64_t first, int64_t j) {
    const int64_t left = h_.value_dim - j;
    Lanes rest[kSpan];
    for (int64_t y = 0; y < kSpan; ++y) rest[y] = sub(load(h_.v + h_.value_row(row_ + first + y) + j, left), load(seen(first + y) + j));
    for (int64_t s = 0; s < first; ++s) {
      const Lanes us = load(u(s) + j);
      for (int64_t y = 0; y < kSpan; ++y) rest[y] = fma(splat(of_k(first + y)[s]), us, rest[y]);
    }
    for (int64_t y = 0; y < kSpan; ++y) {
      const Lanes us = mul(splat(h_.beta[(row_ + first + y) * h_.heads]), rest[y]);
      store(us, u(first + y) + j);
      for (int64_t z = y + 1; z < kSpan; ++z) rest[z] = fma(splat(of_k(first + z)[first + y]), us, rest[z]);
    }
    Lanes out[kSpan];
    for (int64_t y = 0; y < kSpan; ++y) out[y] = load(seen(first + y) + x_.value_pad + j);
    for (int64_t s = 0; s < first; ++s) {
      const Lanes us = load(u(s) + j);
      for (int64_t y = 0; y < kSpan; ++y) out[y] = fma(splat(of_q(first + y)[s]), us, out[y]);
    }
    for (int64_t y = 0; y < kSpan; ++y) {
      for (int64_t s = first; s <= first + y; ++s) out[y] = fma(splat(of_q(first + y)[s]), load(u(s) + j), out[y]);
      store(out[y], h_.o + h_.value_row(row_ + first + y) + j, left);
    }
  }

  float* k(int64_t n) const { return x_.k + n * x_.key_pad; }
  float* g(int64_t n) const { return x_.g + n * x_.key_pad; }  // H
  const float* q(int64_t n) const { return h_.q + h_.key_row(row_ + n); }
  float* a(int64_t n) const { return x_.a + 2 * n * x_.key_pad; }  // of k; that of q follows
  float* weight(int64_t n) const { return x_.weight + n * x_.key_pad; }
  float* u(int64_t n) const { return x_.u + n * x_.value_pad; }
  const float* seen(int64_t n) const { return x_.seen + 2 * n * x_.value_pad; }
  float* of_k(int64_t n) const { return x_.dots + n * kKdaBlock; }  // negated: it is subtracted
  float* of_q(int64_t n) const { return x_.dots + (kKdaBlock + n) * kKdaBlock; }

  const KdaHead& h_;
  KdaScratch& x_;
  const int64_t row_;  // of the step
};

}  // namespace

// Tokens [begin, end), whole chunks, from state `from` (null: zero) into the head's own.
void kda_chunks(const KdaHead& h, const KdaScratch& scratch, const float* from, int64_t begin, int64_t end) {
  KdaScratch x = scratch;
  Pass p{.from = from, .to = h.state, .apply_rows = 2 * kKdaBlock};
  for (int64_t t = begin; t < end; t += kKdaBlock) {
    Block b(h, x, t - h.position);
    b.prepare();
    prefetch_values(h, t - h.position, kKdaBlock);
    run_pass(p, x, h.key_dim, h.value_dim);
    if (p.fold_rows) p.from = h.state;
    b.solve();
    x.swap_fold();
    p.fold_rows = kKdaBlock;
  }
  p.apply_rows = 0;
  run_pass(p, x, h.key_dim, h.value_dim);
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();
