// Promise 4 at the level of the model: a value that goes bad anywhere in a step ends its own request and touches no other. One value of
// one operand that an op wrote is spoilt behind the op, for every op call of a mixed step, every float operand, every sequence, with NaN
// and with +infinity. Then some row of that sequence is flagged or its logits are not finite, and every other sequence has the flags, the
// logits and the memory of a clean step to the bit. What is excused from the first half stands in kExcused with its reason, and an excuse
// that nothing needs is a failure.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "cache/kv_store.h"
#include "models/glm5_next.h"

namespace winnow {
namespace {

using models::Batch;
using models::Profile;
using models::SequenceRows;

weights::Config tiny(size_t layers) {
  using weights::FeedForward, weights::Indexer, weights::Mixer;
  weights::Config c;
  c.vocab_size = 50;
  c.hidden_size = 32;
  c.max_position_embeddings = 1024;
  c.heads = 2;
  c.q_lora_rank = 16;
  c.kv_lora_rank = 24;
  c.qk_nope_head_dim = 8;
  c.v_head_dim = 8;
  c.index_heads = 2;
  c.index_head_dim = 16;
  c.index_topk = 32;
  c.index_kpool = 4;
  c.kda_heads = 2;
  c.kda_head_dim = 8;
  c.conv_taps = 4;
  c.intermediate_size = 24;
  c.moe_intermediate_size = 16;
  c.experts = 4;
  c.shared_experts = 1;
  c.experts_per_token = 2;
  c.swiglu_limit = 10;
  c.hc_streams = 2;
  c.hc_iterations = 3;
  c.layers = {{Mixer::kda, FeedForward::dense, Indexer::full},
              {Mixer::mla, FeedForward::moe, Indexer::full},
              {Mixer::kda, FeedForward::moe, Indexer::full},
              {Mixer::mla, FeedForward::dense, Indexer::shared}};
  c.layers.resize(layers);
  return c;
}

// Where a value that an op wrote lies, if it is one of a sequence's.
struct Place {
  TensorView view;
  int64_t element;  // in storage
};

struct Sequence {
  int64_t length = 0;
  TokenPos folded;
  StateId state, source{-1};
  std::vector<PageId> pages;
};

// Sequences before a step in which: a prompt begins; one decode row folds, another completes a pool; a chunk continues a prompt, on the
// grid and in another record, and is not its end, so no logits are wanted of it; the last part of a prompt follows. Prompts that go on
// have more pools than are selected.
class World {
 public:
  static constexpr int64_t kPageTokens = 64, kSequences = 5;
  struct Kind {
    int64_t before, decoded, count;
    bool decode, moves, samples;
  };
  static constexpr Kind kKinds[kSequences] = {{0, 0, 20, false, false, true},
                                              {70, 2, 1, true, false, true},
                                              {70, 5, 1, true, false, true},
                                              {64, 0, 64, false, true, false},
                                              {64, 0, 11, false, false, true}};

  World(device::Backend backend, Profile profile, IndexKeys keys, size_t layers)
      : config(tiny(layers)),
        device(device::make_cpu({.threads = 1, .backend = backend})),
        model(*device, config, options(profile, keys), 7),
        layout(model.kv_spec(), kPageTokens),
        store(*device, model.kv_spec(), layout, {.pages = 3 * kSequences, .states = kSequences + 1}) {
    for (int64_t i = 0; i < kSequences; ++i) {
      Sequence s{.state = StateId(i)};
      for (int64_t p = 0; p < 3; ++p) s.pages.push_back(PageId((p * kSequences + 3 * i + 1) % (3 * kSequences)));
      sequences.push_back(s);
    }
    for (int64_t i = 0; i < kSequences; ++i) {
      const Kind& k = kKinds[i];
      if (k.before) run({{i, std::min<int64_t>(k.before, 64), false, true}});
      if (k.before > 64) run({{i, k.before - 64, false, true}});
      for (int64_t t = 0; t < k.decoded; ++t) run({{i, 1, true, true}});
      if (k.moves) sequences[static_cast<size_t>(i)].source = std::exchange(sequences[static_cast<size_t>(i)].state, StateId(kSequences));
    }
    ready = sequences;
    for (std::span<std::byte> m : memory()) before.emplace_back(m.begin(), m.end());
  }
  static models::Options options(Profile profile, IndexKeys keys) {
    return {.profile = profile,
            .index_keys = keys,
            .page_tokens = kPageTokens,
            .max_rows = 128,
            .max_sequences = 8,
            .max_logit_rows = 8,
            .max_context = 192};
  }

