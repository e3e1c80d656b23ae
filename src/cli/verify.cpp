// The verdict of a prompt comes from four comparisons with what an independent implementation computed in float32:
//   logits     of the last rows of one prefill
//   selection  the set of tokens that each attention layer chose for those rows
//   streams    the residual streams entering each layer, where the set stores them
//   greedy     the continuation, one decode step a token
// Where index scores tie, the reference's choice is arbitrary and ours is the lower pool: a row is then reported as a tie,
// and what follows it is compared with the stored selection forced (docs/model.md, Agreement).
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "cli/flags.h"
#include "cli/runner.h"
#include "cli/verb.h"
#include "weights/safetensors.h"

namespace winnow::cli {
namespace {

struct Tolerance {
  double logits;  // exact: max |difference| / max |logit|; fast: norm of the difference / norm
  double margin;  // greedy tokens must agree where the reference's best leads by more than this
  double recall;  // share of the reference's selected tokens that must be selected, over all rows of the file that choose
  bool exact;
  // For a model that turns bf16-sized noise into `noise`.
  Tolerance widened(double noise) const {
    const double by = std::max(1.0, 3 * noise / logits);
    return {.logits = logits * by, .margin = margin * by, .recall = 1 - (1 - recall) * by, .exact = exact};
  }
};
// The reference sets' own statement of what a float32 and a bf16 path reach; fp8 index keys may lose 3 % of the selection.
Tolerance tolerance_of(models::Profile p) {
  if (p == models::Profile::exact) return {.logits = 2e-4, .margin = 2e-3, .recall = 1.0, .exact = true};
  return {.logits = 2e-2, .margin = 0.3, .recall = 0.97, .exact = false};
}

using Selection = std::vector<int32_t>;  // ascending token positions

struct Reference {
  std::vector<int32_t> prompt, greedy;
  std::vector<float> margin;
  ConstTensorView logits;                              // [rows, vocab]
  std::map<int64_t, std::vector<Selection>> selected;  // layer -> last rows
  std::map<int64_t, ConstTensorView> hidden;           // layer -> [rows, streams, hidden]
};

// What a run hands on to others of the same prompt: its discontinuous choices by layer and position, and its logits.
struct Choices {
  using At = std::pair<int64_t, int64_t>;
  std::map<At, Selection> selected;
  std::map<At, std::vector<int32_t>> experts;
  std::vector<float> logits;  // of the reference's rows
};

struct Report {
  double logit_error = 0, stream_error = 0, noise = 0;
  int64_t rows = 0, equal_rows = 0, tie_rows = 0;  // whose selection was compared; equal; equal but for ties
  int64_t choosing_rows = 0;                       // compared rows with more pools than may be selected
  double recall_sum = 0;                           // over those: share of the reference's tokens that were selected
  int64_t routed = 0, routed_equal = 0;            // rows of expert layers; those with the same experts
  int64_t greedy_equal = 0, greedy_after_close_call = 0;
  bool forced = false, compared_logits = true;
  std::string fault;
  double recall() const { return choosing_rows ? recall_sum / static_cast<double>(choosing_rows) : 1; }
};

// The reference file, of which every tensor of a prompt must be asked for: one that nobody compares would pass unseen.
class ReferenceFile {
 public:
  explicit ReferenceFile(const std::string& path) : f_(weights::SafetensorsFile::open(path).or_throw()) {}
  bool has(const std::string& name) const { return f_.find(name); }
  // Floats must be finite: nothing can be compared with a NaN.
  ConstTensorView tensor(const std::string& name, DType type, int rank) {
    const weights::TensorInfo* info = f_.find(name);
    if (!info) throw error("{}: tensor {} is missing", f_.path(), name);
    if (info->dtype != type || static_cast<int>(info->shape.size()) != rank)
      throw error("{}: tensor {} must have the dtype {} and {} dimension{}", f_.path(), name, winnow::name_of(type), rank, rank > 1 ? "s" : "");
    asked_.insert(name);
    const ConstTensorView v = f_.view(name);
    for (int64_t i = 0; type == DType::f32 && i < v.elements(); ++i)
      if (!std::isfinite(v.as<float>()[i])) throw error("{}: tensor {} has a value that is not finite", f_.path(), name);
    return v;
  }
  // Values in [low, high).
  std::vector<int32_t> ints(const std::string& name, int64_t low, int64_t high, int rank = 1) {
    const ConstTensorView v = tensor(name, DType::i32, rank);
    std::vector<int32_t> list(v.as<int32_t>(), v.as<int32_t>() + v.elements());
    for (int32_t i : list)
      if (i < low || i >= high) throw error("{}: tensor {} has {}; allowed are {} to {}", f_.path(), name, i, low, high - 1);
    return list;
  }
  void expect(bool fits, const std::string& name, std::string_view what) const {
    if (!fits) throw error("{}: tensor {} does not fit: it must have {}", f_.path(), name, what);
  }
  void expect_all_asked() const {
    for (const auto& [name, info] : f_.tensors())
      if (name.size() > 1 && name[0] == 'p' && name[1] >= '0' && name[1] <= '9' && !asked_.contains(name))
        throw error("{}: tensor {} belongs to no prompt, layer or comparison that there is", f_.path(), name);
  }
  const std::string& path() const { return f_.path(); }

