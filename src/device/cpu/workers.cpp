#include "device/cpu/workers.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "base/error.h"

namespace winnow::device {
namespace {

// Long enough to bridge the gaps between the kernels of a step, short enough not to burn an idle machine.
constexpr int kSpins = 20000;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void pin(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);  // a refusal (container policy) costs speed, not correctness
}

}  // namespace

Workers::Workers(int count) : count_(count), slots_(static_cast<size_t>(std::max(count, 1))) {
  check(count >= 1, "a device needs a worker");
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &allowed)) cpus_.push_back(cpu);
  for (int w = 1; w < count_; ++w) {
    threads_.emplace_back([this, w] { loop(w); });
    if (w < static_cast<int>(cpus_.size())) pin(threads_.back().native_handle(), cpus_[w]);
  }
}

Workers::~Workers() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void Workers::pin_caller() {
  if (!cpus_.empty()) pin(pthread_self(), cpus_[0]);
}

void Workers::keep_clear() const {
  if (static_cast<int>(cpus_.size()) <= count_) return;
  cpu_set_t others;
  CPU_ZERO(&others);
  for (size_t i = static_cast<size_t>(count_); i < cpus_.size(); ++i) CPU_SET(cpus_[i], &others);
  sched_setaffinity(0, sizeof others, &others);  // a refusal costs speed, not correctness
}

bool Workers::begin(int worker, uint32_t generation) {
  std::atomic<uint32_t>& begun = slots_[static_cast<size_t>(worker)].begun;
  uint32_t last = begun.load(std::memory_order_relaxed);
  // Generations wrap around; a worker that woke late may hold one that is over.
  return static_cast<int32_t>(generation - last) > 0 && begun.compare_exchange_strong(last, generation, std::memory_order_acquire);
}

void Workers::start(int parts, Task task, void* context) {
  task_ = task;
  context_ = context;
  pending_.store(parts - 1, std::memory_order_relaxed);
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  for (int w = parts; w < count_; ++w) slots_[static_cast<size_t>(w)].begun.store(generation, std::memory_order_relaxed);
  generation_.store(generation, std::memory_order_seq_cst);  // before notify_all looks for sleepers
  generation_.notify_all();
  task(context, 0);
  for (int w = 1; w < parts; ++w)
    if (begin(w, generation)) {
      task(context, w);
      pending_.fetch_sub(1, std::memory_order_relaxed);
    }
  for (int spins = 0; pending_.load(std::memory_order_acquire) != 0; ++spins) {
    pause_cpu();
    if (spins > kSpins) sched_yield();  // a worker that lost its processor needs ours
  }
}

void Workers::loop(int worker) {
  uint32_t seen = 0;
  for (;;) {
    uint32_t now;
    int spins = 0;
    while ((now = generation_.load(std::memory_order_acquire)) == seen) {
      if (++spins < kSpins) pause_cpu();
      else generation_.wait(seen, std::memory_order_acquire);
    }
    seen = now;
    if (stop_.load(std::memory_order_relaxed)) return;
    if (!begin(worker, now)) continue;
    task_(context_, worker);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace winnow::device
