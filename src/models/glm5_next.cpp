// GLM-5.3-Flash on any back end: weights, kernels chosen for them, buffers for the largest step, and forward() as a column
// of op calls. The formulas stand in the ops' headers; docs/model.md tells how they fit together.
#include "models/glm5_next.h"

#include <map>
#include <numeric>
#include <set>

#include "models/glm5_next_parts.h"
#include "models/random_source.h"

namespace winnow::models {

std::string_view name_of(Profile p) { return p == Profile::exact ? "exact" : "fast"; }

Result<Profile> parse_profile(std::string_view name) {
  if (name == "exact") return Profile::exact;
  if (name == "fast") return Profile::fast;
  return Error(fmt::format("unknown profile '{}' (known: exact, fast)", name), Failure::usage);
}

namespace {

// Tokens of the least page that holds whole chunks and, where there are index keys, whole pools and whole tiles of their layout.
int64_t least_page(const Options& o, const weights::Config& c) {
  if (c.attention_layers() == 0) return kChunkGrid;
  const int64_t tile = o.index_layout == IndexLayout::shuffled ? kIndexTile : 1;
  return std::lcm(kChunkGrid, std::max<int64_t>(c.index_kpool, 1) * tile);
}

Options with_pages(Options o, const weights::Config& c) {
  o.page_tokens = page_tokens_of(o, c);
  return o;
}

}  // namespace

int64_t page_tokens_of(const Options& o, const weights::Config& c) { return o.page_tokens ? o.page_tokens : least_page(o, c); }

struct Glm5Next::Impl {
  device::Device& device;
  const weights::Config config;
  const Options options;
  const DType act;                           // what products read and caches of attention hold
  static constexpr DType wide = DType::f32;  // everything else: residual streams, results of products, gates, states
  KvSpec kv_spec;
  Weights w;
  Kernels k;
  Buffers b;
  std::vector<device::Buffer> memory;
  std::map<std::string_view, std::set<std::string_view>> chosen;
  int64_t scratch_bytes = 0, bytes_per_token = 0, rows_live = 0;
  struct RowRange {
    int64_t first, count;
  };
  // The rows of a step, or those of them that go on where the last layer has written what later steps read.
  struct StepRows {
    std::vector<SequenceRows> sequences;
    Rows rows;
    TensorView bad;
    std::vector<RowRange> absorbed;  // what DenseMla leaves, adjacent rows together
    int64_t count = 0;
  };
  StepRows all, kept;
  const StepRows* now = &all;  // what rows_live counts

  Impl(device::Device& d, const weights::Config& c, const Options& o)
      : device(d), config(c), options(with_pages(o, c)), act(o.profile == Profile::exact ? DType::f32 : DType::bf16) {
    check_options();
    make_kv_spec();
    make_kernels();
  }

  void check_options() const {
    const int64_t tokens = options.page_tokens, kpool = config.index_kpool;
    if (tokens % kChunkGrid != 0) throw error("--page-size {} is refused: a page must hold whole chunks of {} tokens", tokens, kChunkGrid);
    if (config.attention_layers() && tokens % kpool != 0)
      throw error("--page-size {} is refused: index_kpool {} does not divide it; without the flag pages hold {}", tokens, kpool,
                  least_page(options, config));
    if (const char* why = config.attention_layers() ? index_layout_why_not(options.index_layout, tokens / kpool, config.index_head_dim) : nullptr)
      throw error("--page-size {} with --index-layout {} is refused at index_kpool {} and index_head_dim {}: {}", tokens,
                  name_of(options.index_layout), kpool, config.index_head_dim, why);
    if (config.attention_layers() && index_keys() == IndexKeys::fp8)
      if (const char* why = ops::rotation_why_not(true, config.index_head_dim))
        throw error("fp8 index keys are refused for index_head_dim {}: {}; store them as bf16", config.index_head_dim, why);
    if (options.max_rows < kChunkGrid) throw error("a step of {} tokens is refused: prefill chunks need at least {}", options.max_rows, kChunkGrid);
  }

  IndexKeys index_keys() const { return options.profile == Profile::exact ? IndexKeys::f32 : options.index_keys; }
  // What bf16 keys are scored with; f32 and fp8 keys take queries as the product left them.
  DType index_q_type() const { return index_keys() == IndexKeys::bf16 ? act : wide; }
  int64_t kda_width() const { return config.kda_heads * config.kda_head_dim; }
  int64_t select() const { return config.index_topk / config.index_kpool; }
  // Prefill rows at positions below this attend by DenseMla: there every token up to a row is selected.
  int64_t dense_limit() const {
    const weights::Config& c = config;
    if (options.profile == Profile::exact || !c.index_tail) return 0;
    return DenseMla::limit_for(c.kv_lora_rank, c.qk_nope_head_dim, c.v_head_dim, (select() + 1) * c.index_kpool - 1);
  }

  void make_kv_spec() {
    kv_spec = {.attention_layers = config.attention_layers(),
               .latent_dim = config.kv_lora_rank,
               .latent_type = act,
               .index_dim = config.index_head_dim,
               .kpool = config.index_kpool,
               .index_keys = index_keys(),
               .index_layout = options.index_layout,
               .kda_layers = config.kda_layers(),
               .kda_heads = config.kda_heads,
               .kda_key_dim = config.kda_head_dim,
               .kda_value_dim = config.kda_head_dim,
               .conv_channels = 3 * kda_width(),
               .conv_taps = config.conv_taps,
               .conv_type = wide,
               .depth = 0};
  }

  // --- kernels -------------------------------------------------------------------------------------------------------

