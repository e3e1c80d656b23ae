#include "cli/catalog.h"

#include "ops/conv/conv.h"
#include "ops/embedding/embedding.h"
#include "ops/experts/experts.h"
#include "ops/finite/finite.h"
#include "ops/index/index.h"
#include "ops/kda/kda.h"
#include "ops/latent_write/latent_write.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/linear/linear.h"
#include "ops/mhc/mhc.h"
#include "ops/mla/dense_mla.h"
#include "ops/mla/mla.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/router/router.h"
#include "ops/swiglu/swiglu.h"
#include "ops/take_rows/take_rows.h"

namespace winnow::cli {
namespace {

using namespace ops;

struct Shape {
  DType x = DType::bf16;  // activations
  IndexKeys keys = IndexKeys::bf16;
  bool chunked = true;
};

// GLM-5.3-Flash as published: block FP8 weights, bf16 for what is not quantised (docs/model.md).
void at(const Shape& s, Conv::Spec& o) { o = {s.x, s.x, 3 * 64 * 128, 4}; }
void at(const Shape& s, Embedding::Spec& o) { o = {DType::bf16, s.x, 154880, 4, 4096}; }
void at(const Shape& s, Experts::Spec& o) { o = {DType::e4m3, s.x, s.x, 288, 8, 4096, 2048, 10.0f}; }
void at(const Shape& s, IndexWrite::Spec& o) { o = {s.keys, s.x, 128, 4}; }
void at(const Shape& s, IndexQuery::Spec& o) { o = {s.x, 32, 128}; }
void at(const Shape& s, IndexScore::Spec& o) { o = {s.keys, s.keys == IndexKeys::fp8 ? DType::e4m3 : s.x, 32, 128, 4, 512}; }
void at(const Shape&, IndexTopK::Spec& o) { o = {4, 512}; }
void at(const Shape&, PoolExpand::Spec& o) { o = {4, 512, true}; }
void at(const Shape& s, KdaGate::Spec& o) { o = {s.x, 64, 128, 128}; }
void at(const Shape& s, Kda::Spec& o) { o = {64, 128, 128, s.chunked}; }
void at(const Shape& s, GatedNorm::Spec& o) { o = {s.x, s.x, 64, 128}; }
void at(const Shape& s, LatentWrite::Spec& o) { o = {s.x, s.x, 512}; }
void at(const Shape& s, LayerNorm::Spec& o) { o = {s.x, s.x, 128}; }
void at(const Shape& s, Linear::Spec& o) { o = {DType::e4m3, s.x, s.x, 4096, 4096}; }
void at(const Shape& s, HeadLinear::Spec& o) { o = {DType::bf16, s.x, s.x, 64, 512, 256}; }
void at(const Shape& s, MhcPre::Spec& o) { o = {s.x, DType::f32, s.x, 4, 4096, 20}; }
void at(const Shape& s, MhcPost::Spec& o) { o = {s.x, s.x, 4, 4096}; }
void at(const Shape& s, MhcHead::Spec& o) { o = {s.x, s.x, 4, 4096}; }
void at(const Shape& s, DenseMla::Spec& o) { o = {s.x, s.x, DType::bf16, s.x, 64, 512, 256, 256, DenseMla::kTokens}; }
void at(const Shape& s, SparseMla::Spec& o) { o = {s.x, s.x, s.x, 64, 512}; }
void at(const Shape& s, RmsNorm::Spec& o) { o = {s.x, s.x, 4096}; }
void at(const Shape&, Router::Spec& o) { o = {288, 8, 1, 1, true, 2.5f}; }
void at(const Shape&, Finite::Spec& o) { o = {DType::f32, 4 * 4096}; }
void at(const Shape&, TakeRows::Spec&) {}
void at(const Shape& s, SwiGlu::Spec& o) { o = {s.x, s.x, 12288, 10.0f}; }

template <class O>
std::vector<std::string_view> names(device::Backend b) {
  std::vector<std::string_view> out;
  for (const Kernel<O>& k : kernels_on<O>(b)) out.push_back(k.name);
  return out;
}

template <class O>
std::vector<Candidate> candidates(const device::Caps& caps, models::Profile profile, IndexKeys keys) {
  const bool exact = profile == models::Profile::exact;
  typename O::Spec spec{};
  at({.x = exact ? DType::f32 : DType::bf16, .keys = keys, .chunked = !exact}, spec);
  std::vector<Candidate> out;
  for (const Kernel<O>& k : kernels_on<O>(caps.backend)) out.push_back({k.name, k.why_not(caps, spec)});
  return out;
}

template <class... O>
std::span<const OpEntry> entries() {
  static constexpr OpEntry list[] = {{O::name, names<O>, candidates<O>}...};
  return list;
}

}  // namespace

std::span<const OpEntry> catalog() {
  return entries<Embedding, MhcPre, MhcPost, MhcHead, RmsNorm, LayerNorm, Linear, HeadLinear, Conv, KdaGate, Kda, GatedNorm, LatentWrite, IndexWrite,
                 IndexQuery, IndexScore, IndexTopK, PoolExpand, SparseMla, DenseMla, Router, Experts, SwiGlu, Finite, TakeRows>();
}

}  // namespace winnow::cli
