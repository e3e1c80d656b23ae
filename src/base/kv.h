// What a model keeps between steps, as numbers (KvSpec) and as memory (KvViews). The model states the spec, the KV
// store allocates it, the model's forward() reads the views. Three pools of fixed-size records, no aliasing:
//   token pages   latent rows and pooled index keys of each attention layer, page_tokens tokens a page
//   states        recurrent state S of each KDA layer, one record a StateId
//   rings         rows of a running sequence that are not folded yet, addressed by the same StateId:
//                 KDA rows (k, u, G), raw convolution inputs, raw index key and gate rows
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/view.h"

namespace winnow {

enum class IndexKeys : uint8_t { f32, bf16, fp8 };  // how pooled index keys are stored; fp8: e4m3, one f32 scale a row

// How the pooled index keys of a page lie in it. plain: row behind row. shuffled: tiles of 16 rows, in them columns of 16 channels, in
// these the rows, so that a column of 16 rows is one run (the pre-shuffled layout of AMD's AITER kernels). Both take the same room, so
// only this tag tells them apart. Offsets count elements, which are bytes in fp8 keys; scales lie row behind row in both.
enum class IndexLayout : uint8_t { plain, shuffled };
inline constexpr int64_t kIndexTile = 16;  // rows, and channels of a column

constexpr std::string_view name_of(IndexLayout l) { return l == IndexLayout::plain ? "plain" : "shuffled"; }
inline Result<IndexLayout> parse_index_layout(std::string_view name) {
  for (IndexLayout l : {IndexLayout::plain, IndexLayout::shuffled})
    if (name == name_of(l)) return l;
  return Error(fmt::format("unknown index layout '{}' (known: plain, shuffled)", name), Failure::usage);
}
// Where channel c of row r lies among the keys of its page.
constexpr int64_t index_offset(IndexLayout l, int64_t row, int64_t channel, int64_t dim) {
  if (l == IndexLayout::plain) return row * dim + channel;
  constexpr int64_t t = kIndexTile;
  return row / t * t * dim + channel / t * t * t + row % t * t + channel % t;
}
// Why pages of `page_states` keys cannot have the layout; null if they can.
constexpr const char* index_layout_why_not(IndexLayout l, int64_t page_states, int64_t dim) {
  if (l == IndexLayout::plain) return nullptr;
  if (page_states % kIndexTile != 0) return "the shuffled index layout needs pages of a multiple of 16 pooled keys";
  return dim % kIndexTile != 0 ? "the shuffled index layout needs an index_head_dim that 16 divides" : nullptr;
}

struct KvSpec {
  int64_t attention_layers = 0;  // token pages exist for these, counted 0.. in layer order
  int64_t latent_dim = 0;
  DType latent_type = DType::f32;
  int64_t index_dim = 0;
  int64_t kpool = 1;
  IndexKeys index_keys = IndexKeys::f32;
  IndexLayout index_layout = IndexLayout::plain;

  int64_t kda_layers = 0;  // states and KDA rings exist for these, counted 0.. in layer order
  int64_t kda_heads = 0, kda_key_dim = 0, kda_value_dim = 0;
  int64_t conv_channels = 0, conv_taps = 0;
  DType conv_type = DType::f32;  // raw convolution inputs as the projections made them
  int64_t depth = 0;             // draft tokens of a speculative step
};

// A page's keys come first, then (fp8 only) its scales.
struct IndexPages {
  TensorView keys;  // [pages, page_states, index_dim] f32, bf16 or e4m3, inside a page as `layout` says; the stride between pages may exceed the rows
  TensorView scales;  // [pages, page_states] f32 for fp8, else empty
  IndexLayout layout = IndexLayout::plain;
};

struct KvViews {
  int64_t page_tokens = 64;
  std::vector<TensorView> latent;                  // a layer: [pages, page_tokens, latent_dim]
  std::vector<IndexPages> index;                   // a layer
  std::vector<TensorView> pool_ring;               // a layer: [states, ring rows, 2, index_dim] f32: key, gate; row = pos % ring rows
  std::vector<TensorView> state;                   // a KDA layer: [states, heads, key_dim, value_dim] f32
  std::vector<TensorView> ring_k, ring_u, ring_g;  // a KDA layer: [states, ring rows, heads, key_dim | value_dim | key_dim] f32
  std::vector<TensorView> conv_ring;               // a KDA layer: [states, ring rows, conv_channels]
};

}  // namespace winnow
