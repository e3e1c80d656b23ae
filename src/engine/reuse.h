// What a request takes over from earlier ones, and what it leaves to later ones: the sequences' side of the prefix index.
//
// A sequence that is admitted begins behind the longest kept prefix of its prompt. It hands over its state, which makes a
// snapshot, where a later prompt is likely to part from it: at the last page end before its prompt's last token, where its
// prompt parted from others whose pages are kept, every snapshot_interval tokens if asked, and at the last page end that it
// computed when it ends. From a hand-over on it writes another record; the step after it reads the old one
// (Sequence::source). With no record to spare the hand-over is missed and counted; one that another of max_sequences may need
// is not to spare. Its full pages join the index as soon as they are computed.
//
// What of a prefix lies on a lower tier is brought up while other sequences run: from the host some bytes a step, from disk as
// reads end. If a part cannot be read, the request begins anew with what is left.
//
// Thread: the engine's.
#pragma once

#include <list>
#include <unordered_map>

#include "cache/prefix_index.h"
#include "engine/sequence.h"

namespace winnow::engine {

// What later prompts may begin with: nothing, rows that a prefill computed, whose bits in profile fast are those of a cold run,
// or all that was computed.
enum class Reuse : uint8_t { none, prefilled, computed };
std::string_view name_of(Reuse r);
Result<Reuse> parse_reuse(std::string_view name);

struct ReuseOptions {
  Reuse what = Reuse::none;
  int64_t page_tokens = 64;
  int64_t max_sequences = 16;     // whose states are not to spare
  int64_t snapshot_interval = 0;  // tokens, a multiple of page_tokens; 0: none
  cache::LowerTiers lower;
  cache::PrefixKey seed;
};

class PrefixReuse {
 public:
  static constexpr int64_t kReadsAtOnce = 4;  // from disk, of all that is brought up

  PrefixReuse(cache::PagePool& pages, cache::StatePool& states, const ReuseOptions& options);

  // Finds what the prompt begins with, nothing if `cold`: sets pages (-1: not on the device), held_pages, source and what hangs on
  // them.
  void begin(Sequence& sequence, bool cold = false);
  // Takes the records that a sequence that has begun needs besides: a state, and places for what is to be brought up. False:
  // they are not free, and nothing is taken.
  bool take(Sequence& sequence);
  // Pages that are held as somebody's prefix, each counted once, those of one that has begun included.
  int64_t held_pages(const Sequence* with) const;

  // Brings up what is missing, at most about `bytes` from the host. Returns the sequences whose prefix is lost: release() them.
  std::span<Sequence* const> restore(int64_t bytes);
  enum class Restoring : uint8_t { nothing, copies, reads };
  Restoring restoring() const;  // reads: there is nothing to do before one of them ends

  // The next position at which the sequence's chunk has to end; its prompt's end if there is none before.
  int64_t next_cut(const Sequence& sequence) const;
  // A step has computed the sequence up to num_computed_tokens. True if a record may have become free.
  bool computed(Sequence& sequence);
  // Leaves the state at its last page end to others, and forgets its way through the index.
  void settle(Sequence& sequence);
  // Gives everything on the device back, as begin() found it. What it computed stays in the index.
  void release(Sequence& sequence);

  cache::PrefixIndex& index() { return index_; }
  const cache::PrefixIndex& index() const { return index_; }
  int64_t missed_snapshots() const { return missed_; }
  int64_t divergences() const { return divergences_; }
  int64_t restored() const { return restored_; }
  int64_t failed_restores() const { return failed_; }

 private:
  struct Part {
    int32_t node = 0;
    cache::RecordKind kind = cache::RecordKind::page;
    PageId page;
    StateId state;
  };
  struct Restore {
    Sequence* sequence = nullptr;
    std::vector<int32_t> nodes;  // pinned
    std::vector<Part> parts;
    size_t next = 0;  // part to copy or to read
    int64_t reads = 0;
    bool failed = false;
  };
  using Restores = std::list<Restore>;

  bool hand_over(Sequence& sequence);
  void drop_page_end(Sequence& sequence);
  std::span<const int32_t> reusable(const Sequence& sequence) const;  // its tokens, whole pages
  bool wanted(const Sequence& sequence) const;                        // a snapshot at its num_computed_tokens
  void hold(const Sequence& sequence, int32_t by);
  void land(Restore& r, const Part& part, std::span<const std::byte> bytes);
  void take_reads();
  void start(Restore& r, int64_t* bytes);
  void forget(Restores::iterator r);

  cache::PagePool& pages_;
  cache::StatePool& states_;
  const ReuseOptions options_;
  cache::PrefixIndex index_;
  std::vector<int32_t> holders_;  // by page: sequences that hold it as their prefix's
  int64_t held_ = 0;              // pages with holders
  Restores restores_;
  std::unordered_map<uint64_t, std::pair<Restore*, Part>> reads_;
  std::vector<Sequence*> lost_;
  std::vector<StateId> taken_;
  int64_t missed_ = 0, page_ends_ = 0;  // page ends that sequences hold
  int64_t restored_ = 0, failed_ = 0, divergences_ = 0;
};

}  // namespace winnow::engine
