#include <limits>

#include "device/cpu/workers.h"
#include "ops/cpu.h"
#include "ops/router/router.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/router/router_cpu.cpp"
#include "hwy/foreach_target.h"
#include "ops/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace winnow::ops {
namespace HWY_NAMESPACE {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

float rank_key(float x) { return std::isnan(x) ? kLowest : x; }

// Inserts (key, id) into a list in descending order of which `size` of at most `capacity` entries are filled; an equal key goes
// behind, so ids that arrive in ascending order win their ties. Returns the new size.
int64_t insert(float* keys, int32_t* ids, int64_t size, int64_t capacity, float key, int32_t id) {
  int64_t at = size;
  while (at > 0 && key > keys[at - 1]) --at;
  if (at == capacity) return size;
  if (size < capacity) ++size;
  for (int64_t i = size - 1; i > at; --i) {
    keys[i] = keys[i - 1];
    ids[i] = ids[i - 1];
  }
  keys[at] = key;
  ids[at] = id;
  return size;
}

// b[e] = sigmoid(logits[e]) + bias[e]
void biased_scores(float* b, const float* logits, const float* bias, int64_t n) {
  for (int64_t e = 0; e < n; e += kLanes) store(add(sigmoid(load(logits + e, n - e)), load(bias + e, n - e)), b + e, n - e);
}

// Lowers every expert outside the kept groups out of the ranking: marks[g] = 1 for a kept group.
void keep_groups(const Router::Spec& s, const float* b, float* marks, float* keys, int32_t* ids) {
  const int64_t size = s.experts / s.groups;
  int64_t kept = 0;
  for (int64_t g = 0; g < s.groups; ++g) {
    marks[g] = 0;
    float two[2];
    int32_t unused[2];
    int64_t n = 0;
    for (int64_t e = 0; e < size; ++e) n = insert(two, unused, n, 2, rank_key(b[g * size + e]), 0);
    kept = insert(keys, ids, kept, s.kept_groups, rank_key(two[0] + two[1]), static_cast<int32_t>(g));
  }
  for (int64_t g = 0; g < kept; ++g) marks[ids[g]] = 1;
}

int64_t scratch_floats(const Router::Spec& s) { return round_up(s.experts + 3 * s.groups, 16); }

// b: scratch of one worker. weights serves as the list of keys while the best are looked for.
void route(const Router::Spec& s, int32_t* ids, float* weights, const float* logits, const float* bias, float* b) {
  biased_scores(b, logits, bias, s.experts);
  float* marks = b + s.experts;
  if (s.groups > 1) keep_groups(s, b, marks, marks + s.groups, reinterpret_cast<int32_t*>(marks + 2 * s.groups));
  const int64_t size = s.experts / s.groups;
  int64_t found = 0;
  for (int64_t g = 0; g < s.groups; ++g) {
    if (s.groups > 1 && marks[g] == 0) continue;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) found = insert(weights, ids, found, s.top_k, rank_key(b[e]), static_cast<int32_t>(e));
  }
  float total = 0;
  for (int64_t r = 0; r < s.top_k; ++r) total += weights[r] = sigmoid(logits[ids[r]]);
  for (int64_t r = 0; r < s.top_k; ++r) weights[r] = s.scaling * (s.normalise ? weights[r] / (total + 1e-20f) : weights[r]);
}

void run(Queue& q, Scratch scratch, const Router::Spec& s, const Router::Args& a) {
  q.workers().run(a.logits.shape[0], 1, [&](int64_t begin, int64_t end, int worker) {
    float* b = reinterpret_cast<float*>(scratch.data) + worker * scratch_floats(s);
    for (int64_t t = begin; t < end; ++t) {
      const float* logits = a.logits.as<float>() + t * s.experts;
      route(s, a.ids.as<int32_t>() + t * s.top_k, a.weights.as<float>() + t * s.top_k, logits, a.bias.as<float>(), b);
      if (!all_finite(DType::f32, reinterpret_cast<const std::byte*>(logits), s.experts)) flag_row(a.bad, t);
    }
  });
}

}  // namespace
void router(Queue& q, Scratch c, const Router::Spec& s, const Router::Args& a) { run(q, c, s, a); }
}  // namespace HWY_NAMESPACE
}  // namespace winnow::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace winnow::ops {
namespace {

const char* why_not(const Router::Spec& s) { return s.top_k >= 1 ? nullptr : "needs top_k >= 1"; }
int64_t scratch_bytes(const Router::Spec& s, const Limits& l) { return l.workers * 4 * round_up(s.experts + 3 * s.groups, 16); }

}  // namespace

List<Router> kernels(Router, Cpu) {
  static constexpr Kernel<Router> list[] = {
      {.name = "router.cpu_avx512", .why_not = needs<Isa::avx512, Router, why_not>, .scratch_bytes = scratch_bytes, .run = N_AVX3::router},
      {.name = "router.cpu_avx2", .why_not = needs<Isa::avx2, Router, why_not>, .scratch_bytes = scratch_bytes, .run = N_AVX2::router}};
  return list;
}

}  // namespace winnow::ops
#endif
