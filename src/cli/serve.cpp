// winnow serve: the HTTP server.
#include <spdlog/spdlog.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "cli/config_file.h"
#include "cli/serve_flags.h"
#include "cli/serve_log.h"
#include "cli/session.h"
#include "cli/verb.h"
#include "server/metrics.h"

namespace winnow::cli {
namespace {

// Tells /ready, and a log of JSON lines, where there is no bar, every tenth.
Session::Progress tell(server::Server& server, bool json) {
  return [&server, json, tenth = int64_t{0}](int64_t done, int64_t total) mutable {
    server.progress().update(done, total);
    const int64_t now = total > 0 ? done * 10 / total : 0;
    if (json && now > std::exchange(tenth, std::max(tenth, now))) spdlog::info("loading: {} %", now * 10);
  };
}

bool only_this_machine(const std::string& host) { return host.starts_with("127.") || host == "localhost" || host == "::1"; }

int serve(const ServeFlags& f) {
  apply_log_level(f.model);
  const ServeLog log(f.log_format == "json");
  const server::ServerOptions options = server_options(f);
  server::StepTimes steps;
  server::Server server(options);
  Session session(f.model);
  session.tokenizer();
  session.on_step([&steps](int64_t decode_rows, int64_t prefill_rows, double seconds) { steps.add(decode_rows + prefill_rows, seconds); });
  spdlog::info("listening at {}; requests are taken once the model is loaded", server.url());
  if (options.keys.empty() && !only_this_machine(options.host))
    spdlog::warn("--host {}: there are no keys, so whoever reaches the port can use the model; --api-key-file gives it some", options.host);
  server.listen();
  session.start(tell(server, options.json_logs), options.json_logs ? Session::Bar::hidden : Session::Bar::shown);
  grammar::Compiler grammars(session.tokenizer(), session.config().vocab_size, session.config().eos_token_ids,
                             {.time_limit = options.limits.grammar_time, .cache_bytes = options.limits.grammar_bytes});
  server::Services services{.engine = session.engine(),
                            .tokenizer = session.tokenizer(),
                            .grammars = grammars,
                            .chat_template = session.has_chat_template() ? &session.chat_template() : nullptr,
                            .facts = {},
                            .version = WINNOW_VERSION,
                            .steps = &steps};
  services.facts.name = f.name.empty() ? session.name() : f.name;
  services.facts.vocab_size = session.config().vocab_size;
  services.facts.max_context = session.max_context();
  services.facts.default_temperature = session.config().default_temperature;
  services.facts.default_top_p = session.config().default_top_p;
  services.facts.eos_token_ids = session.config().eos_token_ids;
  services.facts.created = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::string url = server.url();
  server.open(services);
  fmt::print("winnow: serving {} at {}\n", services.facts.name, url);
  std::fflush(stdout);
  server.wait();
  if (!f.model.cache_dir.empty()) {
    server.release_signals();
    fmt::print("winnow: writing what --cache-dir lacks, at most half a minute; another signal leaves it unwritten\n");
    std::fflush(stdout);
    session.stop();
  }
  fmt::print("winnow: stopped\n");
  return 0;
}

}  // namespace

Run add_serve(CLI::App& program) {
  auto flags = std::make_shared<ServeFlags>();
  flags->model.log_level = "info";
  CLI::App* verb = program.add_subcommand("serve", "HTTP server for clients of OpenAI's and Anthropic's APIs");
  add_model_flags(*verb, flags->model, ModelArgument::optional);
  add_context_flag(*verb, flags->model);
  add_batch_flag(*verb, flags->model);
  add_reuse_flag(*verb, flags->model);
  add_itl_flag(*verb, flags->model);
  add_memory_flags(*verb, flags->model);
  add_cache_flags(*verb, flags->model);
  add_serve_flags(*verb, *flags);
  verb->footer(
      "Examples:\n"
      "  winnow serve\n"
      "  winnow serve MODEL --port 8080 --max-batch 8\n"
      "  winnow serve --config /etc/winnow/serve.toml\n"
      "  winnow serve MODEL --host 0.0.0.0 --api-key-file keys.txt --tls-cert chain.pem --tls-key key.pem\n"
      "  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n\n"
      "Routes: POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /v1/messages/count_tokens, /tokenize, /detokenize;\n"
      "GET /v1/models, /health, /ready, /version, /metrics. docs/api.md has the fields of each, man winnow-serve the most used,\n"
      "docs/serving.md says how to run it safely. Without keys whoever reaches the port can use the model. SIGINT and SIGTERM drain and stop.");
  return [flags, verb] {
    if (!flags->print_config) return serve(*flags);
    server_options(*flags);
    fmt::print("{}", config_text(*verb));
    return 0;
  };
}

}  // namespace winnow::cli
