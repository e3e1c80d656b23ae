// The memory of the KV pools: allocated once from the model's KvSpec and handed to its forward() as views.
// In the device's plan it is the lines "pages", "states" and "rings".
#pragma once

#include "cache/kv_layout.h"
#include "device/device.h"

namespace winnow::cache {

class KvStore {
 public:
  // Throws Error when it does not fit.
  KvStore(device::Device& device, const KvSpec& spec, const KvLayout& layout, const KvSizes& sizes);
  const KvViews& views() const { return views_; }
  const KvSizes& sizes() const { return sizes_; }

 private:
  KvSizes sizes_;
  device::Buffer pages_, states_, rings_;
  KvViews views_;
};

}  // namespace winnow::cache
