// Where everything lies inside a token page, and how many bytes a page, a state and its rings take. The one place for
// these formulas: allocation, views and the printed memory plan all read them. Numbers only, nothing of device/.
//
// A token page is one record with every attention layer's part, so that moving a page is one copy. Per layer, in order:
//   latent rows        [page_tokens, latent_dim]
//   pooled index keys  [page_states, index_dim] in the spec's index layout, then for fp8 their scales, f32 [page_states];
//                      page_states = page_tokens / kpool
// Each part starts on a 64-byte line. States and rings are kept layer by layer, packed, because kernels take them so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/kv.h"
#include "base/units.h"

namespace winnow::cache {

struct KvLayout {
  // Throws Error if the page size does not fit the model or a size does not fit 64 bits.
  KvLayout(const KvSpec& spec, int64_t page_tokens);

  // Every number and type that decides what the bytes of a page, a state and its rings mean, in words. What was stored under another
  // identity must not be read.
  std::string identity;

  int64_t page_tokens = 0, page_states = 0;
  int64_t kda_rows = 0, conv_rows = 0, pool_rows = 0;  // of a state's rings

  // Byte offsets inside a page, by attention layer.
  struct Part {
    int64_t latent = 0, keys = 0, scales = 0;
  };
  std::vector<Part> parts;
  int64_t page_bytes = 0;

  // Of one state record: S of all KDA layers; the rings of all layers.
  int64_t state_bytes = 0, ring_bytes = 0;
  int64_t record_bytes() const { return state_bytes + ring_bytes; }
  // Of one state record and one layer.
  int64_t layer_state_bytes = 0, layer_k_bytes = 0, layer_u_bytes = 0, layer_conv_bytes = 0, layer_pool_bytes = 0;
};

// How many records are kept.
struct KvSizes {
  int64_t pages = 0, states = 0;            // states: of running sequences, of their page ends, and snapshots
  int64_t page_ends = 0;                    // of the states, those for the last page end of a running sequence
  int64_t host_pages = 0, host_states = 0;  // outside the device (host_store.h)
};

struct KvBudget {
  int64_t device_bytes = 0;
  int64_t snapshot_bytes = -1;  // of states that are kept beyond those of running sequences; -1: what page ends leave of a quarter of the rest
  int64_t host_bytes = 0;
  bool keeps = true;  // false: no state is kept behind its request, and neither page ends nor snapshots are planned
};

// States for `sequences` running at once, one more for the last page end of each, snapshots for later prompts, and as many pages
// as the budget then holds, up to full contexts of all sequences. Where memory is short page ends are fewer: a missed one costs
// a later prompt, not this one. Of the host's memory a quarter goes to states, at least enough for each full context that it holds.
// Throws Error with the numbers if not even one page is left.
KvSizes sizes_for(const KvLayout& layout, int64_t sequences, int64_t max_context, const KvBudget& budget);

// Products and sums of sizes, which throw Error instead of wrapping round.
int64_t product(std::initializer_list<int64_t> factors);
int64_t sum(std::initializer_list<int64_t> terms);

DType type_of(IndexKeys keys);

}  // namespace winnow::cache
