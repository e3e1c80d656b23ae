// A view of a strided array in one device's memory. Copy it freely; it owns nothing.
// Outermost dimension first; strides count elements; the innermost stride is 1.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"

namespace winnow {

template <class Byte>
struct View {
  Byte* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, 4> shape{}, stride{};

  View() = default;
  View(Byte* d, DType t, int r, std::array<int64_t, 4> sh, std::array<int64_t, 4> st) : data(d), dtype(t), rank(r), shape(sh), stride(st) {}
  // Packed.
  View(Byte* d, DType t, std::initializer_list<int64_t> dims) : data(d), dtype(t), rank(static_cast<int>(dims.size())) {
    check(dims.size() <= 4, "a view has at most four dimensions");
    int i = 0;
    for (int64_t n : dims) shape[i++] = n;
    int64_t s = 1;
    for (i = rank - 1; i >= 0; --i) {
      stride[i] = s;
      s *= shape[i];
    }
  }

  explicit operator bool() const { return data; }  // an empty view is an absent operand
  template <class B>
    requires std::is_same_v<B, const Byte> && (!std::is_const_v<Byte>)
  operator View<B>() const {
    return {data, dtype, rank, shape, stride};
  }

  // The elements as T; T must be the view's type.
  template <class T>
  auto* as() const {
    check(DTypeOf<T>::value == dtype, "view read as another type");
    using P = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return reinterpret_cast<P*>(data);
  }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  int64_t bytes() const { return bytes_of(dtype, elements()); }  // of a packed view
  bool packed() const {
    int64_t s = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] != 1 && stride[i] != s) return false;
      s *= shape[i];
    }
    return true;
  }
  // Entries [first, first + count) of the outermost dimension.
  View rows(int64_t first, int64_t count) const {
    check(rank >= 1 && first >= 0 && count >= 0 && first + count <= shape[0], "rows out of range");
    View v = *this;
    v.data = data + bytes_of(dtype, first * stride[0]);
    v.shape[0] = count;
    return v;
  }
  // Columns [first, first + count) of a matrix; the result is strided.
  View columns(int64_t first, int64_t count) const {
    check(rank == 2 && first >= 0 && count >= 0 && first + count <= shape[1], "columns out of range");
    View v = *this;
    v.data = data + bytes_of(dtype, first);
    v.shape[1] = count;
    return v;
  }
  // The same packed elements under other dimensions.
  View reshaped(std::initializer_list<int64_t> dims) const {
    check(packed(), "only a packed view can be reshaped");
    View v(data, dtype, dims);
    check(v.elements() == elements(), "reshape changes the number of elements");
    return v;
  }
};

using TensorView = View<std::byte>;
using ConstTensorView = View<const std::byte>;

// A weight matrix as the checkpoint stores it: data [n, k] row-major in f32, bf16 or e4m3. With e4m3, scale is
// f32 [ceil(n / 128), ceil(k / 128)] and the value is data[i, j] * scale[i / 128, j / 128]; else scale is empty.
struct Matrix {
  ConstTensorView data;
  ConstTensorView scale;
};
inline constexpr int64_t kFp8Block = 128;

// "bf16 [3, 4]"
template <class B>
std::string describe(const View<B>& v) {
  std::string s(name_of(v.dtype));
  s += " [";
  for (int i = 0; i < v.rank; ++i) s += (i ? ", " : "") + std::to_string(v.shape[i]);
  return s + "]";
}

}  // namespace winnow
