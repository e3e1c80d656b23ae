#include "engine/loop.h"

#include <algorithm>
#include <exception>
#include <limits>

#include "engine/outbox.h"

namespace winnow::engine {
namespace {

Timings timings_of(const Sequence& s, Clock::time_point now) {
  const auto seconds = [](Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); };
  const Clock::time_point never{};
  const Clock::time_point admitted = s.admitted == never ? now : s.admitted, first = s.first_token == never ? now : s.first_token;
  return {.queued_s = seconds(s.submitted, admitted),
          .prefill_s = seconds(admitted, first),
          .decode_s = seconds(first, now),
          .prompt_tokens = s.prompt_tokens,
          .generated_tokens = s.generated_tokens(),
          .preemptions = s.preemptions,
          .cached = s.cached};
}

constexpr std::chrono::seconds kToSave{30};                                                 // at a stop; what is left then is lost, as behind a crash
constexpr int64_t kRestoredAtOnce = 64 << 20;                                               // bytes a step, from the host to the device
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24), kUntilNextLook{20};  // at deadlines

bool late(const Sequence& s, Clock::time_point now) {
  return s.request.deadline_s > 0 && std::chrono::duration<double>(now - s.submitted).count() > s.request.deadline_s;
}

}  // namespace

Loop::Loop(Runner runner, const SchedulerOptions& options, const cache::KvSizes& sizes, std::shared_ptr<Inbox> inbox, double max_itl_s,
           OnStep on_step)
    : lower_(options.lower),
      pages_(sizes.pages),
      states_(sizes.states),
      scheduler_(options, pages_, states_),
      step_(std::move(runner), options.max_batched_tokens, options.max_sequences, options.scored_rows),
      pace_(max_itl_s),
      on_step_(std::move(on_step)),
      inbox_(std::move(inbox)) {
  publish();
}

void Loop::run() noexcept {
  std::string why = "the engine is shutting down";
  FinishReason reason = FinishReason::cancelled;
  try {
    while (take_mail()) {
      end_late();
      admit();
      rests_ = !scheduler_.idle() && !step();
      if (scheduler_.idle()) scheduler_.check_integrity();
      publish();
    }
  } catch (const std::exception& e) {
    why = fmt::format("the engine has stopped after an error, restart it: {}", e.what());
    reason = FinishReason::error;
  }
  end_all(reason, why);
}

bool Loop::take_mail() {
  inbox_->take(&mail_, scheduler_.idle() ? kForever : rests_ ? kUntilNextLook : std::chrono::milliseconds(0));
  for (auto& s : mail_.submitted) scheduler_.add(std::move(s));
  for (RequestId id : mail_.cancelled) cancel(id);
  mail_.submitted.clear();
  mail_.cancelled.clear();
  return !mail_.stop;
}

void Loop::admit() {
  const Clock::time_point now = Clock::now();
  for (Sequence* s : scheduler_.admit()) s->admitted = now;
}

void Loop::end_late() {
  const Clock::time_point now = Clock::now();
  std::vector<RequestId> ids;
  const auto look = [&](const auto& list) {
    for (const auto& s : list)
      if (late(*s, now)) ids.push_back(s->id);
  };
  look(scheduler_.running());
  look(scheduler_.swapped());
  look(scheduler_.waiting());
  for (RequestId id : ids) {
    const auto s = scheduler_.remove(id);
    Event event;
    event.sampled.token = -1;
    event.finish = FinishReason::error;
    event.late = true;
    event.error = fmt::format("the request's deadline of {} s passed after {} tokens of its answer", s->request.deadline_s, s->generated_tokens());
    end(*s, std::move(event));
  }
}

bool Loop::step() {
  const bool requeued = scheduler_.restore(kRestoredAtOnce);
  const std::span<const Chunk> chunks = scheduler_.plan(pace_.prefill_rows());
  const PrefixReuse::Restoring restoring = scheduler_.reuse().restoring();
  if (!chunks.empty()) compute(chunks);
  else check(requeued || restoring != PrefixReuse::Restoring::nothing, "requests are left and no step is planned");
  return !chunks.empty() || requeued || restoring != PrefixReuse::Restoring::reads;
}

void Loop::compute(std::span<const Chunk> chunks) {
  const Clock::time_point start = Clock::now();
  int64_t decode_rows = 0, prefill_rows = 0;
  for (const Chunk& c : chunks) (c.decode() ? decode_rows : prefill_rows) += c.count;
  step_.compute(chunks);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  pace_.observe(decode_rows, prefill_rows, seconds);
  if (on_step_) on_step_(decode_rows, prefill_rows, seconds);
  totals_.prompt_tokens += prefill_rows;
  // Judged before any sequence leaves and before anything is kept for others.
  for (size_t i = 0; i < chunks.size(); ++i)
    if (step_.sound(static_cast<int64_t>(i))) scheduler_.computed(chunks[i]);
    else chunks[i].sequence->unsound = true;
  int64_t row = 0;
  for (const Chunk& c : chunks) {
    const int64_t rows = c.logit_rows();
    const bool samples = c.samples();
    if (c.sequence->unsound || !score(c, row)) fail(*c.sequence, c);
    else if (samples) deliver(*c.sequence, step_.logits(row + rows - 1));
    row += rows;
  }
  ++totals_.steps;
}

