// What the tests of index writing share: caches, raw rows of whole sequences, and steps that write parts of them.
#pragma once

#include <cstring>
#include <limits>

#include "ops/index/index.h"
#include "ops/steps.h"

namespace winnow::ops::test {

// Pages, scales and ring of a few sequences; f32 memory starts as NaN, so whatever is read too early shows.
struct Cache {
  Tensor keys, scales, ring;
  Cache(IndexKeys type, const Pages& p, int64_t sequences, int64_t dim, int64_t kpool, int64_t ring_rows)
      : keys(type == IndexKeys::f32    ? DType::f32
             : type == IndexKeys::bf16 ? DType::bf16
                                       : DType::e4m3,
             {p.count(), p.page_tokens / kpool, dim}),
        ring(DType::f32, {sequences, ring_rows, 2, dim}) {
    if (type == IndexKeys::fp8) scales = Tensor(DType::f32, {p.count(), p.page_tokens / kpool});
  }
  IndexPages pages() const { return {keys, scales.view}; }
  bool intact() const { return keys.canaries_intact() && ring.canaries_intact() && (!scales.view || scales.canaries_intact()); }
};

inline bool same(const Cache& a, const Cache& b) {
  return same_bits(a.keys, b.keys) && same_bits(a.ring, b.ring) && (!a.scales.view || same_bits(a.scales, b.scales));
}

// Keys times scales of the cache's pools.
inline Tensor values(const Cache& c) {
  Tensor v(DType::f32, {c.keys.view.elements()});
  const int64_t dim = c.keys.view.shape[2];
  for (int64_t i = 0; i < v.view.elements(); ++i)
    ref::set(v, i, c.scales.view ? ref::get(c.keys, i) * ref::get(c.scales, i / dim) : ref::get(c.keys, i));
  return v;
}

struct Raw {  // raw rows of every token of every sequence
  Tensor key, gate;
  int64_t tokens, dim;
  Raw(DType x, int64_t sequences, int64_t tokens, int64_t dim)
      : key(random_tensor(x, {sequences * tokens, dim}, 11)), gate(random_tensor(x, {sequences * tokens, dim}, 12, 2)), tokens(tokens), dim(dim) {}
  // Those of a step, in its order.
  static Tensor gather(const Tensor& all, int64_t tokens, const std::vector<Part>& parts) {
    int64_t n = 0;
    for (const Part& p : parts) n += p.count;
    const int64_t row = bytes_of(all.view.dtype, all.view.shape[1]);
    Tensor t(all.view.dtype, {n, all.view.shape[1]});
    std::byte* out = t.view.data;
    for (const Part& p : parts) {
      std::memcpy(out, all.view.data + (p.state * tokens + p.position) * row, static_cast<size_t>(p.count * row));
      out += p.count * row;
    }
    return t;
  }
};

using Runner = std::function<void(const IndexWrite::Spec&, const IndexWrite::Args&)>;

inline void write(const Runner& run, const IndexWrite::Spec& spec, const Cache& cache, const Raw& raw, const Tensor& ape, const Pages& pages,
                  const std::vector<Part>& parts) {
  const Step step(parts, pages);
  const Tensor key = Raw::gather(raw.key, raw.tokens, parts), gate = Raw::gather(raw.gate, raw.tokens, parts);
  run(spec, {cache.pages(), cache.ring, key, gate, ape, step.rows});
}

inline void for_reference_and_kernels(const IndexWrite::Spec& spec, const std::function<void(const Kernel<IndexWrite>&, device::Device&)>& f) {
  f(kernels(IndexWrite{}, Ref{})[0], cpu_with(1));
  for_each_kernel<IndexWrite>(spec, f);
}

}  // namespace winnow::ops::test
