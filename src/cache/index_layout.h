// Rearranges pooled index keys from one layout of the page into another (base/kv.h), when pages move between back ends that want
// different ones. Scales and everything else in a page have one place in both.
#pragma once

#include <span>

#include "cache/kv_layout.h"

namespace winnow::cache {

// One page's keys, [page_states, dim], as `from` has them into `to_keys` as `to` has them. The memories must not overlap.
void rearrange(IndexLayout from, ConstTensorView keys, IndexLayout to, TensorView to_keys);

// A whole token page of `layout`, whose keys lie as its spec says, into a page whose keys lie as `to` has them.
void rearrange_page(const KvSpec& spec, const KvLayout& layout, std::span<const std::byte> page, IndexLayout to, std::span<std::byte> to_page);

}  // namespace winnow::cache