  Limits limits() const {
    return {
        .max_rows = options.max_rows, .max_sequences = options.max_sequences, .max_context = options.max_context, .workers = device.caps().workers};
  }
  template <class O>
  Op<O> choose(const typename O::Spec& spec) {
    Op<O> op(device, spec);
    chosen[O::name].insert(op.kernel());
    scratch_bytes = std::max(scratch_bytes, op.scratch_bytes(limits()));
    return op;
  }

  void make_kernels() {
    const weights::Config& c = config;
    const int64_t streams = c.hc_streams, hidden = c.hidden_size;
    const DType f32 = DType::f32;
    const IndexKeys keys = index_keys();
    k.mhc_post = choose<MhcPost>({wide, wide, streams, hidden});
    k.mhc_head = choose<MhcHead>({wide, act, streams, hidden});
    k.finite = choose<Finite>({wide, streams * hidden});
    k.take_rows = choose<TakeRows>({});
    if (c.kda_layers()) {
      k.conv = choose<Conv>({wide, wide, 3 * kda_width(), c.conv_taps});
      k.kda_gate = choose<KdaGate>({wide, c.kda_heads, c.kda_head_dim, c.kda_head_dim});
      k.kda = choose<Kda>({c.kda_heads, c.kda_head_dim, c.kda_head_dim, options.profile == Profile::fast});
      k.gated_norm = choose<GatedNorm>({wide, act, c.kda_heads, c.kda_head_dim});
    }
    if (c.attention_layers()) {
      k.q_norm = choose<RmsNorm>({wide, act, c.q_lora_rank});
      k.kv_norm = choose<RmsNorm>({wide, act, c.kv_lora_rank});
      k.latent_write = choose<LatentWrite>({act, act, c.kv_lora_rank});
      k.k_norm = choose<LayerNorm>({f32, f32, c.index_head_dim});
      k.index_write = choose<IndexWrite>({keys, f32, c.index_head_dim, c.index_kpool, options.index_layout});
      if (keys == IndexKeys::fp8) k.index_query = choose<IndexQuery>({wide, c.index_heads, c.index_head_dim});
      k.index_score = choose<IndexScore>({keys, keys == IndexKeys::fp8 ? DType::e4m3 : index_q_type(), c.index_heads, c.index_head_dim, c.index_kpool,
                                          select(), options.index_layout});
      k.top_k = choose<IndexTopK>({c.index_kpool, select()});
      k.expand = choose<PoolExpand>({c.index_kpool, select(), c.index_tail});
      k.attend = choose<SparseMla>({wide, act, act, c.heads, c.kv_lora_rank});
    }
    k.dense_act = choose<SwiGlu>({wide, act, c.intermediate_size, c.swiglu_limit});
    if (c.experts) {
      k.shared_act = choose<SwiGlu>({wide, act, c.moe_intermediate_size * c.shared_experts, c.swiglu_limit});
      k.router = choose<Router>({c.experts, c.experts_per_token, c.expert_groups, c.kept_groups, c.normalise_router, c.routed_scaling});
    }
  }

  // --- weights -------------------------------------------------------------------------------------------------------

  template <class Source>
  void want(Source& s, Projection& p, const std::string& name, int64_t n, int64_t kk, DType x, DType y) {
    const DType type = s.type_of(name);
    p.op = choose<Linear>({type, x, y, n, kk});
    s.matrix(&p.w, name, n, kk);
    bytes_per_token += bytes_of(type, n * kk);
  }
  template <class Source>
  void want(Source& s, Projection& p, const std::string& name, int64_t n, int64_t kk) {
    want(s, p, name, n, kk, act, wide);
  }

  // Type of a matrix whose op takes no scale.
  template <class Source>
  DType unscaled_type_of(Source& s, const std::string& name) {
    const DType type = s.type_of(name);
    if (type == DType::e4m3) throw error("{}: is stored as e4m3; this tensor must be f32, bf16 or f16", name);
    return type;
  }

  template <class Source>
  void want_site(Source& s, MhcSite& site, const std::string& layer, const std::string& kind, const std::string& norm) {
    const int64_t n = config.hc_streams, m = (2 + n) * n, width = n * config.hidden_size;
    const std::string fn = layer + "hc_" + kind + "_fn";
    site.pre = choose<MhcPre>({wide, unscaled_type_of(s, fn), act, n, config.hidden_size, config.hc_iterations});
    s.matrix(&site.fn, fn, m, width);
    s.f32(&site.base, layer + "hc_" + kind + "_base", {m});
    s.f32(&site.scale, layer + "hc_" + kind + "_scale", {3});
    s.f32(&site.norm, layer + norm + ".weight", {config.hidden_size});
    bytes_per_token += bytes_of(s.type_of(fn), m * width);
  }

  template <class Source>
  void want_kda(Source& s, KdaWeights& a, const std::string& p) {
    const int64_t d = config.hidden_size, width = kda_width(), dim = config.kda_head_dim;
    want(s, a.q, p + "q_proj.weight", width, d);
    want(s, a.k, p + "k_proj.weight", width, d);
    want(s, a.v, p + "v_proj.weight", width, d);
    s.f32(&a.conv, p + "conv1d.weight", {3 * width, 1, config.conv_taps});
    want(s, a.f_a, p + "f_a_proj.weight", dim, d, act, act);
    want(s, a.f_b, p + "f_b_proj.weight", width, dim);
    want(s, a.g_a, p + "g_a_proj.weight", dim, d, act, act);
    want(s, a.g_b, p + "g_b_proj.weight", width, dim);
    want(s, a.b, p + "b_proj.weight", config.kda_heads, d);
    s.f32(&a.a_log, p + "A_log", {config.kda_heads});
    s.f32(&a.dt_bias, p + "dt_bias", {width});
    s.f32(&a.o_norm, p + "o_norm.weight", {dim});
    want(s, a.o, p + "o_proj.weight", d, width);
  }

