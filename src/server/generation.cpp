#include "server/generation.h"

#include <boost/json.hpp>
#include <optional>

namespace winnow::server {
namespace {

namespace json = boost::json;

constexpr std::string_view kEndThink = "</think>";
constexpr int64_t kCompletionTokens = 16;  // OpenAI's default for /v1/completions

struct Tokens {
  std::vector<int32_t> ids;
  bool starts_in_reasoning = false;
};

// So long a text cannot fit, whatever its tokens are: told before it is cut into them, which takes long.
std::optional<Refusal> too_long(std::string_view field, size_t bytes, const Services& s) {
  constexpr size_t kShrinks = 4;  // normalisation can make a text shorter, by less than this
  const size_t most = static_cast<size_t>(s.facts.max_context) * s.tokenizer.longest_token() * kShrinks;
  if (bytes <= most) return {};
  return Refusal{.message = fmt::format("{}: {} bytes are more than the context of {} tokens can hold", field, bytes, s.facts.max_context),
                 .param = std::string(field),
                 .code = "context_length_exceeded"};
}

std::variant<std::vector<Tokens>, Refusal> encode(const Request& r, const Services& s) {
  std::vector<Tokens> out;
  if (!r.is_conversation()) {
    for (const Prompt& p : r.prompts) {
      if (const auto* text = std::get_if<std::string>(&p)) {
        if (auto refusal = too_long("prompt", text->size(), s)) return std::move(*refusal);
        out.push_back({s.tokenizer.encode(*text, true)});
      } else {
        out.push_back({std::get<std::vector<int32_t>>(p)});
      }
    }
    return out;
  }
  const std::string& field = r.prompt_field;
  if (!s.chat_template)
    return Refusal{.message = fmt::format("{}: this model has no chat template; use /v1/completions", field), .param = field, .code = {}};
  Result<std::vector<text::Piece>> pieces = s.chat_template->render(r.context);
  if (!pieces) return Refusal{.message = fmt::format("{}: {}", field, pieces.error().what()), .param = field, .code = {}};
  bool reasons = text::opens_reasoning(*pieces);
  if (reasons && r.thinking_tokens == 0) {
    pieces->push_back({std::string(kEndThink), true});
    reasons = false;
  }
  size_t bytes = 0;
  for (const text::Piece& p : *pieces) bytes += p.text.size();
  if (auto refusal = too_long(field, bytes, s)) return std::move(*refusal);
  out.push_back({s.tokenizer.encode(*pieces), reasons});
  return out;
}

// How many tokens an answer may have after this prompt.
std::variant<int64_t, Refusal> budget(const Request& r, const ModelFacts& facts, int64_t prompt) {
  const int64_t room = facts.max_context - prompt;
  const std::string& field = r.prompt_field;
  if (room < 1 || room < r.min_tokens)
    return Refusal{.message = fmt::format("{}: {} tokens leave no room for {} in the context of {}", field, prompt,
                                          r.min_tokens > 1 ? fmt::format("min_tokens {}", r.min_tokens) : "an answer", facts.max_context),
                   .param = field,
                   .code = "context_length_exceeded"};
  if (r.max_tokens == 0) return 1;  // the engine draws one, which is not shown
  if (!r.max_tokens) return r.is_conversation() ? room : std::min(room, std::max(kCompletionTokens, r.min_tokens));
  if (*r.max_tokens > room)
    return Refusal{.message = fmt::format("{}: {} tokens after a prompt of {} exceed the context of {}", r.max_tokens_field, *r.max_tokens, prompt,
                                          facts.max_context),
                   .param = r.max_tokens_field,
                   .code = "context_length_exceeded"};
  return *r.max_tokens;
}

engine::Request engine_request(const Request& r, const ModelFacts& facts, const std::vector<int32_t>& prompt, int64_t max_tokens, int64_t choice) {
  engine::Request e;
  e.prompt = prompt;
  e.max_tokens = max_tokens;
  e.sampling = r.sampling;
  e.sampling.choice = static_cast<uint32_t>(choice);
  e.stop_tokens = facts.eos_token_ids;
  e.stop_tokens.insert(e.stop_tokens.end(), r.stop_tokens.begin(), r.stop_tokens.end());
  e.ignore_eos = r.ignore_eos;
  e.min_tokens = r.min_tokens;
  if (r.echo) e.prompt_logprobs = r.sampling.logprobs;
  e.cache_salt = r.cache_salt;
  e.priority = r.priority;
  e.deadline_s = r.timeout_s;
  return e;
}

// An answer's place in its grammar, for the engine.
class GrammarConstraint : public engine::Constraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<const grammar::Grammar> g) : matcher_(std::move(g)) {}
  void mask(std::span<uint32_t> words) override { matcher_.mask(words); }
  bool accept(int32_t token) override { return matcher_.accept(token); }
  void rollback(int64_t tokens) override { matcher_.rollback(tokens); }
  bool is_done() const override { return matcher_.is_done(); }

