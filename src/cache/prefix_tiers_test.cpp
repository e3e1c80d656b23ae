// The prefix index over pools, host and disk whose records hold what they were computed for: 68,000 random requests, each a lookup,
// restores and what it leaves, against an obvious map, integrity after each. With prefix_index_test.cpp they are more than 100,000.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

#include "cache/disk_testing.h"
#include "cache/prefix_index.h"

namespace winnow::cache {
namespace {

using testing::Folder;
using Tokens = std::vector<int32_t>;
using Prefix = std::pair<uint64_t, Tokens>;  // salt, tokens

constexpr int64_t kPage = 4;
constexpr int64_t kPageBytes = 48, kStateBytes = 200;

// What a record holds that was computed for a prefix.
std::vector<std::byte> content(const Prefix& p, int64_t bytes) {
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  uint64_t h = 1469598103934665603u ^ p.first ^ static_cast<uint64_t>(bytes);
  for (int32_t t : p.second) h = (h ^ static_cast<uint64_t>(t)) * 1099511628211u;
  for (std::byte& b : out) b = static_cast<std::byte>(h = h * 6364136223846793005u + 1442695040888963407u, h >> 56);
  return out;
}

struct Sizes {
  int64_t pages, states, host_pages, host_states, disk_pages;  // disk_pages 0: no disk
};

class World {
 public:
  World(const Sizes& s, const std::string& folder, uint64_t seed)
      : pages(s.pages),
        states(s.states),
        page_memory_(static_cast<size_t>(s.pages * kPageBytes)),
        state_memory_(static_cast<size_t>(s.states * kStateBytes)),
        host_memory_(static_cast<size_t>(s.host_pages * kPageBytes + s.host_states * kStateBytes)),
        random_(seed) {
    if (s.host_states > 0) host_ = std::make_unique<HostStore>(host_memory_, s.host_pages, s.host_states, mover());
    if (s.disk_pages > 0)
      disk_ = std::make_unique<DiskTier>(DiskOptions{.folder = folder,
                                                     .limit_bytes = s.disk_pages * 1000,
                                                     .page_bytes = kPageBytes,
                                                     .snapshot_bytes = kStateBytes,
                                                     .page_tokens = kPage,
                                                     .queue_bytes = 4000,
                                                     .fingerprint = {1, 2}});
    index = std::make_unique<PrefixIndex>(pages, states, kPage, LowerTiers{host_.get(), disk_.get(), mover()});
    if (disk_) index->adopt(disk_->take_found());
  }
  ~World() { index.reset(); }
  RecordMover mover() {
    return {.page_bytes = kPageBytes,
            .state_bytes = kStateBytes,
            .read_page = [this](PageId id, std::span<std::byte> to) { std::memcpy(to.data(), at(id), kPageBytes); },
            .write_page = [this](PageId id, std::span<const std::byte> from) { std::memcpy(at(id), from.data(), kPageBytes); },
            .read_state = [this](StateId id, std::span<std::byte> to) { std::memcpy(to.data(), at(id), kStateBytes); },
            .write_state = [this](StateId id, std::span<const std::byte> from) { std::memcpy(at(id), from.data(), kStateBytes); }};
  }

