// y[t] = sum over ranks r of weights[t, r] * E_ids[t, r](x[t]) + add[t],   E(x) = down . swiglu(gate . x, up . x)
//
// swiglu as in ops/swiglu; its result has the type of x (that is where `fast` rounds). Expert outputs and the sum are
// f32; ranks are added in ascending order by fused multiply-adds, `add` (the shared expert's output) last; one rounding into y.
// Products follow ops/linear: rows are grouped by expert, and a row's bits do not depend on its group.
#pragma once

#include <set>
#include <span>

#include "ops/op.h"

namespace winnow::ops {

struct Expert {
  Matrix gate, up;  // [inter, hidden]
  Matrix down;      // [hidden, inter]
};

struct Experts {
  static constexpr std::string_view name = "experts";
  struct Spec {
    DType w, x, y;
    int64_t experts, top_k, hidden, inter;
    float limit;
  };  // w: f32, bf16, e4m3; x, y: f32, bf16
  struct Args {
    Out y;                            // [tokens, hidden]
    In x;                             // [tokens, hidden]
    In ids;                           // [tokens, top_k] int32, each in [0, experts)
    In weights;                       // [tokens, top_k] f32
    In add;                           // [tokens, hidden] f32, or empty
    std::span<const Expert> experts;  // [experts]
  };
  static Writes writes(const Args& a) { return {{"y", a.y}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    expect("x", a.x, s.x, {tokens, s.hidden});
    expect("ids", a.ids, DType::i32, {tokens, s.top_k});
    expect("weights", a.weights, DType::f32, {tokens, s.top_k});
    if (a.add) expect("add", a.add, DType::f32, {tokens, s.hidden});
    expect("y", a.y, s.y, {tokens, s.hidden});
    winnow::check(static_cast<int64_t>(a.experts.size()) == s.experts, "experts: wrong number of experts");
  }
  static std::string label(const Spec& s) { return fmt::format("{} of {}, {}x{} {}", s.top_k, s.experts, s.inter, s.hidden, winnow::name_of(s.w)); }
  static Cost cost(const Spec& s, const Args& a) {
    const int32_t* ids = a.ids.as<int32_t>();
    const std::set<int32_t> hit(ids, ids + a.ids.elements());
    const double one = 3.0 * static_cast<double>(s.hidden * s.inter);
    return {.bytes = static_cast<double>(hit.size()) * one * bits_of(s.w) / 8, .flops = 2 * one * static_cast<double>(a.ids.elements())};
  }
};
List<Experts> kernels(Experts, Ref);
List<Experts> kernels(Experts, Cpu);

}  // namespace winnow::ops
