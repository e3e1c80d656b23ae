// winnow chat: a conversation on the terminal. With stdin or stdout redirected it is plain: each input line is a message,
// each answer is printed without its reasoning, no colours, no prompts.
//
// Ctrl-C stops the current answer; at the prompt it leaves. The handler only counts: the loop looks at it between tokens.
#include <signal.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <boost/json.hpp>
#include <cerrno>
#include <cstdio>

#include "cli/session.h"
#include "cli/verb.h"
#include "text/answer.h"

namespace winnow::cli {
namespace {

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string system, reasoning_effort, reasoning = "auto";
  int64_t max_tokens = 0;
};

volatile sig_atomic_t interrupts = 0;

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupts = interrupts + 1; };  // no SA_RESTART: a read at the prompt returns
  sigaction(SIGINT, &action, nullptr);
}

// Lines of stdin. Unlike a stream it sees an interrupt.
class Lines {
 public:
  enum class Got { line, interrupt, end };
  Got next(std::string* line) {
    while (true) {
      const size_t newline = buffer_.find('\n');
      if (newline != std::string::npos) {
        *line = buffer_.substr(0, newline);
        buffer_.erase(0, newline + 1);
        return Got::line;
      }
      char bytes[4096];
      const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (n < 0 && errno == EINTR) return Got::interrupt;
      if (n > 0) {
        buffer_.append(bytes, static_cast<size_t>(n));
        continue;
      }
      *line = std::exchange(buffer_, {});
      return line->empty() ? Got::end : Got::line;
    }
  }

 private:
  std::string buffer_;
};

class Chat {
 public:
  Chat(const ChatFlags& flags, Session& session) : flags_(flags), session_(session), sampling_(sampling_of(flags.sampling, session.config())) {
    reset();
  }

  int talk() {
    catch_interrupts();
    if (prompts_) fmt::print("{} (profile {}); /help lists the commands\n", session_.name(), flags_.model.profile);
    std::string line;
    while (true) {
      if (prompts_) fmt::print("{}> {}", bold_, plain_);
      std::fflush(stdout);
      interrupts = 0;
      const Lines::Got got = lines_.next(&line);
      if (got != Lines::Got::line || line == "/exit") break;
      if (line.empty()) continue;
      if (line[0] == '/') {
        command(line);
        continue;
      }
      if (!answer(line)) return static_cast<int>(Failure::work);
    }
    if (prompts_) fmt::print("\n");
    return 0;
  }

 private:
  void reset() {
    messages_.clear();
    if (!flags_.system.empty()) messages_.push_back({{"role", "system"}, {"content", flags_.system}});
  }

  void command(std::string_view line) {
    if (line == "/reset") {
      reset();
      fmt::print("the conversation starts anew\n");
    } else if (line == "/help") {
      fmt::print(
          "/reset  forget the conversation\n/exit   leave (also Ctrl-D, or Ctrl-C at the prompt)\nCtrl-C  stop the answer that is being written\n");
    } else {
      fmt::print("{} is no command; /help lists them\n", harmless(std::string(line)));
    }
  }

  void show(const text::AnswerParts& parts) {
    const std::string reasoning = text_of(parts, text::AnswerPart::Kind::reasoning), content = text_of(parts, text::AnswerPart::Kind::content);
    if (show_reasoning_ && !reasoning.empty()) fmt::print("{}{}{}", dim_, terminal_ ? harmless(reasoning) : reasoning, plain_);
    if (!content.empty()) {
      if (show_reasoning_ && !reasoning_.empty() && content_.empty()) fmt::print("\n");
      fmt::print("{}", terminal_ ? harmless(content) : content);
    }
    std::fflush(stdout);
    reasoning_ += reasoning;
    content_ += content;
  }

