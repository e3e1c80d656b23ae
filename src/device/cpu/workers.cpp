#include "device/cpu/workers.h"

#include <pthread.h>
#include <sched.h>

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

Workers::Workers(int count) : count_(count) {
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

void Workers::start(Task task, void* context) {
  task_ = task;
  context_ = context;
  pending_.store(count_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  task(context, 0);
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
    task_(context_, worker);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace winnow::device
