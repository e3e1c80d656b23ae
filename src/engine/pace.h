// How many rows of prefill a step may have beside decode rows, so that a decode row waits about as long as it should: learned
// from what steps took. A chunk still ends on the grid, so the clock decides when a prompt is cut, never into what.
#pragma once

#include <cstdint>

namespace winnow::engine {

class Pace {
 public:
  explicit Pace(double target_s) : target_s_(target_s) {}  // 0: as many as a step takes

  void observe(int64_t decode_rows, int64_t prefill_rows, double seconds);
  int64_t prefill_rows() const;

 private:
  double target_s_;
  double decode_step_s_ = 0, prefill_row_s_ = 0;  // running means; 0: not known yet
};

}  // namespace winnow::engine