 private:
  weights::SafetensorsFile f_;
  std::set<std::string> asked_;
};

Reference read_prompt(ReferenceFile& f, const std::string& p, const weights::Config& c) {
  Reference r;
  r.prompt = f.ints(p + "input_ids", 0, c.vocab_size);
  const auto tokens = static_cast<int64_t>(r.prompt.size());
  f.expect(tokens > 0, p + "input_ids", "a token");
  const auto rows_fit = [&](const ConstTensorView& v) { return v.shape[0] >= 1 && v.shape[0] <= tokens; };
  r.logits = f.tensor(p + "logits_last", DType::f32, 2);
  f.expect(rows_fit(r.logits) && r.logits.shape[1] == c.vocab_size, p + "logits_last", "1 to the prompt's tokens rows, and vocab_size columns");
  r.greedy = f.ints(p + "greedy", 0, c.vocab_size);
  const ConstTensorView margin = f.tensor(p + "greedy_margin", DType::f32, 1);
  f.expect(margin.elements() == static_cast<int64_t>(r.greedy.size()), p + "greedy_margin", "a value for each greedy token");
  r.margin.assign(margin.as<float>(), margin.as<float>() + margin.elements());
  for (int64_t layer = 0; layer <= static_cast<int64_t>(c.layers.size()); ++layer) {
    const bool last = layer == static_cast<int64_t>(c.layers.size());
    const std::string topk = fmt::format("{}topk.{}", p, layer), hidden = fmt::format("{}hidden.{}", p, layer);
    if (f.has(topk) && !last && c.layers[static_cast<size_t>(layer)].mixer == weights::Mixer::mla) {
      const std::vector<int32_t> ids = f.ints(topk, -1, tokens, 2);
      const ConstTensorView v = f.tensor(topk, DType::i32, 2);
      f.expect(rows_fit(v), topk, "1 to the prompt's tokens rows");
      for (int64_t row = 0; row < v.shape[0]; ++row) {
        Selection s(ids.begin() + row * v.shape[1], ids.begin() + (row + 1) * v.shape[1]);
        std::erase(s, -1);
        std::sort(s.begin(), s.end());
        r.selected[layer].push_back(std::move(s));
      }
    }
    if (!f.has(hidden)) continue;
    const ConstTensorView v = f.tensor(hidden, DType::f32, last ? 2 : 3);
    f.expect(rows_fit(v) && v.shape[v.rank - 1] == c.hidden_size && (last || v.shape[1] == c.hc_streams), hidden,
             "1 to the prompt's tokens rows of hc_mult x hidden_size, or of hidden_size after the last layer");
    if (!last) r.hidden[layer] = v;  // after the last layer: the normed row, which the logits stand for
  }
  return r;
}

std::vector<Reference> read_references(ReferenceFile& f, const weights::Config& c) {
  std::vector<Reference> list;
  for (int64_t k = 0; f.has(fmt::format("p{}.input_ids", k)); ++k) list.push_back(read_prompt(f, fmt::format("p{}.", k), c));
  if (list.empty()) throw error("{}: no tensor p0.input_ids: this file holds no text prompts", f.path());
  f.expect_all_asked();
  return list;
}

std::string_view name_of(IndexKeys k) { return k == IndexKeys::f32 ? "f32" : k == IndexKeys::bf16 ? "bf16" : "fp8"; }

// Watches the steps of one run: compares selections and streams of the stored rows as they are made, records choices, or
// replaces them by those of another run.
class Watcher {
 public:
  struct Mode {
    Choices* record = nullptr;
    const Choices* follow = nullptr;  // choices to take instead of the run's own
    bool follow_stored = false;       // the same, from the reference, for the rows that it stores
    uint64_t noise = 0;               // a seed: add noise of bf16's size to the streams that enter a layer
  };
  Watcher(const Reference& ref, const weights::Config& config, Runner& runner, const Tolerance& tolerance, Mode mode, Report& report)
      : ref_(ref), config_(config), runner_(runner), tolerance_(tolerance), mode_(mode), report_(report), noise_(mode.noise) {}

