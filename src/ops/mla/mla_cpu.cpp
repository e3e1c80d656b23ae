// Sixteen heads share each latent row that is loaded: a segment's rows are widened once into a block, its scores have the
// heads in the lanes, and the weighted sum keeps four heads by up to four times sixteen channels in registers. A model with at most
// half as many heads as there are lanes has the keys in them instead, behind a transposed copy of the block; the sums are the same.
//
// Work is split over rows, over rows and groups of sixteen heads, or, when both are too few, over segments too; then the
// segments' results (m, l, a) meet in scratch. The arithmetic of a segment and of a merge is the same either way.
#include <algorithm>

#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/mla/mla.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/mla/mla_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/heads-inl.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kSegment = SparseMla::kSegment;
constexpr int64_t kBlockRows = round_up(kSegment, kKeyTile);
constexpr int64_t kFewHeads = kLanes / 2;
constexpr int kHeadTile = 4;
constexpr int64_t kSlotsPerWorker = 8;  // partial results in scratch: more would not balance better and leave the caches

struct Sizes {  // in floats; a partial result is m[16], l[16], a[16][width]
  bool few;
  int64_t heads, dim, width, groups, group_q, partial, block, columns, weights;
  explicit Sizes(const SparseMla::Spec& s)
      : few(s.heads <= kFewHeads),
        heads(s.heads),
        dim(s.dim),
        width(round_up(s.dim, kLanes)),
        groups(ceil_div(s.heads, kLanes)),
        group_q(s.dim * kLanes),
        partial((2 + width) * kLanes),
        block(kBlockRows * width),
        columns(few ? kSegment * width : 0),
        weights(kBlockRows * kLanes) {}
  int64_t worker() const { return block + columns + weights + groups * (group_q + partial) + partial; }
};

struct Room {  // of one worker
  float *block, *columns, *weights, *q, *total, *part;
  Room(const Sizes& z, Scratch s, int worker) {
    block = reinterpret_cast<float*>(s.data) + worker * z.worker();
    columns = block + z.block;
    weights = columns + z.columns;
    q = weights + z.weights;
    total = q + z.groups * z.group_q;
    part = total + z.groups * z.partial;
  }
};

HWY_INLINE float* values_of(float* partial) { return partial + 2 * kLanes; }

int64_t segments_of(const SparseMla::Args& a, int64_t t) { return ceil_div(a.count.as<int32_t>()[t], kSegment); }

// The block's channels, each with its kSegment keys; those from n on may be anything.
void transpose_block(const Sizes& z, int64_t n, const float* block, float* columns) {
  for (int64_t i = 0; i < n; i += kLanes)
    for (int64_t d = 0; d < z.width; d += kLanes) {
      Lanes x[kLanes];
      for (int j = 0; j < kLanes; ++j) x[j] = load(block + (i + j) * z.width + d);
      transpose(x);
      for (int j = 0; j < kLanes; ++j) store(x[j], columns + (d + j) * kSegment + i);
    }
}

template <class C>
void load_block(const SparseMla::Args& a, const Sizes& z, int64_t t, int64_t first, int64_t n, const Room& room) {
  const int32_t* table = a.rows.page_table.as<int32_t>() + a.rows.sequence.as<int32_t>()[a.first_row + t] * a.rows.page_table.stride[0];
  const int32_t* selected = a.selected.as<int32_t>() + t * a.selected.shape[1] + first;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t page = table[page_index(TokenPos(selected[i]), a.rows.page_tokens)], row = selected[i] % a.rows.page_tokens;
    const C* latent = a.pages.as<C>() + page * a.pages.stride[0] + row * z.dim;
    for (int64_t d = 0; d < z.dim; d += kLanes) store(load(latent + d, z.dim - d), room.block + i * z.width + d);
  }
  if (z.few) transpose_block(z, n, room.block, room.columns);
}

// Where weights[row][head] stand: heads of a row side by side, or with few heads the rows of a head.
struct ByRow {
  static constexpr int64_t kRow = kLanes, kHead = 1;
};
struct ByHead {
  static constexpr int64_t kRow = 1, kHead = kSegment;
};

