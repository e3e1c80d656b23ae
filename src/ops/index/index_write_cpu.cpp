#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/index/index.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/index/index_write_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/index/quantise-inl.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

// The kpool raw rows of one pool: the first `in_ring` from the ring, the rest from this step.
template <class X>
struct Window {
  const float* ring;  // the sequence's ring
  int64_t ring_rows, first, in_ring;
  const X* key;  // of position first + in_ring
  const X* gate;
  int64_t dim;
  const float* ring_row(int64_t i) const { return ring + (first + i) % ring_rows * 2 * dim; }
  Lanes key_at(int64_t i, int64_t c) const { return i < in_ring ? load(ring_row(i) + c, dim - c) : load(key + (i - in_ring) * dim + c, dim - c); }
  Lanes gate_at(int64_t i, int64_t c) const {
    return i < in_ring ? load(ring_row(i) + dim + c, dim - c) : load(gate + (i - in_ring) * dim + c, dim - c);
  }
};

template <class X, class Z>
void pool(const Window<X>& window, const float* ape, int64_t kpool, Z* z) {
  const int64_t dim = window.dim;
  for (int64_t c = 0; c < dim; c += kLanes) {
    auto gate = [&](int64_t i) HWY_ATTR { return add(window.gate_at(i, c), load(ape + i * dim + c, dim - c)); };
    Lanes largest = gate(0), total = zero(), weighted = zero();
    for (int64_t i = 1; i < kpool; ++i) largest = max(largest, gate(i));
    for (int64_t i = 0; i < kpool; ++i) {
      const Lanes e = exp(sub(gate(i), largest));
      total = add(total, e);
      weighted = fma(e, window.key_at(i, c), weighted);
    }
    store(div(weighted, total), z + c, dim - c);
  }
}

template <class X>
void complete_pool(const IndexWrite::Spec& s, const IndexWrite::Args& a, int64_t t, float* z) {
  const TokenPos pos(a.rows.position.as<int64_t>()[t]);
  const int64_t seq = a.rows.sequence.as<int32_t>()[t], ring_rows = a.ring.shape[1];
  const int64_t in_step = std::min<int64_t>(s.kpool, t - a.rows.first_row.as<int32_t>()[seq] + 1);
  const int64_t row = t - in_step + 1;
  const Window<X> window{a.ring.as<float>() + a.rows.source.as<int32_t>()[seq] * ring_rows * 2 * s.dim,
                         ring_rows,
                         pos.value - s.kpool + 1,
                         s.kpool - in_step,
                         a.key.as<X>() + row * s.dim,
                         a.gate.as<X>() + row * s.dim,
                         s.dim};
  const int64_t page = a.rows.page_table.as<int32_t>()[seq * a.rows.page_table.stride[0] + page_index(pos, a.rows.page_tokens)];
  const int64_t state = pool_of(pos, s.kpool).value % a.pages.keys.shape[1];
  const int64_t at = page * a.pages.keys.stride[0] + state * s.dim;
  const float* ape = a.ape.as<float>();
  std::byte* const key = a.pages.keys.data + bytes_of(a.pages.keys.dtype, at);
  if (s.keys == IndexKeys::f32) pool(window, ape, s.kpool, reinterpret_cast<float*>(key));
  else if (s.keys == IndexKeys::bf16) pool(window, ape, s.kpool, reinterpret_cast<Bf16*>(key));
  else {
    pool(window, ape, s.kpool, z);
    a.pages.scales.as<float>()[page * a.pages.scales.stride[0] + state] = rotate_and_quantise(z, s.dim, reinterpret_cast<E4m3*>(key));
  }
  if (!all_finite(a.pages.keys.dtype, key, s.dim)) flag_row(a.bad, t);  // codes of a scale that is no number are none either
}

// Only the last ring_rows rows of a sequence survive in its ring.
template <class X>
void append_to_ring(const IndexWrite::Spec& s, const IndexWrite::Args& a, int64_t seq) {
  const int64_t begin = a.rows.first_row.as<int32_t>()[seq], end = a.rows.first_row.as<int32_t>()[seq + 1], ring_rows = a.ring.shape[1];
  if (begin == end) return;
  const int64_t state = a.rows.state.as<int32_t>()[seq], source = a.rows.source.as<int32_t>()[seq], row_floats = 2 * s.dim;
  float* ring = a.ring.as<float>() + state * ring_rows * row_floats;
  const float* from = a.ring.as<float>() + source * ring_rows * row_floats;
  const int64_t first = a.rows.position.as<int64_t>()[begin];
  if (source != state)
    for (int64_t p = std::max<int64_t>(first + end - begin - ring_rows, 0); p < first; ++p)
      std::copy_n(from + p % ring_rows * row_floats, row_floats, ring + p % ring_rows * row_floats);
  for (int64_t t = std::max(begin, end - ring_rows); t < end; ++t) {
    float* row = ring + a.rows.position.as<int64_t>()[t] % ring_rows * 2 * s.dim;
    for (int64_t c = 0; c < s.dim; c += kLanes) {
      store(load(a.key.as<X>() + t * s.dim + c, s.dim - c), row + c, s.dim - c);
      store(load(a.gate.as<X>() + t * s.dim + c, s.dim - c), row + s.dim + c, s.dim - c);
    }
  }
}

void run(Queue& q, Scratch scratch, const IndexWrite::Spec& s, const IndexWrite::Args& a) {
  const int64_t z_floats = round_up(s.dim, kLanes);
  with_float(s.x, [&]<class X>(X) {
    q.workers().run(a.rows.tokens(), 16, [&](int64_t begin, int64_t end, int worker) {
      float* z = reinterpret_cast<float*>(scratch.data) + worker * z_floats;
      for (int64_t t = begin; t < end; ++t)
        if ((a.rows.position.as<int64_t>()[t] + 1) % s.kpool == 0) complete_pool<X>(s, a, t, z);
    });
    // Every pool has read the ring by now.
    q.workers().run(a.rows.sequences(), 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t seq = begin; seq < end; ++seq) append_to_ring<X>(s, a, seq);
    });
  });
}

}  // namespace
void index_write(Queue& q, Scratch c, const IndexWrite::Spec& s, const IndexWrite::Args& a) { run(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const IndexWrite::Spec& s) {
  if (const char* why = only_plain(s.layout)) return why;
  return is_f32_or_bf16(s.x) ? rotation_why_not(s.keys == IndexKeys::fp8, s.dim) : "only f32 and bf16";
}
int64_t scratch_bytes(const IndexWrite::Spec& s, const Limits& l) { return l.workers * round_up(s.dim, 16) * 4; }

}  // namespace

List<IndexWrite> kernels(IndexWrite, Cpu) {
  static constexpr Kernel<IndexWrite> list[] = {
      {.name = "index_write.cpu_avx512",
       .why_not = needs<Isa::avx512, IndexWrite, why_not>,
       .scratch_bytes = scratch_bytes,
       .run = N_AVX3::index_write},
      {.name = "index_write.cpu_avx2", .why_not = needs<Isa::avx2, IndexWrite, why_not>, .scratch_bytes = scratch_bytes, .run = N_AVX2::index_write}};
  return list;
}

}  // namespace winnow::ops
#endif
