// pages[slot / page_tokens, slot % page_tokens, :] = x[t, :], rounded to the pages' type, for slot = rows.slot[t].
// bad[t] = 1 if a value of the row as stored is NaN or infinite. Slots of a step are distinct. A slot outside the pages aborts: no address is formed
// from it.
#pragma once

#include "ops/bad.h"
#include "ops/rows.h"

namespace winnow::ops {

struct LatentWrite {
  static constexpr std::string_view name = "latent_write";
  struct Spec {
    DType x, pages;
    int64_t dim;
  };  // f32, bf16
  struct Args {
    Out pages;  // [pages, page_tokens, dim]
    In x;       // [tokens, dim]
    Rows rows;
    Out bad;  // bad.h
  };
  static Writes writes(const Args& a) { return {{"pages", a.pages}, {"bad", a.bad}}; }
  static void check(const Spec& s, const Args& a) {
    Dim tokens{"tokens"}, pages{"pages"};
    expect(a.rows);
    tokens.bind(a.rows.tokens());
    expect("x", a.x, s.x, {tokens, s.dim});
    expect_rows("pages", a.pages, s.pages, {pages, a.rows.page_tokens, s.dim});
    expect_flags(a.bad, tokens.value());
  }
};
List<LatentWrite> kernels(LatentWrite, Ref);
List<LatentWrite> kernels(LatentWrite, Cpu);

}  // namespace winnow::ops
