// winnow: the program. Parses the command line, runs one verb and turns what goes wrong into one line on stderr and an
// exit code (0 done, 1 the work failed, 2 wrong usage, 3 cannot run here).
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "base/error.h"
#include "cli/config_file.h"
#include "cli/flags.h"
#include "cli/verb.h"

namespace winnow::cli {
namespace {

struct Verb {
  const char* name;
  Run (*add)(CLI::App&);
};
constexpr Verb kVerbs[] = {
    {"chat", add_chat},   {"run", add_run},   {"serve", add_serve}, {"verify", add_verify},
    {"bench", add_bench}, {"info", add_info}, {"plan", add_plan},   {"devices", add_devices},
};

// CLI11 puts what it knows about one mistake on several lines, and a template may raise whatever it likes.
std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text;
}

int say(std::string message, Failure kind) {
  complain(fmt::format("winnow: {}\n", one_line(std::move(message))));
  return static_cast<int>(kind);
}

// Whatever a verb printed has arrived, or its work was for nothing.
int delivered(int code) {
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  return lost && code == 0 ? say("stdout: the output could not be written", Failure::work) : code;
}

std::string no_verb(std::string_view word) {
  std::vector<std::string> names;
  for (const Verb& v : kVerbs) names.push_back(v.name);
  return fmt::format("'{}' is no verb{}; verbs: {}", word, suggestion(word, names), fmt::join(names, ", "));
}

// What the command line holds beyond what the verb knows.
std::string unexpected(const CLI::App& verb) {
  const std::string word = verb.remaining().front();
  if (!word.starts_with("-")) return fmt::format("{}: unexpected argument '{}'; see 'winnow {} --help'", verb.get_name(), word, verb.get_name());
  std::vector<std::string> known;
  for (const CLI::Option* o : verb.get_options())
    for (const std::string& name : o->get_lnames()) known.push_back("--" + name);
  const std::string flag = word.substr(0, word.find('='));
  return fmt::format("{}: unknown flag {}{}; see 'winnow {} --help'", verb.get_name(), flag, suggestion(flag, known), verb.get_name());
}

int run(int argc, char** argv) {
  CLI::App program("Runs GLM-5.3-Flash and its relatives on your own machine.", "winnow");
  program.set_version_flag("--version", "winnow " WINNOW_VERSION);
  program.footer(
      "Each verb explains itself: winnow VERB --help, man winnow-VERB.\n\n"
      "  winnow chat                          talk to the small model that ships with winnow\n"
      "  winnow run MODEL -p \"What is 2+2?\"   one answer to stdout\n"
      "  winnow serve MODEL --port 8080       OpenAI API over HTTP");
  program.require_subcommand(0, 1);
  program.allow_extras();
  std::vector<Run> runs;
  for (const Verb& v : kVerbs) {
    runs.push_back(v.add(program));
    program.get_subcommand(v.name)->allow_extras();
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    if (program.get_subcommands().empty() && !program.remaining().empty()) return say(no_verb(program.remaining().front()), Failure::usage);
    program.exit(e);
    return 0;
  } catch (const CLI::ParseError& e) {
    const auto chosen = program.get_subcommands();
    const std::string verb = chosen.empty() ? "" : chosen.front()->get_name();
    return say(fmt::format("{}{}{}; see 'winnow {}{}--help'", verb, verb.empty() ? "" : ": ", e.what(), verb, verb.empty() ? "" : " "),
               Failure::usage);
  }
  const auto chosen = program.get_subcommands();
  if (chosen.empty()) {
    const std::vector<std::string> words = program.remaining();
    if (words.empty()) {
      fmt::print("{}", program.help());
      return static_cast<int>(Failure::usage);
    }
    return say(no_verb(words.front()), Failure::usage);
  }
  if (!chosen.front()->remaining().empty()) return say(unexpected(*chosen.front()), Failure::usage);
  if (const CLI::Option* config = chosen.front()->get_option_no_throw("--config");
      config && config->count() > 0 && !config->as<std::string>().empty())
    apply_config(*chosen.front(), config->as<std::string>());
  // An empty value is a variable of a script that was not set, and must not mean the default; an empty message is one.
  for (const CLI::Option* o : chosen.front()->get_options())
    if (o->count() > 0 && !o->check_lname("prompt") && std::ranges::find(o->results(), "") != o->results().end())
      return say(fmt::format("{}: {} is empty; leave it out or give it a value", chosen.front()->get_name(), o->get_name()), Failure::usage);
  for (size_t i = 0; i < std::size(kVerbs); ++i)
    if (chosen.front()->get_name() == kVerbs[i].name) return runs[i]();
  check(false, "a subcommand without a verb");
  return 1;
}

// Reading a mapped file beyond its end, or from a disk that fails, is this signal: on whatever thread, so nothing but a
// system call may be used. Any other bus error is ours and is met again, deadly, when the handler returns.
void lost_mapping(int signal, siginfo_t* info, void*) {
  constexpr std::string_view kWhy =
      "winnow: a file of the model became shorter or unreadable while it was mapped; start again, or use --weights copy\n";
  if (info->si_code == BUS_ADRERR) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kWhy.data(), kWhy.size());
    ::_exit(static_cast<int>(Failure::work));
  }
  std::signal(signal, SIG_DFL);
}

void catch_lost_mappings() {
  struct sigaction action{};
  action.sa_sigaction = lost_mapping;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace
}  // namespace winnow::cli

int main(int argc, char** argv) {
  // A closed 0, 1 or 2 would become some other file, and be written to. Writing to a closed stdout stays a failure.
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0) (void)::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  std::signal(SIGPIPE, SIG_IGN);  // a reader that went away is a failed write, not a death
  winnow::cli::catch_lost_mappings();
  spdlog::set_default_logger(spdlog::stderr_color_mt("winnow"));
  spdlog::set_pattern("%H:%M:%S.%e %^%l%$ %v");
  spdlog::set_level(spdlog::level::warn);
  try {
    return winnow::cli::delivered(winnow::cli::run(argc, argv));
  } catch (const winnow::Error& e) { return winnow::cli::say(e.what(), e.kind()); } catch (const std::bad_alloc&) {
    return winnow::cli::say("out of memory", winnow::Failure::cannot_run);
  } catch (const std::exception& e) { return winnow::cli::say(e.what(), winnow::Failure::work); }
}
