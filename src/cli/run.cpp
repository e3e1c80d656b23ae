// winnow run: one completion to stdout.
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <boost/json.hpp>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <numeric>

#include "base/json_writer.h"
#include "cli/session.h"
#include "cli/verb.h"
#include "text/answer.h"
#include "weights/safetensors.h"

namespace winnow::cli {
namespace {

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string prompt, token_ids, system, reasoning_effort, logits;
  std::vector<std::string> stop;
  int64_t max_tokens = 256;
  bool raw = false, json = false, ignore_eos = false;
};

struct Prompt {
  std::vector<int32_t> ids;
  bool chat = false, starts_in_reasoning = false;
};

std::vector<int32_t> parse_ids(std::string_view list, int64_t vocab) {
  std::vector<int32_t> ids;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    std::string_view word = list.substr(at, comma - at);
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    int32_t id = -1;
    const auto [end, bad] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (bad != std::errc{} || end != word.data() + word.size())
      throw Error(fmt::format("--token-ids: '{}' is not a token id; write e.g. 1,2,3", word), Failure::usage);
    if (id < 0 || id >= vocab) throw Error(fmt::format("--token-ids: {} is outside the vocabulary (0 to {})", id, vocab - 1), Failure::usage);
    ids.push_back(id);
    at = comma + 1;
  }
  return ids;
}

Prompt make_prompt(const RunFlags& f, const Session& session) {
  Prompt p;
  if (!f.token_ids.empty()) {
    p.ids = parse_ids(f.token_ids, session.config().vocab_size);
    return p;
  }
  if (f.raw) {
    p.ids = session.tokenizer().encode(f.prompt, true);
    if (p.ids.empty()) throw Error("-p: the prompt is empty; with --raw it needs at least one token", Failure::usage);
    return p;
  }
  boost::json::array messages;
  if (!f.system.empty()) messages.push_back({{"role", "system"}, {"content", f.system}});
  messages.push_back({{"role", "user"}, {"content", f.prompt}});
  boost::json::object context{{"messages", std::move(messages)}, {"add_generation_prompt", true}};
  if (!f.reasoning_effort.empty()) context["reasoning_effort"] = f.reasoning_effort;
  const std::vector<text::Piece> pieces = session.chat_template().render(context).or_throw();
  p.ids = session.tokenizer().encode(pieces);
  p.chat = true;
  p.starts_in_reasoning = text::opens_reasoning(pieces);
  return p;
}

struct Output {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs, logits;
  std::string text, reasoning;
  engine::FinishReason finish = engine::FinishReason::none;
};

void write_json(const RunFlags& f, Session& session, const Prompt& prompt, const Output& out, uint64_t seed, const engine::Timings& t) {
  JsonWriter w({.spaced = true});
  w.begin_object().field("model", session.name()).field("profile", models::name_of(session.model().options().profile));
  w.field("backend", device::name_of(session.device().caps().backend)).field("seed", seed);
  w.field("prompt_tokens", prompt.ids.size()).key("prompt_token_ids").begin_array();
  for (int32_t id : prompt.ids) w.value(id);
  w.end_array().key("tokens").begin_array();
  for (int32_t id : out.tokens) w.value(id);
  w.end_array().field("text", out.text);
  if (prompt.chat) w.field("reasoning_text", out.reasoning);
  w.key("logprobs").begin_array();
  for (float v : out.logprobs) w.value(v);
  w.end_array().field("finish_reason", engine::name_of(out.finish));
  if (!f.logits.empty()) w.field("logits", f.logits);
  const auto rate = [](int64_t n, double s) { return s > 0 ? static_cast<double>(n) / s : 0.0; };
  w.key("timings")
      .begin_object()
      .field("load_s", session.load_s())
      .field("queued_s", t.queued_s)
      .field("prefill_s", t.prefill_s)
      .field("decode_s", t.decode_s);
  w.field("prompt_tokens_per_s", rate(t.prompt_tokens, t.prefill_s))
      .field("tokens_per_s", rate(static_cast<int64_t>(out.tokens.size()) - 1, t.decode_s));
  w.end_object().end_object();
  fmt::print("{}\n", w.text());
}

// Runs the request; writes text as it comes unless it is to be JSON.
Output generate(const RunFlags& f, const Session& session, engine::Stream& stream, const Prompt& prompt) {
  Output out;
  const bool terminal = isatty(STDOUT_FILENO);
  std::optional<text::AnswerReader> reader;
  if (session.has_tokenizer())
    reader.emplace(session.tokenizer(),
                   text::AnswerOptions{.split_reasoning = prompt.chat, .starts_in_reasoning = prompt.starts_in_reasoning, .stop = f.stop});
  const auto show = [&](const text::AnswerParts& parts) {
    const std::string content = text_of(parts, text::AnswerPart::Kind::content);
    out.reasoning += text_of(parts, text::AnswerPart::Kind::reasoning);
    out.text += content;
    if (f.json) return;
    const std::string shown = terminal ? harmless(content) : content;
    if (std::fwrite(shown.data(), 1, shown.size(), stdout) != shown.size() || std::fflush(stdout) != 0)
      throw Error("stdout: the answer could not be written", Failure::work);  // nobody reads on
  };
  while (out.finish == engine::FinishReason::none) {
    const engine::Event e = stream.next();
    out.finish = e.finish;
    if (e.finish == engine::FinishReason::error) throw Error(fmt::format("the request failed: {}", e.error), Failure::work);
    if (e.sampled.token < 0) continue;
    out.tokens.push_back(e.sampled.token);
    out.logprobs.push_back(e.sampled.logprob);
    out.logits.insert(out.logits.end(), e.logits.begin(), e.logits.end());
    if (!reader || e.finish == engine::FinishReason::stop) continue;  // a stop token has no text
    show(reader->append(e.sampled.token));
    if (reader->stopped()) out.finish = engine::FinishReason::stop;
  }
  if (reader) show(reader->finish());
  if (!f.json) fmt::print("{}\n", reader ? "" : fmt::format("{}", fmt::join(out.tokens, ",")));
  return out;
}

