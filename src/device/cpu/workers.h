// Pinned worker threads with a static split of the work. The thread that calls run() is worker 0. Between two calls
// the others spin shortly, then sleep. A part that its worker has not begun when the caller is done with its own (the
// worker sleeps, or its processor is busy with another program) is done by the caller. Which thread computes an item never
// changes its result: the split is the same, and kernels give an item (an output row, a head, a token) to one part whole.
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
  void keep_clear() const;  // of the processors of all workers: for the calling thread

  // fn(begin, end, worker) over [0, items) cut into at most count() contiguous ranges whose borders are multiples of
  // `unit`; no two ranges have the same `worker`. Returns when all are done. Small work (items <= unit) runs on the caller
  // alone.
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
      const int64_t begin = units * worker / parts * unit, end = units * (worker + 1) / parts * unit;
      fn(begin, end < items ? end : items, worker);
    };
    start(parts, [](void* f, int worker) { (*static_cast<decltype(part)*>(f))(worker); }, &part);
  }

 private:
  using Task = void (*)(void*, int);
  // The last generation of which this worker's part was begun, by whichever thread.
  struct alignas(64) Slot {
    std::atomic<uint32_t> begun{0};
  };
  void start(int parts, Task task, void* context);
  bool begin(int worker, uint32_t generation);  // true for one thread only
  void loop(int worker);

  const int count_;
  std::vector<int> cpus_;
  std::vector<Slot> slots_;
  // Of the current generation. A worker reads them once it has begun a part, and start() returns after that part's end.
  Task task_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int> pending_{0};  // parts not done
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace winnow::device
