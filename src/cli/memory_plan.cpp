#include "cli/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>

#include "base/progress.h"

namespace winnow::cli {
namespace {

std::string text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

// A device that only plans, with the model on it.
struct Planned {
  Planned(const PlannedModel& m, device::CpuOptions on, const models::Options& o) {
    on.plan_only = true;
    device = device::make_cpu(on);
    device->forced = m.forced;
    if (m.checkpoint) model = std::make_unique<models::Glm5Next>(*device, *m.checkpoint, o);
    else model = std::make_unique<models::Glm5Next>(*device, *m.config, o, 1);
    layout.emplace(model->kv_spec(), model->options().page_tokens);
  }
  std::unique_ptr<device::Device> device;
  std::unique_ptr<models::Glm5Next> model;
  std::optional<cache::KvLayout> layout;
};

}  // namespace

int64_t MemoryPlan::total_bytes() const {
  int64_t n = 0;
  for (const Line& l : lines) n += l.bytes;
  return n;
}

int64_t MemoryPlan::remaining_bytes() const {
  int64_t n = memory_bytes - total_bytes();
  for (const Line& l : lines)
    if (l.in_place && !memory_given) n += l.bytes;
  return n;
}

MemoryPlan memory_plan(const device::Device& device, const cache::KvLayout& layout, const cache::KvSizes& sizes, const engine::EngineOptions& o) {
  MemoryPlan p;
  p.sizes = sizes;
  p.max_sequences = o.max_sequences;
  p.max_context = o.max_context;
  p.page_tokens = layout.page_tokens;
  p.page_bytes = layout.page_bytes;
  p.record_bytes = layout.record_bytes();
  p.memory_given = o.memory_bytes > 0;
  p.memory_bytes = p.memory_given ? o.memory_bytes : device.caps().free_bytes;

  MemoryPlan::Line weights{"weights", 0, ""}, mapped{"weights, mapped", 0, "read where the page cache has them", true}, work{"workspaces", 0, ""};
  for (const device::PlanLine& line : device.plan()) {
    if (line.in_place) mapped.bytes += line.bytes;
    else if (line.what == "weights") weights.bytes += line.bytes;
    else if (line.what == "activations" || line.what == "scratch") work.bytes += line.bytes;
  }
  work.note = fmt::format("for steps of {} tokens", o.max_batched_tokens);
  p.lines.push_back(weights);
  if (mapped.bytes > 0) p.lines.push_back(mapped);
  p.lines.push_back(work);

  using cache::product;
  const int64_t n = o.max_sequences;
  p.lines.push_back(
      {"pages", product({sizes.pages, layout.page_bytes}),
       fmt::format("{} of {} tokens: {} tokens of context, {} a token", sizes.pages, layout.page_tokens, p.tokens(), text(p.bytes_per_token()))});
  p.lines.push_back(
      {"states", product({n, layout.state_bytes}), fmt::format("{} request{} at once, {} each", n, n == 1 ? "" : "s", text(layout.state_bytes))});
  p.lines.push_back({"rings", product({n, layout.ring_bytes}), fmt::format("{} a request", text(layout.ring_bytes))});
  if (sizes.page_ends > 0)
    p.lines.push_back({"page ends", product({sizes.page_ends, layout.record_bytes()}),
                       fmt::format("{} of {}, where the next turn of a running request can begin", sizes.page_ends, text(layout.record_bytes()))});
  p.lines.push_back({"snapshots", product({p.snapshots(), layout.record_bytes()}),
                     fmt::format("{} of {}, where later prompts can begin", p.snapshots(), text(layout.record_bytes()))});
  if (sizes.host_states > 0)
    p.lines.push_back({"host tier", cache::sum({product({sizes.host_pages, layout.page_bytes}), product({sizes.host_states, layout.record_bytes()})}),
                       fmt::format("{} pages and {} states of preempted requests and kept prefixes", sizes.host_pages, sizes.host_states)});
  if (const int64_t bytes = engine::disk_buffer_bytes(layout, o); bytes > 0)
    p.lines.push_back({"disk buffers", bytes, "records on their way to and from --cache-dir"});
  return p;
}

std::vector<std::string> text_of(const MemoryPlan& p) {
  std::vector<std::string> out;
  const auto line = [&](std::string_view kind, int64_t bytes, std::string_view note) {
    out.push_back(fmt::format("{:<16}{:>10}{}{}", kind, text(bytes), note.empty() ? "" : "  ", note));
  };
  for (const MemoryPlan::Line& l : p.lines) line(l.kind, l.bytes, l.note);
  line("sum", p.total_bytes(), "");
  const int64_t left = p.remaining_bytes();
  const std::string of =
      p.memory_given ? fmt::format("of --memory, {}", text(p.memory_bytes)) : fmt::format("of {} that are free", text(p.memory_bytes));
  line(left < 0 ? "lacking" : "remains", left < 0 ? -left : left, of);
  return out;
}

Result<MemoryPlan> plan_memory(const PlannedModel& m, device::CpuOptions on, const models::Options& o, const engine::EngineOptions& e) {
  const Planned p(m, on, o);
  try {
    MemoryPlan plan = memory_plan(*p.device, *p.layout, engine::plan_kv(*p.layout, e, *p.device), e);
    if (const int64_t lacking = -plan.remaining_bytes(); lacking > 0)
      return error("{} are lacking: the plan takes {} of {}; lower --max-context, --max-batch or --host-memory", text(lacking),
                   text(plan.total_bytes()), text(plan.memory_bytes));
    return plan;
  } catch (const Error& why) { return why; }
}

MemoryPlan whole_plan(const PlannedModel& m, device::CpuOptions on, const models::Options& o, const engine::EngineOptions& e) {
  const Planned p(m, on, o);
  const cache::KvSizes sizes{.pages = cache::product({e.max_sequences, pages_for(e.max_context, p.layout->page_tokens)}), .states = e.max_sequences};
  return memory_plan(*p.device, *p.layout, sizes, e);
}

}  // namespace winnow::cli
