// What conformance tests share: tensors with canaries, random contents, and running every kernel that fits.
//
// A test builds a Spec and Args over Tensors, computes the reference once, then for_each_kernel() hands it every
// kernel of the CPU back end that fits the spec, with 1, 2 and 3 workers. The test compares with the reference under a
// tolerance derived from types and lengths, and requires equal bits wherever the contract promises them: between
// numbers of workers, between numbers of rows, and between avx2 and avx512.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "ops/op.h"
#include "ops/ref.h"

namespace winnow::ops::test {

// Owns a packed tensor between two canaries. Fresh memory is poisoned (NaN in every float type).
class Tensor {
 public:
  Tensor() = default;
  Tensor(DType type, std::initializer_list<int64_t> dims) {
    TensorView shape(nullptr, type, dims);
    bytes_ = (shape.bytes() + 63) / 64 * 64;
    memory_.assign(static_cast<size_t>(bytes_ + 2 * kCanary + 64), std::byte{0xff});
    auto address = reinterpret_cast<uintptr_t>(memory_.data()) + kCanary;
    view = TensorView(reinterpret_cast<std::byte*>((address + 63) / 64 * 64), type, dims);
  }
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;
  Tensor clone() const {
    Tensor t;
    t.bytes_ = bytes_;
    t.memory_.assign(memory_.size(), std::byte{0xff});
    auto address = reinterpret_cast<uintptr_t>(t.memory_.data()) + kCanary;
    t.view = view;
    t.view.data = reinterpret_cast<std::byte*>((address + 63) / 64 * 64);
    std::memcpy(t.view.data, view.data, static_cast<size_t>(view.bytes()));
    return t;
  }
  bool canaries_intact() const {
    for (const std::byte* p = memory_.data(); p < memory_.data() + memory_.size(); ++p)
      if ((p < view.data || p >= view.data + view.bytes()) && *p != std::byte{0xff}) return false;
    return true;
  }
  template <class T>
  T* as() const {
    return view.as<T>();
  }
  operator TensorView() const { return view; }
  operator ConstTensorView() const { return view; }
  TensorView view;

 private:
  static constexpr int64_t kCanary = 256;
  std::vector<std::byte> memory_;
  int64_t bytes_ = 0;
};

// Normal values times `scale` plus `mean`, rounded to the type.
inline Tensor random_tensor(DType type, std::initializer_list<int64_t> dims, uint64_t seed, float scale = 1, float mean = 0) {
  Tensor t(type, dims);
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < t.view.elements(); ++i) ref::set(t.view, i, normal(rng) * scale + mean);
  return t;
}
template <class T>
Tensor tensor_of(std::initializer_list<int64_t> dims, const std::vector<T>& values) {
  Tensor t(DTypeOf<T>::value, dims);
  check(static_cast<int64_t>(values.size()) == t.view.elements(), "tensor_of: wrong number of values");
  std::copy(values.begin(), values.end(), t.as<T>());
  return t;
}

inline device::Device& cpu_with(int workers, Isa isa = Isa::amx) {
  static std::map<std::pair<int, Isa>, std::unique_ptr<device::Device>> devices;
  auto& d = devices[{workers, isa}];
  if (!d) d = device::make_cpu({.threads = workers, .isa = isa});
  return *d;
}

// Runs kernel k once with scratch of its own (poisoned).
template <class O>
void run_kernel(const Kernel<O>& k, device::Device& d, const typename O::Spec& s, const typename O::Args& a, Limits limits = {}) {
  O::check(s, a);
  limits.workers = std::max<int64_t>(d.caps().workers, 1);
  const int64_t bytes = k.scratch_bytes ? k.scratch_bytes(s, limits) : 0;
  Tensor scratch(DType::u8, {std::max<int64_t>(bytes, 1)});
  k.run(d.queue(), {scratch.view.data, bytes}, s, a);
  EXPECT_TRUE(scratch.canaries_intact()) << k.name << " wrote beyond its scratch";
}
template <class O>
void run_reference(const typename O::Spec& s, const typename O::Args& a, Limits limits = {}) {
  const List<O> list = kernels(O{}, Ref{});
  ASSERT_EQ(list.size(), 1u);
  run_kernel<O>(list[0], cpu_with(1), s, a, limits);
}

// f(kernel, device) for every CPU kernel that fits the spec on this machine, with 1, 2 and 3 workers. Fails if none fits.
template <class O>
void for_each_kernel(const typename O::Spec& s, const std::function<void(const Kernel<O>&, device::Device&)>& f) {
  int fitting = 0;
  for (const Kernel<O>& k : kernels(O{}, Cpu{})) {
    if (k.why_not(cpu_with(1).caps(), s)) continue;
    ++fitting;
    for (int workers : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} with {} workers", k.name, workers));
      f(k, cpu_with(workers));
    }
  }
  EXPECT_GT(fitting, 0) << "no kernel of " << O::name << " fits a spec that must be supported";
}

// |got - want| <= tolerance * (rms of want) + tolerance * |want|, element by element; NaN only where want has one.
inline void expect_close(ConstTensorView got, ConstTensorView want, double tolerance, std::string_view what = "") {
  ASSERT_EQ(got.elements(), want.elements());
  double squares = 0;
  for (int64_t i = 0; i < want.elements(); ++i) {
    const double w = ref::get(want, i);
    if (std::isfinite(w)) squares += w * w;
  }
  const double rms = std::sqrt(squares / std::max<double>(1, static_cast<double>(want.elements())));
  int shown = 0;
  for (int64_t i = 0; i < want.elements() && shown < 3; ++i) {
    const double g = ref::get(got, i), w = ref::get(want, i);
    const bool ok = std::isnan(w) ? std::isnan(g) : std::isinf(w) ? g == w : std::abs(g - w) <= tolerance * (rms + std::abs(w));
    if (!ok) {
      ADD_FAILURE() << what << " element " << i << ": got " << g << ", want " << w;
      ++shown;
    }
  }
}
// Flags of a step's rows (ops/bad.h) before any op has run, but for one that another op has set.
inline Tensor flags(int64_t rows, int64_t set = -1) {
  Tensor t(DType::i32, {rows});
  std::fill_n(t.as<int32_t>(), rows, 0);
  if (set >= 0) t.as<int32_t>()[set] = 1;
  return t;
}
inline std::vector<int64_t> flagged(const Tensor& bad) {
  std::vector<int64_t> rows;
  for (int64_t t = 0; t < bad.view.elements(); ++t)
    if (bad.as<int32_t>()[t] != 0) rows.push_back(t);
  return rows;
}
inline bool same_bits(ConstTensorView a, ConstTensorView b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0;
}

// Rounding of the storage type relative to f32, for tolerances.
inline double epsilon_of(DType t) { return t == DType::bf16 ? 1.0 / 128 : t == DType::e4m3 ? 1.0 / 8 : 1.2e-7; }

}  // namespace winnow::ops::test
