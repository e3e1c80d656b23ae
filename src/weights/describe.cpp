#include "weights/describe.h"

#include <algorithm>
#include <map>
#include <set>

#include "weights/source.h"

namespace winnow::weights {
namespace {

// The kind of a trunk tensor by its official name.
std::string_view kind_of(std::string_view name) {
  auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (has("embed_tokens.") || name.starts_with("lm_head.")) return "embedding and head";
  if (has(".hc_")) return "residual streams (mHC)";
  if (has(".self_attn.indexer.")) return "indexer";
  if (has(".self_attn.q_a_") || has(".self_attn.q_b_") || has(".self_attn.kv_")) return "sparse attention (MLA)";
  if (has(".mlp.experts.")) return "routed experts";
  if (has(".mlp.shared_experts.")) return "shared experts";
  if (has(".mlp.gate.")) return "routers";
  if (has(".mlp.")) return "dense feed-forward";
  if (has("norm.weight") && !has(".self_attn.")) return "norms";
  return "linear attention (KDA)";
}

bool is_mla_output(std::string_view name, const Config& c) {
  if (!name.ends_with(".self_attn.o_proj.weight")) return false;
  const size_t at = name.find("layers.") + 7;
  return c.layers[static_cast<size_t>(std::atoll(std::string(name.substr(at)).c_str()))].mixer == Mixer::mla;
}

class Survey {
 public:
  Survey(const Checkpoint& c, size_t most, Description& d) : c_(c), problems_(most), finder_(c, problems_), d_(d) {}

  void run() {
    for (const auto& [name, e] : c_.tensors()) present_.insert(part_of(name, c_.config()));
    part(Part::trunk, true);
    part(Part::mtp, c_.config().mtp_layers > 0);
    part(Part::vision, c_.config().has_vision);
    std::sort(d_.shares.begin(), d_.shares.end(), [](const Share& a, const Share& b) { return a.parameters > b.parameters; });
    for (Part p : {Part::mtp, Part::vision})
      if (const PartSummary& s = d_.parts[static_cast<size_t>(p)]; s.present)
        d_.shares.push_back({p == Part::mtp ? "MTP layer" : "image tower", s.tensors, s.parameters, s.bytes});
    types();
    check_rest(c_, {Part::trunk, Part::mtp, Part::vision}, finder_, problems_);
    d_.refused = problems_.told();
    d_.refused_count = problems_.count();
  }

 private:
  void part(Part p, bool expected) {
    PartSummary s{.part = p, .expected = expected, .present = present_.contains(p)};
    std::map<std::string, Share, std::less<>> kinds;
    const Config& config = c_.config();
    if (s.present || p == Part::trunk)
      for_each_tensor(config, p, [&](const std::string& name, std::span<const int64_t> shape) {
        const Source source = finder_.find(name, shape);
        if (!source.found()) return;
        int64_t parameters = 0, bytes = 0;
        for (const Piece& piece : source.data) {
          parameters += piece.count;
          bytes += bytes_of(piece.entry.info->dtype, piece.count);
        }
        for (const Piece& piece : source.scale) bytes += bytes_of(DType::f32, piece.count);
        s.tensors += static_cast<int64_t>(source.data.size());
        s.parameters += parameters;
        s.bytes += bytes;
        if (p != Part::trunk) return;
        const std::string kind(is_mla_output(name, config) ? "sparse attention (MLA)" : kind_of(name));
        Share& share = kinds.try_emplace(kind, Share{kind}).first->second;
        share.tensors += static_cast<int64_t>(source.data.size());
        share.parameters += parameters;
        share.bytes += bytes;
        d_.active_parameters += kind == "routed experts" ? 0 : parameters;
      });
    if (const auto e = kinds.find("routed experts"); e != kinds.end())
      d_.active_parameters += e->second.parameters / config.experts * config.experts_per_token;
    for (auto& [kind, share] : kinds) d_.shares.push_back(share);
    d_.parameters += s.parameters;
    d_.parts.push_back(s);
  }

  void types() {
    std::map<DType, TypeShare> all;
    for (const auto& [name, e] : c_.tensors()) {
      TypeShare& t = all.try_emplace(e.info->dtype, TypeShare{e.info->dtype}).first->second;
      ++t.tensors;
      t.bytes += e.info->bytes;
    }
    for (const auto& [type, t] : all) d_.types.push_back(t);
    std::sort(d_.types.begin(), d_.types.end(), [](const TypeShare& a, const TypeShare& b) { return a.bytes > b.bytes; });
  }

  const Checkpoint& c_;
  Problems problems_;
  Finder finder_;
  Description& d_;
  std::set<Part> present_;
};

}  // namespace

Description describe(const std::string& dir, size_t most) {
  Description d;
  d.dir = dir;
  auto config = read_config(dir);
  if (config) {
    d.config = *config;
    d.quantisation = config->block_fp8 ? "block FP8 (e4m3, 128 x 128)" : "none";
  }
  auto c = Checkpoint::open(dir);
  if (!c) {
    d.refused.push_back(c.error().what());
    d.refused_count = 1;
    return d;
  }
  d.files = static_cast<int64_t>(c->files().size());
  d.tensors = static_cast<int64_t>(c->tensors().size());
  d.bytes = c->total_bytes();
  Survey(*c, most, d).run();
  return d;
}

}  // namespace winnow::weights
