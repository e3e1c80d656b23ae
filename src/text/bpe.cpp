#include "text/bpe.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <queue>

namespace winnow::text {
namespace {

// Up to here scanning all pairs for the lowest rank is cheaper than keeping them in a heap.
constexpr size_t kShort = 48;

size_t table_size(size_t entries) { return std::bit_ceil(2 * entries + 1); }

uint64_t key_of(Token left, Token right) { return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right); }

size_t place_of(uint64_t key, size_t size) {
  key *= 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio: the high bits depend on all of the key
  return (key ^ key >> 32) & (size - 1);
}

}  // namespace

Bpe::Bpe(std::vector<std::string> words, const std::array<Token, 256>& symbols, const std::vector<Merge>& merges, bool ignore_merges)
    : words_(std::move(words)), symbols_(symbols), pairs_(table_size(merges.size())), wholes_(table_size(words_.size())) {
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t key = key_of(merges[rank].left, merges[rank].right);
    size_t at = place_of(key, pairs_.size());
    while (pairs_[at].key != UINT64_MAX && pairs_[at].key != key) at = (at + 1) & (pairs_.size() - 1);
    pairs_[at] = {key, {static_cast<uint32_t>(rank), merges[rank].product}};
  }
  std::vector<Token> tokens;
  for (size_t id = 0; id < words_.size(); ++id) {
    if (words_[id].empty()) continue;
    if (!ignore_merges) {
      tokens.clear();
      merge_long(words_[id], tokens);
      if (tokens.size() != 1 || tokens[0] != static_cast<Token>(id)) continue;
    }
    insert_whole(static_cast<Token>(id));
  }
}

void Bpe::insert_whole(Token id) {
  const std::string& w = words_[static_cast<size_t>(id)];
  const uint64_t hash = XXH3_64bits(w.data(), w.size());
  size_t at = hash & (wholes_.size() - 1);
  while (wholes_[at].id >= 0) at = (at + 1) & (wholes_.size() - 1);
  wholes_[at] = {static_cast<uint32_t>(hash >> 32), id};
}

Token Bpe::whole(std::string_view word) const {
  const uint64_t hash = XXH3_64bits(word.data(), word.size());
  for (size_t at = hash & (wholes_.size() - 1); wholes_[at].id >= 0; at = (at + 1) & (wholes_.size() - 1))
    if (wholes_[at].hash == static_cast<uint32_t>(hash >> 32) && words_[static_cast<size_t>(wholes_[at].id)] == word) return wholes_[at].id;
  return -1;
}

Bpe::Joined Bpe::join(Token left, Token right) const {
  const uint64_t key = key_of(left, right);
  for (size_t at = place_of(key, pairs_.size());; at = (at + 1) & (pairs_.size() - 1)) {
    if (pairs_[at].key == key) return pairs_[at].joined;
    if (pairs_[at].key == UINT64_MAX) return kNone;
  }
}

void Bpe::encode(std::string_view word, std::vector<Token>& out) const {
  const Token id = whole(word);
  if (id >= 0) out.push_back(id);
  else if (word.size() <= kShort) merge_short(word, out);
  else merge_long(word, out);
}

void Bpe::merge_short(std::string_view word, std::vector<Token>& out) const {
  std::array<Token, kShort> token;
  std::array<Joined, kShort> joined;  // of token i and i + 1
  size_t n = 0;
  for (const char c : word)
    if (const Token t = symbols_[static_cast<unsigned char>(c)]; t >= 0) token[n++] = t;
  for (size_t i = 0; i + 1 < n; ++i) joined[i] = join(token[i], token[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (joined[i].rank < joined[best].rank) best = i;
    if (joined[best].product < 0) break;
    token[best] = joined[best].product;
    --n;
    std::copy(token.begin() + best + 2, token.begin() + n + 1, token.begin() + best + 1);
    if (n > 1) std::copy(joined.begin() + best + 1, joined.begin() + n, joined.begin() + best);
    if (best + 1 < n) joined[best] = join(token[best], token[best + 1]);
    if (best > 0) joined[best - 1] = join(token[best - 1], token[best]);
  }
  out.insert(out.end(), token.begin(), token.begin() + n);
}

void Bpe::merge_long(std::string_view word, std::vector<Token>& out) const {
  struct Symbol {
    Token token;
    int32_t previous, next;
  };  // a linked list; token -1: joined into its left neighbour
  struct Candidate {
    uint32_t rank;
    int32_t at;
    Token product;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char c : word) {
    const Token t = symbols_[static_cast<unsigned char>(c)];
    const auto i = static_cast<int32_t>(symbols.size());
    if (t >= 0) symbols.push_back({t, i - 1, i + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::vector<Candidate> heap;
  const auto candidate = [&](int32_t at) {
    const Symbol& s = symbols[static_cast<size_t>(at)];
    if (s.next < 0) return Candidate{UINT32_MAX, at, -1};
    const Joined j = join(s.token, symbols[static_cast<size_t>(s.next)].token);
    return Candidate{j.rank, at, j.product};
  };
  for (size_t i = 0; i < symbols.size(); ++i)
    if (const Candidate c = candidate(static_cast<int32_t>(i)); c.product >= 0) heap.push_back(c);
  std::priority_queue queue(std::greater<Candidate>(), std::move(heap));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& s = symbols[static_cast<size_t>(top.at)];
    if (s.token < 0) continue;
    // Stale unless the pair that now begins here is still the one that was queued.
    if (const Candidate now = candidate(top.at); now.rank != top.rank) continue;
    Symbol& right = symbols[static_cast<size_t>(s.next)];
    s.token = top.product;
    right.token = -1;
    s.next = right.next;
    if (s.next >= 0) symbols[static_cast<size_t>(s.next)].previous = top.at;
    for (const int32_t at : {s.previous, top.at})
      if (at >= 0)
        if (const Candidate c = candidate(at); c.product >= 0) queue.push(c);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) out.push_back(symbols[static_cast<size_t>(i)].token);
}

}  // namespace winnow::text
