// What this machine can reach at most, measured: the denominators of every benchmark.
#pragma once

#include "device/device.h"

namespace winnow::device {

struct Peaks {
  double read_gb_s = 0;    // reading huge-page memory with all workers, each its own part
  double f32_gflops = 0;   // f32 multiply-adds in registers, all workers, the widest instruction set in use
  double bf16_gflops = 0;  // bf16 dot products in registers (AVX-512-BF16) or tiles (AMX), the better; 0 where there are none
  double best_gflops() const { return f32_gflops > bf16_gflops ? f32_gflops : bf16_gflops; }
};

// About a second and 1 GiB of memory. Best of several passes.
Peaks measure_peaks(Device& device);

}  // namespace winnow::device