int run(const RunFlags& f, bool has_prompt) {
  if (has_prompt == !f.token_ids.empty()) throw Error("give one of -p TEXT and --token-ids 1,2,3; see 'winnow run --help'", Failure::usage);
  if (f.raw && !f.system.empty()) throw Error("--system: with --raw there is no template to put it in; write it into -p", Failure::usage);
  for (const std::string& s : f.stop)
    if (s.empty()) throw Error("--stop: an empty string stops nothing", Failure::usage);
  if (!f.token_ids.empty() && (f.raw || !f.system.empty() || !f.reasoning_effort.empty()))
    throw Error("--token-ids: the prompt is complete; --raw, --system and --reasoning-effort go with -p", Failure::usage);
  if (f.raw && !f.reasoning_effort.empty()) throw Error("--reasoning-effort: with --raw there is no template that would know it", Failure::usage);
  std::error_code bad;
  if (const std::filesystem::path folder = std::filesystem::path(f.logits).parent_path();
      !folder.empty() && !std::filesystem::is_directory(folder, bad))
    throw Error(fmt::format("--logits {}: there is no folder {}", f.logits, folder.string()), Failure::usage);
  if (!f.logits.empty()) weights::check_writable(f.logits);
  ModelFlags model = f.model;
  model.max_batch = 1;
  Session session(model);
  const Prompt prompt = make_prompt(f, session);
  engine::Request request;
  request.prompt = prompt.ids;
  request.max_tokens = f.max_tokens;
  request.sampling = sampling_of(f.sampling, session.config());
  request.sampling.logprobs = 0;
  request.stop_tokens = session.config().eos_token_ids;
  request.ignore_eos = f.ignore_eos;
  request.keep_logits = !f.logits.empty();
  const uint64_t seed = request.sampling.seed;
  const auto pages = std::numeric_limits<int64_t>::max();  // known only once everything is planned; submit looks at them
  if (auto why = engine::refusal(request, {.vocab_size = session.config().vocab_size, .max_context = session.max_context(), .pages = pages}))
    throw *why;
  session.start();
  Result<engine::Stream> stream = session.engine().submit(std::move(request));
  if (!stream) throw Error(stream.error().what(), stream.error().kind() == Failure::cannot_run ? Failure::cannot_run : Failure::usage);
  const Output out = generate(f, session, *stream, prompt);
  if (!f.logits.empty()) {
    const int64_t vocab = session.config().vocab_size;
    const ConstTensorView view(reinterpret_cast<const std::byte*>(out.logits.data()), DType::f32,
                               {static_cast<int64_t>(out.logits.size()) / vocab, vocab});
    weights::write_safetensors(f.logits, {{"logits", view}});
  }
  if (f.json) write_json(f, session, prompt, out, seed, stream->timings());
  if (std::fflush(stdout) != 0) throw Error("stdout: the answer could not be written", Failure::work);
  return 0;
}

}  // namespace

Run add_run(CLI::App& program) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* verb = program.add_subcommand("run", "One completion to stdout");
  add_model_flags(*verb, flags->model, ModelArgument::optional);
  add_context_flag(*verb, flags->model);
  add_reuse_flag(*verb, flags->model);
  add_memory_flags(*verb, flags->model);
  add_cache_flags(*verb, flags->model);
  CLI::Option* prompt = verb->add_option("-p,--prompt", flags->prompt, "what the user says; goes through the chat template unless --raw");
  verb->add_option("--token-ids", flags->token_ids, "the prompt as token ids: 1,2,3");
  verb->add_option("--system", flags->system, "a system message before the prompt");
  verb->add_flag("--raw", flags->raw, "take -p as it is, control tokens such as <|user|> included; no template");
  verb->add_option("--reasoning-effort", flags->reasoning_effort, "for the template: low, high, max")->check(CLI::IsMember({"low", "high", "max"}));
  verb->add_option("--max-tokens", flags->max_tokens, "longest answer in tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  verb->add_option("--stop", flags->stop, "end the answer before this text; repeatable")->allow_extra_args(false);
  verb->add_flag("--ignore-eos", flags->ignore_eos, "do not stop at the model's stop tokens");
  verb->add_flag("--json", flags->json, "one JSON object instead of text: prompt_tokens, tokens, text, logprobs, finish_reason, timings, ...");
  verb->add_option("--logits", flags->logits, "write the logits that each token was drawn from: safetensors, \"logits\" [steps, vocab] f32")
      ->type_name("FILE");
  add_sampling_flags(*verb, flags->sampling);
  verb->footer(
      "Examples:\n"
      "  winnow run -p \"What is 347 + 285?\"\n"
      "  winnow run MODEL -p \"Write a haiku\" --temperature 0.7 --seed 1\n"
      "  winnow run MODEL --token-ids 1,2,3 --max-tokens 8 --temperature 0 --json\n"
      "  winnow run MODEL --raw -p \"[gMASK]<sop>Once upon a time\" --ignore-eos\n\n"
      "Text goes to stdout without the model's reasoning; --json has it as reasoning_text. Without a tokenizer in MODEL the answer is token ids.");
  return [flags, prompt] { return run(*flags, prompt->count() > 0); };
}

}  // namespace winnow::cli
