// Pinned worker threads with a static split of the work. The thread that calls run() is worker 0. Between two calls
// the others spin shortly, then sleep. Which thread computes an item never changes its result: kernels give an item
// (an output row, a head, a token) to one worker whole.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace winnow::device {

class Workers {
 public:
  explicit Workers(int count);  // count >= 1, the caller included
  ~Workers();
  Workers(const Workers&) = delete;
  int count() const { return count_; }
  void pin_caller();

  // fn(begin, end, worker) over [0, items) cut into at most count() contiguous ranges whose borders are multiples of
  // `unit`. Returns when all are done. Small work (items <= unit) runs on the caller alone.
  template <class F>
  void run(int64_t items, int64_t unit, F&& fn) {
    if (items <= 0) return;
    const int64_t units = (items + unit - 1) / unit;
    const int parts = static_cast<int>(units < count_ ? units : count_);
    if (parts == 1) {
      fn(int64_t{0}, items, 0);
      return;
    }
    auto part = [&](int worker) {
      if (worker >= parts) return;
      const int64_t begin = units * worker / parts * unit, end = units * (worker + 1) / parts * unit;
      fn(begin, end < items ? end : items, worker);
    };
    start([](void* f, int worker) { (*static_cast<decltype(part)*>(f))(worker); }, &part);
  }

 private:
  using Task = void (*)(void*, int);
  void start(Task task, void* context);
  void loop(int worker);

  const int count_;
  std::vector<int> cpus_;
  Task task_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> pending_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace winnow::device
