#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/finite/finite.h"

namespace winnow::ops {
namespace {

// All bits of the exponent set: NaN or infinity.
template <class T>
bool any_bad(const std::byte* from, int64_t n, T exponent) {
  const T* v = reinterpret_cast<const T*>(from);
  T bad = 0;
  for (int64_t i = 0; i < n; ++i) bad |= static_cast<T>((v[i] & exponent) == exponent);
  return bad != 0;
}

void run(Queue& q, Scratch, const Finite::Spec& s, const Finite::Args& a) {
  const int64_t row = bytes_of(s.x, s.n);
  q.workers().run(a.x.shape[0], 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const std::byte* x = a.x.data + t * row;
      a.bad.as<int32_t>()[t] = s.x == DType::f32 ? any_bad(x, s.n, uint32_t{0x7f800000}) : any_bad(x, s.n, uint16_t{0x7f80});
    }
  });
}

const char* why_not(const Caps&, const Finite::Spec& s) { return is_f32_or_bf16(s.x) ? nullptr : "only f32 and bf16"; }

}  // namespace

List<Finite> kernels(Finite, Cpu) {
  static constexpr Kernel<Finite> list[] = {{.name = "finite.cpu", .why_not = why_not, .run = run}};
  return list;
}

}  // namespace winnow::ops