// out[h][d ...] = sum over the n rows ascending of weights[row][h] * block[row][d ...], for kHeads heads and kWide times 16 channels.
template <class By, int kHeads, int kWide>
HWY_INLINE void weighted_sum(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT block, int64_t n, int64_t width, float* HWY_RESTRICT out) {
  Lanes sum[kHeads][kWide];
#pragma GCC unroll 16
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 16
    for (int w = 0; w < kWide; ++w) sum[h][w] = zero();
  for (int64_t i = 0; i < n; ++i) {
    Lanes c[kWide];
#pragma GCC unroll 16
    for (int w = 0; w < kWide; ++w) c[w] = load(block + i * width + w * kLanes);
#pragma GCC unroll 16
    for (int h = 0; h < kHeads; ++h) {
      const Lanes p = splat(weights[i * By::kRow + h * By::kHead]);
#pragma GCC unroll 16
      for (int w = 0; w < kWide; ++w) sum[h][w] = fma(p, c[w], sum[h][w]);
    }
  }
#pragma GCC unroll 16
  for (int h = 0; h < kHeads; ++h)
#pragma GCC unroll 16
    for (int w = 0; w < kWide; ++w) store(sum[h][w], out + h * width + w * kLanes);
}

template <class By>
void weighted_sums(const Sizes& z, const float* weights, const float* block, int64_t n, int64_t heads, float* out) {
  constexpr int kWide = kParts == 1 ? 4 : 1;
  int64_t d = 0;
  for (; d + kWide * kLanes <= z.width; d += kWide * kLanes)
    for (int64_t h = 0; h < heads; h += kHeadTile)
      weighted_sum<By, kHeadTile, kWide>(weights + h * By::kHead, block + d, n, z.width, out + h * z.width + d);
  for (; d < z.width; d += kLanes)
    for (int64_t h = 0; h < heads; h += kHeadTile)
      weighted_sum<By, kHeadTile, 1>(weights + h * By::kHead, block + d, n, z.width, out + h * z.width + d);
}

