// winnow plan: what a model takes by kind, and which contexts and batches fit. Allocates nothing, so that it also tells how
// much more a machine would need.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <optional>

#include "base/json_writer.h"
#include "base/progress.h"
#include "cli/memory_plan.h"
#include "cli/session.h"
#include "cli/shapes.h"
#include "cli/verb.h"

namespace winnow::cli {
namespace {

struct PlanFlags {
  ModelFlags model;
  ShapeFlags shape;
  bool json = false;
};

// The model of the flags; checkpoint and config stay where they are.
class Subject {
 public:
  explicit Subject(const PlanFlags& f) : flags_(f.model), forced_(forced_kernels(f.model)) {
    if (wants_shape(f.shape, f.model.model)) {
      config_ = glm_5_3_flash(f.shape.layers);
      name_ = fmt::format("{}, {} layers", f.shape.shape, f.shape.layers);
    } else {
      name_ = model_folder(f.model);
      checkpoint_.emplace(weights::Checkpoint::open(name_).or_throw());
    }
  }
  const std::string& name() const { return name_; }
  const weights::Config& config() const { return checkpoint_ ? checkpoint_->config() : *config_; }
  PlannedModel model() const {
    return {.checkpoint = checkpoint_ ? &*checkpoint_ : nullptr, .config = checkpoint_ ? nullptr : &*config_, .forced = forced_};
  }
  const ModelFlags& flags() const { return flags_; }
  models::Options options(int64_t batch, int64_t context) const {
    models::Options o = model_options(flags_, config());
    set_batch(&o, batch);
    o.max_context = context;
    return o;
  }
  Result<MemoryPlan> plan(int64_t batch, int64_t context) const {
    const models::Options o = options(batch, context);
    return plan_memory(model(), device_options(flags_), o, engine_options(flags_, o, config()));
  }
  // Full contexts for all at once, whether it fits or not.
  MemoryPlan whole(int64_t batch, int64_t context) const {
    const models::Options o = options(batch, context);
    return whole_plan(model(), device_options(flags_), o, engine_options(flags_, o, config()));
  }

