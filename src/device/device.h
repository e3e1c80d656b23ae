// A device: memory, a queue to run kernels on, and what it can do. `Device` is the one virtual interface of winnow;
// everything above reaches hardware through it and through the kernels of ops/.
//
// Threads: a Device and its queue belong to one thread at a time (the engine thread while serving). Kernels of the
// CPU device use its workers inside run().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/view.h"

namespace winnow::device {

enum class Backend : uint8_t { ref, cpu, sim, cuda, hip, vulkan };
std::string_view name_of(Backend b);
Result<Backend> parse_backend(std::string_view name);  // a back end that is not in this build is refused by name

// Instruction sets of the CPU device, each including the ones before it.
enum class Isa : uint8_t { baseline, avx2, avx512, avx512_bf16, amx };
std::string_view name_of(Isa isa);
Result<Isa> parse_isa(std::string_view name);
Isa detect_isa();  // best of this machine, the operating system's permission for AMX tiles included

// What kernels ask of a device (why_not).
struct Caps {
  Backend backend = Backend::cpu;
  Isa isa = Isa::baseline;   // CPU: the set in use, at most what the machine has
  int workers = 1;           // CPU: worker threads
  int64_t memory_bytes = 0;  // what the device has in all
  int64_t free_bytes = 0;    // what of it this process could get when the device was made
  bool plans_only = false;   // memory is address space that nobody may touch: what is made on the device is listed, never run
  bool host_memory = false;  // kernels may read memory of this process that is not from allocate(), e.g. a mapped file
};

// Move-only owner of device memory, aligned to at least 64 bytes (to 2 MiB and asked to be huge pages from 2 MiB on).
class Buffer {
 public:
  Buffer() = default;
  using Release = std::function<void(std::byte*, int64_t)>;
  Buffer(std::byte* data, int64_t bytes, Release release) : data_(data), bytes_(bytes), release_(std::move(release)) {}
  Buffer(Buffer&& o) noexcept { *this = std::move(o); }
  Buffer& operator=(Buffer&& o) noexcept;
  ~Buffer();
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  Release release_;
};

// Scratch of a queue: kernels of one queue run one after another and may all use it.
struct Scratch {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

class Workers;  // device/cpu/workers.h

// Where the time of a queue's kernels goes, while somebody asks (winnow bench): by op and shape.
class Trace {
 public:
  struct Entry {
    int64_t calls = 0;
    double seconds = 0, bytes = 0, flops = 0;
  };  // bytes: compulsory reads and writes
  void add(const std::string& label, double seconds, double bytes, double flops);
  const std::map<std::string, Entry>& entries() const { return entries_; }

 private:
  std::map<std::string, Entry> entries_;
};

// An operand that a kernel has just written.
struct Written {
  std::string_view operand;
  TensorView view;
};
// Called behind every kernel, with its op's name: for tests that look into a step, or spoil what was written.
using Watch = std::function<void(std::string_view op, std::span<const Written> operands)>;

// Where kernels are enqueued. The CPU device runs them at once on its workers.
class Queue {
 public:
  Queue(Workers* workers) : workers_(workers) {}
  Workers& workers() const {
    check(workers_, "the queue has no CPU workers");
    return *workers_;
  }
  Scratch scratch() const { return scratch_; }
  void set_scratch(Scratch s) { scratch_ = s; }  // once, by the memory plan
  Trace* trace() const { return trace_; }        // null: nobody asks
  void set_trace(Trace* t) { trace_ = t; }
  const Watch* watch() const { return watch_; }  // null: nobody looks
  void set_watch(const Watch* w) { watch_ = w; }

 private:
  Workers* workers_;
  Scratch scratch_;
  Trace* trace_ = nullptr;
  const Watch* watch_ = nullptr;
};

// Kernels forced by name: op -> kernel ("linear" -> "linear.cpu_avx2").
using ForcedKernels = std::map<std::string, std::string, std::less<>>;

struct PlanLine {
  std::string what;
  int64_t bytes = 0;
  bool in_place = false;  // not from allocate(): kernels read it where it lies
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const Caps& caps() const = 0;
  virtual std::string description() const = 0;  // one line for a person
  // Zeroed memory, accounted under `what` in the plan until it is released, which the device must live to see. Throws Error when it
  // does not fit, with the numbers.
  virtual Buffer allocate(std::string_view what, int64_t bytes) = 0;
  virtual Queue& queue() = 0;
  virtual void pin_caller() = 0;  // bind the calling thread to the device's first processor, where that means something
  virtual void keep_clear() {}    // bind it to processors that the device's own threads do not run on, if there are any
  // Throws Error that begins with `wish` if kernels cannot read memory that is not from allocate() (caps().host_memory).
  void expect_host_memory(std::string_view wish) const;
  // Puts such memory into the plan.
  void list_in_place(std::string_view what, int64_t bytes) { account(what, bytes, true); }

  const std::vector<PlanLine>& plan() const { return plan_; }  // what was allocated or is read in place, in order, lines of one name added up
  ForcedKernels forced;                                        // set before the model is built

 protected:
  void account(std::string_view what, int64_t bytes, bool in_place = false);

 private:
  std::vector<PlanLine> plan_;
};

struct CpuOptions {
  int threads = 0;                 // 0: one for each processor this process may use
  Isa isa = Isa::amx;              // an upper bound; what the machine lacks is not used
  Backend backend = Backend::cpu;  // Backend::ref runs the references on the same memory and workers
  bool plan_only = false;          // to learn what a model takes, on a machine where it may not fit: Caps::plans_only
};
std::unique_ptr<Device> make_cpu(const CpuOptions& options);  // throws Error on a CPU without AVX2 and FMA unless ref

}  // namespace winnow::device