  template <class Source>
  void want_mla(Source& s, MlaWeights& a, const std::string& p, bool own_indexer) {
    const weights::Config& c = config;
    const int64_t d = c.hidden_size, q = c.q_lora_rank, latent = c.kv_lora_rank, nope = c.qk_nope_head_dim, v = c.v_head_dim;
    want(s, a.q_a, p + "q_a_proj.weight", q, d);
    s.f32(&a.q_norm, p + "q_a_layernorm.weight", {q});
    want(s, a.q_b, p + "q_b_proj.weight", c.heads * nope, q, act, act);
    want(s, a.kv_a, p + "kv_a_proj_with_mqa.weight", latent, d);
    s.f32(&a.kv_norm, p + "kv_a_layernorm.weight", {latent});
    want_kv_b(s, a, p + "kv_b_proj.weight");
    want(s, a.o, p + "o_proj.weight", d, c.heads * v);
    if (!own_indexer) return;
    const std::string i = p + "indexer.";
    IndexerWeights& x = a.indexer;
    want(s, x.q, i + "wq_b.weight", c.index_heads * c.index_head_dim, q, act, index_q_type());
    want(s, x.k, i + "wk.weight", c.index_head_dim, d);
    want(s, x.gate, i + "index_kpool_compress_gate", c.index_head_dim, d);
    want(s, x.heads, i + "weights_proj.weight", c.index_heads, d);
    s.f32(&x.k_norm, i + "k_norm.weight", {c.index_head_dim});
    s.f32(&x.k_bias, i + "k_norm.bias", {c.index_head_dim});
    s.f32(&x.ape, i + "index_kpool_compress_ape", {c.index_kpool, c.index_head_dim});
  }

  // kv_b is [H, N + V, C]: rows 0 .. N - 1 of a head make keys, the rest values. Attention works in latent space, so the
  // key part is kept transposed and multiplied into the query; DenseMla reads it as it is stored.
  template <class Source>
  void want_kv_b(Source& s, MlaWeights& a, const std::string& name) {
    const int64_t heads = config.heads, latent = config.kv_lora_rank, nope = config.qk_nope_head_dim, v = config.v_head_dim;
    const DType type = s.type_of(name) == DType::bf16 ? DType::bf16 : DType::f32;
    a.absorb_op = choose<HeadLinear>({type, act, wide, heads, latent, nope});
    a.expand_op = choose<HeadLinear>({type, act, act, heads, v, latent});
    const int64_t absorb = round_up(bytes_of(type, heads * latent * nope), 64), expand = round_up(bytes_of(type, heads * v * latent), 64);
    memory.push_back(device.allocate("weights", absorb + expand + (dense_limit() ? absorb : 0)));
    std::byte* base = memory.back().data();
    a.absorb = TensorView(base, type, {heads, latent, nope});
    a.expand = TensorView(base + absorb, type, {heads, v, latent});
    if (dense_limit()) {
      a.keys = TensorView(base + absorb + expand, type, {heads, nope, latent});
      a.dense_op = choose<DenseMla>({act, act, type, act, heads, latent, nope, v, dense_limit()});
    }
    bytes_per_token += a.absorb.bytes() + a.expand.bytes();
    s.visit(name, heads * (nope + v), latent, [&a, heads, latent, nope, v](ConstTensorView kv_b) {
      const float* from = kv_b.as<float>();
      auto put = [](TensorView to, int64_t i, float value) {
        if (to.dtype == DType::f32) to.as<float>()[i] = value;
        else to.as<Bf16>()[i] = to_bf16(value);  // exact: it was stored as bf16
      };
      for (int64_t h = 0; h < heads; ++h, from += (nope + v) * latent) {
        for (int64_t n = 0; n < nope; ++n)
          for (int64_t l = 0; l < latent; ++l) put(a.absorb, (h * latent + l) * nope + n, from[n * latent + l]);
        for (int64_t i = 0; a.keys && i < nope * latent; ++i) put(a.keys, h * nope * latent + i, from[i]);
        for (int64_t i = 0; i < v * latent; ++i) put(a.expand, h * v * latent + i, from[nope * latent + i]);
      }
    });
  }

  template <class Source>
  void want_mlp(Source& s, MlpWeights& m, const std::string& p, int64_t width) {
    want(s, m.gate, p + "gate_proj.weight", width, config.hidden_size);
    want(s, m.up, p + "up_proj.weight", width, config.hidden_size);
    want(s, m.down, p + "down_proj.weight", config.hidden_size, width);
  }

  template <class Source>
  void want_moe(Source& s, MoeWeights& m, const std::string& p) {
    const weights::Config& c = config;
    const int64_t d = c.hidden_size, width = c.moe_intermediate_size;
    want(s, m.router, p + "gate.weight", c.experts, d);
    s.f32(&m.bias, p + "gate.e_score_correction_bias", {c.experts});
    if (c.shared_experts) want_mlp(s, m.shared, p + "shared_experts.", width * c.shared_experts);
    m.experts.resize(static_cast<size_t>(c.experts));
    const DType type = s.type_of(p + "experts.0.gate_proj.weight");
    for (int64_t e = 0; e < c.experts; ++e) {
      const std::string name = p + "experts." + std::to_string(e) + ".";
      Expert& x = m.experts[static_cast<size_t>(e)];
      for (auto [to, part, n, kk] :
           {std::tuple{&x.gate, "gate_proj.weight", width, d}, {&x.up, "up_proj.weight", width, d}, {&x.down, "down_proj.weight", d, width}}) {
        if (s.type_of(name + part) != type)
          throw error("{}: the experts of a layer must have one type; this one is {}, expert 0 is {}", name + part,
                      winnow::name_of(s.type_of(name + part)), winnow::name_of(type));
        s.matrix(to, name + part, n, kk);
      }
    }
    m.op = choose<Experts>({type, act, wide, c.experts, c.experts_per_token, d, width, c.swiglu_limit});
    bytes_per_token += bytes_of(type, c.experts_per_token * 3 * d * width);
  }

