// Weights, Kernels and Buffers of GLM-5.3-Flash as structs, a shape on every line. Private to models/.
//
// D hidden, P = KDA heads * head dim, Hk KDA heads, H MLA heads, Q q_lora, C kv_lora, N qk_nope, V v_head_dim,
// Hi index heads, Di index head dim, E experts, I expert width, S streams.
#pragma once

#include <vector>

#include "models/glm5_next.h"
#include "models/workspace.h"
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

namespace winnow::models {

using namespace winnow::ops;  // the model is a column of op calls

// A weight matrix with the kernel chosen for it: checkpoints may store each in another type.
struct Projection {
  Matrix w;
  Op<Linear> op;
  void operator()(Queue& q, Out y, In x) const { op(q, {.y = y, .x = x, .w = w}); }
};

struct MhcSite {
  Matrix fn;              // [(2 + S) * S, S * D]
  ConstTensorView base;   // [(2 + S) * S]
  ConstTensorView scale;  // [3]
  ConstTensorView norm;   // [D] the sublayer's RMS norm
  Op<MhcPre> pre;
};

struct KdaWeights {
  Projection q, k, v;       // [P, D]
  ConstTensorView conv;     // [3P, 1, taps]: q, k, v channels
  Projection f_a, f_b;      // [head dim, D], [P, head dim]: forget gate
  Projection g_a, g_b;      // the same: output gate
  Projection b;             // [Hk, D]
  ConstTensorView a_log;    // [Hk]
  ConstTensorView dt_bias;  // [P]
  ConstTensorView o_norm;   // [head dim]
  Projection o;             // [D, P]
};

struct IndexerWeights {
  Projection q;                    // [Hi * Di, Q]
  Projection k;                    // [Di, D]
  Projection gate;                 // [Di, D]
  Projection heads;                // [Hi, D]: weights_proj
  ConstTensorView k_norm, k_bias;  // [Di]
  ConstTensorView ape;             // [kpool, Di]
};

struct MlaWeights {
  Projection q_a, q_b;      // [Q, D], [H * N, Q]
  ConstTensorView q_norm;   // [Q]
  Projection kv_a;          // [C, D]
  ConstTensorView kv_norm;  // [C]
  TensorView absorb;        // [H, C, N]: W_k of kv_b, transposed
  TensorView expand;        // [H, V, C]: W_v of kv_b
  TensorView keys;          // [H, N, C]: W_k of kv_b as it is stored, where rows of the expanded form exist
  Op<HeadLinear> absorb_op, expand_op;
  Op<DenseMla> dense_op;
  Projection o;            // [D, H * V]
  IndexerWeights indexer;  // of layers with an indexer of their own
};

struct MlpWeights {
  Projection gate, up, down;
};  // [I, D], [I, D], [D, I]

struct MoeWeights {
  Projection router;     // [E, D] -> f32
  ConstTensorView bias;  // [E]
  std::vector<Expert> experts;
  Op<Experts> op;
  MlpWeights shared;  // down -> f32
};

struct LayerWeights {
  MhcSite attn_site, ffn_site;
  KdaWeights kda;  // one of the two
  MlaWeights mla;
  MlpWeights dense;  // one of the two
  MoeWeights moe;
};

struct Weights {
  Matrix embed;  // [vocab, D]
  std::vector<LayerWeights> layers;
  ConstTensorView norm;  // [D]
  Projection head;       // [vocab, D] -> f32
};

// Kernels whose spec is the same in every layer.
struct Kernels {
  Op<Embedding> embed;
  Op<MhcPost> mhc_post;
  Op<MhcHead> mhc_head;
  Op<Conv> conv;
  Op<KdaGate> kda_gate;
  Op<Kda> kda;
  Op<GatedNorm> gated_norm;
  Op<RmsNorm> q_norm, kv_norm;
  Op<LatentWrite> latent_write;
  Op<LayerNorm> k_norm;
  Op<IndexWrite> index_write;
  Op<IndexQuery> index_query;  // fp8 keys only
  Op<IndexScore> index_score;
  Op<IndexTopK> top_k;
  Op<PoolExpand> expand;
  Op<SparseMla> attend;
  Op<Router> router;
  Op<SwiGlu> dense_act, shared_act;
  Op<Finite> finite;
  Op<TakeRows> take_rows;
};

// A step's activations, for the largest step; a step of T tokens uses the first T rows. A: what products read, f32 in profile
// exact and bf16 in fast; what products leave is f32.
struct Buffers {
  TensorView ids;                                                                             // [T] i32
  TensorView bad;                                                                             // [rows] i32
  TensorView first_row, sequence, position, slot, page_table, state, source, folded, decode;  // ops/rows.h
  TensorView kept;                                                                            // [rows] i32: those that end the step
  TensorView kept_bad, kept_first_row, kept_sequence, kept_position, kept_slot;               // the same of the kept rows
  TensorView x;                                                                               // [T, S, D] f32: residual streams
  TensorView h, y;                                                                            // [T, D] A into a sublayer, f32 out of it
  TensorView post, comb;                                                                      // [T, S], [T, S, S] f32
  // KDA
  TensorView qkv, conv;            // [T, 3P] f32
  TensorView f_a, f, b;            // [T, head dim] A, [T, P], [T, Hk] f32
  TensorView q, k, v, g, beta, o;  // [T, Hk, head dim] f32, beta [T, Hk] f32
  TensorView z, gated;             // [T, P] f32, A
  // MLA
  TensorView qr_wide, latent_wide, qr, latent;  // [T, Q], [T, C] f32 before their norms, A after
  TensorView mla_q, absorbed;                   // [T, H, N] A, [T, H, C] f32
  TensorView attended, values;                  // [T, H, C], [T, H, V] A; absorbed and attended: of absorbed rows only
  TensorView index_q, index_w;                  // [T, Hi, Di] f32, A with bf16 keys; [T, Hi] f32
  TensorView index_q8, index_w8;                // fp8 keys: [T, Hi, Di] e4m3, [T, Hi] f32
  TensorView index_k, index_gate;               // [T, Di] f32
  TensorView score, pools;                      // [score rows, max pools] f32, [T, select] i32
  TensorView selected, count;                   // [T, width], [T] i32; live from one attention layer to the next (shared indexers)
  // feed-forward
  TensorView gate, up, act;                          // [T, I] f32, f32, A
  TensorView router_logits, ids_topk, weights_topk;  // [T, E] f32, [T, k] i32, [T, k] f32
  TensorView shared;                                 // [T, D] f32
  // head
  TensorView logit_rows, head_h, logits;  // [L] i32, [L, D] A, [L, vocab] f32
};

}  // namespace winnow::models