  models::Probe probe() {
    models::Probe p;
    p.hidden = [this](LayerIndex l, TensorView x) {
      if (mode_.noise) add_noise(x);
      hidden(l, x);
    };
    p.scored = [this](LayerIndex l, int64_t first, ConstTensorView s) { scored(l, first, s); };
    p.selected = [this](LayerIndex l, TensorView tokens, TensorView count) { selected(l, tokens, count); };
    p.routed = [this](LayerIndex l, ConstTensorView logits, TensorView ids, TensorView weights) { routed(l, logits, ids, weights); };
    return p;
  }

 private:
  // Row of the reference's last `rows` rows that a step's row is, or -1.
  int64_t stored_row(int64_t step_row, int64_t rows) const {
    const int64_t i = runner_.first_position() + step_row - (static_cast<int64_t>(ref_.prompt.size()) - rows);
    return i >= 0 && i < rows ? i : -1;
  }

  // Uniform relative error of half a unit in the last place of bf16, either way.
  void add_noise(TensorView x) {
    for (int64_t i = 0; i < x.elements(); ++i) {
      noise_ = noise_ * 6364136223846793005u + 1442695040888963407u;
      x.as<float>()[i] *= 1.0f + static_cast<float>(static_cast<int32_t>(noise_ >> 32)) * 0x1p-31f / 256.0f;
    }
  }

  void hidden(LayerIndex layer, ConstTensorView x) {
    const auto it = ref_.hidden.find(layer.value);
    if (it == ref_.hidden.end()) return;
    const ConstTensorView want = it->second;
    const int64_t width = x.shape[1] * x.shape[2];
    double difference = 0, norm = 0, largest = 0, worst = 0;
    for (int64_t t = 0; t < x.shape[0]; ++t) {
      const int64_t row = stored_row(t, want.shape[0]);
      if (row < 0) continue;
      for (int64_t i = 0; i < width; ++i) {
        const double w = want.as<float>()[row * width + i], d = x.as<float>()[t * width + i] - w;
        difference += d * d;
        norm += w * w;
        worst = std::max(worst, std::abs(d));
        largest = std::max(largest, std::abs(w));
      }
    }
    if (difference == 0) return;
    const double error = std::isnan(difference) ? INFINITY : tolerance_.exact ? worst / largest : std::sqrt(difference / norm);
    report_.stream_error = std::max(report_.stream_error, error);
  }

