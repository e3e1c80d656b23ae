#include <cmath>

#include "ops/latent_write/latent_write.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const LatentWrite::Spec& s, const LatentWrite::Args& a) {
  for (int64_t t = 0; t < a.x.shape[0]; ++t) {
    const int64_t slot = a.rows.slot.as<int64_t>()[t];
    winnow::check(slot >= 0 && slot / a.rows.page_tokens < a.pages.shape[0], "latent_write: a slot is outside the pages");
    for (int64_t d = 0; d < s.dim; ++d) {
      ref::set(a.pages, slot / a.rows.page_tokens, slot % a.rows.page_tokens, d, ref::get(a.x, t, d));
      if (!std::isfinite(ref::get(a.pages, slot / a.rows.page_tokens, slot % a.rows.page_tokens, d))) flag_row(a.bad, t);
    }
  }
}

}  // namespace

List<LatentWrite> kernels(LatentWrite, Ref) {
  static constexpr Kernel<LatentWrite> list[] = {{.name = "latent_write.ref", .why_not = always, .run = run}};
  return list;
}

}  // namespace winnow::ops
