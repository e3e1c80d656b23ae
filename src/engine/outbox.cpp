#include "engine/outbox.h"

#include "engine/stream.h"

namespace winnow::engine {

void Outbox::push(Event event, const Timings& timings) {
  event.pushed = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    check(!end_, "an event behind the end of a request");
    timings_ = timings;
    if (event.finish != FinishReason::none)
      end_ = Event{.sampled = {}, .finish = event.finish, .error = event.error, .late = event.late, .barred = event.barred, .logits = {}};
    events_.push_back(std::move(event));
    filled_.notify_one();
  }
  const std::lock_guard lock(wake_mutex_);
  if (wake_) wake_();
}

bool Outbox::next(Event* event, std::optional<std::chrono::milliseconds> wait) {
  std::unique_lock lock(mutex_);
  const auto any = [&] { return !events_.empty() || end_; };
  if (!wait) filled_.wait(lock, any);
  else if (!any() && (wait->count() <= 0 || !filled_.wait_for(lock, *wait, any))) return false;
  if (events_.empty()) {
    *event = *end_;
    return true;
  }
  *event = std::move(events_.front());
  events_.pop_front();
  return true;
}

void Outbox::on_event(std::function<void()> wake) {
  const std::lock_guard lock(wake_mutex_);
  wake_ = std::move(wake);
}

void Outbox::cancel() {
  {
    const std::lock_guard lock(mutex_);
    if (end_) return;
  }
  inbox_->cancel(id_);
}

Timings Outbox::timings() const {
  const std::lock_guard lock(mutex_);
  return timings_;
}

Stream::Stream(std::shared_ptr<Outbox> outbox) : outbox_(std::move(outbox)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&& o) noexcept {
  if (this != &o) {
    drop();
    outbox_ = std::move(o.outbox_);
  }
  return *this;
}
Stream::~Stream() { drop(); }

void Stream::drop() {
  if (!outbox_) return;
  outbox_->on_event({});
  outbox_->cancel();
  outbox_.reset();
}

Event Stream::next() {
  Event e;
  outbox_->next(&e, std::nullopt);
  return e;
}
bool Stream::next_for(Event* event, std::chrono::milliseconds wait) { return outbox_->next(event, wait); }
bool Stream::try_next(Event* event) { return outbox_->next(event, std::chrono::milliseconds(0)); }
void Stream::on_event(std::function<void()> wake) { outbox_->on_event(std::move(wake)); }
void Stream::cancel() { outbox_->cancel(); }
Timings Stream::timings() const { return outbox_->timings(); }

}  // namespace winnow::engine
