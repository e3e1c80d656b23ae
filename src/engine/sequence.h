// A request inside the engine: its tokens, how far they are computed, and what it holds. Built on the caller's thread
// with all the room it will need, then owned by the engine thread.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "base/units.h"
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
  // While running: pages and state for its worst case, one reference on each.
  std::vector<PageId> pages;
  StateId state;
  StateId source{-1};  // the record that the next step reads, if not `state`; with a reference of its own
  // While running (reuse.h): the state at the last page end behind its prompt, with a reference; tokens it began with, pages that
  // the index knows, and where its prompt parts from kept ones (-1: nowhere).
  StateId page_end{-1};
  TokenPos page_end_folded;
  int64_t page_end_tokens = 0, cached_tokens = 0, indexed_pages = 0, parts_at = -1;

  std::shared_ptr<Outbox> outbox;
  Clock::time_point submitted{}, admitted{}, first_token{};

  Sequence(RequestId id, Request r, int64_t page_tokens)
      : id(id), request(std::move(r)), tokens(std::move(request.prompt)), prompt_tokens(static_cast<int64_t>(tokens.size())) {
    tokens.reserve(static_cast<size_t>(worst_case_tokens()));
    pages.reserve(static_cast<size_t>(worst_case_pages(page_tokens)));
  }
  int64_t generated_tokens() const { return static_cast<int64_t>(tokens.size()) - prompt_tokens; }
  int64_t worst_case_tokens() const { return prompt_tokens + request.max_tokens; }
  int64_t worst_case_pages(int64_t page_tokens) const { return pages_for(worst_case_tokens(), page_tokens); }
  bool unsound = false;  // rows of its last step are not finite
  bool prefilling() const { return num_computed_tokens < prompt_tokens; }
};

}  // namespace winnow::engine
