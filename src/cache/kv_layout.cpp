#include "cache/kv_layout.h"

#include <algorithm>
#include <numeric>

namespace winnow::cache {
namespace {

constexpr int64_t kMostSnapshots = 256;  // that sizes_for plans
constexpr int64_t kLine = 64;            // bytes; where parts of a page start, and a multiple of every element's size

int64_t aligned(int64_t bytes) { return sum({bytes, kLine - 1}) / kLine * kLine; }

int64_t bytes(DType type, std::initializer_list<int64_t> dims) { return product({product(dims), bits_of(type) / 8}); }

void check_page_size(const KvSpec& s, int64_t page_tokens) {
  const bool known = std::ranges::any_of(std::initializer_list<int64_t>{16, 32, 64, 128, 256}, [&](int64_t n) { return n == page_tokens; });
  const int64_t rows = s.index_layout == IndexLayout::shuffled ? kIndexTile : 1;
  const bool needed = s.kpool > 0 && page_tokens == std::lcm(kChunkGrid, s.kpool * rows);  // no smaller page holds whole chunks, pools and tiles
  if (!known && !needed)
    throw error("page_tokens is {}; pages of 16, 32, 64, 128 or 256 tokens are supported, and the least that holds whole chunks and pools",
                page_tokens);
  if (s.kda_layers > 0 && page_tokens % kChunkGrid != 0)
    throw error("page_tokens is {}; a model with KDA layers needs pages whose ends are chunk ends, multiples of 64", page_tokens);
  if (s.attention_layers > 0 && (s.kpool < 1 || page_tokens % s.kpool != 0))
    throw error("page_tokens is {}, which index_kpool {} does not divide; choose a page size that it does", page_tokens, s.kpool);
  if (s.attention_layers > 0)
    if (const char* why = index_layout_why_not(s.index_layout, page_tokens / s.kpool, s.index_dim))
      throw error("page_tokens is {} at index_kpool {} and index_head_dim {}: {}", page_tokens, s.kpool, s.index_dim, why);
}

// Not the number of layers alone: offsets inside a page follow from all of these in order.
std::string identity_of(const KvSpec& s, const KvLayout& l) {
  constexpr int kVersion = 1;  // of the arrangement that this file describes
  return fmt::format(
      "kv {}; page {} tokens, {} B; {} attention layers: latent {} {}, index {} {} {} of {} tokens; {} KDA layers: S {} x {} x {} f32, {} rows; "
      "convolution {} {}, {} taps, {} rows; pool ring {} rows; state {} B, rings {} B",
      kVersion, l.page_tokens, l.page_bytes, s.attention_layers, s.latent_dim, winnow::name_of(s.latent_type), s.index_dim,
      winnow::name_of(type_of(s.index_keys)), name_of(s.index_layout), s.kpool, s.kda_layers, s.kda_heads, s.kda_key_dim, s.kda_value_dim, l.kda_rows,
      s.conv_channels, winnow::name_of(s.conv_type), s.conv_taps, l.conv_rows, l.pool_rows, l.state_bytes, l.ring_bytes);
}

}  // namespace

int64_t product(std::initializer_list<int64_t> factors) {
  int64_t n = 1;
  for (int64_t f : factors)
    if (__builtin_mul_overflow(n, f, &n)) throw Error("the size of the KV cache does not fit 64 bits; lower the context or the number of sequences");
  return n;
}

int64_t sum(std::initializer_list<int64_t> terms) {
  int64_t n = 0;
  for (int64_t t : terms)
    if (__builtin_add_overflow(n, t, &n)) throw Error("the size of the KV cache does not fit 64 bits; lower the context or the number of sequences");
  return n;
}

DType type_of(IndexKeys keys) {
  switch (keys) {
    case IndexKeys::f32: return DType::f32;
    case IndexKeys::bf16: return DType::bf16;
    case IndexKeys::fp8: return DType::e4m3;
  }
  return DType::f32;
}

KvLayout::KvLayout(const KvSpec& s, int64_t tokens) : page_tokens(tokens) {
  check_page_size(s, tokens);
  page_states = s.attention_layers > 0 ? tokens / s.kpool : 0;
  for (int64_t layer = 0; layer < s.attention_layers; ++layer) {
    Part p;
    p.latent = page_bytes;
    p.keys = sum({p.latent, aligned(bytes(s.latent_type, {tokens, s.latent_dim}))});
    const int64_t keys = bytes(type_of(s.index_keys), {page_states, s.index_dim});
    p.scales = sum({p.keys, round_up(keys, 4)});  // right behind the keys, where an f32 may stand
    const int64_t scales = s.index_keys == IndexKeys::fp8 ? bytes(DType::f32, {page_states}) : 0;
    page_bytes = aligned(sum({p.scales, scales}));
    parts.push_back(p);
  }

  kda_rows = kda_ring_rows(s.depth);
  conv_rows = conv_ring_rows(s.conv_taps, s.depth);
  pool_rows = pool_ring_rows(s.kpool, s.depth);
  layer_state_bytes = bytes(DType::f32, {s.kda_heads, s.kda_key_dim, s.kda_value_dim});
  layer_k_bytes = bytes(DType::f32, {kda_rows, s.kda_heads, s.kda_key_dim});
  layer_u_bytes = bytes(DType::f32, {kda_rows, s.kda_heads, s.kda_value_dim});
  layer_conv_bytes = s.kda_layers > 0 ? bytes(s.conv_type, {conv_rows, s.conv_channels}) : 0;
  layer_pool_bytes = bytes(DType::f32, {pool_rows, 2, s.index_dim});
  state_bytes = product({s.kda_layers, layer_state_bytes});
  ring_bytes = sum({product({s.kda_layers, sum({layer_k_bytes, layer_k_bytes, layer_u_bytes, layer_conv_bytes})}),
                    product({s.attention_layers, layer_pool_bytes})});
  identity = identity_of(s, *this);
}

KvSizes sizes_for(const KvLayout& layout, int64_t sequences, int64_t max_context, const KvBudget& budget) {
  constexpr double kGb = 1e-9;
  const int64_t one = layout.record_bytes();
  const int64_t state_bytes = product({sequences, one}), context = pages_for(max_context, layout.page_tokens);
  const int64_t wanted = product({sequences, context});
  const int64_t left = budget.device_bytes - state_bytes;
  const auto records = [&](int64_t bytes) { return one > 0 ? std::max<int64_t>(bytes, 0) / one : sequences + kMostSnapshots; };
  const bool given = budget.snapshot_bytes >= 0;
  const int64_t kept = given && budget.keeps ? records(std::min(budget.snapshot_bytes, left)) : 0;
  const int64_t page_ends = !budget.keeps ? 0 : std::min(sequences, records((left - kept * one) / (given ? 4 : 8)));
  const int64_t snapshots = given || !budget.keeps ? kept : std::min(kMostSnapshots, records(left / 4) - page_ends);
  const int64_t rest = left - (page_ends + snapshots) * one;
  const int64_t pages = layout.page_bytes > 0 ? std::min(wanted, rest / layout.page_bytes) : wanted;
  if (left < 0 || pages < 1)
    throw error(
        "the KV cache may take {:.3f} GB, but the states of {} sequences take {:.3f} GB and one page {:.6f} GB; "
        "lower the number of sequences or give the cache more memory",
        static_cast<double>(budget.device_bytes) * kGb, sequences, static_cast<double>(state_bytes) * kGb,
        static_cast<double>(layout.page_bytes) * kGb);
  KvSizes sizes{.pages = pages, .states = sequences + page_ends + snapshots, .page_ends = page_ends};
  if (budget.host_bytes < one + layout.page_bytes) return sizes;
  const int64_t full = budget.host_bytes / std::max<int64_t>(sum({one, product({context, layout.page_bytes})}), 1);
  sizes.host_states = one > 0 ? std::max<int64_t>({budget.host_bytes / 4 / one, full, 1}) : sizes.states;
  sizes.host_pages = layout.page_bytes > 0 ? (budget.host_bytes - sizes.host_states * one) / layout.page_bytes : sizes.pages;
  return sizes;
}

}  // namespace winnow::cache