  template <class Source>
  void want_all(Source& s) {
    const weights::Config& c = config;
    w.layers.resize(c.layers.size());
    k.embed = choose<Embedding>({unscaled_type_of(s, "embed_tokens.weight"), wide, c.vocab_size, c.hc_streams, c.hidden_size});
    s.matrix(&w.embed, "embed_tokens.weight", c.vocab_size, c.hidden_size);
    for (size_t i = 0; i < c.layers.size(); ++i) {
      LayerWeights& l = w.layers[i];
      const std::string p = "layers." + std::to_string(i) + ".";
      want_site(s, l.attn_site, p, "attn", "input_layernorm");
      want_site(s, l.ffn_site, p, "ffn", "post_attention_layernorm");
      if (c.layers[i].mixer == weights::Mixer::kda) want_kda(s, l.kda, p + "self_attn.");
      else want_mla(s, l.mla, p + "self_attn.", c.layers[i].indexer == weights::Indexer::full);
      if (c.layers[i].feed_forward == weights::FeedForward::dense) want_mlp(s, l.dense, p + "mlp.", c.intermediate_size);
      else want_moe(s, l.moe, p + "mlp.");
    }
    s.f32(&w.norm, "norm.weight", {c.hidden_size});
    want(s, w.head, c.tied_embeddings ? "embed_tokens.weight" : "lm_head.weight", c.vocab_size, c.hidden_size);
  }

  // --- buffers -------------------------------------------------------------------------------------------------------

  int64_t max_pages() const { return pages_for(options.max_context, options.page_tokens); }
  int64_t max_pools() const { return std::max<int64_t>(options.max_context / config.index_kpool, 1); }
  // Rows whose scores are held at once: the score buffer stays within a bound whatever the context.
  int64_t score_rows() const {
    constexpr int64_t kScoreBytes = int64_t{64} << 20;
    return std::clamp<int64_t>(kScoreBytes / (4 * max_pools()), 1, options.max_rows);
  }

  void take_kda(Workspace& s) {
    const int64_t t = options.max_rows, width = kda_width(), heads = config.kda_heads, dim = config.kda_head_dim;
    b.qkv = s.take(wide, {t, 3 * width});
    b.conv = s.take(wide, {t, 3 * width});
    b.f_a = s.take(act, {t, dim});
    b.f = s.take(wide, {t, width});
    b.b = s.take(wide, {t, heads});
    for (TensorView* v : {&b.q, &b.k, &b.v, &b.g, &b.o}) *v = s.take(DType::f32, {t, heads, dim});
    b.beta = s.take(DType::f32, {t, heads});
    b.z = s.take(wide, {t, heads, dim});
    b.gated = s.take(act, {t, heads, dim});
  }

  void take_mla(Workspace& s) {
    const weights::Config& c = config;
    const int64_t t = options.max_rows;
    b.qr_wide = s.take(wide, {t, c.q_lora_rank});
    b.qr = s.take(act, {t, c.q_lora_rank});
    b.mla_q = s.take(act, {t, c.heads, c.qk_nope_head_dim});
    b.absorbed = s.take(wide, {t, c.heads, c.kv_lora_rank});
    b.latent_wide = s.take(wide, {t, c.kv_lora_rank});
    b.latent = s.take(act, {t, c.kv_lora_rank});
    b.attended = s.take(act, {t, c.heads, c.kv_lora_rank});
    b.values = s.take(act, {t, c.heads, c.v_head_dim});
    b.index_q = s.take(index_q_type(), {t, c.index_heads, c.index_head_dim});
    b.index_w = s.take(DType::f32, {t, c.index_heads});
    if (index_keys() == IndexKeys::fp8) {
      b.index_q8 = s.take(DType::e4m3, {t, c.index_heads, c.index_head_dim});
      b.index_w8 = s.take(DType::f32, {t, c.index_heads});
    }
    b.index_k = s.take(DType::f32, {t, c.index_head_dim});
    b.index_gate = s.take(DType::f32, {t, c.index_head_dim});
    b.score = s.take(DType::f32, {score_rows(), max_pools()});
    b.pools = s.take(DType::i32, {t, select()});
  }

  void take_feed_forward(Workspace& s) {
    const weights::Config& c = config;
    const int64_t t = options.max_rows, width = std::max(c.intermediate_size, c.moe_intermediate_size * c.shared_experts);
    b.gate = s.take(wide, {t, width});
    b.up = s.take(wide, {t, width});
    b.act = s.take(act, {t, width});
    b.router_logits = s.take(DType::f32, {t, c.experts});
    b.ids_topk = s.take(DType::i32, {t, c.experts_per_token});
    b.weights_topk = s.take(DType::f32, {t, c.experts_per_token});
    b.shared = s.take(DType::f32, {t, c.hidden_size});
  }