 private:
  grammar::Matcher matcher_;
};

// What the answer must be, if it must be anything. Blocks while it is compiled.
std::variant<std::shared_ptr<const grammar::Grammar>, Refusal> compiled_form(const Request& r, bool starts_in_reasoning, const Services& s) {
  const json::array* tools = r.has_tools() ? &r.context.at("tools").as_array() : nullptr;
  grammar::AnswerRules rules{
      .starts_in_reasoning = starts_in_reasoning, .reasoning_tokens = r.thinking_tokens, .tools = tools, .calls = r.calls, .output = &r.output};
  const auto compile = [&]() -> Result<std::shared_ptr<const grammar::Grammar>> {
    const std::optional<grammar::AnswerForm> form = grammar::answer_form(rules, s.tokenizer);
    if (!form) return std::shared_ptr<const grammar::Grammar>();
    return s.grammars.compile(form->structural_tag, form->strictness);
  };
  const auto refusal = [](const std::string& field, const Error& why) {
    return Refusal{.message = field.empty() ? why.what() : fmt::format("{}: {}", field, why.what()), .param = field, .code = {}};
  };
  if (r.calls.required && !grammar::can_call(s.tokenizer))
    return Refusal{
        .message = "tool_choice: this model's vocabulary has no tags for calls, so none can be forced", .param = "tool_choice", .code = {}};
  const bool formed = r.output.kind != grammar::OutputForm::Kind::text;
  if (formed && tools) {  // alone: tools that are not strict would make its own grammar lenient
    rules.tools = nullptr;
    if (const auto alone = compile(); !alone) return refusal(r.output.field, alone.error());
    rules.tools = tools;
  }
  const Result<std::shared_ptr<const grammar::Grammar>> all = compile();
  if (all) return *all;
  if (formed && !tools) return refusal(r.output.field, all.error());
  rules.output = nullptr;
  for (size_t i = 0; tools && i < tools->size(); ++i) {
    rules.calls.allowed = {std::string((*tools)[i].at("function").at("name").as_string())};
    if (const auto alone = compile(); !alone) return refusal(fmt::format("tools[{}]", i), alone.error());
  }
  return refusal({}, all.error());
}

}  // namespace

void ChoiceText::append(const engine::Event& event, Delta* to) {
  to->choice = index_;
  to->finish = event.finish;
  to->error = event.error;
  to->late = event.late;
  to->barred = event.barred;
  to->pushed.push_back(event.pushed);
  const auto show = [&](text::AnswerParts parts) {
    for (text::AnswerPart& p : parts) text::push(&to->parts, p.kind, std::move(p.text));
  };
  if (event.sampled.token >= 0) {
    ++tokens_;
    ++to->drawn;
    to->tokens.push_back(event.sampled);
    if (reader_.in_reasoning()) ++reasoning_tokens_;
    to->in_text = reader_.in_text();
    if (event.finish != engine::FinishReason::stop) show(reader_.append(event.sampled.token, tokens_ >= min_tokens_));  // a stop token has no text
    to->in_text = to->in_text && reader_.in_text() && event.finish != engine::FinishReason::stop;
  }
  if (reader_.stopped()) {
    to->finish = engine::FinishReason::stop;
    to->stop_string = reader_.stop_string();
  }
  if (to->finish != engine::FinishReason::none) show(reader_.finish());
}

std::variant<std::vector<int32_t>, Refusal> prompt_tokens(const Request& request, const Services& services) {
  std::variant<std::vector<Tokens>, Refusal> encoded = encode(request, services);
  if (auto* refusal = std::get_if<Refusal>(&encoded)) return std::move(*refusal);
  return std::move(std::get<std::vector<Tokens>>(encoded).front().ids);
}

