// Positions and indices are types of their own: they do not convert into each other or from plain integers, and
// arithmetic across them goes through the named functions here, in 64 bits.
// The worst faults of sparse-attention engines come from a pool index used as a token index, or a page of pools
// counted in tokens.
#pragma once

#include <compare>
#include <cstdint>

#include "base/error.h"

namespace winnow {

template <class Tag>
struct Index {
  int64_t value = 0;
  constexpr Index() = default;
  constexpr explicit Index(int64_t v) : value(v) {}
  constexpr auto operator<=>(const Index&) const = default;
  constexpr Index& operator++() {
    ++value;
    return *this;
  }
};

using TokenPos = Index<struct TokenPosTag>;      // 0-based position of a token inside its sequence
using PoolPos = Index<struct PoolPosTag>;        // 0-based pool of kpool consecutive tokens
using PageId = Index<struct PageIdTag>;          // a page of page_tokens tokens in the KV store
using SlotId = Index<struct SlotIdTag>;          // one token's place in the token pages
using StateId = Index<struct StateIdTag>;        // a recurrent state record together with its rings
using LayerIndex = Index<struct LayerIndexTag>;  // a layer of the model

template <class Tag>
constexpr Index<Tag> operator+(Index<Tag> a, int64_t n) {
  return Index<Tag>(a.value + n);
}
template <class Tag>
constexpr Index<Tag> operator-(Index<Tag> a, int64_t n) {
  return Index<Tag>(a.value - n);
}
template <class Tag>
constexpr int64_t operator-(Index<Tag> a, Index<Tag> b) {
  return a.value - b.value;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// The pool that holds token t.
constexpr PoolPos pool_of(TokenPos t, int64_t kpool) { return PoolPos(t.value / kpool); }
// Complete pools that the token at t sees, its own included if t completes it.
constexpr int64_t complete_pools(TokenPos t, int64_t kpool) { return (t.value + 1) / kpool; }
// First token of a pool.
constexpr TokenPos first_token(PoolPos p, int64_t kpool) { return TokenPos(p.value * kpool); }
// Which of its sequence's pages holds token t (an index into the sequence's page list).
constexpr int64_t page_index(TokenPos t, int64_t page_tokens) { return t.value / page_tokens; }
// The place of token t when its page is `page`.
constexpr SlotId slot_of(PageId page, TokenPos t, int64_t page_tokens) { return SlotId(page.value * page_tokens + t.value % page_tokens); }
// Pages that n tokens need.
constexpr int64_t pages_for(int64_t tokens, int64_t page_tokens) { return ceil_div(tokens, page_tokens); }

// KDA group: rows between two folds of the recurrent state (design: c). Divides 64; a verify step of n <= c rows
// crosses at most one boundary.
inline constexpr int64_t kKdaGroup = 8;
// Prefill chunks end at absolute multiples of this, or at the end of the prompt.
inline constexpr int64_t kChunkGrid = 64;

// Ring lengths, so that no step writes a row that it reads. depth: draft tokens of a speculative step (0 without).
constexpr int64_t kda_ring_rows(int64_t depth) { return kKdaGroup + 2 * depth + 1; }
constexpr int64_t conv_ring_rows(int64_t taps, int64_t depth) { return taps - 1 + 2 * depth + 1; }
constexpr int64_t pool_ring_rows(int64_t kpool, int64_t depth) { return kpool + depth; }

}  // namespace winnow
