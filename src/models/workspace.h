// Cuts views out of one block of memory, aligned to 64 bytes. Run the same sequence of take() twice: first over nothing,
// to learn the size, then over the allocated block. Parts that are never live together share bytes between mark() and
// rewind().
#pragma once

#include <algorithm>

#include "base/units.h"
#include "base/view.h"

namespace winnow::models {

class Workspace {
 public:
  explicit Workspace(std::byte* base = nullptr) : base_(base) {}
  TensorView take(DType type, std::initializer_list<int64_t> dims) {
    TensorView v(nullptr, type, dims);
    v.data = base_ ? base_ + offset_ : nullptr;
    offset_ = round_up(offset_ + v.bytes(), 64);
    high_ = std::max(high_, offset_);
    return v;
  }
  int64_t mark() const { return offset_; }
  void rewind(int64_t mark) { offset_ = mark; }
  int64_t bytes() const { return high_; }

 private:
  std::byte* base_;
  int64_t offset_ = 0, high_ = 0;
};

}  // namespace winnow::models
