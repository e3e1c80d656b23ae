#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace winnow::cache {
namespace {

constexpr int64_t kPage = 4;
using Tokens = std::vector<int32_t>;

Tokens counting(int64_t n, int32_t from = 1) {
  Tokens t(static_cast<size_t>(n));
  for (size_t i = 0; i < t.size(); ++i) t[i] = from + static_cast<int32_t>(i);
  return t;
}

// What a sequence does: takes records, computes, leaves them to the index, gives its own references back.
struct World {
  explicit World(int64_t n_pages = 64, int64_t n_states = 16) : pages(n_pages), states(n_states), index(pages, states, kPage) {}
  // Computes whole pages of tokens and hands over a state at each of `ends`, in tokens.
  void compute(const Tokens& tokens, std::initializer_list<int64_t> ends, uint64_t salt = 0) {
    std::vector<PageId> own;
    ASSERT_TRUE(pages.take(static_cast<int64_t>(tokens.size()) / kPage, &own));
    index.insert(std::span(tokens).first(own.size() * kPage), salt, own);
    for (int64_t end : ends) {
      std::vector<StateId> state;
      ASSERT_TRUE(states.take(1, &state));
      index.keep(std::span(tokens).first(static_cast<size_t>(end)), salt, state[0], TokenPos(end));
      states.release(state[0]);
    }
    pages.release(own);
    index.check_integrity();
  }
  // Matches and gives the references back.
  Match match(const Tokens& tokens, uint64_t salt = 0) {
    const Match m = index.match(tokens, salt);
    index.count(m.tokens, m.cut, m.lowest);
    pages.release(m.pages);
    if (m.snapshot.value >= 0) states.release(m.snapshot);
    index.check_integrity();
    return m;
  }
  PagePool pages;
  StatePool states;
  PrefixIndex index;
};

TEST(PrefixIndex, AHitIsTheDeepestSnapshotWithinThePromptButOneToken) {
  World w;
  w.compute(counting(16), {8, 16});
  EXPECT_EQ(w.match(counting(40)).tokens, 16);
  EXPECT_EQ(w.match(counting(17)).tokens, 16);
  EXPECT_EQ(w.match(counting(16)).tokens, 8);  // the last token has to be computed
  EXPECT_EQ(w.match(counting(9)).tokens, 8);
  EXPECT_EQ(w.match(counting(8)).tokens, 0);
  EXPECT_EQ(w.match({}).tokens, 0);
  EXPECT_EQ(w.index.counts().hits, 4);
}

TEST(PrefixIndex, TellsWhatCutTheMatch) {
  World w;
  w.compute(counting(16), {8});
  Match m = w.match(counting(40));
  EXPECT_EQ(m.tokens, 8);
  EXPECT_EQ(m.shared, 16);
  EXPECT_EQ(m.cut, Cut::no_snapshot);
  Tokens parted = counting(40);
  parted[9] = 99;
  m = w.match(parted);
  EXPECT_EQ(m.tokens, 8);
  EXPECT_EQ(m.shared, 8);
  EXPECT_EQ(m.cut, Cut::no_page);
  EXPECT_EQ(w.match(counting(12)).cut, Cut::whole);
  EXPECT_EQ(w.match(counting(40, 5)).cut, Cut::no_page);
}

TEST(PrefixIndex, G72AShortMatchHasAReason) {
  World w(8, 4);
  EXPECT_EQ(w.match(counting(3)).cut, Cut::whole) << "a prompt below a page has nothing to take over";
  EXPECT_EQ(w.match(counting(20)).cut, Cut::no_page);
  w.compute(counting(16), {8, 16}, 7);
  EXPECT_EQ(w.match(counting(16), 7).cut, Cut::last_token);
  EXPECT_EQ(w.match(counting(16), 8).cut, Cut::different_salt);
  EXPECT_EQ(w.match(counting(15), 7).cut, Cut::no_snapshot);
  EXPECT_TRUE(w.index.free_pages(8));
  EXPECT_EQ(w.match(counting(20), 7).cut, Cut::evicted);
  EXPECT_EQ(w.index.counts().cuts[static_cast<size_t>(Cut::evicted)], 1);
}

// G-62: the state of a hit is the one that was kept at its end, whatever lengths others have.
TEST(PrefixIndex, G62AHitHasTheStateOfItsOwnLength) {
  World w;
  w.compute(counting(12), {});
  std::vector<StateId> kept;
  ASSERT_TRUE(w.states.take(3, &kept));
  for (int64_t i : {1, 2, 0}) {
    const Tokens prefix = counting((i + 1) * kPage);
    ASSERT_TRUE(w.index.keep(prefix, 0, kept[static_cast<size_t>(i)], TokenPos((i + 1) * kPage - 1)));
  }
  w.states.release(kept);
  for (int64_t i : {0, 1, 2}) {
    const Match m = w.match(counting((i + 1) * kPage + 1));
    EXPECT_EQ(m.tokens, (i + 1) * kPage);
    EXPECT_EQ(m.snapshot, kept[static_cast<size_t>(i)]);
    EXPECT_EQ(m.folded, TokenPos(m.tokens - 1));
  }
}

// G-70, G-71: one page and its state are a hit of one page. Nothing is taken off for drafts, and no other kind has a say.
TEST(PrefixIndex, G70G71OnePageAndItsStateAreAHit) {
  World w;
  w.compute(counting(4), {4});
  for (int64_t n : {5, 6, 7, 100}) EXPECT_EQ(w.match(counting(n)).tokens, 4) << n;
}

// G-73: two turns of 100 and more tokens whose states were kept at 64 and 96.
TEST(PrefixIndex, G73ATruncatedMatchFallsBackToTheSnapshotBefore) {
  World w;
  w.compute(counting(96), {64, 96});
  EXPECT_EQ(w.match(counting(96)).tokens, 64);
}

// G-74: a state from beyond its prefix is refused.
TEST(PrefixIndexDeathTest, G74ASnapshotOfAnotherLength) {
  World w;
  w.compute(counting(8), {});
  std::vector<StateId> state;
  ASSERT_TRUE(w.states.take(1, &state));
  EXPECT_DEATH(w.index.keep(counting(8), 0, state[0], TokenPos(9)), "beyond its prefix");
  EXPECT_DEATH(w.index.keep(counting(7), 0, state[0], TokenPos(7)), "inside a page");
  EXPECT_FALSE(w.index.keep(counting(12), 0, state[0], TokenPos(12))) << "its last page is not there";
}

TEST(PrefixIndex, ASaltSeparates) {
  World w;
  w.compute(counting(16), {16}, 7);
  EXPECT_EQ(w.match(counting(20), 8).tokens, 0);
  EXPECT_EQ(w.match(counting(20), 7).tokens, 16);
}

TEST(PrefixIndex, AMatchHoldsItsRecords) {
  World w(4, 1);
  w.compute(counting(16), {16});
  const Match m = w.index.match(counting(17), 0);
  EXPECT_FALSE(w.index.free_pages(1));
  EXPECT_FALSE(w.index.free_states(1));
  w.pages.release(m.pages);
  w.states.release(m.snapshot);
  EXPECT_TRUE(w.index.free_states(1));
  EXPECT_TRUE(w.index.free_pages(4));
  EXPECT_EQ(w.index.pages(), 0);
}

// The order of eviction: pages that lead to no snapshot, then the snapshot that is cheapest to compute again for its age.
TEST(PrefixIndex, EvictsWhatIsOfLeastUse) {
  World w(12, 4);
  w.compute(counting(16), {16});          // A: 4 pages
  w.compute(counting(16, 100), {4, 16});  // B: 4 pages, its first snapshot saves 1 page, the second 3
  w.compute(counting(16, 200), {});       // C: of no use
  EXPECT_TRUE(w.index.free_pages(4));
  EXPECT_EQ(w.match(counting(17, 200)).shared, 0) << "C went";
  EXPECT_EQ(w.match(counting(17)).tokens, 16);
  EXPECT_EQ(w.match(counting(17, 100)).tokens, 16);
  EXPECT_TRUE(w.index.free_states(w.states.free() + 1));
  EXPECT_EQ(w.match(counting(17, 100)).tokens, 16) << "the longer way was kept";
  EXPECT_EQ(w.match(counting(5, 100)).tokens, 0) << "the shorter way went";
  w.match(counting(17, 100));
  for (int i = 0; i < 20; ++i) w.match(counting(17, 100));
  EXPECT_TRUE(w.index.free_pages(5));
  EXPECT_EQ(w.match(counting(17)).tokens, 0) << "A was used longest ago";
  EXPECT_EQ(w.match(counting(17, 100)).tokens, 16);
}

TEST(PrefixIndex, ASecondCopyOfAPageIsNotKept) {
  World w(16, 4);
  w.compute(counting(16), {});
  w.compute(counting(16), {16});
  EXPECT_EQ(w.index.pages(), 4);
  EXPECT_EQ(w.pages.used(), 4);
  EXPECT_EQ(w.match(counting(17)).tokens, 16);
}

// 100,000 random operations against an obvious map: while nothing is evicted a match is the map's; with tiny pools every
// match is still of records that were computed for exactly these tokens and salt.
void agree(uint64_t seed, int operations, int64_t n_pages, int64_t n_states, bool evicts) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  World w(n_pages, n_states);
  using Key = std::pair<uint64_t, Tokens>;
  std::map<Key, bool> model;                       // whole pages -> has a snapshot
  std::map<int64_t, Key> page_holds, state_holds;  // what was computed into a record last
  for (int i = 0; i < operations; ++i) {
    const uint64_t salt = static_cast<uint64_t>(below(2));
    Tokens tokens(static_cast<size_t>(1 + below(6 * kPage)));
    for (int32_t& t : tokens) t = static_cast<int32_t>(below(2));
    for (size_t j = 0; j + 1 < tokens.size(); ++j) tokens[j] = j % kPage ? 0 : tokens[j];  // a small tree
    const Match m = w.index.match(tokens, salt);
    w.index.count(m.tokens, m.cut, m.lowest);
    int64_t best = 0;
    for (int64_t n = kPage; n < static_cast<int64_t>(tokens.size()); n += kPage) {
      const auto found = model.find({salt, Tokens(tokens.begin(), tokens.begin() + n)});
      if (found == model.end()) break;
      if (found->second) best = n;
    }
    ASSERT_LE(m.tokens, best);
    ASSERT_TRUE(evicts || m.tokens == best);
    for (int64_t p = 0; p < static_cast<int64_t>(m.pages.size()); ++p)
      ASSERT_EQ(page_holds[m.pages[static_cast<size_t>(p)].value], Key(salt, Tokens(tokens.begin(), tokens.begin() + (p + 1) * kPage)));
    if (m.tokens) {
      ASSERT_EQ(state_holds[m.snapshot.value], Key(salt, Tokens(tokens.begin(), tokens.begin() + m.tokens)));
      ASSERT_EQ(m.folded, TokenPos(m.tokens));
    }
    // Compute the rest.
    std::vector<PageId> pages = m.pages;
    const int64_t whole = static_cast<int64_t>(tokens.size()) / kPage;
    const bool room =
        w.index.free_pages(whole - static_cast<int64_t>(pages.size())) && w.pages.take(whole - static_cast<int64_t>(pages.size()), &pages);
    ASSERT_TRUE(room || evicts);
    if (room) {
      for (size_t p = m.pages.size(); p < pages.size(); ++p)
        page_holds[pages[p].value] = Key(salt, Tokens(tokens.begin(), tokens.begin() + static_cast<int64_t>(p + 1) * kPage));
      w.index.insert(tokens, salt, pages);
      for (int64_t p = 1; p <= whole; ++p) model.try_emplace(Key(salt, Tokens(tokens.begin(), tokens.begin() + p * kPage)), false);
      std::vector<StateId> state;
      if (whole > 0 && below(2) && w.index.free_states(1) && w.states.take(1, &state)) {
        const Key key(salt, Tokens(tokens.begin(), tokens.begin() + (1 + below(whole)) * kPage));
        state_holds[state[0].value] = key;
        if (w.index.keep(key.second, salt, state[0], TokenPos(static_cast<int64_t>(key.second.size())))) model[key] = true;
        w.states.release(state[0]);
      }
    }
    w.pages.release(pages);
    if (m.snapshot.value >= 0) w.states.release(m.snapshot);
    w.index.check_integrity();
    w.pages.check_integrity();
    w.states.check_integrity();
  }
  EXPECT_GT(w.index.counts().hits, operations / 20);
  EXPECT_EQ(w.index.counts().evicted_pages > 0, evicts);
  w.index.clear();
  EXPECT_EQ(w.pages.used(), 0);
  EXPECT_EQ(w.states.used(), 0);
}

TEST(PrefixIndex, AgreesWithAMap) { agree(1, 20000, 1000, 1000, false); }
TEST(PrefixIndex, NeverGivesAWrongRecordWhenItEvicts) {
  agree(2, 50000, 12, 5, true);
  agree(3, 30000, 30, 3, true);
}

}  // namespace
}  // namespace winnow::cache