// One segment of n rows for one group of heads, with l and a relative to the segment's own maximum m.
void attend_heads(const Sizes& z, float scale, const float* q, const Room& room, int64_t n, int64_t heads, float* part) {
  float* const weights = room.weights;
  Lanes dots[kKeyTile], largest = splat(-std::numeric_limits<float>::infinity()), total = zero();
  for (int64_t i = 0; i < n; i += kKeyTile) {
    dot_keys(q, room.block + i * z.width, z.width, z.dim, dots);
    for (int64_t j = 0; j < kKeyTile; ++j) {
      const Lanes x = mul(dots[j], splat(scale));
      store(x, weights + (i + j) * kLanes);
      if (i + j < n) largest = max(largest, x);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    const Lanes p = exp(sub(load(weights + i * kLanes), largest));
    store(p, weights + i * kLanes);
    total = add(total, p);
  }
  store(largest, part);
  store(total, part + kLanes);
  weighted_sums<ByRow>(z, weights, room.block, n, heads, values_of(part));
}

// out[h][key] = scale * sum over d ascending of q[h][d] * columns[d][key], for kHeadTile heads and kWide times 16 keys.
template <int kWide>
HWY_INLINE void dot_columns(const float* HWY_RESTRICT q, const float* HWY_RESTRICT columns, int64_t dim, float scale, float* HWY_RESTRICT out) {
  Lanes sum[kHeadTile][kWide], key[kWide];
#pragma GCC unroll 16
  for (int h = 0; h < kHeadTile; ++h)
#pragma GCC unroll 16
    for (int w = 0; w < kWide; ++w) sum[h][w] = zero();
  for (int64_t d = 0; d < dim; ++d) {
#pragma GCC unroll 16
    for (int w = 0; w < kWide; ++w) key[w] = load(columns + d * kSegment + w * kLanes);
#pragma GCC unroll 16
    for (int h = 0; h < kHeadTile; ++h) {
      const Lanes x = splat(q[h * dim + d]);
#pragma GCC unroll 16
      for (int w = 0; w < kWide; ++w) sum[h][w] = fma(x, key[w], sum[h][w]);
    }
  }
#pragma GCC unroll 16
  for (int h = 0; h < kHeadTile; ++h)
#pragma GCC unroll 16
    for (int w = 0; w < kWide; ++w) store(mul(sum[h][w], splat(scale)), out + h * kSegment + w * kLanes);
}

// The same with the keys in the lanes. q: [heads][dim], zeros up to whole tiles of heads.
void attend_keys(const Sizes& z, float scale, const float* q, const Room& room, int64_t n, float* part) {
  constexpr int kWide = kParts == 1 ? 4 : 1;
  float* const weights = room.weights;
  for (int64_t h = 0; h < z.heads; h += kHeadTile)
    for (int64_t i = 0; i < n; i += kWide * kLanes) dot_columns<kWide>(q + h * z.dim, room.columns + i, z.dim, scale, weights + h * kSegment + i);
  const Lanes lowest = splat(-std::numeric_limits<float>::infinity());
  for (int64_t h = 0; h < z.heads; ++h) {
    float* const x = weights + h * kSegment;
    Lanes largest = lowest;
    for (int64_t i = 0; i < n; i += kLanes) largest = max(largest, first(load(x + i), n - i, lowest));
    const float m = max_lane(largest);
    for (int64_t i = 0; i < n; i += kLanes) store(exp(sub(load(x + i), splat(m))), x + i);
    float total = 0;
    for (int64_t i = 0; i < n; ++i) total += x[i];
    part[h] = m;
    part[kLanes + h] = total;
  }
  weighted_sums<ByHead>(z, weights, room.block, n, z.heads, values_of(part));
}

void attend_segment(const Sizes& z, float scale, const float* q, const Room& room, int64_t n, int64_t heads, float* part) {
  if (z.few) attend_keys(z, scale, q, room, n, part);
  else attend_heads(z, scale, q, room, n, heads, part);
}

// total = total and part, for `heads` heads from `first`. Touches nothing of the other heads: they may be another worker's.
void merge(const Sizes& z, const float* part, int64_t first, int64_t heads, float* total) {
  HWY_ALIGN float from_total[kLanes], from_part[kLanes];
  float *m = total + first, *l = m + kLanes;
  const Lanes m_total = load(m, heads), m_part = load(part + first, heads), largest = max(m_total, m_part);
  const Lanes f_total = exp(sub(m_total, largest)), f_part = exp(sub(m_part, largest));
  store(fma(load(part + kLanes + first, heads), f_part, mul(load(l, heads), f_total)), l, heads);
  store(largest, m, heads);
  store(f_total, from_total);
  store(f_part, from_part);
  for (int64_t h = 0; h < heads; ++h) {
    float* to = values_of(total) + (first + h) * z.width;
    const float* from = part + 2 * kLanes + (first + h) * z.width;
    for (int64_t d = 0; d < z.width; d += kLanes) store(fma(load(from + d), splat(from_part[h]), mul(load(to + d), splat(from_total[h]))), to + d);
  }
}

template <class Y>
void finish(const SparseMla::Args& a, const Sizes& z, int64_t t, int64_t group, int64_t first, int64_t heads, float* total) {
  for (int64_t h = first; h < first + heads; ++h) {
    Y* y = a.y.as<Y>() + (t * z.heads + group * kLanes + h) * z.dim;
    const Lanes sum = splat(total[kLanes + h]);
    for (int64_t d = 0; d < z.dim; d += kLanes) store(div(load(values_of(total) + h * z.width + d), sum), y + d, z.dim - d);
  }
}

int64_t heads_of_group(const Sizes& z, int64_t group) { return std::min<int64_t>(kLanes, z.heads - group * kLanes); }

template <class Q>
void load_q(const SparseMla::Args& a, const Sizes& z, int64_t t, int64_t group, float* q) {
  const Q* from = a.q.as<Q>() + (t * z.heads + group * kLanes) * z.dim;
  if (!z.few) return heads_to_lanes(from, z.dim, heads_of_group(z, group), z.dim, q);
  const int64_t n = z.heads * z.dim;
  for (int64_t i = 0; i < n; i += kLanes) store(load(from + i, n - i), q + i, n - i);
  std::fill(q + n, q + round_up(z.heads, kHeadTile) * z.dim, 0.0f);
}

template <class Y>
void fill_zero(const SparseMla::Args& a, const Sizes& z, int64_t t) {
  for (int64_t d = 0; d < z.heads * z.dim; d += kLanes) store(zero(), a.y.as<Y>() + t * z.heads * z.dim + d, z.heads * z.dim - d);
}

// Groups [first, last) of row t, one worker.
template <class Q, class C, class Y>
void attend(const SparseMla::Args& a, const Sizes& z, int64_t t, int64_t first, int64_t last, const Room& room) {
  const int64_t count = a.count.as<int32_t>()[t];
  for (int64_t g = first; g < last; ++g) load_q<Q>(a, z, t, g, room.q + g * z.group_q);
  for (int64_t begin = 0; begin < count; begin += kSegment) {
    const int64_t n = std::min(kSegment, count - begin);
    load_block<C>(a, z, t, begin, n, room);
    for (int64_t g = first; g < last; ++g) {
      float* total = room.total + g * z.partial;
      attend_segment(z, a.scale, room.q + g * z.group_q, room, n, heads_of_group(z, g), begin ? room.part : total);
      if (begin) merge(z, room.part, 0, heads_of_group(z, g), total);
    }
  }
  for (int64_t g = first; g < last; ++g) finish<Y>(a, z, t, g, 0, heads_of_group(z, g), room.total + g * z.partial);
}

// Split over rows and `parts` equal parts of the heads, about the same number of segments a worker.
template <class Q, class C, class Y>
void split_over_heads(Queue& queue, Scratch scratch, const SparseMla::Args& a, const Sizes& z, int64_t parts) {
  const int64_t rows = a.q.shape[0], groups = z.groups / parts;
  int64_t segments = 0;
  for (int64_t t = 0; t < rows; ++t) segments += parts * segments_of(a, t);
  queue.workers().run(segments, 1, [&](int64_t begin, int64_t end, int worker) {
    const Room room(z, scratch, worker);
    int64_t at = 0;
    for (int64_t t = 0; t < rows && at < end; ++t)
      for (int64_t part = 0; part < parts; ++part, at += segments_of(a, t))  // a part belongs to the worker of its first segment
        if (at >= begin && at < end && segments_of(a, t)) attend<Q, C, Y>(a, z, t, part * groups, (part + 1) * groups, room);
  });
}

// A stretch of the segments of one group of heads of one row whose partial results lie in adjacent slots.
struct Stretch {
  int64_t t, group, first, count, slot;
  bool last;
};

// f(stretch) for segments [begin, end) of all rows' groups, counted row by row, group by group.
template <class F>
void for_each_stretch(const SparseMla::Args& a, const Sizes& z, int64_t begin, int64_t end, F&& f) {
  int64_t at = 0;
  for (int64_t t = 0; t < a.q.shape[0] && at < end; ++t) {
    const int64_t n = segments_of(a, t);
    for (int64_t g = 0; g < z.groups; ++g, at += n) {
      const int64_t first = std::max(begin - at, int64_t{0}), last = std::min(end - at, n);
      if (first < last) f(Stretch{t, g, first, last - first, at + first - begin, last == n});
    }
  }
}

// Waves of as many segments as scratch has slots; after each, its results are merged in ascending order. What a wave leaves
// of an unfinished group is carried to the next in one of two slots after the last, in turns.
template <class Q, class C, class Y>
void split_over_segments(Queue& queue, Scratch scratch, const SparseMla::Args& a, const Sizes& z) {
  const int64_t slots = kSlotsPerWorker * queue.workers().count();
  float* results = reinterpret_cast<float*>(scratch.data) + queue.workers().count() * z.worker();
  float *carried = results + slots * z.partial, *carry = carried + z.partial;
  int64_t segments = 0;
  for (int64_t t = 0; t < a.q.shape[0]; ++t) segments += z.groups * segments_of(a, t);
  for (int64_t wave = 0; wave < segments; wave += slots) {
    const int64_t wave_end = std::min(wave + slots, segments);
    queue.workers().run(wave_end - wave, 1, [&](int64_t begin, int64_t end, int worker) {
      const Room room(z, scratch, worker);
      for_each_stretch(a, z, wave + begin, wave + end, [&](const Stretch& s) {
        load_q<Q>(a, z, s.t, s.group, room.q);
        for (int64_t i = 0; i < s.count; ++i) {
          const int64_t row = (s.first + i) * kSegment, n = std::min<int64_t>(kSegment, a.count.as<int32_t>()[s.t] - row);
          load_block<C>(a, z, s.t, row, n, room);
          attend_segment(z, a.scale, room.q, room, n, heads_of_group(z, s.group), results + (begin + s.slot + i) * z.partial);
        }
      });
    });
    int64_t touched = 0;
    for_each_stretch(a, z, wave, wave_end, [&](const Stretch&) { ++touched; });
    queue.workers().run(touched * kLanes, 1, [&](int64_t begin, int64_t end, int) {
      int64_t at = 0;
      for_each_stretch(a, z, wave, wave_end, [&](const Stretch& s) {
        const int64_t h0 = std::max(begin - at, int64_t{0}), h1 = std::min({end - at, int64_t{kLanes}, heads_of_group(z, s.group)});
        at += kLanes;
        if (h0 >= h1) return;
        float* total = s.first ? carried : results + s.slot * z.partial;
        for (int64_t i = s.first ? 0 : 1; i < s.count; ++i) merge(z, results + (s.slot + i) * z.partial, h0, h1 - h0, total);
        if (s.last) return finish<Y>(a, z, s.t, s.group, h0, h1 - h0, total);
        for (int64_t h = h0; h < h1; ++h) {
          carry[h] = total[h];
          carry[kLanes + h] = total[kLanes + h];
          std::copy_n(values_of(total) + h * z.width, z.width, values_of(carry) + h * z.width);
        }
      });
    });
    std::swap(carried, carry);
  }
}

template <class Q, class C, class Y>
void run(Queue& queue, Scratch scratch, const SparseMla::Spec& s, const SparseMla::Args& a) {
  const Sizes z(s);
  const int64_t rows = a.q.shape[0], workers = queue.workers().count();
  for (int64_t t = 0; t < rows; ++t)
    if (a.count.as<int32_t>()[t] <= 0) fill_zero<Y>(a, z, t);
  // A split is balanced if it divides evenly or into many pieces.
  auto balanced = [&](int64_t pieces) { return pieces % workers == 0 || pieces >= 4 * workers; };
  if (balanced(rows)) split_over_heads<Q, C, Y>(queue, scratch, a, z, 1);
  else if (balanced(rows * z.groups)) split_over_heads<Q, C, Y>(queue, scratch, a, z, z.groups);
  else split_over_segments<Q, C, Y>(queue, scratch, a, z);
}

void run(Queue& q, Scratch c, const SparseMla::Spec& s, const SparseMla::Args& a) {
  with_float(s.q, [&]<class X>(X) { with_float(s.latent, [&]<class L>(L) { with_float(s.y, [&]<class Y>(Y) { run<X, L, Y>(q, c, s, a); }); }); });
}

}  // namespace
void sparse_mla(Queue& q, Scratch c, const SparseMla::Spec& s, const SparseMla::Args& a) { run(q, c, s, a); }
int64_t sparse_mla_scratch(const SparseMla::Spec& s, const Limits& l) {
  const Sizes z(s);
  return (l.workers * (z.worker() + kSlotsPerWorker * z.partial) + 2 * z.partial) * 4;
}
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const SparseMla::Spec& s) {
  return is_f32_or_bf16(s.q) && is_f32_or_bf16(s.latent) && is_f32_or_bf16(s.y) ? nullptr : "only f32 and bf16";
}

}  // namespace

List<SparseMla> kernels(SparseMla, Cpu) {
  static constexpr Kernel<SparseMla> list[] = {{.name = "sparse_mla.cpu_avx512",
                                                .why_not = needs<Isa::avx512, SparseMla, why_not>,
                                                .scratch_bytes = N_AVX3::sparse_mla_scratch,
                                                .run = N_AVX3::sparse_mla},
                                               {.name = "sparse_mla.cpu_avx2",
                                                .why_not = needs<Isa::avx2, SparseMla, why_not>,
                                                .scratch_bytes = N_AVX2::sparse_mla_scratch,
                                                .run = N_AVX2::sparse_mla}};
  return list;
}

}  // namespace winnow::ops
#endif
