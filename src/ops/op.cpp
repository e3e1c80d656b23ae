#include "ops/op.h"

namespace winnow::ops {
namespace {

void expect_shape(std::string_view name, In view, DType type, std::initializer_list<Extent> shape, bool strided_rows) {
  bool ok = view.data && view.dtype == type && view.rank == static_cast<int>(shape.size());
  int i = 0;
  std::string wanted = fmt::format("{} [", winnow::name_of(type));
  for (const Extent& e : shape) {
    if (i < view.rank) ok = ok && (e.dim ? e.dim->bind(view.shape[i]) : view.shape[i] == e.fixed);
    wanted += fmt::format("{}{}", i ? ", " : "", e.dim ? std::string(e.dim->name()) + "=" + std::to_string(e.dim->value()) : std::to_string(e.fixed));
    ++i;
  }
  if (ok && strided_rows && view.rank > 1) {
    int64_t packed = 1;
    for (i = view.rank - 1; i >= 1; --i) {
      ok = ok && (view.shape[i] == 1 || view.stride[i] == packed);
      packed *= view.shape[i];
    }
    ok = ok && (view.shape[0] <= 1 || view.stride[0] >= packed);
  } else {
    ok = ok && view.packed();
  }
  if (!ok) check(false, fmt::format("operand {}: wanted {}], got {}{}", name, wanted, describe(view), view.data ? "" : " (absent)"));
}

}  // namespace

void expect(std::string_view name, In view, DType type, std::initializer_list<Extent> shape) {
  // An operand of no rows has no memory either.
  if (shape.size() && view.rank > 0 && view.shape[0] == 0 && !view.data) view.data = reinterpret_cast<const std::byte*>(&view);
  expect_shape(name, view, type, shape, false);
}

void expect_rows(std::string_view name, In view, DType type, std::initializer_list<Extent> shape) { expect_shape(name, view, type, shape, true); }

void expect(std::string_view name, const Matrix& m, DType type, int64_t n, int64_t k) {
  expect(name, m.data, type, {n, k});
  if (type == DType::e4m3) expect(name, m.scale, DType::f32, {ceil_div(n, kFp8Block), ceil_div(k, kFp8Block)});
  else check(!m.scale, fmt::format("operand {}: only e4m3 has a scale", name));
}

}  // namespace winnow::ops
