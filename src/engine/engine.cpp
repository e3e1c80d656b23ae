#include "engine/engine.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <optional>
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

// Rows of a step whose logits the model has room for beside those of drawn tokens; 0 if that is too few for a chunk.
int64_t scored_rows(const models::Glm5Next& model, const EngineOptions& o) {
  const int64_t rows = model.options().max_logit_rows - o.max_sequences;
  return rows >= o.chunk_grid ? rows : 0;
}

// Half of what the device has left. Mapped weights may be more than all of it, since the page cache gives way: they leave an
// eighth.
int64_t default_budget(const device::Device& device) {
  int64_t left = device.caps().free_bytes, in_place = 0;
  for (const device::PlanLine& line : device.plan()) (line.in_place ? in_place : left) += line.in_place ? line.bytes : -line.bytes;
  return std::max(left - in_place, left / 8) / 2;
}

int64_t budget_of(const EngineOptions& o, const device::Device& device) {
  if (o.memory_bytes <= 0) return default_budget(device);
  int64_t left = o.memory_bytes;
  for (const device::PlanLine& line : device.plan()) left -= line.bytes;
  if (left <= 0)
    throw error("--memory: {:.3f} GB are given, and weights and workspaces take {:.3f} GB of them; give more",
                static_cast<double>(o.memory_bytes) * 1e-9, static_cast<double>(o.memory_bytes - left) * 1e-9);
  return left;
}

cache::PrefixKey hash_of(std::string_view text) {
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return {h.high64, h.low64};
}

// Payloads that wait to be written to cache_dir.
int64_t queue_bytes(const cache::KvLayout& layout) {
  constexpr int64_t kSnapshots = 2, kPages = 256;
  return cache::sum({cache::product({kSnapshots, layout.record_bytes()}), cache::product({kPages, layout.page_bytes})});
}

// All that must be equal for a record to mean the same bits.
std::string identity_of(const models::Glm5Next& model, const cache::KvLayout& layout, const EngineOptions& o) {
  const bool fast = model.options().profile == models::Profile::fast;  // then it matters whether decode computed a row
  std::string text =
      fmt::format("{}|{}|{}|{}|", o.model_identity, models::name_of(model.options().profile), fast ? name_of(o.reuse) : "", layout.identity);
  for (const auto& [op, kernel] : model.kernels()) text += fmt::format("{}={} ", op, kernel);
  return text;
}

}  // namespace

int64_t disk_buffer_bytes(const cache::KvLayout& layout, const EngineOptions& o) {
  if (o.cache_dir.empty() || o.reuse == Reuse::none) return 0;
  constexpr int64_t kCopies = 2;  // the index's and the tier's
  return cache::sum({queue_bytes(layout), cache::product({kCopies + PrefixReuse::kReadsAtOnce, std::max(layout.record_bytes(), layout.page_bytes)})});
}

cache::KvSizes plan_kv(const cache::KvLayout& layout, const EngineOptions& o, const device::Device& device) {
  const int64_t all = budget_of(o, device) - disk_buffer_bytes(layout, o),
                one = cache::sum({layout.record_bytes(), cache::product({pages_for(o.max_context, layout.page_tokens), layout.page_bytes})});
  const int64_t host = o.host_bytes >= 0 ? o.host_bytes : std::min(cache::product({std::max<int64_t>(o.max_sequences / 2, 1), one}), all / 8),
                least = layout.record_bytes() + layout.page_bytes;
  constexpr double kGb = 1e-9;
  if (o.host_bytes > 0 && o.host_bytes < least)
    throw error("--host-memory: {:.6f} GB hold no preempted request, which takes {:.6f} GB at least; give more, or 0 for none",
                static_cast<double>(host) * kGb, static_cast<double>(least) * kGb);
  if (o.kv_bytes == 0 && host >= all)
    throw error("--host-memory: {:.3f} GB leave nothing of the {:.3f} GB that there are for the KV cache; give it less, or more --memory",
                static_cast<double>(host) * kGb, static_cast<double>(all) * kGb);
  cache::KvSizes sizes = cache::sizes_for(layout, o.max_sequences, o.max_context,
                                          {.device_bytes = o.kv_bytes > 0 ? o.kv_bytes : all - host,
                                           .snapshot_bytes = o.snapshot_bytes,
                                           .host_bytes = host,
                                           .keeps = o.reuse != Reuse::none});
  if (o.kv_pages > 0) sizes.pages = std::min(sizes.pages, o.kv_pages);
  if (o.kv_states > 0) sizes.states = std::clamp(o.kv_states, o.max_sequences, sizes.states);
  sizes.page_ends = std::min(sizes.page_ends, sizes.states - o.max_sequences);
  return sizes;
}

