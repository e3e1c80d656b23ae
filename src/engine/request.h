// What a caller asks for and what it gets back.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "cache/prefix_index.h"
#include "engine/constraint.h"
#include "ops/sample/sample.h"

namespace winnow::engine {

using RequestId = Index<struct RequestIdTag>;

struct Request {
  std::vector<int32_t> prompt;  // at least one token
  int64_t max_tokens = 256;
  ops::Sampling sampling;
  std::vector<int32_t> stop_tokens;        // end the request; the stop token is reported in tokens but its text is not part of the answer
  bool ignore_eos = false;                 // stop_tokens do not end it
  int64_t min_tokens = 0;                  // stop_tokens are not drawn before this many
  uint64_t cache_salt = 0;                 // only prompts of the same salt share what was computed
  int32_t priority = 0;                    // lower runs first, and takes the place of higher
  double deadline_s = 0;                   // from submit to the end, after which it ends with an error; 0: none
  std::shared_ptr<Constraint> constraint;  // of the answer; of this request alone. Null: none
  int32_t prompt_logprobs = -1;            // >= 0: the prompt's tokens are scored, each with so many of the likeliest; it begins with nothing kept
  bool keep_logits = false;                // each event carries the step's logits row (winnow run --logits)
};

// What no request may exceed.
struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t max_context = 0;  // prompt and output
  int64_t pages = 0;        // that the engine has in all
  int64_t page_tokens = 64;
  bool scores_prompts = false;  // a step has room for the logits of a prompt's chunk
};
// Why a request can never run, naming the field and the numbers; nothing if it can.
std::optional<Error> refusal(const Request& request, const RequestLimits& limits);

enum class FinishReason : uint8_t { none, stop, length, cancelled, error };
std::string_view name_of(FinishReason r);

// One token, or the end, of one request. The event of the last token is the end.
struct Event {
  ops::Sampled sampled;  // token -1 in an end event without a token
  FinishReason finish = FinishReason::none;
  std::string error;                               // with FinishReason::error
  bool late = false;                               // with FinishReason::error: its deadline passed
  bool barred = false;                             // with FinishReason::error: what the answer must be leaves no way on
  std::chrono::steady_clock::time_point pushed{};  // when the reader could have it
  std::vector<float> logits;                       // keep_logits only
  // With the first token, where prompt_logprobs ask for it: the prompt's tokens. Nothing is known of the first one: its logprob is NaN.
  std::vector<ops::Sampled> prompt = {};
};

// What a request began with of earlier ones.
struct CachedPrefix {
  int64_t tokens = 0;                             // a page's multiple; that many of its prompt were not computed
  std::array<int64_t, cache::kTiers> pages_in{};  // where its pages were
  cache::Tier snapshot_in = cache::Tier::device;  // and its state, if tokens > 0
  cache::Tier lowest = cache::Tier::device;       // of them all
  cache::Cut cut = cache::Cut::no_page;           // why there was not more
};

struct Timings {
  double queued_s = 0, prefill_s = 0, decode_s = 0;
  int64_t prompt_tokens = 0, generated_tokens = 0, preemptions = 0;
  CachedPrefix cached;
};

// What is known of the engine thread's life.
enum class Pulse : uint8_t { alive, asked, stopped };

struct Totals {
  int64_t steps = 0, running = 0, waiting = 0, prompt_tokens = 0, generated_tokens = 0;
  int64_t pages = 0, free_pages = 0, states = 0, free_states = 0;
  int64_t held_pages = 0;  // by running and swapped sequences, kept prefixes that nobody runs on not among them
  int64_t swapped = 0, preemptions = 0, host_pages = 0, free_host_pages = 0, host_states = 0, free_host_states = 0;
  int64_t cached_pages = 0, snapshots = 0, missed_snapshots = 0;  // of the prefix index; hand-overs for which no record was free
  int64_t divergences = 0;                                        // snapshots kept where two prompts part
  int64_t restored = 0, failed_restores = 0;                      // beginnings brought up from lower tiers, or not
  cache::PrefixIndex::Counts prefix;
  cache::DiskTier::Counts disk;
  int64_t disk_bytes = 0, index_bytes = 0;
};

}  // namespace winnow::engine