  void scored(LayerIndex layer, int64_t first, ConstTensorView score) {
    if (!ref_.selected.contains(layer.value)) return;
    for (int64_t r = 0; r < score.shape[0]; ++r) {
      const int64_t rows = static_cast<int64_t>(ref_.selected.at(layer.value).size());
      if (stored_row(first + r, rows) < 0) continue;
      const int64_t pools = complete_pools(TokenPos(runner_.first_position() + first + r), config_.index_kpool);
      const float* s = score.as<float>() + r * score.stride[0];
      scores_[{layer.value, first + r}].assign(s, s + pools);
    }
  }

  void selected(LayerIndex layer, TensorView tokens, TensorView count) {
    const auto stored = ref_.selected.find(layer.value);
    for (int64_t t = 0; t < count.shape[0]; ++t) {
      int32_t* row = tokens.as<int32_t>() + t * tokens.shape[1];
      int32_t& length = count.as<int32_t>()[t];
      const Choices::At at{layer.value, runner_.first_position() + t};
      const Selection ours(row, row + length);
      const Selection* follow = nullptr;
      if (mode_.record) mode_.record->selected[at] = ours;
      if (mode_.follow) follow = &mode_.follow->selected.at(at);
      if (stored != ref_.selected.end()) {
        const int64_t i = stored_row(t, static_cast<int64_t>(stored->second.size()));
        if (i >= 0) {
          const Selection& want = stored->second[static_cast<size_t>(i)];
          compare_row(layer.value, t, ours, want);
          if (mode_.follow_stored && static_cast<int64_t>(want.size()) <= tokens.shape[1]) follow = &want;
        }
      }
      if (!follow) continue;
      std::copy(follow->begin(), follow->end(), row);
      std::fill(row + follow->size(), row + tokens.shape[1], -1);
      length = static_cast<int32_t>(follow->size());
    }
  }

  void routed(LayerIndex layer, ConstTensorView logits, TensorView ids, TensorView weights) {
    const int64_t k = ids.shape[1];
    for (int64_t t = 0; t < ids.shape[0]; ++t) {
      int32_t* row = ids.as<int32_t>() + t * k;
      const Choices::At at{layer.value, runner_.first_position() + t};
      const std::vector<int32_t> ours(row, row + k);
      if (mode_.record) mode_.record->experts[at] = ours;
      if (!mode_.follow) continue;
      const std::vector<int32_t>& want = mode_.follow->experts.at(at);
      ++report_.routed;
      if (std::is_permutation(ours.begin(), ours.end(), want.begin())) {
        ++report_.routed_equal;
        continue;
      }
      const float* l = logits.as<float>() + t * logits.shape[1];
      float* w = weights.as<float>() + t * k;
      double sum = 0;
      for (int64_t r = 0; r < k; ++r) {
        row[r] = want[static_cast<size_t>(r)];
        w[r] = 1.0f / (1.0f + std::exp(-l[row[r]]));
        sum += w[r];
      }
      for (int64_t r = 0; r < k; ++r) w[r] = config_.routed_scaling * (config_.normalise_router ? static_cast<float>(w[r] / (sum + 1e-20)) : w[r]);
    }
  }

  void compare_row(int64_t layer, int64_t t, const Selection& ours, const Selection& want) {
    // A row that can select nothing: the reference then attends to every key, later ones included; there is nothing to compare.
    const int64_t position = runner_.first_position() + t;
    if (!config_.index_tail && position + 1 < config_.index_kpool) return;
    ++report_.rows;
    const bool chooses = complete_pools(TokenPos(position), config_.index_kpool) > config_.index_topk / config_.index_kpool;
    report_.choosing_rows += chooses;
    Selection only_ours, only_theirs;
    std::set_difference(ours.begin(), ours.end(), want.begin(), want.end(), std::back_inserter(only_ours));
    std::set_difference(want.begin(), want.end(), ours.begin(), ours.end(), std::back_inserter(only_theirs));
    if (only_ours.empty() && only_theirs.empty()) ++report_.equal_rows;
    else if (only_ours.size() == only_theirs.size() && is_tie(layer, t, only_ours, only_theirs)) ++report_.tie_rows;
    else {
      report_.recall_sum += 1.0 - static_cast<double>(only_theirs.size()) / static_cast<double>(std::max<size_t>(want.size(), 1));
      if (ours.size() == want.size() && chooses) return;
      report_.fault =
          fmt::format("layer {}, position {}: {} tokens selected, the reference has {} others", layer, position, ours.size(), only_theirs.size());
      return;
    }
    report_.recall_sum += chooses;
  }

