// The row form of kda, a head at a time: rows of a group share one pass over S. Whole chunks go to kda_chunk_cpu.cpp.
#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/kda/kda_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kda/kda_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/kda/kda_pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {

void kda_chunks(const KdaHead& h, const KdaScratch& x, const float* from, int64_t begin, int64_t end);  // kda_chunk_cpu.cpp

namespace {

// Walks one head of one sequence through a step.
class HeadWalk {
 public:
  HeadWalk(const KdaHead& h, const KdaScratch& x) : h_(h), x_(x), base_(h.folded), from_(h.folded > 0 ? h.from_state : nullptr) {}

  void run() {
    const int64_t end = h_.position + h_.count;
    int64_t t = h_.position;
    load_waiting();
    if (h_.chunked && !h_.decode) {
      const int64_t first = round_up(t, kChunkGrid), whole = end / kChunkGrid * kChunkGrid;
      if (whole > first) {
        walk(t, first);
        fold_all();
        kda_chunks(h_, x_, from_, first, whole);
        t = base_ = whole;
        from_ = h_.state;
        written_ = true;
      }
    }
    walk(t, end);
    if (written_ && !all_finite(DType::f32, reinterpret_cast<const std::byte*>(h_.state), h_.key_dim * h_.value_dim)) flag_row(h_.bad, h_.last_row);
    if (moved() && !written_ && h_.folded > 0) std::copy_n(h_.from_state, h_.key_dim * h_.value_dim, h_.state);
  }

 private:
  // Rows that earlier steps left in the ring. A full group goes to the next pass; the rest begins the current group.
  void load_waiting() {
    if (h_.position - base_ >= kKdaGroup) {
      load_group(base_ + kKdaGroup);
      close_group();
    }
    load_group(h_.position);
  }
  void load_group(int64_t end) {
    for (int64_t t = base_ + rows_; t < end; ++t, ++rows_) {
      copy_row(h_.from_k + h_.ring_key(t), k(rows_), h_.key_dim);
      copy_row(h_.from_g + h_.ring_key(t), g(rows_), h_.key_dim);
      copy_row(h_.from_u + h_.ring_value(t), x_.u + rows_ * x_.value_pad, h_.value_dim);
      if (moved() && t >= h_.folded_after) keep_row(t, rows_);
    }
  }
  bool moved() const { return h_.from_state != h_.state; }
  // Row n of the group, token t, into the ring.
  void keep_row(int64_t t, int64_t n) {
    copy_out(k(n), h_.ring_k + h_.ring_key(t), h_.key_dim);
    copy_out(g(n), h_.ring_g + h_.ring_key(t), h_.key_dim);
    copy_out(x_.u + n * x_.value_pad, h_.ring_u + h_.ring_value(t), h_.value_dim);
  }

  // The group's rows become what the next pass folds.
  void close_group() {
    const float* last = g(rows_ - 1);
    for (int64_t i = 0; i < x_.key_pad; i += kLanes) {
      const Lanes ge = load(last + i);
      store(exp(ge), x_.decay + i);
      for (int64_t s = 0; s < rows_; ++s) store(mul(exp(sub(ge, load(g(s) + i))), load(k(s) + i)), x_.weight + s * x_.key_pad + i);
    }
    x_.swap_fold();
    fold_rows_ = rows_;
    base_ += rows_;
    rows_ = 0;
  }

  // Over S: folds what waits, applies it to `apply_rows` vectors.
  void pass(int64_t apply_rows) {
    Pass p{.from = from_, .fold_rows = fold_rows_, .apply_rows = apply_rows};
    if (fold_rows_) {
      p.to = base_ <= h_.folded_after ? h_.state : x_.state;
      written_ |= p.to == h_.state;
    }
    run_pass(p, x_, h_.key_dim, h_.value_dim);
    if (fold_rows_) from_ = p.to;
    fold_rows_ = 0;
  }
  // Before a chunk: no row may wait.
  void fold_all() {
    if (rows_) {
      if (fold_rows_) pass(0);
      close_group();
    }
    if (fold_rows_) pass(0);
  }

