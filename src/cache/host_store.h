// Page and state records outside the device, as bytes in memory of the host: those of sequences that were preempted and, as
// far as they leave room, pages and snapshots of the prefix index that left the device.
//
// Thread: the engine's.
#pragma once

#include <functional>
#include <span>

#include "cache/record_pool.h"

namespace winnow::cache {

using HostPageId = Index<struct HostPageIdTag>;
using HostStateId = Index<struct HostStateIdTag>;

// Copies whole records between the device's pools and memory of the host. A state record is S, all rings and raw rows.
struct RecordMover {
  int64_t page_bytes = 0, state_bytes = 0;
  std::function<void(PageId, std::span<std::byte>)> read_page;
  std::function<void(PageId, std::span<const std::byte>)> write_page;
  std::function<void(StateId, std::span<std::byte>)> read_state;
  std::function<void(StateId, std::span<const std::byte>)> write_state;
};

class HostStore {
 public:
  // `memory` holds `pages` and then `states` records of the mover's sizes, and outlives the store.
  HostStore(std::span<std::byte> memory, int64_t pages, int64_t states, const RecordMover& mover)
      : pages(pages), states(states), memory_(memory), page_bytes_(mover.page_bytes), state_bytes_(mover.state_bytes) {
    check(static_cast<int64_t>(memory.size()) >= pages * page_bytes_ + states * state_bytes_, "the host's records do not fit their memory");
  }
  std::span<std::byte> at(HostPageId id) const { return part(id.value * page_bytes_, page_bytes_); }
  std::span<std::byte> at(HostStateId id) const { return part(pages.size() * page_bytes_ + id.value * state_bytes_, state_bytes_); }

  RecordPool<HostPageId> pages;
  RecordPool<HostStateId> states;

 private:
  std::span<std::byte> part(int64_t from, int64_t bytes) const { return memory_.subspan(static_cast<size_t>(from), static_cast<size_t>(bytes)); }
  std::span<std::byte> memory_;
  int64_t page_bytes_, state_bytes_;
};

}  // namespace winnow::cache
