// The CPU device: huge-page memory, pinned workers, and the detection of instruction sets.
#include <cpuid.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/units.h"
#include "device/cpu/memory.h"
#include "device/cpu/workers.h"
#include "device/device.h"

namespace winnow::device {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

void release_memory(std::byte* data, int64_t bytes) { ::munmap(data, static_cast<size_t>(round_up(bytes, kHugePage))); }

// Linux asks for permission before a process may use AMX tiles (Documentation/arch/x86/xstate.rst).
bool amx_permitted() {
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
  return ::syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

int allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

class Cpu final : public Device {
 public:
  explicit Cpu(const CpuOptions& o) : workers_(o.threads > 0 ? o.threads : allowed_processors()), queue_(&workers_) {
    struct sysinfo info{};
    ::sysinfo(&info);
    caps_ = {.backend = o.backend,
             .isa = std::min(o.isa, detect_isa()),
             .workers = workers_.count(),
             .memory_bytes = static_cast<int64_t>(info.totalram) * info.mem_unit,
             .plans_only = o.plan_only,
             .host_memory = true};
    caps_.free_bytes = std::min(caps_.memory_bytes, available_memory());
    if (o.backend == Backend::cpu && caps_.isa < Isa::avx2)
      throw Error("this CPU lacks AVX2 and FMA, which the cpu back end needs; --backend ref runs anywhere, slowly");
  }
  const Caps& caps() const override { return caps_; }
  Queue& queue() override { return queue_; }
  void pin_caller() override { workers_.pin_caller(); }
  void keep_clear() override { workers_.keep_clear(); }

  std::string description() const override {
    return fmt::format("CPU, {} thread{}, {}, {:.1f} GB of memory", caps_.workers, caps_.workers == 1 ? "" : "s", name_of(caps_.isa),
                       static_cast<double>(caps_.memory_bytes) * 1e-9);
  }

  Buffer allocate(std::string_view what, int64_t bytes) override {
    check(bytes >= 0, "a negative allocation");
    if (bytes == 0) return {};
    const size_t mapped = static_cast<size_t>(round_up(bytes, kHugePage));
    void* p = MAP_FAILED;
    if (caps_.plans_only) p = ::mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    else if (allocated_ + bytes <= caps_.free_bytes)  // an overcommitted mapping would fail later, at first touch
      p = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
      throw error(
          "{} needs {:.2f} GB, which does not fit: of {:.2f} GB of memory {:.2f} GB were free and {:.2f} GB of those are planned; free some or ask "
          "for less",
          what, static_cast<double>(bytes) * 1e-9, static_cast<double>(caps_.memory_bytes) * 1e-9, static_cast<double>(caps_.free_bytes) * 1e-9,
          static_cast<double>(allocated_) * 1e-9);
    if (bytes >= kHugePage && !caps_.plans_only) ::madvise(p, mapped, MADV_HUGEPAGE);
    allocated_ += bytes;
    account(what, bytes);
    return {static_cast<std::byte*>(p), bytes, [this, name = std::string(what)](std::byte* data, int64_t size) {
              release_memory(data, size);
              allocated_ -= size;
              account(name, -size);
            }};
  }

 private:
  Workers workers_;
  Queue queue_;
  Caps caps_;
  int64_t allocated_ = 0;
};

}  // namespace

Isa detect_isa() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c") || !__builtin_cpu_supports("bmi2"))
    return Isa::baseline;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512cd"))
    return Isa::avx2;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & (1u << 5))) return Isa::avx512;  // leaf 7.1 EAX[5]: AVX512_BF16
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return Isa::avx512_bf16;
  const bool tile = d & (1u << 24), bf16 = d & (1u << 22);  // leaf 7.0 EDX: AMX-TILE, AMX-BF16
  return tile && bf16 && amx_permitted() ? Isa::amx : Isa::avx512_bf16;
}

std::unique_ptr<Device> make_cpu(const CpuOptions& options) { return std::make_unique<Cpu>(options); }

}  // namespace winnow::device