  // A request: match, bring up what is missing, look at every byte, compute the rest, leave it to the index.
  void serve(int64_t kinds) {
    Prefix p{static_cast<uint64_t>(below(2)), Tokens(static_cast<size_t>(1 + below(7 * kPage)))};
    for (size_t i = 0; i < p.second.size(); ++i) p.second[i] = static_cast<int32_t>(i % kPage ? 0 : below(kinds));
    Match m = index->match(p.second, p.first);
    index->count(m.tokens, m.cut, m.lowest);
    expect_allowed(p, m);
    std::vector<PageId> held = m.pages;
    StateId snapshot = m.snapshot;
    const bool whole = m.nodes.empty() || bring_up(m, &held, &snapshot);
    if (!m.nodes.empty()) index->unpin(m.nodes);
    if (whole) look(p, m, held, snapshot);
    if (whole) compute(p, &held);
    for (PageId id : held)
      if (id.value >= 0) pages.release(id);
    if (snapshot.value >= 0) states.release(snapshot);
    check_integrity();
  }
  void preempt_somebody() {  // takes room on the host away and gives it back
    if (!host_) return;
    std::vector<HostPageId> p;
    std::vector<HostStateId> s;
    const int64_t n = below(host_->pages.size() + 1);
    ASSERT_TRUE(index->free_host(n, 1));
    ASSERT_TRUE(host_->pages.take(n, &p) && host_->states.take(1, &s));
    for (HostPageId id : p) std::memset(host_->at(id).data(), 0xee, kPageBytes);
    host_->pages.release(p);
    host_->states.release(s[0]);
    check_integrity();
  }
  void poll() {
    DiskTier::Done done;
    while (disk_ && disk_->poll(&done))
      if (!done.error.empty()) index->lost(done.key, done.kind);
  }
  void check_integrity() {
    index->check_integrity();
    pages.check_integrity();
    states.check_integrity();
    std::vector<int32_t> p(static_cast<size_t>(pages.size())), s(static_cast<size_t>(states.size()));
    std::vector<int32_t> hp(static_cast<size_t>(host_ ? host_->pages.size() : 0)), hs(static_cast<size_t>(host_ ? host_->states.size() : 0));
    index->count_references(p, s, hp, hs);
    for (size_t i = 0; i < p.size(); ++i) ASSERT_EQ(pages.references(PageId(static_cast<int64_t>(i))), p[i]);
    for (size_t i = 0; i < s.size(); ++i) ASSERT_EQ(states.references(StateId(static_cast<int64_t>(i))), s[i]);
    for (size_t i = 0; i < hp.size(); ++i) ASSERT_EQ(host_->pages.references(HostPageId(static_cast<int64_t>(i))), hp[i]);
    for (size_t i = 0; i < hs.size(); ++i) ASSERT_EQ(host_->states.references(HostStateId(static_cast<int64_t>(i))), hs[i]);
  }
  std::map<Prefix, bool> take_model() { return std::move(model_); }
  void know(std::map<Prefix, bool> model) { model_ = std::move(model); }

  PagePool pages;
  StatePool states;
  std::unique_ptr<PrefixIndex> index;

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  std::byte* at(PageId id) { return &page_memory_[static_cast<size_t>(id.value * kPageBytes)]; }
  std::byte* at(StateId id) { return &state_memory_[static_cast<size_t>(id.value * kStateBytes)]; }
  static Prefix first(const Prefix& p, int64_t tokens) { return {p.first, Tokens(p.second.begin(), p.second.begin() + tokens)}; }