struct Engine::Impl {
  Impl(device::Device& device, models::Glm5Next& model, const EngineOptions& o)
      : layout(model.kv_spec(), model.options().page_tokens),
        sizes(plan_kv(layout, o, device)),
        store(device, model.kv_spec(), layout, sizes),
        limits{.vocab_size = model.config().vocab_size,
               .max_context = o.max_context,
               .pages = sizes.pages,
               .page_tokens = layout.page_tokens,
               .scores_prompts = scored_rows(model, o) > 0},
        inbox(std::make_shared<Inbox>()),
        seed(hash_of(identity_of(model, layout, o))),
        mover{.page_bytes = store.page_bytes(),
              .state_bytes = store.state_bytes(),
              .read_page = [this](PageId id, std::span<std::byte> to) { store.read(id, to); },
              .write_page = [this](PageId id, std::span<const std::byte> from) { store.write(id, from); },
              .read_state = [this](StateId id, std::span<std::byte> to) { store.read(id, to); },
              .write_state = [this](StateId id, std::span<const std::byte> from) { store.write(id, from); }} {
    make_lower_tiers(device, o);
    loop = std::make_unique<Loop>(Runner{.forward =
                                             [&model, this](const models::Batch& b) {
                                               model.forward(b, store.views());
                                               store.check_canaries();
                                             },
                                         .logits = [&model] { return model.logits(); },
                                         .bad_rows = [&model] { return model.bad_rows(); },
                                         .folded_after = [&model](const models::SequenceRows& r) { return model.folded_after(r); },
                                         .vocab_size = limits.vocab_size},
                                  SchedulerOptions{.max_batched_tokens = o.max_batched_tokens,
                                                   .max_sequences = o.max_sequences,
                                                   .page_tokens = layout.page_tokens,
                                                   .scored_rows = scored_rows(model, o),
                                                   .chunk_grid = o.chunk_grid,
                                                   .reuse = o.reuse,
                                                   .snapshot_interval = o.snapshot_interval,
                                                   .lower = {.host = host ? &*host : nullptr, .disk = disk ? &*disk : nullptr, .mover = mover},
                                                   .seed = seed},
                                  sizes, inbox, o.max_itl_s, o.on_step);
    thread = std::thread([this, &device] {
      device.pin_caller();
      loop->run();
    });
  }

  void make_lower_tiers(device::Device& device, const EngineOptions& o) {
    if (sizes.host_states > 0) {
      host_memory = device.allocate(
          "host tier", cache::sum({cache::product({sizes.host_pages, mover.page_bytes}), cache::product({sizes.host_states, mover.state_bytes})}));
      host.emplace(std::span(host_memory.data(), static_cast<size_t>(host_memory.bytes())), sizes.host_pages, sizes.host_states, mover);
    }
    if (o.cache_dir.empty() || o.reuse == Reuse::none) return;
    disk.emplace(cache::DiskOptions{.folder = o.cache_dir,
                                    .limit_bytes = o.cache_dir_bytes,
                                    .page_bytes = mover.page_bytes,
                                    .snapshot_bytes = mover.state_bytes,
                                    .page_tokens = layout.page_tokens,
                                    .queue_bytes = queue_bytes(layout),
                                    .fingerprint = seed,
                                    .on_start = [&device] { device.keep_clear(); }},
                 o.disk_files, [inbox = inbox] { inbox->nudge(); });
    notice = disk->notice();
  }

  const cache::KvLayout layout;
  const cache::KvSizes sizes;
  cache::KvStore store;
  const RequestLimits limits;
  std::atomic<int64_t> next_id{0};
  const std::shared_ptr<Inbox> inbox;
  const cache::PrefixKey seed;
  const cache::RecordMover mover;
  device::Buffer host_memory;
  std::optional<cache::HostStore> host;
  std::optional<cache::DiskTier> disk;
  std::string notice;
  std::unique_ptr<Loop> loop;
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
const cache::KvLayout& Engine::layout() const { return impl_->layout; }
int64_t Engine::canary_bytes() const { return impl_->store.canary_bytes(); }
const cache::KvSizes& Engine::sizes() const { return impl_->sizes; }
const std::string& Engine::notice() const { return impl_->notice; }

}  // namespace winnow::engine