  int64_t take_all(std::byte* base) {
    const weights::Config& c = config;
    const int64_t t = options.max_rows, r = options.max_sequences, l = options.max_logit_rows, n = c.hc_streams;
    Workspace s(base);
    b.ids = s.take(DType::i32, {t});
    b.first_row = s.take(DType::i32, {r + 1});
    b.sequence = s.take(DType::i32, {t});
    b.position = s.take(DType::i64, {t});
    b.slot = s.take(DType::i64, {t});
    b.page_table = s.take(DType::i32, {r, max_pages()});
    b.state = s.take(DType::i32, {r});
    b.source = s.take(DType::i32, {r});
    b.folded = s.take(DType::i64, {r});
    b.decode = s.take(DType::i32, {r});
    b.kept = s.take(DType::i32, {t});
    b.kept_first_row = s.take(DType::i32, {r + 1});
    b.kept_sequence = s.take(DType::i32, {t});
    b.kept_position = s.take(DType::i64, {t});
    b.kept_slot = s.take(DType::i64, {t});
    b.kept_bad = s.take(DType::i32, {t});
    b.x = s.take(wide, {t, n, c.hidden_size});
    b.h = s.take(act, {t, c.hidden_size});
    b.y = s.take(wide, {t, c.hidden_size});
    b.post = s.take(DType::f32, {t, n});
    b.comb = s.take(DType::f32, {t, n, n});
    b.selected = s.take(DType::i32, {t, k.expand.spec().width()});
    b.count = s.take(DType::i32, {t});
    b.bad = s.take(DType::i32, {t});
    b.logit_rows = s.take(DType::i32, {l});
    b.head_h = s.take(act, {l, c.hidden_size});
    b.logits = s.take(DType::f32, {l, c.vocab_size});
    const int64_t shared = s.mark();  // a layer uses one of these at a time
    take_kda(s);
    s.rewind(shared);
    take_mla(s);
    s.rewind(shared);
    take_feed_forward(s);
    return s.bytes();
  }

  void allocate() {
    memory.push_back(device.allocate("activations", take_all(nullptr)));
    take_all(memory.back().data());
    memory.push_back(device.allocate("scratch", scratch_bytes));
    device.queue().set_scratch({memory.back().data(), scratch_bytes});
    for (StepRows* s : {&all, &kept}) {
      s->sequences.reserve(static_cast<size_t>(options.max_sequences));
      s->absorbed.reserve(static_cast<size_t>(options.max_sequences));
    }
  }

  // --- a step --------------------------------------------------------------------------------------------------------

  TensorView live(TensorView v) const { return v.rows(0, rows_live); }

  void fill_sequences(const Batch& batch) {
    const int64_t tokens = static_cast<int64_t>(batch.tokens.size()), count = static_cast<int64_t>(batch.sequences.size());
    check(tokens <= options.max_rows && count <= options.max_sequences, "a step beyond the planned size");
    std::copy(batch.tokens.begin(), batch.tokens.end(), b.ids.as<int32_t>());
    for (int64_t i = 0; i < count; ++i) {
      const SequenceRows& s = batch.sequences[static_cast<size_t>(i)];
      const TokenPos end = s.position + s.count;
      check(end.value <= options.max_context && pages_for(end.value, options.page_tokens) <= static_cast<int64_t>(s.pages.size()),
            "a sequence beyond its pages");
      b.state.as<int32_t>()[i] = static_cast<int32_t>(s.state.value);
      b.source.as<int32_t>()[i] = static_cast<int32_t>((s.source.value < 0 ? s.state : s.source).value);
      b.folded.as<int64_t>()[i] = s.folded.value;
      b.decode.as<int32_t>()[i] = s.decode;
      for (int64_t p = 0; p < pages_for(end.value, options.page_tokens); ++p)
        b.page_table.as<int32_t>()[i * max_pages() + p] = static_cast<int32_t>(s.pages[static_cast<size_t>(p)].value);
    }
    all.sequences.assign(batch.sequences.begin(), batch.sequences.end());
    all.count = tokens;
  }

  // Of each sequence the rows from the first to the last whose logits are wanted.
  void fill_kept(const Batch& batch) {
    kept.sequences.clear();
    kept.count = 0;
    check(static_cast<int64_t>(batch.logit_rows.size()) <= options.max_logit_rows, "more logits than planned");
    int32_t* logit_row = b.logit_rows.as<int32_t>();
    auto next = batch.logit_rows.begin();
    for (SequenceRows s : batch.sequences) {
      const auto first = next;
      while (next != batch.logit_rows.end() && *next < s.first_row + s.count) ++next;
      const int64_t begin = first == next ? s.first_row : *first, end = first == next ? s.first_row : *std::prev(next) + 1;
      check(s.first_row <= begin && begin <= end, "logits are wanted in another order than that of the rows");
      for (auto row = first; row != next; ++row) *logit_row++ = static_cast<int32_t>(kept.count + *row - begin);
      for (int64_t r = begin; r < end; ++r) b.kept.as<int32_t>()[kept.count + r - begin] = static_cast<int32_t>(r);
      s.position = s.position + (begin - s.first_row);
      s.first_row = kept.count;
      s.count = end - begin;
      kept.count += s.count;
      kept.sequences.push_back(s);
    }
    check(next == batch.logit_rows.end(), "logits are wanted of rows that do not exist");
  }