  void expect_allowed(const Prefix& p, const Match& m) {
    int64_t best = 0;
    for (int64_t n = kPage; n < static_cast<int64_t>(p.second.size()); n += kPage) {
      const auto found = model_.find(first(p, n));
      if (found == model_.end()) break;
      if (found->second) best = n;
    }
    ASSERT_LE(m.tokens, best) << "more than was ever computed";
  }
  bool bring_up(const Match& m, std::vector<PageId>* held, StateId* snapshot) {
    const int64_t missing = std::ranges::count(*held, PageId(-1));
    std::vector<PageId> places;
    std::vector<StateId> state;
    if (!index->free_pages(missing) || !pages.take(missing, &places)) return false;
    if (snapshot->value < 0 && (!index->free_states(1) || !states.take(1, &state))) {
      pages.release(places);
      return false;
    }
    bool whole = true;
    size_t next = 0;
    for (size_t i = 0; i < held->size(); ++i)
      if ((*held)[i].value < 0) {
        (*held)[i] = places[next++];
        whole = fetch(m.nodes[i], RecordKind::page, at((*held)[i]), kPageBytes) && whole;
        if (whole) index->arrived(m.nodes[i], (*held)[i]);
      }
    if (snapshot->value < 0) {
      *snapshot = state[0];
      whole = fetch(m.nodes.back(), RecordKind::snapshot, at(*snapshot), kStateBytes) && whole;
      if (whole) index->arrived(m.nodes.back(), *snapshot);
    }
    return whole;
  }
  bool fetch(int32_t node, RecordKind kind, std::byte* to, int64_t bytes) {
    if (index->on_host(node, kind)) {
      std::memcpy(to, index->host_bytes(node, kind).data(), static_cast<size_t>(bytes));
      return true;
    }
    if (!index->on_disk(node, kind)) return false;
    const uint64_t ticket = index->read(node, kind);
    disk_->flush();
    DiskTier::Done done;
    while (disk_->poll(&done)) {
      if (done.ticket != ticket) {
        if (!done.error.empty()) index->lost(done.key, done.kind);
        continue;
      }
      if (done.error.empty()) std::memcpy(to, done.payload.data(), static_cast<size_t>(bytes));
      else index->lost(node, kind);
      return done.error.empty();
    }
    ADD_FAILURE() << "a read has no end";
    return false;
  }
  void look(const Prefix& p, const Match& m, const std::vector<PageId>& held, StateId snapshot) {
    for (size_t i = 0; i < held.size(); ++i) {
      const auto want = content(first(p, static_cast<int64_t>(i + 1) * kPage), kPageBytes);
      ASSERT_EQ(std::memcmp(at(held[i]), want.data(), kPageBytes), 0) << "page " << i << " of " << m.tokens << " tokens";
    }
    if (m.tokens == 0) return;
    const auto want = content(first(p, m.tokens), kStateBytes);
    ASSERT_EQ(std::memcmp(at(snapshot), want.data(), kStateBytes), 0) << "the state after " << m.tokens << " tokens";
    ASSERT_EQ(m.folded.value, m.tokens);
  }
  void compute(const Prefix& p, std::vector<PageId>* held) {
    const int64_t whole = static_cast<int64_t>(p.second.size()) / kPage, more = whole - static_cast<int64_t>(held->size());
    const size_t before = held->size();
    if (!index->free_pages(more) || !pages.take(more, held)) return;
    for (size_t i = before; i < held->size(); ++i) {
      const auto bytes = content(first(p, static_cast<int64_t>(i + 1) * kPage), kPageBytes);
      std::memcpy(at((*held)[i]), bytes.data(), kPageBytes);
    }
    index->insert(p.second, p.first, *held);
    for (int64_t n = 1; n <= whole; ++n) model_.try_emplace(first(p, n * kPage), false);
    std::vector<StateId> state;
    if (whole == 0 || !index->free_states(1) || !states.take(1, &state)) return;
    const Prefix end = first(p, (1 + below(whole)) * kPage);
    const auto bytes = content(end, kStateBytes);
    std::memcpy(at(state[0]), bytes.data(), kStateBytes);
    if (index->keep(end.second, end.first, state[0], TokenPos(static_cast<int64_t>(end.second.size())))) model_[end] = true;
    states.release(state[0]);
  }

