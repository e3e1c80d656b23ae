#include "ops/embedding/embedding.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const Embedding::Spec& s, const Embedding::Args& a) {
  for (int64_t t = 0; t < a.ids.shape[0]; ++t) {
    const int64_t id = a.ids.as<int32_t>()[t];
    winnow::check(id >= 0 && id < s.vocab, "embedding: a token id is outside the vocabulary");
    for (int64_t stream = 0; stream < s.streams; ++stream)
      for (int64_t d = 0; d < s.hidden; ++d) ref::set(a.y, t, stream, d, ref::get(a.table, id, d));
  }
}

// e4m3 codes mean nothing without their scales.
const char* why_not(const Caps&, const Embedding::Spec& s) { return s.table == DType::e4m3 ? "only f32 and bf16" : nullptr; }

}  // namespace

List<Embedding> kernels(Embedding, Ref) {
  static constexpr Kernel<Embedding> list[] = {{.name = "embedding.ref", .why_not = why_not, .run = run}};
  return list;
}

}  // namespace winnow::ops
