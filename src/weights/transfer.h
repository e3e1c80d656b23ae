// Moves stored values to where the model wants them: in parallel, straight from the file, widened where asked, and looked
// at on the way, because a NaN in a weight would otherwise surface as garbage much later. Values that the model reads where
// the file is mapped are looked at as well.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"
#include "weights/checkpoint.h"
#include "weights/source.h"

namespace winnow::weights {

// The values of `piece` go to `to` as `type`: the stored type, or f32. `scale`: they must be positive as well. With `mapped`,
// where they lie already, they go nowhere.
struct Transfer {
  Piece piece;
  std::byte* to = nullptr;
  DType type = DType::f32;
  bool scale = false;
  const std::byte* mapped = nullptr;
};

// In file order with all workers. Throws Error that names file and tensor when a value is not finite, a scale not
// positive, or a read fails. Calls `progress` from this thread with the bytes read, about ten times a second.
class Transfers {
 public:
  Transfers(device::Queue& queue, int64_t total_bytes, const Progress& progress);
  void run(std::vector<Transfer> transfers);
  void finish();  // reports the end

 private:
  device::Queue& queue_;
  int64_t total_ = 0, done_ = 0;
  int64_t reported_us_ = 0;
  const Progress& progress_;
};

int64_t stored_bytes(const Piece& p);

// values [n, k] of e4m3 times their block's scale, split over the workers.
void dequantise(device::Queue& queue, const std::byte* codes, const float* scale, int64_t n, int64_t k, float* to);

}  // namespace winnow::weights
