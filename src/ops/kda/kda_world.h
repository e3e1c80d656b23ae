// What the tests of kda share: sequences whose token t has the same inputs in every run, their memory, and the plain
// recurrence in float64 to hold them to.
#pragma once

#include <limits>
#include <map>
#include <numeric>

#include "ops/conformance.h"
#include "ops/kda/kda.h"

namespace winnow::ops::test {

// How the log decays of a sequence are drawn.
enum class Gates { any, weak, strong, mixed, unbounded };

struct Sequence {
  uint64_t seed = 0;
  int32_t record = 0;  // its StateId
  int64_t position = 0, folded = 0;
  Gates gates = Gates::any;
  int32_t source = -1;  // if not negative, the StateId that its next step reads
};

struct Token {
  std::vector<float> q, k, g, v, beta;
};

inline float draw_gate(std::mt19937_64& rng, Gates gates) {
  std::uniform_real_distribution<float> unit(0, 1);
  const float x = unit(rng);
  switch (gates) {
    case Gates::any: return -5 * x * x;
    case Gates::weak: return -1e-3f * x;
    case Gates::strong: return -5 + 1e-2f * x;
    case Gates::mixed: return unit(rng) < .5f ? -1e-3f * x : -5 + 1e-2f * x;
    case Gates::unbounded: return unit(rng) < .3f ? -150 * x : -.1f * x;
  }
  return 0;
}

inline Token token_of(const Kda::Spec& s, const Sequence& sequence, int64_t t) {
  std::mt19937_64 rng(sequence.seed * 1000003 + static_cast<uint64_t>(t));
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> unit(0, 1);
  Token x;
  const auto directions = [&](std::vector<float>& to, float scale) {
    to.resize(static_cast<size_t>(s.heads * s.key_dim));
    for (int64_t h = 0; h < s.heads; ++h) {
      float squares = 1e-6f;
      for (int64_t i = 0; i < s.key_dim; ++i) {
        const float v = normal(rng);
        to[h * s.key_dim + i] = v;
        squares += v * v;
      }
      for (int64_t i = 0; i < s.key_dim; ++i) to[h * s.key_dim + i] *= scale / std::sqrt(squares);
    }
  };
  directions(x.q, 1 / std::sqrt(static_cast<float>(s.key_dim)));
  directions(x.k, 1);
  for (int64_t i = 0; i < s.heads * s.key_dim; ++i) x.g.push_back(draw_gate(rng, sequence.gates));
  for (int64_t i = 0; i < s.heads * s.value_dim; ++i) x.v.push_back(normal(rng));
  for (int64_t h = 0; h < s.heads; ++h) x.beta.push_back(unit(rng));
  return x;
}

// S and outputs of one sequence by the recurrence as it is defined.
class Plain {
 public:
  Plain(const Kda::Spec& s, const Sequence& sequence) : s_(s), sequence_(sequence), S(static_cast<size_t>(s.heads * s.key_dim * s.value_dim)) {}
  // o [heads, value_dim] of token t; tokens before it are computed first.
  const std::vector<double>& output(int64_t t) {
    while (static_cast<int64_t>(outputs_.size()) <= t) step(token_of(s_, sequence_, static_cast<int64_t>(outputs_.size())));
    return outputs_[static_cast<size_t>(t)];
  }

 private:
  void step(const Token& x) {
    const int64_t K = s_.key_dim, V = s_.value_dim;
    std::vector<double> o(static_cast<size_t>(s_.heads * V));
    for (int64_t h = 0; h < s_.heads; ++h)
      for (int64_t j = 0; j < V; ++j) {
        double seen = 0;
        for (int64_t i = 0; i < K; ++i) seen += (S[(h * K + i) * V + j] *= std::exp(double{x.g[h * K + i]})) * x.k[h * K + i];
        const double u = x.beta[h] * (x.v[h * V + j] - seen);
        for (int64_t i = 0; i < K; ++i) o[h * V + j] += (S[(h * K + i) * V + j] += x.k[h * K + i] * u) * x.q[h * K + i];
      }
    outputs_.push_back(std::move(o));
  }

