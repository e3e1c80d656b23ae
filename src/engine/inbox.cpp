#include "engine/inbox.h"

namespace winnow::engine {

std::optional<Error> Inbox::submit(std::unique_ptr<Sequence> sequence) {
  const std::lock_guard lock(mutex_);
  if (closed_) return Error(*closed_);
  if (mail_.stop) return Error("the engine is shutting down");
  mail_.submitted.push_back(std::move(sequence));
  arrived_.notify_one();
  return {};
}

void Inbox::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  mail_.cancelled.push_back(id);
  arrived_.notify_one();
}

void Inbox::stop() {
  const std::lock_guard lock(mutex_);
  mail_.stop = true;
  arrived_.notify_one();
}

void Inbox::nudge() {
  const std::lock_guard lock(mutex_);
  nudged_ = true;
  arrived_.notify_one();
}

Pulse Inbox::pulse(Clock::time_point since) {
  const std::lock_guard lock(mutex_);
  if (closed_) return Pulse::stopped;
  if (last_shown_ >= since) return Pulse::alive;
  probed_ = true;
  arrived_.notify_one();
  return Pulse::asked;
}

Totals Inbox::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

void Inbox::take(Mail* mail, std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  const Clock::time_point until = Clock::now() + longest;
  const auto any = [&] { return !mail_.submitted.empty() || !mail_.cancelled.empty() || mail_.stop || nudged_; };
  for (;;) {
    if (probed_) show_life();
    if (longest.count() == 0 || any()) break;
    if (!arrived_.wait_until(lock, until, [&] { return any() || probed_; })) break;
  }
  nudged_ = false;
  std::swap(mail->submitted, mail_.submitted);  // both sides keep their room
  std::swap(mail->cancelled, mail_.cancelled);
  mail->stop = mail_.stop;
}

void Inbox::publish(const Totals& totals) {
  const std::lock_guard lock(mutex_);
  totals_ = totals;
  show_life();
}

void Inbox::close(std::string reason, Mail* mail) {
  const std::lock_guard lock(mutex_);
  closed_ = std::move(reason);
  *mail = std::move(mail_);
  mail_ = {};
}

void Inbox::show_life() {
  probed_ = false;
  last_shown_ = Clock::now();
}

}  // namespace winnow::engine
