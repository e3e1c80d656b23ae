// Which experts a token goes to, f32:
//   s = sigmoid(logits);  b = s + bias
//   with groups > 1: experts in `groups` contiguous groups, a group's score is the sum of its two largest b, only the
//   `kept_groups` best groups (ties: lower group) stay candidates
//   ids[t, r] = the r-th largest b (ties: lower expert); w_r = s[ids[t, r]], unbiased. A NaN ranks as -infinity, so ids are
//   distinct experts whatever the logits; bad[t] = 1 if a logit is NaN or infinite, since the choice then means nothing.
//   normalise: w <- w / (sum of w + 1e-20);   weights = scaling * w
#pragma once

#include "ops/bad.h"

namespace winnow::ops {

struct Router {
  static constexpr std::string_view name = "router";
  struct Spec {
    int64_t experts, top_k, groups, kept_groups;
    bool normalise;
    float scaling;
  };
  struct Args {
    Out ids;      // [tokens, top_k] int32
    Out weights;  // [tokens, top_k] f32
    In logits;    // [tokens, experts] f32
    In bias;      // [experts] f32
    Out bad;      // bad.h
  };
  static Writes writes(const Args& a) { return {{"ids", a.ids}, {"weights", a.weights}, {"bad", a.bad}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    winnow::check(s.groups >= 1 && s.experts % s.groups == 0 && (s.groups == 1 || (s.experts / s.groups >= 2 && s.kept_groups <= s.groups)),
                  "router: the groups do not divide the experts");
    winnow::check(s.top_k <= (s.groups == 1 ? s.experts : s.experts / s.groups * s.kept_groups), "router: top_k exceeds the candidates");
    expect("logits", a.logits, DType::f32, {tokens, s.experts});
    expect("bias", a.bias, DType::f32, {s.experts});
    expect("ids", a.ids, DType::i32, {tokens, s.top_k});
    expect("weights", a.weights, DType::f32, {tokens, s.top_k});
    expect_flags(a.bad, tokens.value());
  }
};
List<Router> kernels(Router, Ref);
List<Router> kernels(Router, Cpu);

}  // namespace winnow::ops
