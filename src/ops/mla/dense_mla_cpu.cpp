// A worker takes a head and walks groups of sequences: it expands the keys and values of a group's tokens by one product each, so
// that many short prompts share the weights, then every tile of sixteen rows attends to its sequence's. Rows are in the lanes of
// queries, scores and weights, so a key's element is broadcast to sixteen rows; the weighted sum keeps four rows by up to four times
// sixteen channels in registers.
#include <algorithm>
#include <cstring>
#include <limits>

#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/linear/product.h"
#include "ops/mla/dense_mla.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/mla/dense_mla_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/heads-inl.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kGroupTokens = 2 * DenseMla::kTokens;  // enough rows for a product; their keys and values stay in a second-level cache
constexpr int64_t kScoreRows = round_up(DenseMla::kTokens, kKeyTile);

struct Sizes {  // in floats
  int64_t nope, width, latents, keys, values, weights, q;
  explicit Sizes(const DenseMla::Spec& s)
      : nope(s.nope),
        width(round_up(s.v, kLanes)),
        latents(round_up(kGroupTokens * bytes_of(s.latent, s.dim), 64) / 4),
        keys(round_up((kGroupTokens + kKeyTile) * nope, kLanes)),  // dot_keys takes whole tiles
        values(kGroupTokens * width),
        weights(kScoreRows * kLanes),
        q(nope * kLanes) {}
  int64_t worker_bytes(int64_t product_bytes) const { return product_bytes + 4 * (latents + keys + values + weights + q); }
};

struct Room {  // of one worker
  std::byte *product, *latents;
  float *keys, *values, *weights, *q;
  Room(const Sizes& z, Scratch s, int64_t product_bytes, int worker)
      : product(s.data + worker * z.worker_bytes(product_bytes)), latents(product + product_bytes) {
    keys = reinterpret_cast<float*>(latents) + z.latents;
    values = keys + z.keys;
    weights = values + z.values;
    q = weights + z.weights;
  }
};

// The expanded rows of a sequence: rows [first, first + count) of the step, at positions from `position` on.
struct Stretch {
  int64_t first, count, position;
  int64_t tokens() const { return count == 0 ? 0 : position + count; }
};
Stretch stretch_of(const DenseMla::Spec& s, const DenseMla::Args& a, int64_t sequence) {
  const int64_t first = a.rows.first_row.as<int32_t>()[sequence], count = DenseMla::rows_of_sequence(s, a.rows, sequence);
  return {first, count, count == 0 ? 0 : a.rows.position.as<int64_t>()[first]};
}
// Sequences [begin, end) make a group of at most kGroupTokens tokens.
int64_t group_end(const DenseMla::Spec& s, const DenseMla::Args& a, int64_t begin) {
  int64_t end = begin;
  for (int64_t tokens = 0; end < a.rows.sequences(); ++end) {
    tokens += stretch_of(s, a, end).tokens();
    if (tokens > kGroupTokens) break;
  }
  return end;
}

// The latents of a sequence's first n tokens, as far as a page goes at a time.
void gather(const DenseMla::Spec& s, const DenseMla::Args& a, int64_t sequence, int64_t n, std::byte* to) {
  const int32_t* table = a.rows.page_table.as<int32_t>() + sequence * a.rows.page_table.stride[0];
  const int64_t page_tokens = a.rows.page_tokens;
  for (TokenPos u(0); u.value < n; u.value += page_tokens) {
    const std::byte* page = a.pages.data + bytes_of(s.latent, table[page_index(u, page_tokens)] * a.pages.stride[0]);
    std::memcpy(to + bytes_of(s.latent, u.value * s.dim), page, static_cast<size_t>(bytes_of(s.latent, std::min(n - u.value, page_tokens) * s.dim)));
  }
}

