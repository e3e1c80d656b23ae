// y[t, s, d] = table[ids[t], d] for every residual stream s: the streams of mHC start as copies of the embedding.
// ids are in [0, vocab): validated before admission.
#pragma once

#include "ops/op.h"

namespace winnow::ops {

struct Embedding {
  static constexpr std::string_view name = "embedding";
  struct Spec {
    DType table, y;
    int64_t vocab, streams, hidden;
  };  // table: f32, bf16; y: f32, bf16
  struct Args {
    Out y;     // [tokens, streams, hidden]
    In ids;    // [tokens] int32
    In table;  // [vocab, hidden]
  };
  static Writes writes(const Args& a) { return {{"y", a.y}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"};
    expect("ids", a.ids, DType::i32, {tokens});
    expect("table", a.table, s.table, {s.vocab, s.hidden});
    expect("y", a.y, s.y, {tokens, s.streams, s.hidden});
  }
};
List<Embedding> kernels(Embedding, Ref);
List<Embedding> kernels(Embedding, Cpu);

}  // namespace winnow::ops
