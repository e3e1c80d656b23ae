// Which records of a fixed number are in use. Host policy only: ids and counts, no memory, nothing of device/.
//
// A record is held through references: a running sequence holds one on each of its pages and on its state, and whatever
// shares a record (a cached prefix, a snapshot) will hold another. A record is free exactly when nobody holds it.
// The record freed last is given out first, so that the memory in use stays small.
//
// Thread: the engine's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/units.h"

namespace winnow::cache {

template <class Id>
class RecordPool {
 public:
  using Record = Id;
  explicit RecordPool(int64_t records) : references_(static_cast<size_t>(records), 0) {
    free_.reserve(static_cast<size_t>(records));
    for (int64_t id = records - 1; id >= 0; --id) free_.push_back(Id(id));
  }

  int64_t size() const { return static_cast<int64_t>(references_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return size() - free(); }

  // Appends n records to *out, each with one reference. If fewer are free it takes none and returns false.
  [[nodiscard]] bool take(int64_t n, std::vector<Id>* out) {
    if (n > free()) return false;
    for (int64_t i = 0; i < n; ++i) {
      const Id id = free_.back();
      free_.pop_back();
      count(id) = 1;
      out->push_back(id);
    }
    return true;
  }
  // One more holder of a record that somebody holds.
  void share(Id id) {
    check(count(id) > 0, "a free record is shared");
    ++count(id);
  }
  // One holder less; the last one frees the record.
  void release(Id id) {
    check(count(id) > 0, "a record is released more often than taken");
    if (--count(id) == 0) free_.push_back(id);
  }
  // Last first, so that taking the same number again gives the same order.
  void release(std::span<const Id> ids) {
    for (size_t i = ids.size(); i-- > 0;) release(ids[i]);
  }
  int32_t references(Id id) const { return references_[checked(id)]; }

  // Every record is either free, listed once, with no reference, or held.
  void check_integrity() const {
    std::vector<bool> listed(references_.size(), false);
    for (Id id : free_) {
      const size_t i = checked(id);
      check(!listed[i], "a record is free twice");
      check(references_[i] == 0, "a free record has references");
      listed[i] = true;
    }
    const auto held = std::count_if(references_.begin(), references_.end(), [](int32_t n) { return n > 0; });
    check(held == used(), "a record is neither free nor held");
  }

 private:
  size_t checked(Id id) const {
    check(id.value >= 0 && id.value < size(), "a record id out of range");
    return static_cast<size_t>(id.value);
  }
  int32_t& count(Id id) { return references_[checked(id)]; }

  std::vector<int32_t> references_;  // by id
  std::vector<Id> free_;             // the next one to give out is at the back
};

using PagePool = RecordPool<PageId>;
using StatePool = RecordPool<StateId>;

}  // namespace winnow::cache
