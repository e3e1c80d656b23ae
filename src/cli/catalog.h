// Every op there is, for the verbs that speak about all of them: which kernels a back end has, and which one a
// device would choose at the shapes of GLM-5.3-Flash.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "models/glm5_next.h"

namespace winnow::cli {

struct Candidate {
  std::string_view name;
  const char* why_not;  // null: it fits
};

struct OpEntry {
  std::string_view op;
  std::vector<std::string_view> (*kernels)(device::Backend);                              // best first
  std::vector<Candidate> (*candidates)(const device::Caps&, models::Profile, IndexKeys);  // at the published model's shapes
};
std::span<const OpEntry> catalog();

}  // namespace winnow::cli