// y[r] = sum over the tokens i ascending that row r sees of weights[i][r] * values[i], over total[r], for the first `rows` of kRows rows
// and kWide times 16 channels, of which y has `channels`. Row r sees the tokens below seen + r.
template <int kRows, int kWide, class Y>
HWY_INLINE void add_values(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT values, int64_t n, int64_t seen, int64_t width,
                           const float* HWY_RESTRICT total, int64_t rows, Y* HWY_RESTRICT y, int64_t y_stride, int64_t channels) {
  Lanes sum[kRows][kWide], v[kWide];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (int w = 0; w < kWide; ++w) sum[r][w] = zero();
  int64_t i = 0;
  for (; i < std::min(n, seen); ++i) {
#pragma GCC unroll 16
    for (int w = 0; w < kWide; ++w) v[w] = load(values + i * width + w * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Lanes p = splat(weights[i * kLanes + r]);
#pragma GCC unroll 16
      for (int w = 0; w < kWide; ++w) sum[r][w] = fma(p, v[w], sum[r][w]);
    }
  }
  for (; i < std::min(n, seen + kRows - 1); ++i)
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      if (i >= seen + r) continue;
#pragma GCC unroll 16
      for (int w = 0; w < kWide; ++w) sum[r][w] = fma(splat(weights[i * kLanes + r]), load(values + i * width + w * kLanes), sum[r][w]);
    }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) continue;
#pragma GCC unroll 16
    for (int w = 0; w < kWide; ++w) store(div(sum[r][w], splat(total[r])), y + r * y_stride + w * kLanes, channels - w * kLanes);
  }
}

// Softmax of at most sixteen rows over n tokens, row r over those below seen + r: its terms to room.weights, their sums to `total`.
void score(const Sizes& z, float scale, const Room& room, const float* keys, int64_t n, int64_t seen, float* total) {
  const Lanes hidden = splat(-std::numeric_limits<float>::infinity());
  Lanes dots[kKeyTile], largest = hidden, sum = zero();
  for (int64_t i = 0; i < n; i += kKeyTile) {
    dot_keys(room.q, keys + i * z.nope, z.nope, z.nope, dots);
    for (int64_t j = i; j < std::min(i + kKeyTile, n); ++j) {
      Lanes x = mul(dots[j - i], splat(scale));
      if (j >= seen) x = first(hidden, j - seen + 1, x);
      largest = max(largest, x);
      store(x, room.weights + j * kLanes);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    const Lanes p = exp(sub(load(room.weights + i * kLanes), largest));
    store(p, room.weights + i * kLanes);
    sum = add(sum, p);
  }
  store(sum, total);
}

// Rows [first, first + rows), rows <= 16, the first at `position`.
template <class Q, class Y>
void attend_tile(const DenseMla::Spec& s, const DenseMla::Args& a, const Sizes& z, int64_t first, int64_t rows, int64_t position, int64_t h,
                 const float* keys, const float* values, const Room& room) {
  const int64_t n = position + rows, seen = position + 1, y_stride = s.heads * s.v;
  HWY_ALIGN float total[kLanes];
  heads_to_lanes(a.q.as<Q>() + (first * s.heads + h) * s.nope, s.heads * s.nope, rows, s.nope, room.q);
  score(z, a.scale, room, keys, n, seen, total);
  constexpr int kRows = 4, kWide = kParts == 1 ? 4 : 1;
  for (int64_t r = 0; r < rows; r += kRows) {
    Y* y = a.y.as<Y>() + ((first + r) * s.heads + h) * s.v;
    int64_t d = 0;
    for (; d + kWide * kLanes <= z.width; d += kWide * kLanes)
      add_values<kRows, kWide>(room.weights + r, values + d, n, seen + r, z.width, total + r, rows - r, y + d, y_stride, s.v - d);
    for (; d < z.width; d += kLanes)
      add_values<kRows, 1>(room.weights + r, values + d, n, seen + r, z.width, total + r, rows - r, y + d, y_stride, s.v - d);
  }
}

// One head of the sequences [begin, end).
template <class Q, class Y>
void attend_group(const DenseMla::Spec& s, const DenseMla::Args& a, const Sizes& z, const Product& product, int64_t begin, int64_t end, int64_t h,
                  const Room& room) {
  int64_t tokens = 0;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t n = stretch_of(s, a, i).tokens();
    gather(s, a, i, n, room.latents + bytes_of(s.latent, tokens * s.dim));
    tokens += n;
  }
  if (tokens == 0) return;
  const Matrix w_k{{a.w_k.data + bytes_of(s.w, h * s.nope * s.dim), s.w, {s.nope, s.dim}}, {}};
  const Matrix w_v{{a.w_v.data + bytes_of(s.w, h * s.v * s.dim), s.w, {s.v, s.dim}}, {}};
  const RowsIn latents{room.latents, s.latent, bytes_of(s.latent, s.dim)};
  product.run(room.product, latents, 0, tokens, w_k, 0, s.nope, {reinterpret_cast<std::byte*>(room.keys), DType::f32, 4 * z.nope});
  product.run(room.product, latents, 0, tokens, w_v, 0, s.v, {reinterpret_cast<std::byte*>(room.values), DType::f32, 4 * z.width});
  tokens = 0;
  for (int64_t i = begin; i < end; ++i) {
    const Stretch rows = stretch_of(s, a, i);
    for (int64_t r = 0; r < rows.count; r += kLanes)
      attend_tile<Q, Y>(s, a, z, rows.first + r, std::min<int64_t>(kLanes, rows.count - r), rows.position + r, h, room.keys + tokens * z.nope,
                        room.values + tokens * z.width, room);
    tokens += rows.tokens();
  }
}

}  // namespace

