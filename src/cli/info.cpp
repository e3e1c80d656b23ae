// winnow info: what a checkpoint is, what is in it, what is refused and why. Reads headers, tokenizer and template only.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "base/file.h"
#include "base/json_writer.h"
#include "cli/session.h"
#include "cli/verb.h"
#include "weights/describe.h"

namespace winnow::cli {
namespace {

struct InfoFlags {
  ModelFlags model;
  bool json = false;
};

constexpr size_t kMostReasons = 100;

std::string_view what_is(const weights::PartSummary& p) {
  if (p.present) return p.expected ? "present" : "present, though the config does not speak of it";
  return p.expected ? "absent" : "none";
}

void print_config(const weights::Config& c) {
  fmt::print("model         {} ({})\n", c.architecture, c.model_type);
  fmt::print("layers        {}: {} KDA, {} sparse attention", c.layers.size(), c.kda_layers(), c.attention_layers());
  if (c.mtp_layers) fmt::print(", and {} MTP", c.mtp_layers);
  fmt::print("\nwidths        hidden {}, {} streams, vocabulary {}{}\n", c.hidden_size, c.hc_streams, c.vocab_size,
             c.tied_embeddings ? ", tied head" : "");
  fmt::print("attention     {} heads, query rank {}, latent {}, keys {} + {}, values {}\n", c.heads, c.q_lora_rank, c.kv_lora_rank,
             c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim);
  fmt::print("indexer       {} heads of {}, pools of {}, {} tokens selected{}\n", c.index_heads, c.index_head_dim, c.index_kpool, c.index_topk,
             c.index_tail ? " and the tail" : "");
  fmt::print("KDA           {} heads of {}, {} taps\n", c.kda_heads, c.kda_head_dim, c.conv_taps);
  fmt::print("feed-forward  dense {}; {} experts of {}, {} a token, {} shared\n", c.intermediate_size, c.experts, c.moe_intermediate_size,
             c.experts_per_token, c.shared_experts);
  fmt::print("context       {} tokens\n", c.max_position_embeddings);
  fmt::print("stops at      {}; temperature {:g}, top_p {:g} by default\n", fmt::join(c.eos_token_ids, ", "), c.default_temperature, c.default_top_p);
}

void print(const weights::Description& d) {
  fmt::print("folder        {}\n", d.dir);
  if (d.config) print_config(*d.config);
  fmt::print("quantisation  {}\n", d.quantisation);
  fmt::print("parameters    {:.2f} M, {:.2f} M of them used by a token\n", static_cast<double>(d.parameters) * 1e-6,
             static_cast<double>(d.active_parameters) * 1e-6);
  fmt::print("files         {} with {} tensors, {} bytes\n", d.files, d.tensors, d.bytes);
  for (const weights::TypeShare& t : d.types) fmt::print("  {:<22}{:>9} tensors {:>18} bytes\n", winnow::name_of(t.type), t.tensors, t.bytes);
  fmt::print("parts\n");
  for (const weights::PartSummary& p : d.parts)
    fmt::print("  {:<22}{:>9} tensors {:>18} bytes  {}\n", weights::name_of(p.part), p.tensors, p.bytes, what_is(p));
  fmt::print("what they hold\n");
  for (const weights::Share& s : d.shares)
    fmt::print("  {:<22}{:>9} tensors {:>18} bytes  {:.2f} M parameters\n", s.what, s.tensors, s.bytes, static_cast<double>(s.parameters) * 1e-6);
  if (d.accepted()) {
    fmt::print("accepted      all names, shapes and types are as the config asks\n");
    return;
  }
  fmt::print("refused       for {} reason{}\n", d.refused_count, d.refused_count == 1 ? "" : "s");
  for (const std::string& r : d.refused) fmt::print("  {}\n", r);
  if (d.refused_count > static_cast<int64_t>(d.refused.size()))
    fmt::print("  and {} more\n", d.refused_count - static_cast<int64_t>(d.refused.size()));
}

void print_json(const weights::Description& d) {
  JsonWriter w({.spaced = true});
  w.begin_object().field("folder", d.dir);
  if (d.config) {
    w.field("architecture", d.config->architecture).field("model_type", d.config->model_type).field("layers", d.config->layers.size());
    w.field("hidden_size", d.config->hidden_size)
        .field("vocab_size", d.config->vocab_size)
        .field("max_position_embeddings", d.config->max_position_embeddings);
  }
  w.field("quantisation", d.quantisation).field("parameters", d.parameters).field("active_parameters", d.active_parameters);
  w.field("files", d.files).field("tensors", d.tensors).field("bytes", d.bytes);
  w.key("types").begin_object();
  for (const weights::TypeShare& t : d.types)
    w.key(winnow::name_of(t.type)).begin_object().field("tensors", t.tensors).field("bytes", t.bytes).end_object();
  w.end_object().key("parts").begin_object();
  for (const weights::PartSummary& p : d.parts) {
    w.key(weights::name_of(p.part)).begin_object().field("expected", p.expected).field("present", p.present);
    w.field("tensors", p.tensors).field("parameters", p.parameters).field("bytes", p.bytes).end_object();
  }
  w.end_object().field("accepted", d.accepted()).field("refused_count", d.refused_count).key("refused").begin_array();
  for (const std::string& r : d.refused) w.value(r);
  w.end_array().end_object();
  fmt::print("{}\n", w.text());
}

int info(const InfoFlags& f) {
  const std::string folder = model_folder(f.model);
  weights::Description d = weights::describe(folder, kMostReasons);
  // What is there beside the weights has to be readable too.
  const auto refuse = [&](const Error& why) {
    ++d.refused_count;
    d.refused.emplace_back(why.what());
  };
  if (const std::string path = folder + "/tokenizer.json"; exists(path)) {
    if (const auto t = text::Tokenizer::load(path); !t) refuse(t.error());
    if (exists(folder + "/chat_template.jinja") || exists(folder + "/tokenizer_config.json"))
      if (const auto t = text::ChatTemplate::load(folder); !t) refuse(t.error());
  }
  if (f.json) print_json(d);
  else if (d.config) print(d);
  if (d.accepted()) return 0;
  throw Error(d.refused_count == 1 ? d.refused.front()
                                   : fmt::format("{}: refused for {} reasons, the first: {}", d.dir, d.refused_count, d.refused.front()));
}

}  // namespace

Run add_info(CLI::App& program) {
  auto flags = std::make_shared<InfoFlags>();
  CLI::App* verb = program.add_subcommand("info", "What a checkpoint is, what is in it, what is refused and why");
  verb->add_option("MODEL", flags->model.model, "model folder; without it the small model that ships with winnow");
  verb->add_flag("--json", flags->json, "one JSON object instead of a table");
  verb->footer(
      "Examples:\n  winnow info\n  winnow info MODEL --json\n\nReads headers, tokenizer and template only, whatever the size. Exit code 3 if the "
      "checkpoint would be "
      "refused; what is refused is listed.");
  return [flags] { return info(*flags); };
}

}  // namespace winnow::cli
