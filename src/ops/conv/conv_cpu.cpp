#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/conv/conv.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/conv/conv_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kMaxTaps = 8;
constexpr int64_t kBlock = 128;  // channels that one pass computes: their taps stay in the first cache
static_assert(kBlock % kLanes == 0);

// One token: rows[j] is the input row of tap j, or null before position 0.
template <class X, class Y>
void convolve(Y* y, const X* const* rows, const float (*w)[kBlock], int64_t taps, int64_t n) {
  for (int64_t c = 0; c < n; c += kLanes) {
    Lanes acc = zero();
    for (int64_t j = 0; j < taps; ++j)
      if (rows[j]) acc = fma(load(w[j] + c), load(rows[j] + c, n - c), acc);
    store(silu(acc), y + c, n - c);
  }
}

// Channels [c, c + n) of one sequence. All of its ring rows are read before the first is written.
template <class X, class Y>
void run_sequence(const Conv::Spec& s, const Conv::Args& a, int64_t sequence, const float (*w)[kBlock], int64_t c, int64_t n) {
  const int64_t first = a.rows.first_row.as<int32_t>()[sequence], end = a.rows.first_row.as<int32_t>()[sequence + 1];
  if (first == end) return;
  const int64_t ring_rows = a.ring.shape[1], begin_position = a.rows.position.as<int64_t>()[first];
  const int64_t state = a.rows.state.as<int32_t>()[sequence], source = a.rows.source.as<int32_t>()[sequence];
  winnow::check(state >= 0 && state < a.ring.shape[0] && source >= 0 && source < a.ring.shape[0], "conv: a state is outside the ring");
  X* ring = a.ring.as<X>() + state * a.ring.stride[0] + c;
  const X* from = a.ring.as<X>() + source * a.ring.stride[0] + c;
  const X* x = a.x.as<X>() + first * s.channels + c;
  for (int64_t t = 0; t < end - first; ++t) {
    const X* rows[kMaxTaps];
    for (int64_t j = 0; j < s.taps; ++j) {
      const int64_t back = t - s.taps + 1 + j, p = begin_position + back;  // row of x, or before it of the ring
      rows[j] = back >= 0 ? x + back * s.channels : p >= 0 ? from + p % ring_rows * s.channels : nullptr;
    }
    convolve(a.y.as<Y>() + (first + t) * s.channels + c, rows, w, s.taps, n);
  }
  const auto bytes = static_cast<size_t>(n) * sizeof(X);
  if (source != state)
    for (int64_t p = std::max<int64_t>(begin_position + end - first - ring_rows, 0); p < begin_position; ++p)
      std::memcpy(ring + p % ring_rows * s.channels, from + p % ring_rows * s.channels, bytes);
  for (int64_t t = end - first > ring_rows ? end - first - ring_rows : 0; t < end - first; ++t)
    std::memcpy(ring + (begin_position + t) % ring_rows * s.channels, x + t * s.channels, bytes);
}

void run(Queue& q, Scratch, const Conv::Spec& s, const Conv::Args& a) {
  if (a.x.shape[0] == 0) return;
  with_float(s.x, [&]<class X>(X) {
    with_float(s.y, [&]<class Y>(Y) {
      q.workers().run(s.channels, kBlock, [&](int64_t begin, int64_t end, int) {
        for (int64_t c = begin; c < end; c += kBlock) {
          const int64_t n = end - c < kBlock ? end - c : kBlock;
          float w[kMaxTaps][kBlock] = {};
          for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < s.taps; ++j) w[j][i] = a.w.as<float>()[(c + i) * s.taps + j];
          for (int64_t sequence = 0; sequence < a.rows.sequences(); ++sequence) run_sequence<X, Y>(s, a, sequence, w, c, n);
        }
      });
    });
  });
}

}  // namespace
void conv(Queue& q, Scratch c, const Conv::Spec& s, const Conv::Args& a) { run(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const Conv::Spec& s) {
  if (s.taps < 1 || s.taps > 8) return "1 to 8 taps";
  return is_f32_or_bf16(s.x) && is_f32_or_bf16(s.y) ? nullptr : "only f32 and bf16";
}

}  // namespace

List<Conv> kernels(Conv, Cpu) {
  static constexpr Kernel<Conv> list[] = {{.name = "conv.cpu_avx512", .why_not = needs<Isa::avx512, Conv, why_not>, .run = N_AVX3::conv},
                                          {.name = "conv.cpu_avx2", .why_not = needs<Isa::avx2, Conv, why_not>, .run = N_AVX2::conv}};
  return list;
}

}  // namespace winnow::ops
#endif
