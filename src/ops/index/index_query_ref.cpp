#include "ops/index/index.h"
#include "ops/index/quantise_ref.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

void run(Queue&, Scratch, const IndexQuery::Spec& s, const IndexQuery::Args& a) {
  for (int64_t i = 0; i < a.w.elements(); ++i) {
    std::vector<float> x;
    for (int64_t c = 0; c < s.dim; ++c) x.push_back(ref::get(a.q, i * s.dim + c));
    const ref::Quantised quantised = ref::rotate_and_quantise(x);
    for (int64_t c = 0; c < s.dim; ++c) a.q8.as<E4m3>()[i * s.dim + c] = quantised.codes[c];
    ref::set(a.w8, i, ref::get(a.w, i) * quantised.scale);
  }
}

const char* why_not(const Caps&, const IndexQuery::Spec& s) { return rotation_why_not(true, s.dim); }

}  // namespace

List<IndexQuery> kernels(IndexQuery, Ref) {
  static constexpr Kernel<IndexQuery> list[] = {{.name = "index_query.ref", .why_not = why_not, .run = run}};
  return list;
}

}  // namespace winnow::ops
