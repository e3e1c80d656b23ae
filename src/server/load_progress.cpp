#include "server/load_progress.h"

#include <algorithm>
#include <cmath>

#include "base/json_writer.h"

namespace winnow::server {

void LoadProgress::update(int64_t done, int64_t total) {
  total_ = total;
  done_ = done;
  at_us_ = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began_).count();
}

double LoadProgress::share() const {
  const int64_t total = total_;
  return total > 0 ? std::clamp(static_cast<double>(done_) / static_cast<double>(total), 0.0, 1.0) : 0.0;
}

std::optional<double> LoadProgress::eta_s() const {
  const double done = static_cast<double>(done_), left = static_cast<double>(total_) - done;
  if (done <= 0) return {};
  const double then = static_cast<double>(at_us_) * 1e-6;
  const double since = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count() - then;
  return std::max(0.0, then * left / done - since);
}

std::string LoadProgress::json() const {
  const auto rounded = [](double v) { return std::round(v * 1000) / 1000; };
  JsonWriter w;
  w.begin_object().field("status", "loading").field("progress", rounded(share())).key("eta_s");
  if (const auto eta = eta_s()) w.value(rounded(*eta));
  else w.null();
  return w.end_object().take();
}

int64_t LoadProgress::retry_after_s() const { return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(eta_s().value_or(5.0))), 1, 60); }

}  // namespace winnow::server