std::variant<Generation, Refusal> Generation::start(Request request, const Services& services) {
  std::variant<std::vector<Tokens>, Refusal> encoded = encode(request, services);
  if (auto* refusal = std::get_if<Refusal>(&encoded)) return std::move(*refusal);
  Generation g(std::move(request), services);
  const Request& r = g.request_;
  std::shared_ptr<const text::ToolTypes> tools;
  if (r.has_tools()) tools = std::make_shared<const text::ToolTypes>(r.context.at("tools").as_array());
  for (const Tokens& prompt : std::get<std::vector<Tokens>>(encoded)) {
    const int64_t n = static_cast<int64_t>(prompt.ids.size());
    const std::variant<int64_t, Refusal> tokens = budget(r, services.facts, n);
    if (const auto* refusal = std::get_if<Refusal>(&tokens)) return *refusal;
    g.prompt_tokens_ += n;
    std::variant<std::shared_ptr<const grammar::Grammar>, Refusal> form = compiled_form(r, prompt.starts_in_reasoning, services);
    if (auto* refusal = std::get_if<Refusal>(&form)) return std::move(*refusal);
    const auto& compiled = std::get<std::shared_ptr<const grammar::Grammar>>(form);
    for (int64_t i = 0; i < r.n; ++i) {
      engine::Request asked = engine_request(r, services.facts, prompt.ids, std::get<int64_t>(tokens), i);
      if (compiled) asked.constraint = std::make_shared<GrammarConstraint>(compiled);
      Result<engine::Stream> stream = services.engine.submit(std::move(asked));
      if (!stream)
        return Refusal{.status = stream.error().kind() == Failure::usage ? 400 : 503, .message = stream.error().what(), .param = {}, .code = {}};
      text::AnswerOptions options{.split_reasoning = r.is_conversation(),
                                  .starts_in_reasoning = prompt.starts_in_reasoning,
                                  .stop = r.stop,
                                  .tools = tools,
                                  .one_call = !r.calls.parallel};
      const int64_t index = static_cast<int64_t>(g.choices_.size());
      g.choices_.push_back({std::move(*stream), ChoiceText(index, services.tokenizer, std::move(options), r.min_tokens),
                            r.echo ? prompt.ids : std::vector<int32_t>()});
    }
  }
  return g;
}

void Generation::on_news(const std::function<void()>& wake) {
  for (Choice& c : choices_) c.stream.on_event(wake);
}

// The prompt before what was drawn behind it.
void Generation::show_prompt(Choice& c, const engine::Event& event, Delta* delta) {
  std::string text;
  for (int32_t id : c.echo) text += services_->tokenizer.bytes(id);
  text::push(&delta->parts, text::AnswerPart::Kind::content, std::move(text));
  delta->tokens.insert(delta->tokens.end(), event.prompt.begin(), event.prompt.end());
  c.echo.clear();
}

void Generation::take(Choice& c, const engine::Event& event, Delta* delta) {
  if (!c.echo.empty() && event.sampled.token >= 0) show_prompt(c, event, delta);
  if (request_.max_tokens == 0 && event.sampled.token >= 0) {
    delta->choice = c.text.index();
    delta->finish = engine::FinishReason::length;
    c.done = true;
    return;
  }
  c.text.append(event, delta);
  c.done = delta->finish != engine::FinishReason::none;
  if (c.done && c.text.stopped()) c.stream.cancel();
}

std::vector<Delta> Generation::poll() {
  std::vector<Delta> news;
  for (Choice& c : choices_) {
    Delta delta;
    engine::Event event;
    const auto tell = [&] {
      if (request_.sampling.logprobs < 0) delta.tokens.clear();
      if (!delta.empty() || delta.drawn > 0) news.push_back(std::exchange(delta, {}));
    };
    while (!c.done && c.stream.try_next(&event)) {
      take(c, event, &delta);
      if (request_.responses.text_logprobs) tell();
    }
    tell();
  }
  return news;
}

engine::Timings Generation::timings(size_t choice) const { return choices_[choice].stream.timings(); }

bool Generation::done() const {
  for (const Choice& c : choices_)
    if (!c.done) return false;
  return true;
}

void Generation::cancel() {
  for (Choice& c : choices_)
    if (!c.done) c.stream.cancel();
}

Usage Generation::usage() const {
  Usage u{.prompt_tokens = prompt_tokens_};
  for (const Choice& c : choices_) {
    u.completion_tokens += c.text.tokens();
    u.reasoning_tokens += c.text.reasoning_tokens();
  }
  for (size_t i = 0; i < choices_.size(); ++i) {
    const engine::Timings t = timings(i);
    u.preemptions += t.preemptions;
    u.queued_s = std::max(u.queued_s, t.queued_s);
    u.prefill_s = std::max(u.prefill_s, t.prefill_s);
    u.decode_s = std::max(u.decode_s, t.decode_s);
    if (i == 0) u.cached = t.cached;
    else if (i % static_cast<size_t>(request_.n) == 0) {
      u.cached.tokens += t.cached.tokens;
      for (size_t tier = 0; tier < u.cached.pages_in.size(); ++tier) u.cached.pages_in[tier] += t.cached.pages_in[tier];
    }
  }
  return u;
}

}  // namespace winnow::server
