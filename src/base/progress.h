// How far a long piece of work is, on standard error: a bar that redraws itself on a terminal, a plain line now and then
// elsewhere (logs, pipes), nothing when standard error is closed or the work is short. One thread.
//
//   ProgressBar bar("Loading", ProgressBar::Unit::bytes);
//   for (...) bar.update(done, total);
//   bar.finish();
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace winnow {

class ProgressBar {
 public:
  enum class Unit : uint8_t { bytes, items };

  // Where the text goes. `write` returns false when nobody can read it any more; then nothing else is written.
  struct Sink {
    bool terminal = false;
    std::function<int()> width;  // columns of the terminal, asked at each redraw
    std::function<bool(std::string_view)> write;
  };
  using Clock = std::function<int64_t()>;  // microseconds, never going back

  static Sink standard_error();
  static int64_t steady_clock_us();

  explicit ProgressBar(std::string label, Unit unit, Sink sink = standard_error(), Clock clock = steady_clock_us);
  ~ProgressBar() { finish(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(int64_t done, int64_t total);  // cheap: most calls write nothing
  void finish();                             // the last line, if any was written; an early end shows how far it came

 private:
  std::string line(int64_t now, bool last, int width) const;
  void write(const std::string& text);

  std::string label_;
  Unit unit_;
  Sink sink_;
  Clock clock_;
  int64_t begin_us_, shown_us_ = 0;      // shown_us_ 0: nothing was written yet
  int64_t sample_us_, sample_done_ = 0;  // of the rate
  double rate_ = 0;                      // units a second, weighted towards the last seconds
  int64_t done_ = 0, total_ = 0;
  bool closed_ = false, finished_ = false;
};

// "1.23 GB", "812 kB", "17 B"; powers of ten.
std::string bytes_text(double bytes);
// "0:07", "12:30", "1:02:05"; "-" when unknown (negative).
std::string duration_text(double seconds);

}  // namespace winnow