  struct Part {
    int64_t sequence, count;
    bool decode, samples;
  };
  void run(const std::vector<Part>& parts) {
    std::vector<int32_t> tokens, wanted;
    std::vector<SequenceRows> rows;
    for (const Part& p : parts) {
      const Sequence& s = sequences[static_cast<size_t>(p.sequence)];
      rows.push_back({.first_row = static_cast<int64_t>(tokens.size()),
                      .count = p.count,
                      .position = TokenPos(s.length),
                      .state = s.state,
                      .source = s.source,
                      .folded = s.folded,
                      .pages = s.pages,
                      .decode = p.decode});
      for (int64_t t = 0; t < p.count; ++t) tokens.push_back(static_cast<int32_t>((s.length + t) * 7919 + p.sequence * 131) % 50);
      if (p.samples) wanted.push_back(static_cast<int32_t>(tokens.size()) - 1);
    }
    step_rows = rows;
    model.forward({.tokens = tokens, .sequences = step_rows, .logit_rows = wanted}, store.views());
    for (size_t i = 0; i < parts.size(); ++i) {
      Sequence& s = sequences[static_cast<size_t>(parts[i].sequence)];
      s.folded = model.folded_after(rows[i]);
      s.length += parts[i].count;
      s.source = StateId(-1);
    }
  }
  void mixed_step() {
    sequences = ready;
    const std::vector<std::span<std::byte>> now = memory();
    for (size_t i = 0; i < now.size(); ++i) std::copy(before[i].begin(), before[i].end(), now[i].begin());
    std::vector<Part> parts;
    for (int64_t i = 0; i < kSequences; ++i) parts.push_back({i, kKinds[i].count, kKinds[i].decode, kKinds[i].samples});
    run(parts);
  }

  // Flags and logits of the i-th sequence of the last step.
  bool flagged(size_t i) const {
    const int32_t* bad = model.bad_rows().as<int32_t>() + step_rows[i].first_row;
    return std::any_of(bad, bad + step_rows[i].count, [](int32_t b) { return b != 0; });
  }
  // Which row of logits a sequence of the mixed step has.
  static int64_t logit_row(size_t i) {
    return std::count_if(kKinds, kKinds + i, [](const Kind& k) { return k.samples; });
  }
  static constexpr int64_t kSampled = 4;
  std::span<const float> logits(size_t i) const {
    if (!kKinds[i].samples) return {};
    return {model.logits().as<float>() + logit_row(i) * 50, 50};
  }
  bool sound(size_t i) const {
    return !flagged(i) && std::all_of(logits(i).begin(), logits(i).end(), [](float x) { return std::isfinite(x); });
  }
  // The one decode row of the last step.
  bool decoded_soundly() const {
    const float* l = model.logits().as<float>();
    return !flagged(0) && std::all_of(l, l + 50, [](float x) { return std::isfinite(x); });
  }
  int64_t dense_limit() const { return model.options().profile == Profile::exact ? 0 : config.index_topk + config.index_kpool - 1; }
  // Everything that a sequence holds.
  std::vector<std::byte> held(int64_t sequence) const {
    std::vector<std::byte> all;
    const Sequence& s = ready[static_cast<size_t>(sequence)];
    const auto add = [&](const std::byte* data, int64_t bytes) { all.insert(all.end(), data, data + bytes); };
    for (PageId p : s.pages) add(store.views().latent[0].data + p.value * layout.page_bytes, layout.page_bytes);
    for (const std::vector<TensorView>* views : records())
      for (const TensorView& v : *views)
        for (StateId id : {s.state, s.source})
          if (id.value >= 0) add(v.rows(id.value, 1).data, v.rows(id.value, 1).bytes());
    return all;
  }
  std::array<const std::vector<TensorView>*, 6> records() const {
    const KvViews& v = store.views();
    return {&v.state, &v.ring_k, &v.ring_u, &v.ring_g, &v.pool_ring, &v.conv_ring};
  }
  std::vector<std::span<std::byte>> memory() const {
    const KvViews& v = store.views();
    return {{v.latent[0].data, static_cast<size_t>(store.sizes().pages * layout.page_bytes)},
            {v.state[0].data, static_cast<size_t>(store.sizes().states * layout.state_bytes)},
            {v.ring_k[0].data, static_cast<size_t>(store.sizes().states * layout.ring_bytes)}};
  }

