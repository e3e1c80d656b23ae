#include "base/progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>

namespace winnow {
namespace {

constexpr int64_t kQuietUs = 500'000;   // work shorter than this shows nothing
constexpr int64_t kRedrawUs = 100'000;  // terminal
constexpr int64_t kLineUs = 5'000'000;  // elsewhere
constexpr int64_t kSampleUs = 200'000;
constexpr double kMemorySeconds = 3.0;  // of the rate
constexpr int kNarrow = 40, kLongestBar = 40, kShortestBar = 5;

// write(2) without the signal that a closed pipe sends: it would end the program for want of a progress bar.
bool write_quietly(int fd, std::string_view s) {
  sigset_t pipe, before, pending;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  bool open = true;
  while (!s.empty()) {
    const ssize_t n = ::write(fd, s.data(), s.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      open = errno == EAGAIN;  // a reader that is slow loses text, not the bar
      if (errno == EPIPE && !sigismember(&pending, SIGPIPE)) {
        const timespec now{};
        sigtimedwait(&pipe, nullptr, &now);
      }
      break;
    }
    s.remove_prefix(static_cast<size_t>(n));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return open;
}

int terminal_width() {
  winsize w{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

std::string count_text(ProgressBar::Unit unit, int64_t done, int64_t total) {
  if (unit == ProgressBar::Unit::items) return fmt::format("{}/{}", done, total);
  return fmt::format("{} of {}", bytes_text(static_cast<double>(done)), bytes_text(static_cast<double>(total)));
}

std::string rate_text(ProgressBar::Unit unit, double rate) {
  return unit == ProgressBar::Unit::bytes ? bytes_text(rate) + "/s" : fmt::format("{:.3g}/s", rate);
}

}  // namespace

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int u = 0;
  while (bytes >= 999.5 && u < 5) {
    bytes /= 1000;
    ++u;
  }
  if (u == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.{}f} {}", bytes, bytes < 9.995 ? 2 : bytes < 99.95 ? 1 : 0, kUnits[u]);
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e7) return "-";
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

ProgressBar::Sink ProgressBar::standard_error() {
  Sink s;
  const char* term = std::getenv("TERM");
  s.terminal = ::isatty(STDERR_FILENO) && !(term && std::string_view(term) == "dumb");
  s.width = terminal_width;
  if (::fcntl(STDERR_FILENO, F_GETFD) < 0) s.write = [](std::string_view) { return false; };
  else s.write = [](std::string_view text) { return write_quietly(STDERR_FILENO, text); };
  return s;
}

int64_t ProgressBar::steady_clock_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ProgressBar::ProgressBar(std::string label, Unit unit, Sink sink, Clock clock)
    : label_(std::move(label)), unit_(unit), sink_(std::move(sink)), clock_(std::move(clock)), begin_us_(clock_()), sample_us_(begin_us_) {}

void ProgressBar::write(const std::string& text) { closed_ = closed_ || !sink_.write(text); }

std::string ProgressBar::line(int64_t now, bool last, int width) const {
  const double elapsed = static_cast<double>(now - begin_us_) * 1e-6;
  const double share = total_ > 0 ? std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0) : 0.0;
  const std::string percent = fmt::format("{:3.0f} %", std::floor(share * 100));
  std::string right = fmt::format("{}  {}", percent, count_text(unit_, done_, total_));
  if (last) right += fmt::format("  {}  in {}", rate_text(unit_, elapsed > 0 ? static_cast<double>(done_) / elapsed : 0), duration_text(elapsed));
  else right += fmt::format("  {}  {} left", rate_text(unit_, rate_), duration_text(rate_ > 0 ? static_cast<double>(total_ - done_) / rate_ : -1));
  if (width == 0) return fmt::format("{}: {}", label_, right);
  if (width < kNarrow) return fmt::format("{} {}", label_, percent).substr(0, static_cast<size_t>(std::max(width - 1, 0)));
  // The last column stays free: some terminals wrap when it is written.
  const int room = width - 1 - static_cast<int>(label_.size() + right.size()) - 6;
  if (room < kShortestBar) return fmt::format("{}  {}", label_, right).substr(0, static_cast<size_t>(width - 1));
  const int bar = std::min(room, kLongestBar), full = static_cast<int>(share * bar);
  return fmt::format("{}  [{}{}]  {}", label_, std::string(static_cast<size_t>(full), '='), std::string(static_cast<size_t>(bar - full), ' '), right);
}

void ProgressBar::update(int64_t done, int64_t total) {
  if (closed_ || finished_) return;
  done_ = done;
  total_ = total;
  const int64_t now = clock_();
  if (const double dt = static_cast<double>(now - sample_us_) * 1e-6; now - sample_us_ >= kSampleUs) {
    const double rate = static_cast<double>(done - sample_done_) / dt;
    rate_ += (rate - rate_) * (rate_ == 0 ? 1.0 : 1.0 - std::exp(-dt / kMemorySeconds));
    sample_us_ = now;
    sample_done_ = done;
  }
  if (now - begin_us_ < kQuietUs) return;
  if (shown_us_ != 0 && now - shown_us_ < (sink_.terminal ? kRedrawUs : kLineUs)) return;
  shown_us_ = now;
  write(sink_.terminal ? fmt::format("\r{}\x1b[K", line(now, false, sink_.width())) : line(now, false, 0) + "\n");
}

void ProgressBar::finish() {
  if (finished_) return;
  finished_ = true;
  if (closed_ || shown_us_ == 0) return;
  const int64_t now = clock_();
  write(sink_.terminal ? fmt::format("\r{}\x1b[K\n", line(now, true, sink_.width())) : line(now, true, 0) + "\n");
}

}  // namespace winnow
