#include <cmath>
#include <limits>
#include <vector>

#include "ops/index/index.h"
#include "ops/index/quantise_ref.h"
#include "ops/ref.h"

namespace winnow::ops {
namespace {

struct Raw {
  ConstTensorView key, gate;
  int64_t first = 0;
};  // element `first + channel` of each

// The raw row of position `pos`, a position of row t's window: one of this step's rows of t's sequence, or a ring row.
Raw raw_row(const IndexWrite::Spec& s, const IndexWrite::Args& a, int64_t t, int64_t pos) {
  const int64_t seq = a.rows.sequence.as<int32_t>()[t];
  const int64_t row = t - (a.rows.position.as<int64_t>()[t] - pos);
  if (row >= a.rows.first_row.as<int32_t>()[seq]) return {a.key, a.gate, row * s.dim};
  const int64_t source = a.rows.source.as<int32_t>()[seq];
  const int64_t first = (source * a.ring.shape[1] + pos % a.ring.shape[1]) * 2 * s.dim;
  ConstTensorView gate = a.ring;
  gate.data += s.dim * static_cast<int64_t>(sizeof(float));
  return {a.ring, gate, first};
}

std::vector<float> pooled(const IndexWrite::Spec& s, const IndexWrite::Args& a, int64_t t) {
  const int64_t first = a.rows.position.as<int64_t>()[t] - s.kpool + 1;
  std::vector<float> z;
  for (int64_t c = 0; c < s.dim; ++c) {
    std::vector<double> gate, key;
    double largest = -std::numeric_limits<double>::infinity(), sum = 0, weighted = 0;
    for (int64_t i = 0; i < s.kpool; ++i) {
      const Raw raw = raw_row(s, a, t, first + i);
      key.push_back(ref::get(raw.key, raw.first + c));
      gate.push_back(ref::get(raw.gate, raw.first + c) + ref::get(a.ape, i, c));
      largest = std::max(largest, gate.back());
    }
    for (int64_t i = 0; i < s.kpool; ++i) {
      sum += std::exp(gate[i] - largest);
      weighted += std::exp(gate[i] - largest) * key[i];
    }
    z.push_back(static_cast<float>(weighted / sum));
  }
  return z;
}

void write_pool(const IndexWrite::Spec& s, const IndexWrite::Args& a, int64_t t) {
  const TokenPos pos(a.rows.position.as<int64_t>()[t]);
  const int64_t seq = a.rows.sequence.as<int32_t>()[t];
  const int64_t page = a.rows.page_table.as<int32_t>()[seq * a.rows.page_table.stride[0] + page_index(pos, a.rows.page_tokens)];
  const int64_t row = pool_of(pos, s.kpool).value % a.pages.keys.shape[1];
  const std::vector<float> z = pooled(s, a, t);
  const auto at = [&](int64_t c) { return page * a.pages.keys.stride[0] + index_offset(s.layout, row, c, s.dim); };
  if (s.keys != IndexKeys::fp8) {
    for (int64_t c = 0; c < s.dim; ++c) {
      ref::set(a.pages.keys, at(c), z[c]);
      if (!std::isfinite(ref::get(a.pages.keys, at(c)))) flag_row(a.bad, t);
    }
    return;
  }
  const ref::Quantised quantised = ref::rotate_and_quantise(z);
  for (int64_t c = 0; c < s.dim; ++c) a.pages.keys.as<E4m3>()[at(c)] = quantised.codes[c];
  ref::set(a.pages.scales, page, row, quantised.scale);
  if (!std::isfinite(quantised.scale)) flag_row(a.bad, t);
}

void run(Queue&, Scratch, const IndexWrite::Spec& s, const IndexWrite::Args& a) {
  const int64_t tokens = a.rows.tokens(), ring_rows = a.ring.shape[1];
  for (int64_t t = 0; t < tokens; ++t)
    if (a.rows.position.as<int64_t>()[t] % s.kpool == s.kpool - 1) write_pool(s, a, t);
  for (int64_t seq = 0; seq < a.rows.sequences(); ++seq) {
    const int64_t row = a.rows.first_row.as<int32_t>()[seq], state = a.rows.state.as<int32_t>()[seq], source = a.rows.source.as<int32_t>()[seq];
    if (source != state && row < a.rows.first_row.as<int32_t>()[seq + 1] && a.rows.position.as<int64_t>()[row] > 0)
      ref::copy_record(a.ring, source, state);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t state = a.rows.state.as<int32_t>()[a.rows.sequence.as<int32_t>()[t]];
    const int64_t row = state * ring_rows + a.rows.position.as<int64_t>()[t] % ring_rows;
    for (int64_t c = 0; c < s.dim; ++c) {
      ref::set(a.ring, row * 2 * s.dim + c, ref::get(a.key, t, c));
      ref::set(a.ring, (row * 2 + 1) * s.dim + c, ref::get(a.gate, t, c));
    }
  }
}

const char* why_not(const Caps&, const IndexWrite::Spec& s) { return rotation_why_not(s.keys == IndexKeys::fp8, s.dim); }

}  // namespace

List<IndexWrite> kernels(IndexWrite, Ref) {
  static constexpr Kernel<IndexWrite> list[] = {{.name = "index_write.ref", .why_not = why_not, .run = run}};
  return list;
}

}  // namespace winnow::ops