  const weights::Config config;
  std::unique_ptr<device::Device> device;
  models::Glm5Next model;
  const cache::KvLayout layout;
  cache::KvStore store;
  std::vector<Sequence> sequences, ready;
  std::vector<SequenceRows> step_rows;  // of the step in progress, or the last one
  std::vector<std::vector<std::byte>> before;
};

// Tells the products of a step apart, by their order between two mHC sites.
class Names {
 public:
  explicit Names(const weights::Config& c) {
    using List = std::vector<std::string_view>;
    for (const weights::Layer& l : c.layers) {
      if (l.mixer == weights::Mixer::kda) sites_.push_back(List{"q", "k", "v", "f_a", "f_b", "b", "g_a", "g_b", "o"});
      else if (l.indexer == weights::Indexer::full)
        sites_.push_back(List{"kv_a", "index_k", "index_gate", "q_a", "index_q", "index_heads", "q_b", "o"});
      else sites_.push_back(List{"kv_a", "q_a", "q_b", "o"});
      if (l.feed_forward == weights::FeedForward::dense) sites_.push_back(List{"gate", "up", "down"});
      else sites_.push_back(List{"router", "gate", "up", "down"});
    }
    sites_.push_back(List{"head"});
  }
  // To be asked once for each op call, in order.
  std::string operator()(std::string_view op) {
    if (op == "mhc_pre" || op == "mhc_head") ++site_, product_ = 0;
    if (op != "linear") return std::string(op);
    return fmt::format("linear {}", sites_.at(static_cast<size_t>(site_)).at(product_++));
  }
  bool in_last_mixer() const { return site_ + 3 == static_cast<int64_t>(sites_.size()); }

