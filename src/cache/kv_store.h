// The memory of the KV pools: allocated once from the model's KvSpec and handed to its forward() as views.
// In the device's plan it is the lines "pages", "states" and "rings".
#pragma once

#include <span>
#include <vector>

#include "cache/kv_layout.h"
#include "device/device.h"

namespace winnow::cache {

// Bytes of a known pattern behind each page and behind each layer's part of the states, which nobody may write; 0 in release builds.
inline constexpr int64_t kCanaryBytes = WINNOW_CANARY_BYTES;

class KvStore {
 public:
  // Throws Error when it does not fit.
  KvStore(device::Device& device, const KvSpec& spec, const KvLayout& layout, const KvSizes& sizes, int64_t canary_bytes = kCanaryBytes);
  const KvViews& views() const { return views_; }
  // Whole records as bytes: a page as it lies, a state record layer by layer. Complete when they return.
  int64_t page_bytes() const { return page_bytes_; }
  int64_t state_bytes() const { return state_bytes_; }
  void read(PageId page, std::span<std::byte> to) const;
  void write(PageId page, std::span<const std::byte> from);
  void read(StateId state, std::span<std::byte> to) const;
  void write(StateId state, std::span<const std::byte> from);
  const KvSizes& sizes() const { return sizes_; }
  // Aborts if a canary was written, and says behind what.
  void check_canaries() const;
  // Of them all; no part of what KvLayout says.
  int64_t canary_bytes() const { return static_cast<int64_t>(canaries_.size()) * canary_bytes_; }

 private:
  std::span<std::byte> place(PageId page) const;
  template <class F>
  void each_part(StateId state, F&& f) const;

  KvSizes sizes_;
  int64_t page_bytes_ = 0, state_bytes_ = 0;
  const int64_t canary_bytes_, page_stride_;  // from one page to the next, canary included
  std::vector<std::byte*> canaries_;          // those of pages first, by page
  device::Buffer pages_, states_, rings_;
  KvViews views_;
};

}  // namespace winnow::cache
