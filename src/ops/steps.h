// Steps for tests: rows of several sequences whose pages lie scattered, and what a kernel may not read is poisoned.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <numeric>

#include "ops/conformance.h"
#include "ops/rows.h"

namespace winnow::ops::test {

struct Part {
  int64_t position, count, state;
  int64_t record = -1, source = -1;  // of its state and rings, if not `state`; what the step reads, if not the record
};  // of one sequence in a step: position of its first row, rows, StateId

// The pages of all sequences that a test has, by StateId: sequence i holds pages of its own, in no order.
struct Pages {
  int64_t page_tokens, pages_each;
  std::vector<int32_t> ids;  // [sequences][pages_each]
  Pages(int64_t sequences, int64_t tokens_each, int64_t page_tokens, uint64_t seed)
      : page_tokens(page_tokens), pages_each(pages_for(tokens_each, page_tokens)), ids(static_cast<size_t>(sequences * pages_each)) {
    std::iota(ids.begin(), ids.end(), 0);
    std::mt19937_64 rng(seed);
    std::shuffle(ids.begin(), ids.end(), rng);
  }
  int64_t count() const { return static_cast<int64_t>(ids.size()); }
  int64_t page(int64_t sequence, int64_t token) const { return ids[static_cast<size_t>(sequence * pages_each + token / page_tokens)]; }
};

// Much zeroed address space of which only what is touched costs memory.
struct FarMemory {
  explicit FarMemory(int64_t bytes) : bytes(bytes) {
    void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(p != MAP_FAILED, "no address space for a test");
    data = static_cast<std::byte*>(p);
  }
  ~FarMemory() { munmap(data, static_cast<size_t>(bytes)); }
  FarMemory(const FarMemory&) = delete;
  std::byte* data;
  int64_t bytes;
};

struct Step {
  Step(const std::vector<Part>& parts, const Pages& pages) {
    std::vector<int32_t> first{0}, sequence, table, state, source, decode;
    std::vector<int64_t> position, slot, folded;
    for (const Part& p : parts) {
      for (int64_t i = 0; i < p.count; ++i) {
        sequence.push_back(static_cast<int32_t>(state.size()));
        position.push_back(p.position + i);
        slot.push_back(pages.page(p.state, p.position + i) * pages.page_tokens + (p.position + i) % pages.page_tokens);
      }
      const int64_t held = pages_for(p.position + p.count, pages.page_tokens);
      for (int64_t i = 0; i < pages.pages_each; ++i)
        table.push_back(i < held ? static_cast<int32_t>(pages.page(p.state, i * pages.page_tokens)) : -1'000'000'000);
      first.push_back(static_cast<int32_t>(sequence.size()));
      state.push_back(static_cast<int32_t>(p.record < 0 ? p.state : p.record));
      source.push_back(p.source < 0 ? state.back() : static_cast<int32_t>(p.source));
      folded.push_back(p.position / kKdaGroup * kKdaGroup);
      decode.push_back(p.count == 1);
    }
    const int64_t n = static_cast<int64_t>(sequence.size()), s = static_cast<int64_t>(state.size());
    first_ = tensor_of<int32_t>({s + 1}, first);
    sequence_ = tensor_of<int32_t>({n}, sequence);
    position_ = tensor_of<int64_t>({n}, position);
    slot_ = tensor_of<int64_t>({n}, slot);
    table_ = tensor_of<int32_t>({s, pages.pages_each}, table);
    state_ = tensor_of<int32_t>({s}, state);
    source_ = tensor_of<int32_t>({s}, source);
    folded_ = tensor_of<int64_t>({s}, folded);
    decode_ = tensor_of<int32_t>({s}, decode);
    rows = {first_, sequence_, position_, slot_, table_, state_, source_, folded_, decode_, pages.page_tokens};
  }
  Rows rows;

 private:
  Tensor first_, sequence_, position_, slot_, table_, state_, source_, folded_, decode_;
};

}  // namespace winnow::ops::test