 private:
  std::vector<std::vector<std::string_view>> sites_;
  int64_t site_ = -1;
  size_t product_ = 0;
};

enum class Value { nan, infinity };

void spoil(const Place& p, Value v) {
  const bool nan = v == Value::nan;
  switch (p.view.dtype) {
    case DType::f32: p.view.as<float>()[p.element] = nan ? NAN : INFINITY; return;
    case DType::bf16: p.view.as<Bf16>()[p.element] = to_bf16(nan ? NAN : INFINITY); return;
    default: p.view.as<E4m3>()[p.element] = {0x7f}; return;
  }
}
bool is_float(DType t) { return t == DType::f32 || t == DType::bf16 || t == DType::e4m3; }

// A value of the i-th sequence of the step in an operand that an op has just written; row and element vary with `salt`.
// Caches: what the last row wrote, or the last pool or fold that the sequence completed.
std::optional<Place> place_of(const World& w, std::string_view op, const device::Written& o, size_t i, int64_t salt, bool last_mixer) {
  const TensorView& v = o.view;
  const SequenceRows& r = w.step_rows[i];
  const int64_t last = r.position.value + r.count - 1, kpool = w.config.index_kpool;
  const auto inside = [&](int64_t at, int64_t n) -> std::optional<Place> { return Place{v, at + salt % n}; };
  if (op == "latent_write")
    return inside(r.pages[static_cast<size_t>(last / w.kPageTokens)].value * v.stride[0] + last % w.kPageTokens * v.stride[1], v.shape[2]);
  if (op == "index_write" && o.operand != "ring") {
    const int64_t pool = (last + 1) / kpool - 1;
    if (pool < r.position.value / kpool) return {};
    const int64_t at = r.pages[static_cast<size_t>(pool * kpool / w.kPageTokens)].value * v.stride[0];
    const int64_t row = pool % (w.kPageTokens / kpool);
    return o.operand == "scales" ? Place{v, at + row} : inside(at + row * v.shape[2], v.shape[2]);
  }
  if (op == "kda" && o.operand == "state") {
    if (w.model.folded_after(r).value == r.folded.value && r.source.value < 0) return {};  // not written
    return inside(r.state.value * v.stride[0], v.stride[0]);
  }
  if (op == "kda" && o.operand.starts_with("ring") && last < w.model.folded_after(r).value) return {};  // not written
  if (op == "index_write" || op == "conv" || op == "kda")
    if (o.operand.starts_with("ring")) return inside(r.state.value * v.stride[0] + last % v.shape[1] * v.stride[1], v.stride[1]);
  // Activations: all rows, those whose logits are wanted (one of each sequence that samples), or of either from the first absorbed one
  // on. What the last mixer makes for its own result, not for later steps, matters in rows of the second kind only.
  const int64_t tokens = w.step_rows.back().first_row + w.step_rows.back().count, n = v.shape[0];
  const bool kept = n <= World::kSampled, samples = World::kKinds[i].samples,
             own = last_mixer && (w.config.layers.back().mixer == weights::Mixer::kda || (op == "mhc_pre" && o.operand != "y"));
  if ((kept || own) && !samples) return {};  // not written, or never read
  // Where no logits follow, the last rows are those of which the least is folded, and so looked at.
  const int64_t at = kept || own ? r.count - 1 : samples ? salt % r.count : r.count - 1 - salt % kKdaGroup, position = r.position.value + at;
  const int64_t row = kept ? World::logit_row(i) - (World::kSampled - n) : r.first_row + at - (tokens - n);
  const bool expanded = !r.decode && position < w.dense_limit();
  if (row < 0 || (op == "dense_mla" && !expanded)) return {};  // not written
  if (op == "index_score") {
    const int64_t pools = (position + 1) / kpool;
    if (pools <= w.config.index_topk / kpool) return {};
    return inside(row * v.stride[0], pools);
  }
  return inside(row * v.stride[0], v.rank == 2 ? v.shape[1] : v.stride[0]);
}

// Why a spoilt value need not show in its own step.
struct Excuse {
  // later: it shows in one of the sequence's next steps; all_selected, complete: of the sequence's last row; code: the value is e4m3
  enum When { never, later, all_selected, complete, code };
  std::string_view op, operand;
  std::optional<Value> value;  // empty: both
  When when;
  std::string_view reason;
};
constexpr std::string_view kWritten = "what an op stores is looked at by the op itself; spoilt behind it, it shows where it is read";
constexpr std::string_view kSaturates = "a gate of infinity is 0 or 1, as the formula has it";
constexpr std::string_view kClamped = "swiglu_limit bounds it";
constexpr std::string_view kIncomplete = "the pool is not complete; nothing is stored for others before the row that completes it, which is flagged";
constexpr std::string_view kAllSelected = "a row that selects all of its pools scores none";
constexpr std::string_view kCode = "codes that are NaN come with a scale that is NaN; kernels need not look at the code";
const Excuse kExcused[] = {
    {"conv", "ring", {}, Excuse::later, kWritten},
    {"kda", "state", {}, Excuse::later, kWritten},
    {"kda", "ring_k", {}, Excuse::later, kWritten},
    {"kda", "ring_g", {}, Excuse::later, kWritten},
    {"kda", "ring_u", {}, Excuse::later, kWritten},
    {"index_write", "ring", {}, Excuse::later, kWritten},
    {"index_write", "ring", {}, Excuse::complete, "no pool will read a row whose pool is complete"},
    {"latent_write", "pages", {}, Excuse::never, "the token may be in a pool that is not selected; the op has looked at what it stored"},
    {"index_write", "keys", {}, Excuse::all_selected, kAllSelected},
    {"index_write", "keys", Value::nan, Excuse::code, kCode},
    {"index_write", "scales", {}, Excuse::all_selected, kAllSelected},
    {"linear index_q", "y", {}, Excuse::all_selected, kAllSelected},
    {"linear index_heads", "y", {}, Excuse::all_selected, kAllSelected},
    {"index_query", "q8", {}, Excuse::all_selected, kAllSelected},
    {"index_query", "q8", Value::nan, Excuse::code, kCode},
    {"index_query", "w8", {}, Excuse::all_selected, kAllSelected},
    {"linear index_k", "y", {}, Excuse::later, kIncomplete},
    {"layer_norm", "y", {}, Excuse::later, kIncomplete},
    {"linear index_gate", "y", {}, Excuse::later, kIncomplete},
    {"linear f_a", "y", Value::infinity, Excuse::never, kSaturates},
    {"linear f_b", "y", Value::infinity, Excuse::never, kSaturates},
    {"linear b", "y", Value::infinity, Excuse::never, kSaturates},
    {"linear g_a", "y", Value::infinity, Excuse::never, kSaturates},
    {"linear g_b", "y", Value::infinity, Excuse::never, kSaturates},
    {"linear gate", "y", Value::infinity, Excuse::never, kClamped},
    {"linear up", "y", Value::infinity, Excuse::never, kClamped},
};

class Faults {
 public:
  explicit Faults(World& w) : w_(w) {
    w_.mixed_step();
    for (size_t i = 0; i < World::kSequences; ++i) {
      EXPECT_TRUE(w_.sound(i)) << "sequence " << i << " of the clean step";
      clean_logits_.emplace_back(w_.logits(i).begin(), w_.logits(i).end());
      clean_memory_.push_back(w_.held(static_cast<int64_t>(i)));
    }
  }

  void all(const std::vector<size_t>& victims, const std::vector<Value>& values) {
    for (size_t victim : victims)
      for (Value v : values) {
        const int64_t before = injected_;
        int64_t operands = 1;
        for (int64_t at = 0; at < operands; ++at) operands = one(victim, v, at);
        EXPECT_GT(injected_ - before, 20 * static_cast<int64_t>(w_.config.layers.size()));
      }
  }