bool Loop::score(const Chunk& c, int64_t row) {
  if (!c.scores()) return true;
  Sequence& s = *c.sequence;
  if (s.prompt_scores.empty()) s.prompt_scores.push_back({.token = s.tokens.front(), .logprob = std::numeric_limits<float>::quiet_NaN()});
  const int64_t known = std::min(c.position.value + c.count, s.prompt_tokens - 1);  // rows behind which the prompt goes on
  for (int64_t at = c.position.value; at < known; ++at, ++row) {
    s.prompt_scores.push_back(ops::score(step_.logits(row), s.tokens[static_cast<size_t>(at) + 1], s.request.prompt_logprobs));
    if (!s.prompt_scores.back().finite) return false;
  }
  return true;
}

// Draws the next token of a sequence and ends it if that was the last.
void Loop::deliver(Sequence& s, std::span<const float> logits) {
  Event event;
  try {
    event.sampled = step_.draw(s, logits);
  } catch (const Error& e) {  // of its constraint: the other requests go on
    event.sampled.token = -1;
    event.finish = FinishReason::error;
    event.barred = true;
    event.error = e.what();
    return end(*scheduler_.remove(s.id), std::move(event));
  }
  if (s.request.keep_logits) event.logits.assign(logits.begin(), logits.end());
  const int32_t token = event.sampled.token;
  if (!event.sampled.finite || token < 0) {
    event.sampled.token = -1;
    event.finish = FinishReason::error;
    event.barred = event.sampled.finite;
    event.error = event.sampled.finite ? fmt::format("no token may follow at position {}: all are forbidden", s.tokens.size())
                                       : fmt::format("the model's logits for position {} are not finite", s.tokens.size());
  } else {
    s.tokens.push_back(token);
    ++totals_.generated_tokens;
    if (s.generated_tokens() == 1) {
      s.first_token = Clock::now();
      event.prompt = std::move(s.prompt_scores);
    }
    const bool stops = !s.request.ignore_eos && std::ranges::find(s.request.stop_tokens, token) != s.request.stop_tokens.end();
    if (stops || (s.request.constraint && s.request.constraint->is_done())) event.finish = FinishReason::stop;
    else if (s.generated_tokens() == s.request.max_tokens) event.finish = FinishReason::length;
  }
  if (event.finish == FinishReason::none) s.outbox->push(std::move(event), timings_of(s, Clock::now()));
  else end(*scheduler_.remove(s.id), std::move(event));
}

void Loop::fail(Sequence& s, const Chunk& c) {
  Event event;
  event.sampled.token = -1;
  event.finish = FinishReason::error;
  event.error = c.count == 1
                    ? fmt::format("the model's values for position {} are not finite", c.position.value)
                    : fmt::format("the model's values for positions {} to {} are not finite", c.position.value, c.position.value + c.count - 1);
  end(*scheduler_.remove(s.id), std::move(event));
}

void Loop::cancel(RequestId id) {
  if (const auto s = scheduler_.remove(id)) end(*s, {.sampled = {}, .finish = FinishReason::cancelled, .error = {}, .logits = {}});
}

void Loop::end_all(FinishReason reason, const std::string& why) {
  Inbox::Mail late;
  inbox_->close(why, &late);
  std::vector<std::unique_ptr<Sequence>> left = scheduler_.remove_all();
  const Clock::time_point until = Clock::now() + kToSave;
  if (reason != FinishReason::error) scheduler_.reuse().index().save([&] { return Clock::now() < until; });
  for (auto* mail : {&mail_, &late})  // mail_ holds something if taking it in was what failed
    for (auto& s : mail->submitted)
      if (s) left.push_back(std::move(s));
  const std::string error = reason == FinishReason::error ? why : "";
  for (const auto& s : left) end(*s, {.sampled = {}, .finish = reason, .error = error, .logits = {}});
  publish();
}

void Loop::end(const Sequence& s, Event event) { s.outbox->push(std::move(event), timings_of(s, Clock::now())); }

void Loop::publish() {
  totals_.running = static_cast<int64_t>(scheduler_.running().size());
  totals_.waiting = static_cast<int64_t>(scheduler_.waiting().size());
  totals_.pages = pages_.size();
  totals_.free_pages = pages_.free();
  totals_.held_pages = scheduler_.reuse().held_pages(nullptr);
  for (const auto& s : scheduler_.running()) totals_.held_pages += static_cast<int64_t>(s->pages.size()) - s->held_pages;
  totals_.states = states_.size();
  totals_.free_states = states_.free();
  const cache::PrefixIndex& index = scheduler_.reuse().index();
  totals_.cached_pages = index.pages();
  totals_.snapshots = index.snapshots();
  totals_.prefix = index.counts();
  totals_.missed_snapshots = scheduler_.reuse().missed_snapshots();
  totals_.divergences = scheduler_.reuse().divergences();
  totals_.restored = scheduler_.reuse().restored();
  totals_.failed_restores = scheduler_.reuse().failed_restores();
  totals_.index_bytes = index.memory_bytes();
  totals_.swapped = static_cast<int64_t>(scheduler_.swapped().size());
  totals_.preemptions = scheduler_.preemptions();
  if (lower_.host) {
    totals_.host_pages = lower_.host->pages.size();
    totals_.free_host_pages = lower_.host->pages.free();
    totals_.host_states = lower_.host->states.size();
    totals_.free_host_states = lower_.host->states.free();
  }
  if (lower_.disk) {
    totals_.disk = lower_.disk->counts();
    totals_.disk_bytes = lower_.disk->bytes();
  }
  inbox_->publish(totals_);
}

}  // namespace winnow::engine
