#include "weights/source.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>

#include "base/units.h"
#include "weights/inventory.h"
#include "weights/json.h"

namespace winnow::weights {
namespace {

constexpr std::string_view kScaleSuffix = "_scale_inv";
constexpr std::string_view kConv = "conv1d.weight";
constexpr std::string_view kExperts = ".mlp.experts.";

// Official name -> transformers' module name, each once in a name.
constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kStyles = {{
    {".hc_attn_", ".attn_hc."},
    {".hc_ffn_", ".ffn_hc."},
    {".self_attn.f_a_proj.", ".self_attn.forget_gate.f_a_proj."},
    {".self_attn.f_b_proj.", ".self_attn.forget_gate.f_b_proj."},
    {".self_attn.dt_bias", ".self_attn.forget_gate.dt_bias"},
    {".self_attn.A_log", ".self_attn.forget_gate.A_log"},
}};

enum class Projection : uint8_t { gate, up, down };
struct ExpertName {
  std::string fused;  // "model.language_model.layers.3.mlp.experts.gate_up_proj"
  int64_t index = 0;
  Projection projection = Projection::gate;
};

std::optional<ExpertName> parse_expert(std::string_view name) {
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view prefix = name.substr(0, at + kExperts.size()), rest = name.substr(prefix.size());
  ExpertName e;
  const auto [end, ec] = std::from_chars(rest.data(), rest.data() + rest.size(), e.index);
  if (ec != std::errc()) return std::nullopt;
  const std::string_view which = rest.substr(static_cast<size_t>(end - rest.data()));
  if (which == ".gate_proj.weight") e.projection = Projection::gate;
  else if (which == ".up_proj.weight") e.projection = Projection::up;
  else if (which == ".down_proj.weight") e.projection = Projection::down;
  else return std::nullopt;
  e.fused = std::string(prefix) + (e.projection == Projection::down ? "down_proj" : "gate_up_proj");
  return e;
}

// "model.language_model.layers.0.self_attn.q_conv1d.weight" of the fused name.
std::string part_conv(std::string_view fused, char x) {
  std::string s(fused.substr(0, fused.size() - kConv.size()));
  return s + x + '_' + std::string(kConv);
}

bool is_conv(std::string_view name) { return name.ends_with(std::string(".") + std::string(kConv)); }

std::string shown(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string file_of(const Checkpoint::Entry& e) {
  const std::string& p = e.file->path();
  return p.substr(p.rfind('/') + 1);
}

// A name that matched an official one is printable; any other may hold anything.
std::string printable(std::string_view name) {
  const std::string s = quoted(name);
  return s.substr(1, s.size() - 2);
}

int64_t product(std::span<const int64_t> shape) {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

}  // namespace

Error Problems::error(const std::string& dir) const {
  std::string s = fmt::format("{}: {} problem{} with the tensors: {}", dir, count(), count() == 1 ? "" : "s", fmt::join(told_, "; "));
  if (count() > static_cast<int64_t>(told_.size())) s += fmt::format("; and {} more", count() - static_cast<int64_t>(told_.size()));
  return Error(s);
}

void Problems::add_once(std::string what) {
  if (!seen_.insert(std::hash<std::string>()(what)).second) return;
  if (told_.size() < most_) told_.push_back(std::move(what));
}

std::string official_name(const std::string& name) {
  if (name.starts_with("lm_head.") || name.starts_with("model.")) return name;
  return std::string(kTextPrefix) + name;
}

Finder::Stored Finder::stored(std::string_view name) const {
  if (const auto i = c_.tensors().find(name); i != c_.tensors().end()) return &*i;
  for (const auto& [official, module] : kStyles) {
    const size_t at = name.find(official);
    if (at == std::string_view::npos) continue;
    std::string other(name);
    other.replace(at, official.size(), module);
    const auto i = c_.tensors().find(other);
    return i == c_.tensors().end() ? nullptr : &*i;
  }
  return nullptr;
}

bool Finder::expect_shape(Stored t, std::span<const int64_t> shape) {
  const std::vector<int64_t>& has = t->second.info->shape;
  if (std::equal(has.begin(), has.end(), shape.begin(), shape.end())) return true;
  problems_.wrong(fmt::format("{} in {} has the shape {} where the config asks for {}", t->first, file_of(t->second), shown(has), shown(shape)));
  return false;
}

// Element type of a stored tensor: floating, and e4m3 exactly if there is a scale of the right shape.
void Finder::attach_scale(Source& s, Stored t, std::span<const int64_t> stored_shape, int64_t first_row, int64_t rows, int64_t index) {
  const DType type = t->second.info->dtype;
  const auto scale = c_.tensors().find(t->first + std::string(kScaleSuffix));
  const bool has_scale = scale != c_.tensors().end();
  if (has_scale) used_.insert(scale->first);
  if (type != DType::f32 && type != DType::bf16 && type != DType::f16 && type != DType::e4m3) {
    problems_.wrong(fmt::format("{} in {} has the dtype {}; weights are f32, bf16, f16 or e4m3", t->first, file_of(t->second), name_of(type)));
    return;
  }
  if (type != DType::e4m3) {
    if (has_scale) problems_.wrong(fmt::format("{} in {} has a scale but the dtype {} instead of e4m3", t->first, file_of(t->second), name_of(type)));
    return;
  }
  if (!has_scale) return problems_.wrong(fmt::format("{} in {} is e4m3 but {}{} is missing", t->first, file_of(t->second), t->first, kScaleSuffix));
  const size_t rank = stored_shape.size();
  if (rank != 2 && !(rank == 3 && t->first.find(kExperts) != std::string::npos))
    return problems_.wrong(fmt::format("{} in {} is e4m3, which is supported for matrices only", t->first, file_of(t->second)));
  std::vector<int64_t> want(stored_shape.begin(), stored_shape.end());
  for (size_t i = rank - 2; i < rank; ++i) want[i] = ceil_div(want[i], kFp8Block);
  if (!expect_shape(&*scale, want)) return;
  if (scale->second.info->dtype != DType::f32)
    return problems_.wrong(
        fmt::format("{} in {} has the dtype {}; scales are f32", scale->first, file_of(scale->second), name_of(scale->second.info->dtype)));
  if (first_row % kFp8Block != 0)
    return problems_.wrong(
        fmt::format("{} in {}: a block of its scale lies in two matrices; fused FP8 experts need moe_intermediate_size to be a multiple of {}",
                    t->first, file_of(t->second), kFp8Block));
  const int64_t columns = want[rank - 1];
  s.scale.push_back({&scale->first, scale->second, (index * want[rank - 2] + first_row / kFp8Block) * columns, ceil_div(rows, kFp8Block) * columns});
}

Source Finder::whole(Stored t, std::span<const int64_t> stored_shape) {
  used_.insert(t->first);
  Source s;
  if (!expect_shape(t, stored_shape)) return s;
  s.data.push_back({&t->first, t->second, 0, product(stored_shape)});
  attach_scale(s, t, stored_shape, 0, stored_shape.empty() ? 1 : stored_shape[0], 0);
  return s;
}

Source Finder::convolutions(const std::string& name, std::span<const int64_t> shape) {
  const std::array<int64_t, 3> part = {shape[0] / 3, 1, shape[2]};
  Source s;
  for (char x : {'q', 'k', 'v'}) {
    const std::string own = part_conv(name, x);
    Stored t = stored(own);
    if (!t) {
      problems_.missing(own);
      continue;
    }
    Source one = whole(t, part);
    s.data.insert(s.data.end(), one.data.begin(), one.data.end());
  }
  return s;
}

Source Finder::expert(const std::string& name, std::span<const int64_t> shape) {
  const ExpertName e = *parse_expert(name);
  Stored t = stored(e.fused);
  const int64_t n = shape[0], k = shape[1], parts = e.projection == Projection::down ? 1 : 2;
  const int64_t first_row = e.projection == Projection::up ? n : 0;
  used_.insert(t->first);
  const std::array<int64_t, 3> want = {c_.config().experts, parts * n, k};
  Source s;
  if (!expect_shape(t, want)) return s;
  s.data.push_back({&t->first, t->second, (e.index * parts * n + first_row) * k, n * k});
  attach_scale(s, t, want, first_row, n, e.index);
  return s;
}

Source Finder::find(const std::string& name, std::span<const int64_t> shape) {
  // A convolution may be wanted as [channels, taps]; it is stored with a dimension of one between.
  std::vector<int64_t> stored_shape(shape.begin(), shape.end());
  if (is_conv(name) && shape.size() == 2) stored_shape.insert(stored_shape.begin() + 1, 1);
  if (Stored t = stored(name)) {
    // The image tower's convolutions do not overlap: they are matrices [out, everything else].
    const std::vector<int64_t>& has = t->second.info->shape;
    if (name.starts_with(kVisionPrefix) && shape.size() == 2 && has.size() > 2 && has[0] == shape[0] && product(has) == product(shape))
      stored_shape = has;
    return whole(t, stored_shape);
  }
  if (is_conv(name)) return convolutions(name, stored_shape);
  if (const auto e = parse_expert(name); e && shape.size() == 2) {
    if (stored(e->fused)) return expert(name, shape);
    // The other half of a fused pair: the fused name is what is missing.
    const std::string prefix = e->fused.substr(0, e->fused.rfind('.') + 1);
    if (stored(prefix + "gate_up_proj") || stored(prefix + "down_proj")) {
      problems_.missing(e->fused);
      return {};
    }
  }
  if (name == "lm_head.weight" && c_.config().tied_embeddings)
    if (Stored t = stored(official_name("embed_tokens.weight"))) return whole(t, stored_shape);
  problems_.missing(name);
  return {};
}

std::optional<DType> Finder::type_of(const std::string& name) const {
  Stored t = stored(name);
  if (!t && is_conv(name)) t = stored(part_conv(name, 'q'));
  if (!t)
    if (const auto e = parse_expert(name)) t = stored(e->fused);
  if (!t && name == "lm_head.weight" && c_.config().tied_embeddings) t = stored(official_name("embed_tokens.weight"));
  if (!t) return std::nullopt;
  return t->second.info->dtype;
}

void check_rest(const Checkpoint& c, const std::set<Part>& asked, Finder& finder, Problems& problems) {
  std::set<Part> present;
  for (const auto& [name, entry] : c.tensors()) present.insert(part_of(name, c.config()));
  for (Part p : {Part::trunk, Part::mtp, Part::vision})
    if (present.contains(p) && !asked.contains(p))
      for_each_tensor(c.config(), p, [&](const std::string& name, std::span<const int64_t> shape) { (void)finder.find(name, shape); });
  for (const auto& [name, entry] : c.tensors()) {
    if (finder.used().contains(name)) continue;
    if (name.ends_with(kScaleSuffix) && !c.tensors().contains(name.substr(0, name.size() - kScaleSuffix.size())))
      problems.wrong(fmt::format("{} in {} is a scale without its weight", printable(name), file_of(entry)));
    else problems.wrong(fmt::format("unused {} in {}", printable(name), file_of(entry)));
  }
}

}  // namespace winnow::weights
