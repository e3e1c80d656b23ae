// A request inside the engine: its tokens, how far they are computed, and what it holds. Built on the caller's thread
// with all the room it will need, then owned by the engine thread.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "base/units.h"
#include "cache/host_store.h"
#include "cache/prefix_index.h"
#include "engine/request.h"

namespace winnow::engine {

class Outbox;
using Clock = std::chrono::steady_clock;

struct Sequence {
  RequestId id;
  Request request;              // its prompt has moved into tokens
  std::vector<int32_t> tokens;  // prompt, then generated
  int64_t prompt_tokens = 0;
  int64_t num_computed_tokens = 0;  // tokens whose rows are in the caches; the newest drawn token is never among them
  TokenPos folded;                  // tokens that its recurrent state holds

  // What it holds, one reference on each. While it runs: pages for what is computed and for the next step, the first
  // held_pages of them of the prefix that it began with; a state; and the record that the next step reads, if that is another
  // one. While it is swapped out: its held pages, and copies of the rest.
  std::vector<PageId> pages;
  int64_t held_pages = 0;
  StateId state{-1};
  StateId source{-1};
  std::vector<cache::HostPageId> swapped_pages;
  cache::HostStateId swapped_state{-1};
  bool restoring = false;  // parts of what it begins with are on their way to the device (reuse.h)

  // Its way through the prefix index (reuse.h): the state at the last page end behind its prompt, with a reference; pages that
  // the index knows, and where its prompt parts from kept ones (-1: nowhere).
  StateId page_end{-1};
  TokenPos page_end_folded;
  int64_t page_end_tokens = 0, indexed_pages = 0, parts_at = -1;
  cache::PrefixIndex::Cursor cursor;
  CachedPrefix cached;

  std::vector<ops::Sampled> prompt_scores;  // of request.prompt_logprobs, as far as computed

  int64_t service = 0;   // of the scheduler's fair order of prefills, in rows
  bool unsound = false;  // rows of its last step are not finite
  std::shared_ptr<Outbox> outbox;
  Clock::time_point submitted{}, admitted{}, first_token{};
  int64_t preemptions = 0;

  Sequence(RequestId id, Request r, int64_t page_tokens)
      : id(id), request(std::move(r)), tokens(std::move(request.prompt)), prompt_tokens(static_cast<int64_t>(tokens.size())) {
    tokens.reserve(static_cast<size_t>(worst_case_tokens()));
    pages.reserve(static_cast<size_t>(worst_case_pages(page_tokens)));
    swapped_pages.reserve(pages.capacity());
    if (scored()) prompt_scores.reserve(tokens.size());
  }
  int64_t generated_tokens() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens; }
  int64_t worst_case_tokens() const { return prompt_tokens + request.max_tokens; }
  int64_t worst_case_pages(int64_t page_tokens) const { return pages_for(worst_case_tokens(), page_tokens); }
  bool scored() const { return request.prompt_logprobs >= 0; }
  bool prefilling() const { return num_computed_tokens < prompt_tokens; }
  bool running() const { return state.value >= 0; }
  bool swapped() const { return swapped_state.value >= 0; }
};

}  // namespace winnow::engine