void dense_mla(Queue& queue, Scratch scratch, const DenseMla::Spec& s, const DenseMla::Args& a, const Product& product) {
  int64_t rows = 0;
  for (int64_t i = 0; i < a.rows.sequences(); ++i) rows += DenseMla::rows_of_sequence(s, a.rows, i);
  if (rows == 0) return;
  const Sizes z(s);
  queue.workers().run(s.heads, 1, [&](int64_t begin, int64_t end, int worker) {
    const Room room(z, scratch, product.scratch_bytes(s.dim), worker);
    for (int64_t h = begin; h < end; ++h)
      for (int64_t i = 0, next; i < a.rows.sequences(); i = next) {
        next = group_end(s, a, i);
        with_float(s.q, [&]<class Q>(Q) { with_float(s.y, [&]<class Y>(Y) { attend_group<Q, Y>(s, a, z, product, i, next, h, room); }); });
      }
  });
}
int64_t dense_mla_scratch(const DenseMla::Spec& s, const Limits& l, const Product& product) {
  return l.workers * Sizes(s).worker_bytes(product.scratch_bytes(s.dim));
}

}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const DenseMla::Spec& s) {
  return is_f32_or_bf16(s.q) && is_f32_or_bf16(s.latent) && is_f32_or_bf16(s.w) && is_f32_or_bf16(s.y) ? nullptr : "only f32 and bf16";
}
const char* why_not_bf16(const DenseMla::Spec& s) {
  return s.latent == DType::bf16 && s.w == DType::bf16 ? why_not(s) : "latents and weights only in bf16";
}

template <const Product& product, auto scratch>
int64_t scratch_bytes(const DenseMla::Spec& s, const Limits& l) {
  return scratch(s, l, product);
}
template <const Product& product, auto attend>
void run(Queue& q, Scratch c, const DenseMla::Spec& s, const DenseMla::Args& a) {
  attend(q, c, s, a, product);
}

template <const Product& p, Isa isa, auto why>
constexpr Kernel<DenseMla> on_avx512(std::string_view name) {
  return {.name = name,
          .why_not = needs<isa, DenseMla, why>,
          .scratch_bytes = scratch_bytes<p, N_AVX3::dense_mla_scratch>,
          .run = run<p, N_AVX3::dense_mla>};
}

}  // namespace

List<DenseMla> kernels(DenseMla, Cpu) {
  static constexpr Kernel<DenseMla> list[] = {on_avx512<tiles_bf16, Isa::amx, why_not_bf16>("dense_mla.cpu_amx"),
                                              on_avx512<dot_bf16, Isa::avx512_bf16, why_not_bf16>("dense_mla.cpu_avx512_bf16"),
                                              on_avx512<lanes_avx512, Isa::avx512, why_not>("dense_mla.cpu_avx512"),
                                              {.name = "dense_mla.cpu_avx2",
                                               .why_not = needs<Isa::avx2, DenseMla, why_not>,
                                               .scratch_bytes = scratch_bytes<lanes_avx2, N_AVX2::dense_mla_scratch>,
                                               .run = run<lanes_avx2, N_AVX2::dense_mla>}};
  return list;
}

}  // namespace winnow::ops
#endif
