// What an op is: a contract (a struct with Spec, Args and check), a reference, and lists of kernels, one list a back
// end, best first. A model builds an Op<O> once, while it starts; a call checks its arguments and runs the kernel.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "base/view.h"
#include "device/device.h"

namespace winnow::ops {

using device::Backend;
using device::Caps;
using device::Isa;
using device::Queue;
using device::Scratch;

using Out = TensorView;  // the direction of an operand is its type
using In = ConstTensorView;
using Writes = std::vector<device::Written>;  // every Out of a call by name: O::writes(args), which only a watched queue asks for

// The largest step that scratch must serve.
struct Limits {
  int64_t max_rows = 1;       // tokens of a step
  int64_t max_sequences = 1;  // sequences of a step
  int64_t max_context = 1;    // tokens of a sequence
  int64_t workers = 1;        // CPU worker threads; a kernel's scratch may hold one part a worker
};

template <class O>
struct Kernel {                                                  // one way to run op O
  std::string_view name;                                         // "rms_norm.cpu_avx512"
  const char* (*why_not)(const Caps&, const typename O::Spec&);  // null: it fits
  int64_t (*scratch_bytes)(const typename O::Spec&, const Limits&) = nullptr;
  void (*run)(Queue&, Scratch, const typename O::Spec&, const typename O::Args&);  // enqueues; never allocates or waits
};
template <class O>
using List = std::span<const Kernel<O>>;  // a back end's kernels, best first

struct Ref {};
struct Cpu {};
template <class O, class B>
List<O> kernels(O, B) {
  return {};
}  // a back end without O need not mention it

template <class O>
List<O> kernels_on(Backend b) {
  switch (b) {
    case Backend::ref: return kernels(O{}, Ref{});
    case Backend::cpu: return kernels(O{}, Cpu{});
    default: return {};
  }
}

// What a call must move and compute at least: weights, states and caches once; 2 operations a multiply-add. An op that
// matters for speed states it as `static Cost cost(const Spec&, const Args&)`; benchmarks divide it by the time.
struct Cost {
  double bytes = 0, flops = 0;
};

// A kernel chosen once, while the model is built. If none fits, start-up fails and says why each was passed over.
template <class O>
class Op {
 public:
  Op() = default;
  Op(const device::Device& device, const typename O::Spec& spec) : spec_(spec) {
    const Caps& caps = device.caps();
    const auto forced = device.forced.find(O::name);
    std::string reasons;
    for (const Kernel<O>& k : kernels_on<O>(caps.backend)) {
      const char* why = forced != device.forced.end() && k.name != forced->second ? "another was forced" : k.why_not(caps, spec);
      if (!why) {
        kernel_ = &k;
        return;
      }
      reasons += fmt::format("{} {}: {}", reasons.empty() ? "" : ";", k.name, why);
    }
    throw error("no kernel of op {} fits on back end {}:{} (winnow devices lists the kernels)", O::name, device::name_of(caps.backend),
                reasons.empty() ? " it has none" : reasons);
  }
  void operator()(Queue& q, const typename O::Args& a) const {
    O::check(spec_, a);
    if (q.trace() || q.watch()) [[unlikely]]
      observed(q, a);
    else kernel_->run(q, q.scratch(), spec_, a);
  }
  int64_t scratch_bytes(const Limits& limits) const { return kernel_->scratch_bytes ? kernel_->scratch_bytes(spec_, limits) : 0; }
  std::string_view kernel() const { return kernel_->name; }
  const typename O::Spec& spec() const { return spec_; }

 private:
  void observed(Queue& q, const typename O::Args& a) const {
    const auto start = std::chrono::steady_clock::now();
    kernel_->run(q, q.scratch(), spec_, a);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (q.watch()) (*q.watch())(O::name, O::writes(a));
    if (!q.trace()) return;
    std::string label(kernel_->name);
    Cost cost;
    if constexpr (requires { O::label(spec_); }) label += " " + O::label(spec_);
    if constexpr (requires { O::cost(spec_, a); }) cost = O::cost(spec_, a);
    q.trace()->add(label, seconds, cost.bytes, cost.flops);
  }

  typename O::Spec spec_{};
  const Kernel<O>* kernel_ = nullptr;
};

inline const char* always(const Caps&, const auto&) { return nullptr; }  // why_not of a reference

// A dimension bound by the first operand that has it and required of the rest.
class Dim {
 public:
  explicit Dim(std::string_view name) : name_(name) {}
  bool bind(int64_t n) {
    if (value_ < 0) value_ = n;
    return value_ == n;
  }
  int64_t value() const { return value_; }
  std::string_view name() const { return name_; }

 private:
  std::string_view name_;
  int64_t value_ = -1;
};
struct Extent {  // a number or a Dim
  Extent(int64_t n) : fixed(n) {}
  Extent(Dim& d) : dim(&d) {}
  int64_t fixed = -1;
  Dim* dim = nullptr;
};

// Operand `name` must be of this type and shape and packed. Aborts with both shapes if not: a model's mistake, not a user's.
void expect(std::string_view name, In view, DType type, std::initializer_list<Extent> shape);
// The same, but rows (the outermost dimension) may be further apart than their size.
void expect_rows(std::string_view name, In view, DType type, std::initializer_list<Extent> shape);
void expect(std::string_view name, const Matrix& m, DType type, int64_t n, int64_t k);

}  // namespace winnow::ops