  void fill_rows(StepRows& to, TensorView first_row, TensorView sequence, TensorView position, TensorView slot, TensorView bad) {
    const int64_t count = static_cast<int64_t>(to.sequences.size());
    for (int64_t i = 0; i < count; ++i) {
      const SequenceRows& s = to.sequences[static_cast<size_t>(i)];
      first_row.as<int32_t>()[i] = static_cast<int32_t>(s.first_row);
      for (int64_t r = 0; r < s.count; ++r) {
        const TokenPos pos = s.position + r;
        const PageId page = s.pages[static_cast<size_t>(page_index(pos, options.page_tokens))];
        sequence.as<int32_t>()[s.first_row + r] = static_cast<int32_t>(i);
        position.as<int64_t>()[s.first_row + r] = pos.value;
        slot.as<int64_t>()[s.first_row + r] = slot_of(page, pos, options.page_tokens).value;
      }
    }
    first_row.as<int32_t>()[count] = static_cast<int32_t>(to.count);
    to.rows = {.first_row = first_row.rows(0, count + 1),
               .sequence = sequence.rows(0, to.count),
               .position = position.rows(0, to.count),
               .slot = slot.rows(0, to.count),
               .page_table = b.page_table.rows(0, count),
               .state = b.state.rows(0, count),
               .source = b.source.rows(0, count),
               .folded = b.folded.rows(0, count),
               .decode = b.decode.rows(0, count),
               .page_tokens = options.page_tokens};
    to.bad = bad.rows(0, to.count);
    std::fill_n(to.bad.as<int32_t>(), to.count, 0);
    plan_attention(to);
  }

  void fill(const Batch& batch) {
    fill_sequences(batch);
    fill_kept(batch);
    fill_rows(all, b.first_row, b.sequence, b.position, b.slot, b.bad);
    fill_rows(kept, b.kept_first_row, b.kept_sequence, b.kept_position, b.kept_slot, b.kept_bad);
    go_on_with(all);
  }

  void go_on_with(const StepRows& rows) {
    now = &rows;
    rows_live = rows.count;
  }

  // Rows that only expanded ones part are ranges of their own, each of which reads the absorbed form's weights again: chunks that
  // begin later come first in a step, so a range but the first follows the kTokens rows of its own sequence, which save more.
  void plan_attention(StepRows& rows) const {
    rows.absorbed.clear();
    for (const SequenceRows& s : rows.sequences) {
      const int64_t dense = DenseMla::expanded_rows(s.position.value, s.count, s.decode, dense_limit()), first = s.first_row + dense,
                    count = s.count - dense;
      if (count == 0) continue;
      RowRange* last = rows.absorbed.empty() ? nullptr : &rows.absorbed.back();
      if (last && last->first + last->count == first) last->count += count;
      else rows.absorbed.push_back({first, count});
    }
  }

  // In the last layer, when it has written what later steps read: rows that no wanted logits come from end here, and are looked at as
  // they came in. What of a row the rest of the layer reads goes along with those that are kept.
  void drop_rows(Queue& q, std::initializer_list<TensorView> read_later) {
    k.finite(q, {.bad = live(b.bad), .x = live(b.x).reshaped({rows_live, config.hc_streams * config.hidden_size})});
    const TensorView wanted = b.kept.rows(0, kept.count);
    const auto take = [&](const TensorView& v) {
      if (kept.count) k.take_rows(q, {.y = v.rows(0, kept.count), .x = live(v), .rows = wanted});
    };
    for (const TensorView& v : {b.x, b.post, b.comb, b.h}) take(v);
    for (const TensorView& v : read_later) take(v);
    go_on_with(kept);
  }

  void site(Queue& q, const MhcSite& m) {
    m.pre(q, {.y = live(b.h),
              .post = live(b.post),
              .comb = live(b.comb),
              .x = live(b.x),
              .fn = m.fn.data,
              .base = m.base,
              .scale = m.scale,
              .norm_w = m.norm,
              .norm_eps = config.rms_norm_eps,
              .hc_eps = config.hc_eps});
  }
  void mix(Queue& q) { k.mhc_post(q, {.x = live(b.x), .y = live(b.y), .post = live(b.post), .comb = live(b.comb)}); }

  void kda(Queue& q, const KdaWeights& a, const KvViews& kv, size_t layer, bool last) {
    const int64_t width = kda_width(), heads = config.kda_heads, dim = config.kda_head_dim;
    const TensorView h = live(b.h), qkv = live(b.qkv);
    const Rows& rows = now->rows;
    a.q(q, qkv.columns(0, width), h);
    a.k(q, qkv.columns(width, width), h);
    a.v(q, qkv.columns(2 * width, width), h);
    k.conv(q, {.y = live(b.conv), .ring = kv.conv_ring[layer], .x = qkv, .w = a.conv.reshaped({3 * width, config.conv_taps}), .rows = rows});
    a.f_a(q, live(b.f_a), h);
    a.f_b(q, live(b.f), live(b.f_a));
    a.b(q, live(b.b), h);
    k.kda_gate(q, {.q = live(b.q),
                   .k = live(b.k),
                   .v = live(b.v),
                   .g = live(b.g),
                   .beta = live(b.beta),
                   .qkv = live(b.conv),
                   .f = live(b.f),
                   .b = live(b.b),
                   .a_log = a.a_log,
                   .dt_bias = a.dt_bias,
                   .lower_bound = config.gate_lower_bound});
    k.kda(q, {.o = live(b.o),
              .state = kv.state[layer],
              .ring_k = kv.ring_k[layer],
              .ring_g = kv.ring_g[layer],
              .ring_u = kv.ring_u[layer],
              .q = live(b.q),
              .k = live(b.k),
              .g = live(b.g),
              .v = live(b.v),
              .beta = live(b.beta),
              .rows = rows,
              .bad = now->bad});
    if (last) drop_rows(q, {b.o});
    if (rows_live == 0) return;
    const TensorView z = live(b.z), gated = live(b.gated);
    a.g_a(q, live(b.f_a), live(b.h));
    a.g_b(q, z.reshaped({rows_live, heads * dim}), live(b.f_a));
    k.gated_norm(q, {.y = gated, .o = live(b.o), .z = z, .w = a.o_norm, .eps = config.rms_norm_eps});
    a.o(q, live(b.y), gated.reshaped({rows_live, heads * dim}));
  }

