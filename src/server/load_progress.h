// How far the weights are loaded, for whoever asks /ready meanwhile. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace winnow::server {

class LoadProgress {
 public:
  void update(int64_t done, int64_t total);
  double share() const;                 // 0 to 1
  std::optional<double> eta_s() const;  // at the mean rate so far; nothing: not known yet
  std::string json() const;             // {"status":"loading","progress":0.25,"eta_s":12.5}
  int64_t retry_after_s() const;        // 1 to 60

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::atomic<int64_t> done_{0}, total_{0};
  std::atomic<int64_t> at_us_{0};  // of the last update, since began_
};

}  // namespace winnow::server