  // Spoils the at-th float operand that the step writes. Returns how many there are.
  int64_t one(size_t victim, Value value, int64_t at) {
    int64_t seen = 0;
    Names names(w_.config);
    std::string op, operand;
    bool done = false, code = false;
    const device::Watch watch = [&](std::string_view name, std::span<const device::Written> written) {
      const std::string named = names(name);
      for (const device::Written& o : written) {
        if (!o.view || !is_float(o.view.dtype) || o.view.shape[0] == 0) continue;
        if (o.view.dtype == DType::e4m3 && value == Value::infinity) continue;  // it has none
        if (seen++ != at) continue;
        op = named, operand = o.operand;
        if (const auto place = place_of(w_, name, o, victim, at * 31 + static_cast<int64_t>(victim), names.in_last_mixer())) {
          spoil(*place, value);
          done = true;
          code = o.view.dtype == DType::e4m3;
        }
      }
    };
    w_.device->queue().set_watch(&watch);
    w_.mixed_step();
    w_.device->queue().set_watch(nullptr);
    if (!done) return seen;
    ++injected_;
    SCOPED_TRACE(fmt::format("{} {}, operand {} of the step, {} in sequence {}", op, operand, at, value == Value::nan ? "NaN" : "infinity", victim));
    for (size_t i = 0; i < World::kSequences; ++i) {
      if (i == victim) continue;
      EXPECT_FALSE(w_.flagged(i)) << "sequence " << i << " is flagged";
      EXPECT_EQ(std::memcmp(w_.logits(i).data(), clean_logits_[i].data(), clean_logits_[i].size() * sizeof(float)), 0) << "logits of sequence " << i;
      EXPECT_TRUE(w_.held(static_cast<int64_t>(i)) == clean_memory_[i]) << "memory of sequence " << i;
    }
    if (w_.sound(victim)) expect_excused(op, operand, value, victim, code);
    return seen;
  }
  static std::set<const Excuse*>& used() {
    static std::set<const Excuse*> all;
    return all;
  }

 private:
  bool shows_later(int64_t victim) {
    for (int64_t t = 0; t < kKdaGroup + 1; ++t) {
      w_.run({{victim, 1, true, true}});
      if (!w_.decoded_soundly()) return true;
    }
    return false;
  }
  void expect_excused(const std::string& op, const std::string& operand, Value value, size_t victim, bool code) {
    const int64_t end = w_.step_rows[victim].position.value + w_.step_rows[victim].count, kpool = w_.config.index_kpool;
    const bool all_selected = end / kpool <= w_.config.index_topk / kpool, later = shows_later(static_cast<int64_t>(victim));
    for (const Excuse& e : kExcused) {
      const bool holds = e.when == Excuse::never || (e.when == Excuse::later && later) || (e.when == Excuse::all_selected && all_selected) ||
                         (e.when == Excuse::complete && end % kpool == 0) || (e.when == Excuse::code && code);
      if (e.op != op || e.operand != operand || (e.value && *e.value != value) || !holds) continue;
      used().insert(&e);
      return;
    }
    ADD_FAILURE() << "nobody noticed" << (later ? " before a later step" : "");
  }

  World& w_;
  std::vector<std::vector<float>> clean_logits_;
  std::vector<std::vector<std::byte>> clean_memory_;
  int64_t injected_ = 0;
};

TEST(Faults, EndTheirOwnRequestAndNoOther) {
  using Victims = std::vector<size_t>;
  using Values = std::vector<Value>;
  const Victims everybody{0, 1, 2, 3, 4}, chunk{3};
  const Values both{Value::nan, Value::infinity}, nan{Value::nan};
  for (const auto& [backend, profile, keys, layers, victims, values] :
       {std::tuple{device::Backend::cpu, Profile::exact, IndexKeys::f32, size_t{4}, everybody, both},
        {device::Backend::cpu, Profile::exact, IndexKeys::f32, size_t{3}, everybody, both},  // the last mixer is KDA
        {device::Backend::cpu, Profile::fast, IndexKeys::fp8, size_t{4}, everybody, both},
        {device::Backend::ref, Profile::fast, IndexKeys::bf16, size_t{4}, chunk, nan}}) {
    SCOPED_TRACE(fmt::format("back end {}, profile {}, index keys {}, {} layers", device::name_of(backend), models::name_of(profile),
                             static_cast<int>(keys), layers));
    World w(backend, profile, keys, layers);
    Faults f(w);
    f.all(victims, values);
  }
  for (const Excuse& e : kExcused) EXPECT_TRUE(Faults::used().count(&e)) << e.op << " " << e.operand << " needs no excuse";
}

}  // namespace
}  // namespace winnow