 private:
  const ModelFlags flags_;
  const device::ForcedKernels forced_;
  std::string name_;
  std::optional<weights::Checkpoint> checkpoint_;
  std::optional<weights::Config> config_;
};

struct Cell {
  int64_t context = 0, batch = 0;
  int64_t tokens = 0;  // that the pages hold; 0: it does not run at all
  bool fits = false;   // full contexts of all requests
};

// The usual sizes up to what the model was made for, and the ones asked for.
std::vector<int64_t> with(std::vector<int64_t> usual, int64_t asked, int64_t most) {
  std::erase_if(usual, [&](int64_t n) { return n > most; });
  usual.push_back(asked);
  std::ranges::sort(usual);
  usual.erase(std::unique(usual.begin(), usual.end()), usual.end());
  return usual;
}

struct Table {
  std::vector<int64_t> contexts, batches;
  std::vector<Cell> cells;  // batch by batch of each context
};

Table table_of(const Subject& s, const models::Options& asked) {
  Table t{.contexts = with({4096, 16384, 65536, 262144, 1048576}, asked.max_context, s.config().max_position_embeddings),
          .batches = with({1, 2, 4, 8, 16, 32}, asked.max_sequences, 1024),
          .cells = {}};
  for (int64_t context : t.contexts)
    for (int64_t batch : t.batches) {
      const Result<MemoryPlan> plan = s.plan(batch, context);
      t.cells.push_back({.context = context,
                         .batch = batch,
                         .tokens = plan ? plan->tokens() : 0,
                         .fits = plan && plan->sizes.pages >= batch * pages_for(context, plan->page_tokens)});
    }
  return t;
}

std::string tokens_text(int64_t n) { return n % 1024 == 0 ? fmt::format("{}k", n / 1024) : fmt::format("{}", n); }

void print_table(const Table& t) {
  fmt::print("\nwhich fit: requests at once across, tokens of each down; a number: so many tokens of all requests together; -: not at all\n{:>10}",
             "");
  for (int64_t b : t.batches) fmt::print("{:>10}", b);
  fmt::print("\n");
  for (size_t i = 0; i < t.cells.size(); ++i) {
    const Cell& c = t.cells[i];
    if (i % t.batches.size() == 0) fmt::print("{:>10}", tokens_text(c.context));
    fmt::print("{:>10}", c.fits ? "yes" : c.tokens > 0 ? std::to_string(c.tokens) : "-");
    if ((i + 1) % t.batches.size() == 0) fmt::print("\n");
  }
}

void print_json(const Subject& s, const MemoryPlan& p, const std::string& lacking, const MemoryPlan& least, const Table& t) {
  JsonWriter w({.spaced = true});
  w.begin_object().field("model", s.name()).field("fits", lacking.empty()).field("least_bytes", least.total_bytes());
  if (!lacking.empty()) w.field("lacking", lacking);
  w.field("memory_bytes", p.memory_bytes).field("memory_given", p.memory_given).field("sum_bytes", p.total_bytes());
  w.field("remaining_bytes", p.remaining_bytes()).key("kinds").begin_object();
  for (const MemoryPlan::Line& l : p.lines) w.field(l.kind, l.bytes);
  w.end_object().field("max_batch", p.max_sequences).field("max_context", p.max_context).field("page_tokens", p.page_tokens);
  w.field("pages", p.sizes.pages).field("tokens", p.tokens()).field("bytes_per_token", p.bytes_per_token());
  w.field("bytes_per_request", p.record_bytes).field("snapshots", p.snapshots());
  w.field("host_pages", p.sizes.host_pages).field("host_states", p.sizes.host_states).key("table").begin_array();
  for (const Cell& c : t.cells)
    w.begin_object().field("context", c.context).field("batch", c.batch).field("fits", c.fits).field("tokens", c.tokens).end_object();
  w.end_array().end_object();
  fmt::print("{}\n", w.text());
}

int plan(const PlanFlags& f) {
  const Subject s(f);
  const models::Options asked = model_options(f.model, s.config());
  engine_options(f.model, asked, s.config());
  const int64_t batch = asked.max_sequences, context = asked.max_context;
  const Result<MemoryPlan> planned = s.plan(batch, context);
  const MemoryPlan shown = planned ? *planned : s.whole(batch, context);
  const int64_t missing = -shown.remaining_bytes();
  const MemoryPlan least = s.whole(1, shown.page_tokens);
  const bool hopeless = shown.memory_given && !s.plan(1, shown.page_tokens), by_flags = hopeless && least.remaining_bytes() >= 0;
  const std::string lacking = planned                    ? ""
                              : missing > 0 && !by_flags ? fmt::format("{} are lacking", bytes_text(static_cast<double>(missing)))
                                                         : planned.error().what();
  const Table t = table_of(s, asked);
  if (f.json) {
    print_json(s, shown, lacking, least, t);
  } else {
    fmt::print("{}, profile {}, {} request{} at once, context {}\n", s.name(), models::name_of(asked.profile), batch, batch == 1 ? "" : "s", context);
    for (const std::string& line : text_of(shown)) fmt::print("{}\n", line);
    if (!planned)
      fmt::print(
          "\nit does not fit: {}\nthese are full contexts for all requests, without snapshots; the least that runs is one request of one page: {}\n",
          lacking, bytes_text(static_cast<double>(least.total_bytes())));
    print_table(t);
  }
  return hopeless ? static_cast<int>(Failure::cannot_run) : 0;
}

}  // namespace

Run add_plan(CLI::App& program) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* verb = program.add_subcommand("plan", "What fits: memory by kind, and which contexts and batches");
  add_model_flags(*verb, flags->model, ModelArgument::optional);
  add_context_flag(*verb, flags->model);
  add_batch_flag(*verb, flags->model);
  add_reuse_flag(*verb, flags->model);
  add_memory_flags(*verb, flags->model);
  add_cache_flags(*verb, flags->model);
  add_shape_flags(*verb, flags->shape);
  verb->add_flag("--json", flags->json, "One JSON object instead of a table");
  verb->footer(
      "Nothing is allocated and no weights are read, so it also runs where the model does not fit. With the same flags, serve has this plan.\n"
      "Exit code 3 if --memory is given and holds, beside what other flags take of it, not even one request of one page; else 0.\n\n"
      "  winnow plan\n"
      "  winnow plan MODEL --memory 64GB --max-batch 8 --max-context 65536\n"
      "  winnow plan --shape glm-5.3-flash --layers 45 --memory 1TB   without a download");
  return [flags] {
    apply_log_level(flags->model);
    return plan(*flags);
  };
}

}  // namespace winnow::cli
