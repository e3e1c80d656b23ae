#include "cache/kv_store.h"

#include <algorithm>

namespace winnow::cache {
namespace {

// [pages, rows, width] or, for width 0, [pages, rows] over records of page_bytes; the part starts `offset` into each.
TensorView in_pages(const device::Buffer& b, int64_t offset, DType type, int64_t page_bytes, int64_t pages, int64_t rows, int64_t width) {
  const int64_t stride = page_bytes / (bits_of(type) / 8);
  if (width == 0) return {b.data() + offset, type, 2, {pages, rows}, {stride, 1}};
  return {b.data() + offset, type, 3, {pages, rows, width}, {stride, width, 1}};
}

constexpr std::byte kCanary{0xc5};

// Packed views cut one after another from a buffer, each with a canary behind it.
class Cutter {
 public:
  Cutter(const device::Buffer& b, int64_t canary_bytes, std::vector<std::byte*>* canaries)
      : at_(b.data()), left_(b.bytes()), canary_bytes_(canary_bytes), canaries_(canaries) {}
  TensorView operator()(DType type, std::initializer_list<int64_t> dims) {
    TensorView v(at_, type, dims);
    left_ -= v.bytes() + canary_bytes_;
    check(left_ >= 0, "the views of the KV store exceed its memory");
    if (canary_bytes_ > 0) canaries_->push_back(at_ + v.bytes());
    at_ += v.bytes() + canary_bytes_;
    return v;
  }
  bool done() const { return left_ == 0; }

 private:
  std::byte* at_;
  int64_t left_;
  const int64_t canary_bytes_;
  std::vector<std::byte*>* const canaries_;
};

}  // namespace

KvStore::KvStore(device::Device& device, const KvSpec& s, const KvLayout& l, const KvSizes& sizes, int64_t canary_bytes)
    : sizes_(sizes),
      page_bytes_(l.page_bytes),
      state_bytes_(l.state_bytes + l.ring_bytes),
      canary_bytes_(canary_bytes),
      page_stride_(l.page_bytes > 0 ? l.page_bytes + canary_bytes : 0) {
  pages_ = device.allocate("pages", product({sizes.pages, page_stride_}));
  states_ = device.allocate("states", sum({product({sizes.states, l.state_bytes}), s.kda_layers * canary_bytes}));
  rings_ = device.allocate("rings", sum({product({sizes.states, l.ring_bytes}), (4 * s.kda_layers + s.attention_layers) * canary_bytes}));
  if (page_stride_ > l.page_bytes)
    for (int64_t i = 0; i < sizes.pages; ++i) canaries_.push_back(pages_.data() + i * page_stride_ + l.page_bytes);

  views_.page_tokens = l.page_tokens;
  for (const KvLayout::Part& p : l.parts) {
    views_.latent.push_back(in_pages(pages_, p.latent, s.latent_type, page_stride_, sizes.pages, l.page_tokens, s.latent_dim));
    IndexPages index{.layout = s.index_layout};
    index.keys = in_pages(pages_, p.keys, type_of(s.index_keys), page_stride_, sizes.pages, l.page_states, s.index_dim);
    if (s.index_keys == IndexKeys::fp8) index.scales = in_pages(pages_, p.scales, DType::f32, page_stride_, sizes.pages, l.page_states, 0);
    views_.index.push_back(index);
  }

  Cutter state(states_, canary_bytes, &canaries_), ring(rings_, canary_bytes, &canaries_);
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
  for (std::byte* c : canaries_) std::fill_n(c, canary_bytes_, kCanary);
}

void KvStore::check_canaries() const {
  for (size_t i = 0; i < canaries_.size(); ++i)
    if (!std::all_of(canaries_[i], canaries_[i] + canary_bytes_, [](std::byte b) { return b == kCanary; }))
      check(false, page_bytes_ > 0 && static_cast<int64_t>(i) < sizes_.pages ? "somebody wrote beyond the end of a page"
                                                                             : "somebody wrote beyond the end of a layer's states or rings");
}

std::span<std::byte> KvStore::place(PageId page) const {
  check(page.value >= 0 && page.value < sizes_.pages, "a page out of range");
  return {pages_.data() + page.value * page_stride_, static_cast<size_t>(page_bytes_)};
}

// f(bytes of one view's record) in a fixed order.
template <class F>
void KvStore::each_part(StateId state, F&& f) const {
  check(state.value >= 0 && state.value < sizes_.states, "a state out of range");
  for (const std::vector<TensorView>* kind : {&views_.state, &views_.ring_k, &views_.ring_u, &views_.ring_g, &views_.pool_ring, &views_.conv_ring})
    for (const TensorView& v : *kind) {
      const int64_t bytes = v.bytes() / sizes_.states;
      f(std::span(v.data + state.value * bytes, static_cast<size_t>(bytes)));
    }
}

void KvStore::read(PageId page, std::span<std::byte> to) const { std::ranges::copy(place(page), to.begin()); }
void KvStore::write(PageId page, std::span<const std::byte> from) { std::ranges::copy(from, place(page).begin()); }

void KvStore::read(StateId state, std::span<std::byte> to) const {
  check(static_cast<int64_t>(to.size()) == state_bytes_, "bytes of another size than a state record");
  each_part(state, [&](std::span<std::byte> part) {
    std::ranges::copy(part, to.begin());
    to = to.subspan(part.size());
  });
}

void KvStore::write(StateId state, std::span<const std::byte> from) {
  check(static_cast<int64_t>(from.size()) == state_bytes_, "bytes of another size than a state record");
  each_part(state, [&](std::span<std::byte> part) {
    std::ranges::copy(from.first(part.size()), part.begin());
    from = from.subspan(part.size());
  });
}

}  // namespace winnow::cache
