#include "engine/pace.h"

#include <algorithm>

namespace winnow::engine {
namespace {

constexpr double kNewest = 0.2;  // weight of the newest step

void average(double* mean, double value) { *mean = *mean == 0 ? value : *mean + kNewest * (value - *mean); }

}  // namespace

void Pace::observe(int64_t decode_rows, int64_t prefill_rows, double seconds) {
  if (target_s_ <= 0) return;
  if (prefill_rows == 0) average(&decode_step_s_, seconds);
  else average(&prefill_row_s_, std::max(seconds - (decode_rows > 0 ? decode_step_s_ : 0), 0.0) / static_cast<double>(prefill_rows));
}

int64_t Pace::prefill_rows() const {
  if (target_s_ <= 0) return INT64_MAX;
  if (prefill_row_s_ <= 0) return 0;  // one chunk, to learn what a row takes
  constexpr double kMost = 1e9;       // a row that took no time at all
  return static_cast<int64_t>(std::clamp((target_s_ - decode_step_s_) / prefill_row_s_, 0.0, kMost));
}

}  // namespace winnow::engine