  // The pools in which the two sets differ have scores within float noise of each other.
  bool is_tie(int64_t layer, int64_t t, const Selection& a, const Selection& b) const {
    const auto it = scores_.find({layer, t});
    if (it == scores_.end()) return false;
    double low = INFINITY, high = -INFINITY, largest = 0;
    for (const Selection* s : {&a, &b})
      for (int32_t token : *s) {
        const size_t pool = static_cast<size_t>(token / config_.index_kpool);
        if (pool >= it->second.size()) return false;
        low = std::min<double>(low, it->second[pool]);
        high = std::max<double>(high, it->second[pool]);
      }
    for (float s : it->second) largest = std::max<double>(largest, std::abs(s));
    return high - low <= 2e-6 * largest;
  }

  const Reference& ref_;
  const weights::Config& config_;
  Runner& runner_;
  const Tolerance& tolerance_;
  const Mode mode_;
  Report& report_;
  uint64_t noise_;
  std::map<std::pair<int64_t, int64_t>, std::vector<float>> scores_;  // (layer, row of the step)
};

int32_t argmax(std::span<const float> x) { return static_cast<int32_t>(std::max_element(x.begin(), x.end()) - x.begin()); }

// Decode steps over the reference's own continuation: its token is fed whatever ours is, after a close call the comparison
// ends in profile exact, since the texts then part ways.
void compare_greedy(const Reference& ref, Runner& runner, const models::Glm5Next& model, const Tolerance& tolerance, int32_t token,
                    const models::Probe& probe, Report& report) {
  for (size_t i = 0; i < ref.greedy.size(); ++i) {
    if (token == ref.greedy[i]) ++report.greedy_equal;
    else if (ref.margin[i] > tolerance.margin && report.fault.empty())
      report.fault = fmt::format("token {} is {}, reference {} leads by {:.3g}", i, token, ref.greedy[i], ref.margin[i]);
    if (i + 1 == ref.greedy.size()) return;
    runner.decode({&ref.greedy[i], 1}, &probe);
    const ConstTensorView logits = model.logits();
    token = argmax({logits.as<float>(), static_cast<size_t>(logits.shape[1])});
  }
}

Report run_prompt(const Reference& ref, models::Glm5Next& model, Runner& runner, const Tolerance& tolerance, const Watcher::Mode& mode) {
  const weights::Config& config = model.config();
  Report report;
  report.forced = mode.follow_stored;
  Watcher watcher(ref, config, runner, tolerance, mode, report);
  const models::Probe probe = watcher.probe();
  const int64_t rows = ref.logits.shape[0], total = static_cast<int64_t>(ref.prompt.size()), vocab = ref.logits.shape[1];
  double difference = 0, norm = 0, worst = 0, largest = 0;
  int32_t token = -1;
  runner.reset();
  runner.prefill(
      ref.prompt, rows,
      [&](int64_t t, std::span<const float> logits) {
        // What noise does is seen against the run without it: a wrong reference must not pass for noise.
        const float* want = (mode.noise ? mode.follow->logits.data() : ref.logits.as<float>()) + (t - (total - rows)) * vocab;
        if (mode.record) mode.record->logits.insert(mode.record->logits.end(), logits.begin(), logits.end());
        token = argmax(logits);
        // Rows before the first complete pool of a model without a tail select nothing (see compare_row).
        if (!config.index_tail && t + 1 < config.index_kpool) return;
        for (int64_t i = 0; i < vocab; ++i) {
          const double d = static_cast<double>(logits[static_cast<size_t>(i)]) - want[i];
          difference += d * d;
          norm += static_cast<double>(want[i]) * want[i];
          worst = std::max(worst, std::isnan(d) ? INFINITY : std::abs(d));
          largest = std::max<double>(largest, std::abs(want[i]));
        }
      },
      &probe);
  report.logit_error = difference == 0 ? 0 : tolerance.exact ? worst / largest : std::sqrt(difference / norm);
  // Without a tail the first rows of the reference attend to all keys, later ones included, which no causal engine can do. In
  // short prompts everything stands on those rows: only their selection is compared.
  report.compared_logits = config.index_tail || total >= 8 * config.index_kpool;
  if (mode.noise) return report;
  if (report.compared_logits || mode.record) compare_greedy(ref, runner, model, tolerance, token, probe, report);
  if (!report.compared_logits) report.fault.clear();
  return report;
}

bool agrees(const Report& r, const Tolerance& t) {
  // Streams enter the logits through the same products: they are held to the same bound, with room for a single row's luck.
  const bool numbers = !r.compared_logits || (r.logit_error <= t.logits && r.stream_error <= 5 * t.logits);
  return numbers && r.fault.empty() && (!t.exact || r.equal_rows + r.tie_rows == r.rows);
}

std::string row_of(size_t index, const Reference& ref, const Report& r, bool ok) {
  std::string selection = r.rows ? fmt::format("{}/{}", r.equal_rows, r.rows) : "-";
  if (r.tie_rows) selection += fmt::format(" +{} tie{}", r.tie_rows, r.tie_rows > 1 ? "s" : "");
  if (r.recall() < 1) selection += fmt::format(" ({:.2f} %)", 100 * r.recall());
  std::string verdict = ok ? "agrees" : "DIFFERS";
  if (r.forced) verdict += ", after ties with the stored selection";
  if (!r.compared_logits) verdict += ", selection only: the reference is not causal here";
  if (!r.fault.empty()) verdict += ": " + r.fault;
  const std::string error = r.compared_logits ? fmt::format("{:.1e}", r.logit_error) : "-",
                    streams = r.compared_logits && r.stream_error > 0 ? fmt::format("{:.1e}", r.stream_error) : "-";
  const std::string routing = r.routed ? fmt::format("{:.1f} %", 100.0 * static_cast<double>(r.routed_equal) / static_cast<double>(r.routed)) : "-";
  const std::string noise = r.noise > 0 ? fmt::format("{:.1e}", r.noise) : "-";
  return fmt::format("{:>6} {:>7} {:>12} {:>8} {:>8} {:>24} {:>8} {:>7}  {}\n", index, ref.prompt.size(), error, noise, streams, selection, routing,
                     r.compared_logits ? fmt::format("{}/{}", r.greedy_equal, ref.greedy.size()) : "-", verdict);
}

// Enough draws to meet the worst case of a short prompt, whose few rows may hang on one near-cancellation.
uint64_t noise_runs(const Reference& ref) { return ref.prompt.size() <= 512 ? 16 : 4; }

// A model with memory for one sequence.
struct Side {
  models::Glm5Next model;
  Runner runner;
  Side(device::Device& device, const weights::Checkpoint& checkpoint, const models::Options& options)
      : model(device, checkpoint, options), runner(device, model, 1, options.max_context) {}
};

int verify(device::Device& device, const std::string& dir, const models::Options& options) {
  ReferenceFile golden(dir + "/golden.safetensors");
  const weights::Checkpoint checkpoint = weights::Checkpoint::open(dir).or_throw();
  const std::vector<Reference> references = read_references(golden, checkpoint.config());
  models::Options o = options;
  o.max_logit_rows = 1;
  int64_t longest = 0;
  for (const Reference& r : references) {
    longest = std::max(longest, static_cast<int64_t>(r.prompt.size() + r.greedy.size()));
    o.max_logit_rows = std::max(o.max_logit_rows, r.logits.shape[0]);
  }
  o.max_rows = std::max<int64_t>(512, round_up(o.max_logit_rows, kChunkGrid));
  o.max_sequences = 1;
  o.max_context = round_up(longest, kChunkGrid);
  const Tolerance stated = tolerance_of(o.profile);
  Side side(device, checkpoint, o);
  std::unique_ptr<Side> exact;
  if (!stated.exact) {
    models::Options e = o;
    e.profile = models::Profile::exact;
    exact = std::make_unique<Side>(device, checkpoint, e);
  }

  fmt::print("{}: profile {}, {} index keys, {}\n", dir, models::name_of(o.profile), name_of(side.model.kv_spec().index_keys), device.description());
  fmt::print("{:>6} {:>7} {:>12} {:>8} {:>8} {:>24} {:>8} {:>7}  {}\n", "prompt", "tokens", "logit error", "noise", "streams",
             "rows of equal selection", "routing", "greedy", "verdict");
  int64_t differing = 0;
  Report all;
  double widest = 0;  // loss of recall that some prompt's tolerance allows
  for (size_t i = 0; i < references.size(); ++i) {
    Choices choices;
    Tolerance tolerance = stated;
    double noise = 0;
    if (exact) {
      run_prompt(references[i], exact->model, exact->runner, stated, {.record = &choices});
      for (uint64_t seed = 1; seed <= noise_runs(references[i]); ++seed)
        noise = std::max(noise, run_prompt(references[i], exact->model, exact->runner, stated, {.follow = &choices, .noise = seed}).logit_error);
      tolerance = stated.widened(noise);
    }
    Report r = run_prompt(references[i], side.model, side.runner, tolerance, {.follow = exact ? &choices : nullptr});
    r.noise = noise;
    if (!exact && r.tie_rows && !agrees(r, tolerance)) {
      const Report before = r;
      r = run_prompt(references[i], side.model, side.runner, tolerance, {.follow_stored = true});
      r.tie_rows = before.tie_rows;
    }
    const bool ok = agrees(r, tolerance);
    differing += !ok;
    fmt::print("{}", row_of(i, references[i], r, ok));
    widest = std::max(widest, 1 - tolerance.recall);
    all.choosing_rows += r.choosing_rows;
    all.recall_sum += r.recall_sum;
  }
  const bool recalled = all.recall() >= 1 - widest;
  if (all.choosing_rows)
    fmt::print("selection recall {:.2f} % over {} rows that choose{}\n", 100 * all.recall(), all.choosing_rows,
               recalled ? "" : fmt::format(": below {:.2f} %, DIFFERS", 100 * (1 - widest)));
  if (differing) fmt::print("{} of {} prompts differ from the reference\n", differing, references.size());
  else if (recalled) fmt::print("all {} prompts agree\n", references.size());
  return differing || !recalled ? 1 : 0;
}

}  // namespace

Run add_verify(CLI::App& program) {
  auto flags = std::make_shared<ModelFlags>();
  flags->profile = "exact";
  CLI::App* verb = program.add_subcommand("verify", "Recompute a checkpoint's reference outputs and print how well they agree");
  add_model_flags(*verb, *flags, ModelArgument::required);
  verb->footer(
      "MODEL holds golden.safetensors: prompts with the logits, selections and greedy tokens that an independent implementation\n"
      "computed. Every prompt must agree within the stated tolerances, else the exit code is 1.\n\n"
      "  exact  logits within 2e-4 of the largest, the same tokens selected (ties apart), the same greedy tokens where the\n"
      "         reference's best leads by more than 0.002\n"
      "  fast   relative logit error below 2e-2, 97 % of the selected tokens, the same greedy tokens beyond a lead of 0.3\n\n"
      "  winnow verify models/winnow-tiny\n"
      "  winnow verify DIR --profile fast --index-keys fp8\n"
      "  winnow verify DIR --kernel isa=avx2");
  return [flags] {
    apply_log_level(*flags);
    const std::unique_ptr<device::Device> device = device::make_cpu(device_options(*flags));
    device->forced = forced_kernels(*flags);
    return verify(*device, flags->model, model_options(*flags));
  };
}

}  // namespace winnow::cli