  void mla(Queue& q, const MlaWeights& a, const KvViews& kv, size_t layer, bool own_indexer, bool last, LayerIndex index, const Probe* probe) {
    const weights::Config& c = config;
    a.kv_a(q, live(b.latent_wide), live(b.h));
    k.kv_norm(q, {.y = live(b.latent), .x = live(b.latent_wide), .w = a.kv_norm, .eps = c.rms_norm_eps});
    k.latent_write(q, {.pages = kv.latent[layer], .x = live(b.latent), .rows = now->rows, .bad = now->bad});
    if (own_indexer) write_index(q, a.indexer, kv, layer);
    if (last && own_indexer) drop_rows(q, {});
    else if (last) drop_rows(q, {b.selected, b.count});
    if (rows_live == 0) return;
    const TensorView qr = live(b.qr);
    a.q_a(q, live(b.qr_wide), live(b.h));
    k.q_norm(q, {.y = qr, .x = live(b.qr_wide), .w = a.q_norm, .eps = c.rms_norm_eps});
    if (own_indexer) select_tokens(q, a.indexer, kv, layer, index, probe);
    if (probe && probe->selected) probe->selected(index, live(b.selected), live(b.count));
    a.q_b(q, live(b.mla_q).reshaped({rows_live, c.heads * c.qk_nope_head_dim}), qr);
    attend(q, a, kv.latent[layer]);
    a.o(q, live(b.y), live(b.values).reshaped({rows_live, c.heads * c.v_head_dim}));
  }

  // Which form a row takes follows from its position and phase alone, so its bits do not depend on how a prompt is cut.
  void attend(Queue& q, const MlaWeights& a, In pages) {
    const Rows& rows = now->rows;
    const float scale = 1.0f / std::sqrt(static_cast<float>(config.qk_nope_head_dim + config.qk_rope_head_dim));
    if (dense_limit())
      a.dense_op(q, {.y = live(b.values), .q = live(b.mla_q), .pages = pages, .w_k = a.keys, .w_v = a.expand, .scale = scale, .rows = rows});
    for (const RowRange& r : now->absorbed) {
      const auto part = [&r](TensorView v) { return v.rows(r.first, r.count); };
      a.absorb_op(q, {.y = part(b.absorbed), .x = part(b.mla_q), .w = a.absorb});
      k.attend(q, {.y = part(b.attended),
                   .q = part(b.absorbed),
                   .pages = pages,
                   .selected = part(b.selected),
                   .count = part(b.count),
                   .first_row = r.first,
                   .scale = scale,
                   .rows = rows});
      a.expand_op(q, {.y = part(b.values), .x = part(b.attended), .w = a.expand});
    }
  }

  // This step's index keys. They come first and always: a token's own pool is a candidate for it, and later tokens score what short
  // contexts skipped.
  void write_index(Queue& q, const IndexerWeights& a, const KvViews& kv, size_t layer) {
    const TensorView h = live(b.h), key = live(b.index_k), gate = live(b.index_gate);
    a.k(q, key, h);
    k.k_norm(q, {.y = key, .x = key, .w = a.k_norm, .b = a.k_bias, .eps = 1e-6f});
    a.gate(q, gate, h);
    k.index_write(
        q, {.pages = kv.index[layer], .ring = kv.pool_ring[layer], .key = key, .gate = gate, .ape = a.ape, .rows = now->rows, .bad = now->bad});
  }

  // The tokens that each row attends to.
  void select_tokens(Queue& q, const IndexerWeights& a, const KvViews& kv, size_t layer, LayerIndex index, const Probe* probe) {
    const weights::Config& c = config;
    const int64_t t = rows_live;
    const Rows& rows = now->rows;
    TensorView iq = live(b.index_q), iw = live(b.index_w);
    a.q(q, iq.reshaped({t, c.index_heads * c.index_head_dim}), live(b.qr));
    a.heads(q, iw, live(b.h));
    if (kv_spec.index_keys == IndexKeys::fp8) {
      k.index_query(q, {.q8 = live(b.index_q8), .w8 = live(b.index_w8), .q = iq, .w = iw});
      iq = live(b.index_q8);
      iw = live(b.index_w8);
    }
    const float factor = 1.0f / std::sqrt(static_cast<float>(c.index_head_dim * c.index_heads));
    for (int64_t first = 0; first < t; first += score_rows()) {
      const int64_t count = std::min(score_rows(), t - first);
      const TensorView score = b.score.rows(0, count), pools = b.pools.rows(first, count);
      k.index_score(q, {.score = score, .q = iq, .w = iw, .pages = kv.index[layer], .first_row = first, .factor = factor, .rows = rows});
      if (probe && probe->scored) probe->scored(index, first, score);
      k.top_k(q, {.pools = pools, .score = score, .first_row = first, .rows = rows, .bad = now->bad});
      k.expand(q, {.tokens = b.selected.rows(first, count), .count = b.count.rows(first, count), .pools = pools, .first_row = first, .rows = rows});
    }
  }

  void mlp(Queue& q, const MlpWeights& m, const Op<SwiGlu>& swiglu, Out y) {
    const int64_t t = rows_live, width = swiglu.spec().n;
    auto narrow = [&](TensorView v) { return TensorView(v.data, v.dtype, {t, width}); };
    const TensorView gate = narrow(b.gate), up = narrow(b.up), h = narrow(b.act);
    m.gate(q, gate, live(b.h));
    m.up(q, up, live(b.h));
    swiglu(q, {.y = h, .gate = gate, .up = up});
    m.down(q, y, h);
  }