  const Kda::Spec s_;
  const Sequence sequence_;
  std::vector<double> S;
  std::vector<std::vector<double>> outputs_;
};

// One sequence's part in a step. Only `accepted` of its rows are kept (all if negative).
struct Piece {
  Sequence* sequence;
  int64_t count;
  bool decode = false;
  int64_t accepted = -1;
};

// States and rings of one run; poisoned at the start.
struct Memory {
  Tensor state, ring_k, ring_g, ring_u;
  Memory(const Kda::Spec& s, int64_t records, int64_t ring_rows)
      : state(DType::f32, {records, s.heads, s.key_dim, s.value_dim}),
        ring_k(DType::f32, {records, ring_rows, s.heads, s.key_dim}),
        ring_g(DType::f32, {records, ring_rows, s.heads, s.key_dim}),
        ring_u(DType::f32, {records, ring_rows, s.heads, s.value_dim}) {}
};

using RunKda = std::function<void(const Kda::Spec&, const Kda::Args&)>;

// Runs a step and advances the sequences. Returns o [tokens, heads, value_dim].
inline Tensor run_step(const Kda::Spec& s, const RunKda& run, const Memory& m, const std::vector<Piece>& pieces, const Out& bad = {}) {
  std::vector<int32_t> first{0}, sequence, state, source, decode;
  std::vector<int64_t> position, folded;
  std::vector<float> q, k, g, v, beta;
  const auto append = [](std::vector<float>& to, const std::vector<float>& x) { to.insert(to.end(), x.begin(), x.end()); };
  for (const Piece& p : pieces) {
    for (int64_t t = p.sequence->position; t < p.sequence->position + p.count; ++t) {
      // A draft that will be rejected is another token than the one that will stand at its position.
      Sequence source = *p.sequence;
      if (p.accepted >= 0 && t >= p.sequence->position + p.accepted) source.seed += 77;
      const Token x = token_of(s, source, t);
      append(q, x.q), append(k, x.k), append(g, x.g), append(v, x.v), append(beta, x.beta);
      sequence.push_back(static_cast<int32_t>(state.size()));
      position.push_back(t);
    }
    first.push_back(static_cast<int32_t>(position.size()));
    state.push_back(p.sequence->record);
    source.push_back(p.sequence->source < 0 ? p.sequence->record : p.sequence->source);
    folded.push_back(p.sequence->folded);
    decode.push_back(p.decode);
  }
  const int64_t T = static_cast<int64_t>(position.size()), N = static_cast<int64_t>(pieces.size());
  const Tensor tq = tensor_of<float>({T, s.heads, s.key_dim}, q), tk = tensor_of<float>({T, s.heads, s.key_dim}, k),
               tg = tensor_of<float>({T, s.heads, s.key_dim}, g), tv = tensor_of<float>({T, s.heads, s.value_dim}, v),
               tbeta = tensor_of<float>({T, s.heads}, beta);
  const Tensor tfirst = tensor_of<int32_t>({N + 1}, first), tsequence = tensor_of<int32_t>({T}, sequence), tstate = tensor_of<int32_t>({N}, state),
               tsource = tensor_of<int32_t>({N}, source), tdecode = tensor_of<int32_t>({N}, decode), tposition = tensor_of<int64_t>({T}, position),
               tfolded = tensor_of<int64_t>({N}, folded), pages(DType::i32, {N, 1});
  Tensor o(DType::f32, {T, s.heads, s.value_dim});
  run(s, {.o = o,
          .state = m.state,
          .ring_k = m.ring_k,
          .ring_g = m.ring_g,
          .ring_u = m.ring_u,
          .q = tq,
          .k = tk,
          .g = tg,
          .v = tv,
          .beta = tbeta,
          .rows = {tfirst, tsequence, tposition, tposition, pages, tstate, tsource, tfolded, tdecode, 64},
          .bad = bad});
  for (const Tensor* t : {&std::as_const(o), &m.state, &m.ring_k, &m.ring_g, &m.ring_u}) EXPECT_TRUE(t->canaries_intact());
  for (const Piece& p : pieces) {
    p.sequence->folded = folded_after(p.sequence->folded, TokenPos(p.sequence->position), p.count, p.decode, s.chunked);
    p.sequence->source = -1;
    p.sequence->position += p.accepted < 0 ? p.count : p.accepted;
  }
  return o;
}

inline RunKda reference() {
  return [](const Kda::Spec& s, const Kda::Args& a) { run_reference<Kda>(s, a); };
}
inline RunKda kernel(const Kernel<Kda>& k, device::Device& d) {
  return [&k, &d](const Kda::Spec& s, const Kda::Args& a) { run_kernel(k, d, s, a); };
}

// Outputs of one sequence by position: the bits that every other way to compute it must give.
class Outputs {
 public:
  explicit Outputs(const Kda::Spec& s) : s_(s) {}
  // The rows of a step's first accepted rows of a piece, which began at `position` and row `row`.
  void expect(uint64_t seed, int64_t position, const Tensor& o, int64_t row, int64_t count) {
    const int64_t n = s_.heads * s_.value_dim;
    int shown = 0;
    for (int64_t t = 0; t < count; ++t) {
      const float* at = o.as<float>() + (row + t) * n;
      auto [it, is_new] = rows_.try_emplace({seed, position + t}, at, at + n);
      if (!is_new && std::memcmp(it->second.data(), at, static_cast<size_t>(n) * sizeof(float)) && shown++ < 3)
        ADD_FAILURE() << "other bits at position " << position + t;
    }
  }
  // Runs a step and expects of each accepted row the bits that it had before, if it was computed before.
  void step(const RunKda& run, const Memory& m, const std::vector<Piece>& pieces) {
    std::vector<int64_t> positions;
    for (const Piece& p : pieces) positions.push_back(p.sequence->position);
    const Tensor o = run_step(s_, run, m, pieces);
    int64_t row = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& p = pieces[i];
      expect(p.sequence->seed, positions[i], o, row, p.accepted < 0 ? p.count : p.accepted);
      row += p.count;
    }
  }
  // Against the plain recurrence: |difference| <= tolerance * (rms of the wanted outputs + |want|).
  void expect_close_to(Plain& plain, uint64_t seed, double tolerance) const {
    double squares = 0, number = 0;
    for (const auto& [key, got] : rows_)
      if (key.first == seed)
        for (double w : plain.output(key.second)) squares += w * w, ++number;
    ASSERT_GT(number, 0);
    const double rms = std::sqrt(squares / number);
    int shown = 0;
    for (const auto& [key, got] : rows_) {
      if (key.first != seed) continue;
      const std::vector<double>& want = plain.output(key.second);
      for (size_t i = 0; i < want.size(); ++i) {
        const double difference = std::abs(got[i] - want[i]) / (rms + std::abs(want[i]));
        worst_ = std::max(worst_, difference);
        if (!(difference <= tolerance) && shown++ < 3)
          ADD_FAILURE() << "position " << key.second << " element " << i << ": got " << got[i] << ", want " << want[i];
      }
    }
  }
  double worst() const { return worst_; }

 private:
  const Kda::Spec s_;
  std::map<std::pair<uint64_t, int64_t>, std::vector<float>> rows_;
  mutable double worst_ = 0;
};

}  // namespace winnow::ops::test