  // Tokens [t, end) in the row form.
  void walk(int64_t t, int64_t end) {
    while (t < end) {
      if (rows_ == kKdaGroup) close_group();
      const int64_t n = std::min(kKdaGroup - rows_, end - t), first = rows_;
      for (int64_t r = 0; r < n; ++r) open_row(t + r - h_.position, r);
      prefetch_values(h_, t - h_.position, n);
      pass(2 * n);
      for (int64_t r = 0; r < n; ++r) finish_row(t + r, first + r, r);
      t += n;
    }
  }

  // Row `row` of the step joins the group; what S is applied to for it is e^G * k and e^G * q.
  void open_row(int64_t row, int64_t r) {
    const int64_t n = rows_++;
    prefetch_keys(h_, row);
    const float *q = h_.q + h_.key_row(row), *gate = h_.g + h_.key_row(row);
    copy_row(h_.k + h_.key_row(row), k(n), h_.key_dim);
    float* a = x_.a + 2 * r * x_.key_pad;
    for (int64_t i = 0; i < h_.key_dim; i += kLanes) {
      const Lanes own = load(gate + i, h_.key_dim - i), sum = n ? add(load(g(n - 1) + i), own) : own, decay = exp(sum);
      store(sum, g(n) + i);
      store(mul(decay, load(k(n) + i)), a + i);
      store(mul(decay, load(q + i, h_.key_dim - i)), a + x_.key_pad + i);
    }
  }

  // u and o of token t, row n of its group and r of the pass.
  void finish_row(int64_t t, int64_t n, int64_t r) {
    const int64_t row = t - h_.position;
    float *of_k = x_.dots, *of_q = x_.dots + kKdaBlock;
    dots(n, h_.q + h_.key_row(row), of_k, of_q);
    const float *v = h_.v + h_.value_row(row), *seen = x_.seen + 2 * r * x_.value_pad;
    float* o = h_.o + h_.value_row(row);
    const Lanes beta = splat(h_.beta[row * h_.heads]);
    for (int64_t j = 0; j < h_.value_dim; j += kLanes) {
      Lanes rest = sub(load(v + j, h_.value_dim - j), load(seen + j)), out = load(seen + x_.value_pad + j);
      const float* us = x_.u + j;
      for (int64_t s = 0; s < n; ++s, us += x_.value_pad) {
        rest = fma(splat(of_k[s]), load(us), rest);
        out = fma(splat(of_q[s]), load(us), out);
      }
      const Lanes u = mul(beta, rest);
      store(u, x_.u + n * x_.value_pad + j);
      store(fma(splat(of_q[n]), u, out), o + j, h_.value_dim - j);
    }
    if (t >= h_.folded_after) keep_row(t, n);  // else S will hold it
  }

  // Row n's k (negated: it is subtracted) and q with e^(G_n - G_s) * k_s for s <= n.
  void dots(int64_t n, const float* q, float* of_k, float* of_q) {
    for (int64_t s = 0; s < n; ++s) {
      Lanes sum_k = zero(), sum_q = zero();
      for (int64_t i = 0; i < h_.key_dim; i += kLanes) {
        const Lanes ks = mul(exp(sub(load(g(n) + i), load(g(s) + i))), load(k(s) + i));
        sum_k = fma(ks, load(k(n) + i), sum_k);
        sum_q = fma(ks, load(q + i, h_.key_dim - i), sum_q);
      }
      of_k[s] = -sum(sum_k);
      of_q[s] = sum(sum_q);
    }
    of_q[n] = dot(k(n), q, h_.key_dim);
  }

  float* k(int64_t n) const { return x_.k + n * x_.key_pad; }
  float* g(int64_t n) const { return x_.g + n * x_.key_pad; }