  // False if the engine failed; a refused message is the user's to change.
  bool answer(const std::string& line) {
    messages_.push_back({{"role", "user"}, {"content", line}});
    boost::json::object context{{"messages", messages_}, {"add_generation_prompt", true}};
    if (!flags_.reasoning_effort.empty()) context["reasoning_effort"] = flags_.reasoning_effort;
    const std::vector<text::Piece> pieces = session_.chat_template().render(context).or_throw();
    engine::Request request;
    request.prompt = session_.tokenizer().encode(pieces);
    const int64_t room = session_.max_context() - static_cast<int64_t>(request.prompt.size());
    if (room < 1) {
      complain(fmt::format("winnow: the conversation of {} tokens fills the context of {}; /reset starts anew\n", request.prompt.size(),
                           session_.max_context()));
      messages_.pop_back();
      return true;
    }
    request.max_tokens = flags_.max_tokens ? std::min(flags_.max_tokens, room) : room;
    request.sampling = sampling_;
    request.stop_tokens = session_.config().eos_token_ids;
    Result<engine::Stream> stream = session_.engine().submit(std::move(request));
    if (!stream) throw stream.error();

    reasoning_.clear();
    content_.clear();
    text::AnswerReader reader(session_.tokenizer(), {.split_reasoning = true, .starts_in_reasoning = text::opens_reasoning(pieces)});
    const engine::FinishReason end = follow(*stream, reader);
    show(reader.finish());
    fmt::print("\n");
    if (end == engine::FinishReason::length)
      complain(fmt::format("winnow: the answer was cut at {} tokens (--max-tokens, --max-context)\n", stream->timings().generated_tokens));
    messages_.push_back({{"role", "assistant"}, {"content", content_}, {"reasoning_content", reasoning_}});
    return end != engine::FinishReason::error;
  }

  engine::FinishReason follow(engine::Stream& stream, text::AnswerReader& reader) {
    interrupts = 0;
    while (true) {
      engine::Event e;
      if (interrupts > 0) {
        stream.cancel();
        fmt::print("{}", terminal_ ? " [stopped]" : "");
        return engine::FinishReason::cancelled;
      }
      if (!stream.next_for(&e, std::chrono::milliseconds(100))) continue;
      if (e.finish == engine::FinishReason::error) complain(fmt::format("\nwinnow: the answer failed: {}\n", e.error));
      if (e.sampled.token >= 0 && e.finish != engine::FinishReason::stop) show(reader.append(e.sampled.token));
      if (e.finish != engine::FinishReason::none) return e.finish;
    }
  }

  const ChatFlags& flags_;
  Session& session_;
  const ops::Sampling sampling_;
  const bool terminal_ = isatty(STDOUT_FILENO);
  const bool prompts_ = terminal_ && isatty(STDIN_FILENO);
  const bool show_reasoning_ = flags_.reasoning == "show" || (flags_.reasoning == "auto" && terminal_);
  const std::string_view dim_ = terminal_ ? "\x1b[2m" : "", bold_ = terminal_ ? "\x1b[1m" : "", plain_ = terminal_ ? "\x1b[0m" : "";
  Lines lines_;
  boost::json::array messages_;
  std::string reasoning_, content_;  // of the answer being written
};

int chat(const ChatFlags& f) {
  ModelFlags model = f.model;
  model.max_batch = 1;
  Session session(model);
  session.chat_template();
  sampling_of(f.sampling, session.config());
  session.start();
  return Chat(f, session).talk();
}

}  // namespace

Run add_chat(CLI::App& program) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* verb = program.add_subcommand("chat", "A conversation on the terminal");
  add_model_flags(*verb, flags->model, ModelArgument::optional);
  add_context_flag(*verb, flags->model);
  add_reuse_flag(*verb, flags->model);
  add_memory_flags(*verb, flags->model);
  add_cache_flags(*verb, flags->model);
  verb->add_option("--system", flags->system, "a system message before the conversation");
  verb->add_option("--reasoning-effort", flags->reasoning_effort, "for the template: low, high or max")->check(CLI::IsMember({"low", "high", "max"}));
  verb->add_option("--reasoning", flags->reasoning, "show, hide, or auto: dimmed on a terminal, hidden elsewhere")
      ->check(CLI::IsMember({"auto", "show", "hide"}))
      ->capture_default_str();
  verb->add_option("--max-tokens", flags->max_tokens, "longest answer in tokens; 0: what the context leaves")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 24))
      ->capture_default_str();
  add_sampling_flags(*verb, flags->sampling);
  verb->footer(
      "Examples:\n"
      "  winnow chat\n"
      "  winnow chat MODEL --system \"Answer in one sentence.\" --temperature 0\n"
      "  echo \"What is 347 + 285?\" | winnow chat\n\n"
      "In the conversation: /help, /reset, /exit. Ctrl-C stops an answer; Ctrl-C at the prompt or Ctrl-D leaves.");
  return [flags] { return chat(*flags); };
}

}  // namespace winnow::cli
