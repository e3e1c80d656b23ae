#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "cache/kv_store.h"
#include "engine/loop.h"
#include "engine/outbox.h"

namespace winnow::engine {
namespace {

void check_options(const EngineOptions& o, const models::Options& m) {
  const auto within = [](std::string_view field, int64_t value, std::string_view limit, int64_t most) {
    if (value < 1 || value > most) throw error("{} is {}; it must be from 1 to the model's {}, {}", field, value, limit, most);
  };
  within("max_batched_tokens", o.max_batched_tokens, "max_rows", m.max_rows);
  within("max_sequences", o.max_sequences, "max_sequences", m.max_sequences);
  within("max_sequences", o.max_sequences, "max_logit_rows", m.max_logit_rows);
  within("max_context", o.max_context, "max_context", m.max_context);
  if (o.chunk_grid % kChunkGrid != 0 && m.profile != models::Profile::exact)
    throw error("chunk_grid is {}; profile {} needs a multiple of {}", o.chunk_grid, models::name_of(m.profile), kChunkGrid);
}

// Half of what the device has left. Mapped weights may be more than all of it, since the page cache gives way: they leave an
// eighth.
int64_t default_budget(const device::Device& device) {
  int64_t left = device.caps().free_bytes, in_place = 0;
  for (const device::PlanLine& line : device.plan()) (line.in_place ? in_place : left) += line.in_place ? line.bytes : -line.bytes;
  return std::max(left - in_place, left / 8) / 2;
}

cache::KvSizes sizes_of(const cache::KvLayout& layout, const EngineOptions& o, const device::Device& device) {
  cache::KvSizes sizes = cache::sizes_for(layout, o.max_sequences, o.max_context, o.kv_bytes > 0 ? o.kv_bytes : default_budget(device));
  if (o.kv_pages > 0) sizes.pages = std::min(sizes.pages, o.kv_pages);
  return sizes;
}

}  // namespace

struct Engine::Impl {
  Impl(device::Device& device, models::Glm5Next& model, const EngineOptions& o)
      : layout(model.kv_spec(), model.options().page_tokens),
        sizes(sizes_of(layout, o, device)),
        store(device, model.kv_spec(), layout, sizes),
        limits{.vocab_size = model.config().vocab_size, .max_context = o.max_context, .pages = sizes.pages, .page_tokens = layout.page_tokens},
        inbox(std::make_shared<Inbox>()),
        loop({.forward = [&model, this](const models::Batch& b) { model.forward(b, store.views()); },
              .logits = [&model] { return model.logits(); },
              .bad_rows = [&model] { return model.bad_rows(); },
              .folded_after = [&model](const models::SequenceRows& r) { return model.folded_after(r); },
              .vocab_size = limits.vocab_size},
             {.max_batched_tokens = o.max_batched_tokens,
              .max_sequences = o.max_sequences,
              .page_tokens = layout.page_tokens,
              .chunk_grid = o.chunk_grid,
              .reuse = o.reuse},
             sizes, inbox),
        thread([this, &device] {
          device.pin_caller();
          loop.run();
        }) {}

  const cache::KvLayout layout;
  const cache::KvSizes sizes;
  cache::KvStore store;
  const RequestLimits limits;
  std::atomic<int64_t> next_id{0};
  const std::shared_ptr<Inbox> inbox;
  Loop loop;
  std::thread thread;  // last: it uses all of the above
};

Engine::Engine(device::Device& device, models::Glm5Next& model, const EngineOptions& options) {
  check_options(options, model.options());
  impl_ = std::make_unique<Impl>(device, model, options);
}

Engine::~Engine() {
  impl_->inbox->stop();
  impl_->thread.join();
}

Result<Stream> Engine::submit(Request request) {
  if (auto why = refusal(request, impl_->limits)) return *why;
  const RequestId id(impl_->next_id.fetch_add(1, std::memory_order_relaxed));
  auto sequence = std::make_unique<Sequence>(id, std::move(request), impl_->limits.page_tokens);
  sequence->submitted = Clock::now();
  sequence->outbox = std::make_shared<Outbox>(id, impl_->inbox);
  std::shared_ptr<Outbox> outbox = sequence->outbox;
  if (auto why = impl_->inbox->submit(std::move(sequence))) return *why;
  return Stream(std::move(outbox));
}

Pulse Engine::pulse(std::chrono::steady_clock::time_point since) { return impl_->inbox->pulse(since); }
Totals Engine::totals() const { return impl_->inbox->totals(); }
const RequestLimits& Engine::limits() const { return impl_->limits; }

}  // namespace winnow::engine