  const KdaHead& h_;
  KdaScratch x_;
  int64_t base_;           // first token of the current group
  int64_t rows_ = 0;       // rows of the current group in scratch
  int64_t fold_rows_ = 0;  // rows of the group before it that the next pass folds
  const float* from_;      // S without both; null: zero
  bool written_ = false;   // S, in the own record
};

KdaHead head_of(const Kda::Spec& s, const Kda::Args& a, int64_t sequence, int64_t head) {
  const int32_t* first = a.rows.first_row.as<int32_t>();
  const int64_t row = first[sequence], count = first[sequence + 1] - row, record = a.rows.state.as<int32_t>()[sequence],
                source = a.rows.source.as<int32_t>()[sequence];
  const int64_t ring_rows = a.ring_k.shape[1], key = row * s.heads * s.key_dim + head * s.key_dim,
                value = row * s.heads * s.value_dim + head * s.value_dim;
  const auto state = [&](int64_t r) { return a.state.as<float>() + (r * s.heads + head) * s.key_dim * s.value_dim; };
  const auto ring = [&](const TensorView& v, int64_t r) { return v.as<float>() + (r * ring_rows * s.heads + head) * v.shape[3]; };
  KdaHead h{.q = a.q.as<float>() + key,
            .k = a.k.as<float>() + key,
            .g = a.g.as<float>() + key,
            .v = a.v.as<float>() + value,
            .beta = a.beta.as<float>() + row * s.heads + head,
            .o = a.o.as<float>() + value,
            .state = state(record),
            .ring_k = ring(a.ring_k, record),
            .ring_g = ring(a.ring_g, record),
            .ring_u = ring(a.ring_u, record),
            .from_state = state(source),
            .from_k = ring(a.ring_k, source),
            .from_g = ring(a.ring_g, source),
            .from_u = ring(a.ring_u, source),
            .heads = s.heads,
            .key_dim = s.key_dim,
            .value_dim = s.value_dim,
            .ring_rows = ring_rows,
            .position = count ? a.rows.position.as<int64_t>()[row] : 0,
            .count = count,
            .folded = a.rows.folded.as<int64_t>()[sequence],
            .folded_after = 0,
            .decode = a.rows.decode.as<int32_t>()[sequence] != 0,
            .chunked = s.chunked,
            .bad = a.bad,
            .last_row = row + count - 1};
  h.folded_after = folded_after(h.folded, TokenPos(h.position), count, h.decode, h.chunked);
  return h;
}

void run_heads(const Kda::Spec& s, const Kda::Args& a, float* scratch, int64_t begin, int64_t end) {
  const KdaScratch x(s, scratch);
  const int64_t sequences = a.rows.sequences();
  // Heads outermost, so that each worker gets its share of a long sequence.
  for (int64_t i = begin; i < end; ++i) {
    const KdaHead h = head_of(s, a, i % sequences, i / sequences);
    if (h.count) HeadWalk(h, x).run();
  }
}

}  // namespace
void kda(Queue& q, Scratch scratch, const Kda::Spec& s, const Kda::Args& a) {
  q.workers().run(a.rows.sequences() * s.heads, 1, [&](int64_t begin, int64_t end, int worker) {
    run_heads(s, a, reinterpret_cast<float*>(scratch.data) + worker * KdaScratch::floats(s), begin, end);
  });
}
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

int64_t scratch_bytes(const Kda::Spec& s, const Limits& l) { return l.workers * KdaScratch::floats(s) * int64_t{sizeof(float)}; }

// What a step may ask of a sequence. The engine builds it, so a breach is a mistake of ours.
void check_sequences(const Rows& rows) {
  for (int64_t n = 0; n < rows.sequences(); ++n) {
    const int64_t row = rows.first_row.as<int32_t>()[n], count = rows.first_row.as<int32_t>()[n + 1] - row, folded = rows.folded.as<int64_t>()[n];
    if (!count) continue;
    const int64_t waiting = rows.position.as<int64_t>()[row] - folded;
    check(folded % kKdaGroup == 0 && waiting >= 0 && waiting < 2 * kKdaGroup, "kda: folded does not fit the position");
    check(!rows.decode.as<int32_t>()[n] || count <= kKdaGroup, "kda: a decode step has more rows than a group");
  }
}

template <void (*kernel)(Queue&, Scratch, const Kda::Spec&, const Kda::Args&)>
void run(Queue& q, Scratch scratch, const Kda::Spec& s, const Kda::Args& a) {
  check_sequences(a.rows);
  kernel(q, scratch, s, a);
}

}  // namespace

List<Kda> kernels(Kda, Cpu) {
  static constexpr Kernel<Kda> list[] = {
      {.name = "kda.cpu_avx512", .why_not = needs<Isa::avx512, Kda, any_spec>, .scratch_bytes = scratch_bytes, .run = run<N_AVX3::kda>},
      {.name = "kda.cpu_avx2", .why_not = needs<Isa::avx2, Kda, any_spec>, .scratch_bytes = scratch_bytes, .run = run<N_AVX2::kda>}};
  return list;
}

}  // namespace winnow::ops
#endif
