#include "cache/kv_store.h"

namespace winnow::cache {
namespace {

// [pages, rows, width] or, for width 0, [pages, rows] over records of page_bytes; the part starts `offset` into each.
TensorView in_pages(const device::Buffer& b, int64_t offset, DType type, int64_t page_bytes, int64_t pages, int64_t rows, int64_t width) {
  const int64_t stride = page_bytes / (bits_of(type) / 8);
  if (width == 0) return {b.data() + offset, type, 2, {pages, rows}, {stride, 1}};
  return {b.data() + offset, type, 3, {pages, rows, width}, {stride, width, 1}};
}

// Packed views cut one after another from a buffer.
class Cutter {
 public:
  explicit Cutter(const device::Buffer& b) : at_(b.data()), left_(b.bytes()) {}
  TensorView operator()(DType type, std::initializer_list<int64_t> dims) {
    TensorView v(at_, type, dims);
    left_ -= v.bytes();
    check(left_ >= 0, "the views of the KV store exceed its memory");
    at_ += v.bytes();
    return v;
  }
  bool done() const { return left_ == 0; }

 private:
  std::byte* at_;
  int64_t left_;
};

}  // namespace

KvStore::KvStore(device::Device& device, const KvSpec& s, const KvLayout& l, const KvSizes& sizes) : sizes_(sizes) {
  pages_ = device.allocate("pages", product({sizes.pages, l.page_bytes}));
  states_ = device.allocate("states", product({sizes.states, l.state_bytes}));
  rings_ = device.allocate("rings", product({sizes.states, l.ring_bytes}));

  views_.page_tokens = l.page_tokens;
  for (const KvLayout::Part& p : l.parts) {
    views_.latent.push_back(in_pages(pages_, p.latent, s.latent_type, l.page_bytes, sizes.pages, l.page_tokens, s.latent_dim));
    IndexPages index;
    index.keys = in_pages(pages_, p.keys, type_of(s.index_keys), l.page_bytes, sizes.pages, l.page_states, s.index_dim);
    if (s.index_keys == IndexKeys::fp8) index.scales = in_pages(pages_, p.scales, DType::f32, l.page_bytes, sizes.pages, l.page_states, 0);
    views_.index.push_back(index);
  }

  Cutter state(states_), ring(rings_);
  const int64_t n = sizes.states;
  for (int64_t layer = 0; layer < s.kda_layers; ++layer) {
    views_.state.push_back(state(DType::f32, {n, s.kda_heads, s.kda_key_dim, s.kda_value_dim}));
    views_.ring_k.push_back(ring(DType::f32, {n, l.kda_rows, s.kda_heads, s.kda_key_dim}));
    views_.ring_u.push_back(ring(DType::f32, {n, l.kda_rows, s.kda_heads, s.kda_value_dim}));
    views_.ring_g.push_back(ring(DType::f32, {n, l.kda_rows, s.kda_heads, s.kda_key_dim}));
  }
  for (int64_t layer = 0; layer < s.attention_layers; ++layer) views_.pool_ring.push_back(ring(DType::f32, {n, l.pool_rows, 2, s.index_dim}));
  // Last, because its elements may be smaller than those before.
  for (int64_t layer = 0; layer < s.kda_layers; ++layer) views_.conv_ring.push_back(ring(s.conv_type, {n, l.conv_rows, s.conv_channels}));
  check(state.done() && ring.done(), "the views of the KV store do not use all of its memory");
}

}  // namespace winnow::cache
