// What a model keeps between steps, as numbers (KvSpec) and as memory (KvViews). The model states the spec, the KV
// store allocates it, the model's forward() reads the views. Three pools of fixed-size records, no aliasing:
//   token pages   latent rows and pooled index keys of each attention layer, page_tokens tokens a page
//   states        recurrent state S of each KDA layer, one record a StateId
//   rings         rows of a running sequence that are not folded yet, addressed by the same StateId:
//                 KDA rows (k, u, G), raw convolution inputs, raw index key and gate rows
#pragma once

#include <cstdint>
#include <vector>

#include "base/view.h"

namespace winnow {

enum class IndexKeys : uint8_t { f32, bf16, fp8 };  // how pooled index keys are stored; fp8: e4m3, one f32 scale a row

struct KvSpec {
  int64_t attention_layers = 0;  // token pages exist for these, counted 0.. in layer order
  int64_t latent_dim = 0;
  DType latent_type = DType::f32;
  int64_t index_dim = 0;
  int64_t kpool = 1;
  IndexKeys index_keys = IndexKeys::f32;

  int64_t kda_layers = 0;  // states and KDA rings exist for these, counted 0.. in layer order
  int64_t kda_heads = 0, kda_key_dim = 0, kda_value_dim = 0;
  int64_t conv_channels = 0, conv_taps = 0;
  DType conv_type = DType::f32;  // raw convolution inputs as the projections made them
  int64_t depth = 0;             // draft tokens of a speculative step
};

// The 16-row pre-shuffled index layout comes with the back ends that want it; this is the plain one: the page's
// keys first, [page_states, index_dim], then (fp8 only) its scales, f32 [page_states].
struct IndexPages {
  TensorView keys;    // [pages, page_states, index_dim] f32, bf16 or e4m3; the stride between pages may exceed the rows
  TensorView scales;  // [pages, page_states] f32 for fp8, else empty
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
