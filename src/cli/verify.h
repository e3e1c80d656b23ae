// winnow verify: recomputes the reference outputs stored beside a checkpoint and says how well they agree.
#pragma once

#include <string>

#include "models/glm5_next.h"

namespace winnow::cli {

struct VerifyOptions {
  std::string dir;             // checkpoint with golden.safetensors
  models::Options model;       // profile, index keys; sizes are chosen here
  bool json = false;
};

// Prints a table to stdout; 0 if all agree, 1 if not.
int verify(device::Device& device, const VerifyOptions& options);

}  // namespace winnow::cli