  std::vector<std::byte> page_memory_, state_memory_, host_memory_;
  std::unique_ptr<HostStore> host_;
  std::unique_ptr<DiskTier> disk_;
  std::mt19937_64 random_;
  std::map<Prefix, bool> model_;  // every prefix of whole pages that was ever computed -> a state was kept at its end
};

// Runs of one folder, each beginning with what the one before left there.
PrefixIndex::Counts agree(uint64_t seed, const Sizes& sizes, int runs, int operations) {
  const Folder folder(true);
  std::map<Prefix, bool> model;
  PrefixIndex::Counts sum;
  for (int run = 0; run < runs; ++run) {
    World w(sizes, folder.path(), seed * 100 + static_cast<uint64_t>(run));
    w.know(std::move(model));
    w.check_integrity();
    for (int i = 0; i < operations && !::testing::Test::HasFatalFailure(); ++i) {
      w.serve(3);
      if (i % 50 == 0) w.preempt_somebody();
      w.poll();
    }
    if (run % 2 == 0) w.index->save([] { return true; });
    const PrefixIndex::Counts& c = w.index->counts();
    sum.hits += c.hits;
    sum.evicted_pages += c.evicted_pages;
    for (int t = 0; t < kTiers; ++t) sum.hits_in[static_cast<size_t>(t)] += c.hits_in[static_cast<size_t>(t)];
    model = w.take_model();
  }
  return sum;
}

// Long paths with a state at their ends: the host takes each new state, and the one used longest ago makes way, however many pages
// without a state are older still.
TEST(PrefixTiers, TheHostsOldestStateIsFoundBehindManyPages) {
  constexpr int64_t kPages = 400, kPaths = 6;
  PagePool pages(kPages + 8);
  StatePool states(1);
  const RecordMover nothing{.page_bytes = 0,
                            .state_bytes = 0,
                            .read_page = [](PageId, std::span<std::byte>) {},
                            .write_page = [](PageId, std::span<const std::byte>) {},
                            .read_state = [](StateId, std::span<std::byte>) {},
                            .write_state = [](StateId, std::span<const std::byte>) {}};
  HostStore host({}, kPages * kPaths, 2, nothing);
  PrefixIndex index(pages, states, kPage, {&host, nullptr, nothing});
  const auto path = [](int64_t i) {
    Tokens t(kPages * kPage, 7);
    t[0] = static_cast<int32_t>(i);
    return t;
  };
  for (int64_t i = 0; i < kPaths; ++i) {
    std::vector<PageId> own;
    std::vector<StateId> state;
    ASSERT_TRUE(index.free_pages(kPages) && pages.take(kPages, &own));
    ASSERT_TRUE(index.free_states(1) && states.take(1, &state));
    index.insert(path(i), 0, own);
    ASSERT_TRUE(index.keep(path(i), 0, state[0], TokenPos(kPages * kPage)));
    pages.release(own);
    states.release(state[0]);
    index.check_integrity();
  }
  for (int64_t i = 0; i < kPaths; ++i) {
    Tokens prompt = path(i);
    prompt.push_back(1);
    Match m = index.match(prompt, 0);
    EXPECT_EQ(m.tokens, i < kPaths - 3 ? 0 : kPages * kPage) << "path " << i;
    if (!m.nodes.empty()) index.unpin(m.nodes);
    std::erase(m.pages, PageId(-1));
    pages.release(m.pages);
    if (m.snapshot.value >= 0) states.release(m.snapshot);
  }
  EXPECT_EQ(index.counts().evicted_pages, 0);
}

TEST(PrefixTiers, WithAHostAgreeWithAMap) {
  const auto c = agree(1, {.pages = 16, .states = 5, .host_pages = 25, .host_states = 6, .disk_pages = 0}, 2, 20000);
  EXPECT_GT(c.hits, 5000);
  EXPECT_GT(c.hits_in[1], 1000);
  EXPECT_GT(c.evicted_pages, 100);
}
TEST(PrefixTiers, WithADiskAgreeWithAMap) {
  const auto c = agree(2, {.pages = 16, .states = 5, .host_pages = 0, .host_states = 0, .disk_pages = 60}, 8, 1500);
  EXPECT_GT(c.hits, 2000);
  EXPECT_GT(c.hits_in[2], 500);
}
TEST(PrefixTiers, WithBothAgreeWithAMap) {
  const auto c = agree(3, {.pages = 14, .states = 4, .host_pages = 10, .host_states = 3, .disk_pages = 50}, 8, 1500);
  EXPECT_GT(c.hits, 2000);
  EXPECT_GT(c.hits_in[1], 10);
  EXPECT_GT(c.hits_in[2], 200);
}
TEST(PrefixTiers, WithHardlyAnyStateAgreeWithAMap) {
  const auto c = agree(4, {.pages = 8, .states = 2, .host_pages = 3, .host_states = 1, .disk_pages = 8}, 4, 1000);
  EXPECT_GT(c.hits, 200);
}

}  // namespace
}  // namespace winnow::cache