  void moe(Queue& q, const MoeWeights& m, LayerIndex index, const Probe* probe) {
    const bool shared = config.shared_experts > 0;
    m.router(q, live(b.router_logits), live(b.h));
    k.router(q, {.ids = live(b.ids_topk), .weights = live(b.weights_topk), .logits = live(b.router_logits), .bias = m.bias, .bad = now->bad});
    if (probe && probe->routed) probe->routed(index, live(b.router_logits), live(b.ids_topk), live(b.weights_topk));
    if (shared) mlp(q, m.shared, k.shared_act, live(b.shared));
    m.op(q, {.y = live(b.y),
             .x = live(b.h),
             .ids = live(b.ids_topk),
             .weights = live(b.weights_topk),
             .add = shared ? In(live(b.shared)) : In(),
             .experts = m.experts});
  }

  void layer(Queue& q, size_t i, const KvViews& kv, size_t kda_layer, size_t mla_layer, bool last, const Probe* probe) {
    const LayerWeights& l = w.layers[i];
    const weights::Layer& kind = config.layers[i];
    const LayerIndex index(static_cast<int64_t>(i));
    if (probe && probe->hidden) probe->hidden(index, live(b.x));
    site(q, l.attn_site);
    if (kind.mixer == weights::Mixer::kda) kda(q, l.kda, kv, kda_layer, last);
    else mla(q, l.mla, kv, mla_layer, kind.indexer == weights::Indexer::full, last, index, probe);
    if (rows_live == 0) return;
    mix(q);
    site(q, l.ffn_site);
    if (kind.feed_forward == weights::FeedForward::dense) mlp(q, l.dense, k.dense_act, live(b.y));
    else moe(q, l.moe, index, probe);
    mix(q);
  }

  void forward(const Batch& batch, const KvViews& kv, const Probe* probe) {
    Queue& q = device.queue();
    fill(batch);
    if (rows_live == 0) return;
    const bool drops = !probe && kept.count < all.count;  // who looks into a step sees all of its rows
    if (!drops) std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), b.logit_rows.as<int32_t>());
    k.embed(q, {.y = live(b.x), .ids = live(b.ids), .table = w.embed.data});
    size_t kda_layer = 0, mla_layer = 0;
    for (size_t i = 0; i < w.layers.size(); ++i) {
      layer(q, i, kv, kda_layer, mla_layer, drops && i + 1 == w.layers.size(), probe);
      ++(config.layers[i].mixer == weights::Mixer::kda ? kda_layer : mla_layer);
    }
    if (probe && probe->hidden) probe->hidden(LayerIndex(static_cast<int64_t>(w.layers.size())), live(b.x));
    if (rows_live) k.finite(q, {.bad = now->bad, .x = live(b.x).reshaped({rows_live, config.hc_streams * config.hidden_size})});
    head(q, static_cast<int64_t>(batch.logit_rows.size()));
    for (int64_t i = 0; drops && i < kept.count; ++i) b.bad.as<int32_t>()[b.kept.as<int32_t>()[i]] |= b.kept_bad.as<int32_t>()[i];
    go_on_with(all);
  }

  void head(Queue& q, int64_t count) {
    b.logits.shape[0] = count;
    if (count == 0) return;
    const TensorView h = b.head_h.rows(0, count);
    k.mhc_head(q, {.y = h, .x = live(b.x), .rows = b.logit_rows.rows(0, count), .w = w.norm, .eps = config.rms_norm_eps});
    w.head(q, b.logits, h);
  }
};

Glm5Next::Glm5Next(device::Device& device, const weights::Checkpoint& checkpoint, const Options& options, const weights::Progress& progress)
    : impl_(std::make_unique<Impl>(device, checkpoint.config(), options)) {
  weights::Loader loader(checkpoint, device, options.weights);
  impl_->want_all(loader);
  for (device::Buffer& m : loader.load(progress)) impl_->memory.push_back(std::move(m));
  impl_->allocate();
}

Glm5Next::Glm5Next(device::Device& device, const weights::Config& config, const Options& options, uint64_t seed, const weights::Progress& progress)
    : impl_(std::make_unique<Impl>(device, config, options)) {
  RandomSource source(config, device, seed);
  impl_->want_all(source);
  for (device::Buffer& m : source.load(progress)) impl_->memory.push_back(std::move(m));
  impl_->allocate();
}

Glm5Next::~Glm5Next() = default;
const weights::Config& Glm5Next::config() const { return impl_->config; }
const Options& Glm5Next::options() const { return impl_->options; }
const KvSpec& Glm5Next::kv_spec() const { return impl_->kv_spec; }
void Glm5Next::forward(const Batch& batch, const KvViews& kv, const Probe* probe) { impl_->forward(batch, kv, probe); }
ConstTensorView Glm5Next::logits() const { return impl_->b.logits; }
ConstTensorView Glm5Next::bad_rows() const { return impl_->live(impl_->b.bad); }
int64_t Glm5Next::weight_bytes_per_token() const { return impl_->bytes_per_token; }

TokenPos Glm5Next::folded_after(const SequenceRows& rows) const {
  const bool chunked = impl_->options.profile == Profile::fast;
  return TokenPos(ops::folded_after(rows.folded.value, rows.position, rows.count, rows.decode, chunked));
}

std::vector<Glm5Next::OpChoice> Glm5Next::kernels() const {
  std::vector<OpChoice> list;
  for (const auto& [op, names] : impl_->chosen)
    for (std::string_view name : names) list.push_back({op, name});
  return list;
}

}  // namespace winnow::models
