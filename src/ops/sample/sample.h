// From logits to tokens. Host arithmetic: penalties and bias, then temperature, then the filters, then one draw.
//
// Order (the field's usual one, transformers' logits processors): raw logits -> logit bias -> repetition penalty (divide
// positive, multiply negative) -> presence and frequency penalties -> [temperature 0: the largest, ties to the lower id]
// -> divide by temperature -> top_k -> top_p (smallest set whose probability reaches top_p) -> min_p (>= min_p * largest).
// The draw is by Gumbel noise: argmax of logit + gumbel(seed, choice, position, purpose, token), ties to the lower id.
// The noise of a token comes from the counter generator Philox4x32-10 (Salmon et al., SC11), so it depends on nothing else:
// not on the batch, not on threads, not on what was drawn before. top_k and top_p rank by logit, ties to the lower id.
#pragma once

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "ops/op.h"

namespace winnow::ops {

struct Sampling {
  float temperature = 1.0f;                                 // 0: greedy
  int32_t top_k = 0;                                        // 0: off
  float top_p = 1.0f;                                       // 1: off
  float min_p = 0.0f;                                       // 0: off
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;  // over generated tokens
  float repetition_penalty = 1.0f;                          // over prompt and generated tokens
  std::vector<std::pair<int32_t, float>> logit_bias{};      // token, added
  uint64_t seed = 0;
  uint32_t choice = 0;    // which of the n choices of a request
  int32_t logprobs = -1;  // -1: none; 0: of the token; n: and of the n most likely
};

enum class Purpose : uint32_t { token = 0, draft = 1, accept = 2 };

struct Sampled {
  int32_t token = -1;                          // -1 also if bias and mask leave no token
  bool finite = true;                          // false: a raw logit is NaN or +inf, or all are -inf; token is -1
  float logprob = 0;                           // of the token under softmax of the raw logits (before bias, penalties and temperature), if asked for
  std::vector<std::pair<int32_t, float>> top;  // most likely under the same, descending, ties to the lower id
};

// logits: [vocab] f32, untouched. prompt and generated: tokens so far, for the penalties. position: of the token to be drawn.
// mask: empty, or [ceil(vocab / 32)] words, bit set = allowed (grammar); forbidden tokens are never drawn. All tokens are
// in [0, vocab). workspace grows to the size of the logits where they have to be changed, and stays.
Sampled sample(std::span<const float> logits, const Sampling& p, std::span<const int32_t> prompt, std::span<const int32_t> generated,
               TokenPos position, std::span<const uint32_t> mask, std::vector<float>& workspace);

// How likely `token` was, and the `top` most likely ones: what logprobs say of a token that was not drawn.
Sampled score(std::span<const float> logits, int32_t token, int32_t top);

// Philox4x32-10: ten rounds over a counter under a key.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// Four words of noise, those of tokens 4 * block to 4 * block + 3: key = seed (low half first), counter = block,
// position % 2^32, choice, purpose + 256 * (position / 2^32).
std::array<uint32_t, 4> noise_words(uint64_t seed, uint32_t choice, TokenPos position, Purpose purpose, uint32_t block);

// Uniform in (0, 1): (word + 1/2) / 2^32 with the token's word.
double uniform(uint64_t seed, uint32_t choice, TokenPos position, Purpose purpose, uint32_t token);

}  // namespace winnow::ops
