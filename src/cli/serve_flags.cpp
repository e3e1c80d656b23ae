#include "cli/serve_flags.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>
#include <cstdlib>

#include "base/file.h"

namespace winnow::cli {
namespace {

constexpr const char* kListen = "Listening";
constexpr const char* kAccess = "Access";
constexpr const char* kLimits = "Limits";
constexpr int64_t kMostKeyBytes = 4 << 20;  // of the file

Error wrong(std::string_view flag, std::string_view why) { return Error(fmt::format("{}: {}", flag, why), Failure::usage); }

void add_seconds(CLI::App& verb, const char* name, std::chrono::seconds& to, const char* help, int64_t low, const char* group) {
  verb.add_option_function<int64_t>(
          name, [&to](int64_t s) { to = std::chrono::seconds(s); }, help)
      ->type_name("SECONDS")
      ->check(CLI::Range(low, int64_t{86400}))
      ->default_str(std::to_string(to.count()))
      ->group(group);
}

template <class T>
void add_number(CLI::App& verb, const char* name, T& to, const char* help, int64_t low, int64_t high) {
  verb.add_option(name, to, help)->type_name("N")->check(CLI::Range(low, high))->capture_default_str()->group(kLimits);
}

// RFC 6454: scheme, host, port; what browsers send in Origin.
void check_origin(const std::string& origin) {
  if (origin == "*") return;
  const auto url = boost::urls::parse_uri(origin);
  const bool right = url && (url->scheme() == "http" || url->scheme() == "https") && !url->host().empty() && url->path().empty() &&
                     !url->has_query() && !url->has_fragment() && !url->has_userinfo();
  if (!right)
    throw wrong("--cors-origin",
                fmt::format("'{}' is no origin; give scheme, host and port as browsers do, e.g. https://chat.example.org, or *", origin));
}

void check_endpoint(const std::string& endpoint) {
  const auto url = boost::urls::parse_uri(endpoint);
  if (!url || (url->scheme() != "http" && url->scheme() != "https") || url->host().empty() || url->has_query() || url->has_fragment())
    throw wrong("--otlp-endpoint", fmt::format("'{}' is no address of a collector; give one as http://127.0.0.1:4318", endpoint));
}

void read_keys(const ServeFlags& f, server::Keys* keys) {
  const server::KeyLimits& each = f.server.limits.each_key;
  if (!f.api_key_file.empty()) {
    const Result<std::string> text = read_text(f.api_key_file, kMostKeyBytes);
    if (!text) throw Error(fmt::format("--api-key-file: {}", text.error().what()), Failure::cannot_run);
    if (const auto why = keys->add_lines(*text, fmt::format("--api-key-file {}", f.api_key_file), each)) throw *why;
    if (keys->empty())
      throw Error(fmt::format("--api-key-file {}: has no key; put one on a line ('openssl rand -hex 32' makes one)", f.api_key_file));
    struct stat s{};
    if (::stat(f.api_key_file.c_str(), &s) == 0 && (s.st_mode & S_IROTH))
      spdlog::warn("--api-key-file {}: every user of this machine can read it; chmod 600 keeps them out", f.api_key_file);
  }
  // Not a flag: command lines are seen by everybody on the machine.
  if (const char* secret = std::getenv("WINNOW_API_KEY"); secret && *secret)
    if (const auto why = keys->add("WINNOW_API_KEY", secret, "WINNOW_API_KEY", each)) throw *why;
}

void add_listening(CLI::App& verb, ServeFlags& f) {
  verb.add_option("--host", f.server.host, "address to listen on; 0.0.0.0: all of this machine's")->capture_default_str()->group(kListen);
  verb.add_option("--port", f.server.port, "0: any free one; it is printed")->capture_default_str()->group(kListen);
  verb.add_option("--name", f.name, "the model's name in requests [the last part of MODEL]")->group(kListen);
  verb.add_option("--tls-cert", f.server.tls_cert,
                  "serve HTTPS (TLS 1.2 or 1.3): a PEM file with the certificate and those of its issuers behind it [plain HTTP]")
      ->type_name("FILE")
      ->group(kListen);
  verb.add_option("--tls-key", f.server.tls_key, "the certificate's private key, a PEM file without a password")->type_name("FILE")->group(kListen);
  verb.add_option("--config", f.config,
                  "a file with any of these flags, 'port = 8080' a line, the folder as 'model'; what the command line gives comes first")
      ->type_name("FILE")
      ->group(kListen);
  verb.add_flag("--print-config", f.print_config, "print all flags as such a file, as they are now, and do nothing else")->group(kListen);
  add_seconds(verb, "--drain-timeout", f.server.limits.drain,
              "what running requests get to finish when SIGTERM or SIGINT stops the server; a second signal cancels them at once", 0, kListen);
  verb.add_option("--otlp-endpoint", f.server.otlp_endpoint,
                  "send a trace of each request to this OpenTelemetry collector, OTLP over HTTP, e.g. http://127.0.0.1:4318 [none]")
      ->type_name("URL")
      ->group(kListen);
  verb.add_option("--log-format", f.log_format, "lines on stderr: text for people, or one JSON object a line for collectors")
      ->type_name("text|json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str()
      ->group(kListen);
}

void add_access(CLI::App& verb, ServeFlags& f) {
  server::KeyLimits& each = f.server.limits.each_key;
  verb.add_option("--api-key-file", f.api_key_file,
                  "who may use the server: a key a line, 'KEY' or 'NAME: KEY', then perhaps its own limits as concurrent=4; one more key can be in "
                  "the environment, WINNOW_API_KEY [no keys: whoever reaches the port]")
      ->type_name("FILE")
      ->group(kAccess);
  verb.add_flag("--metrics-open", f.server.metrics_open, "let /metrics be read without a key")->group(kAccess);
  verb.add_option("--cors-origin", f.server.cors_origins,
                  "let pages of this origin use the API from a browser, e.g. https://chat.example.org; repeatable; *: any page [none but its own]")
      ->type_name("ORIGIN")
      ->allow_extra_args(false)
      ->group(kAccess);
  constexpr int64_t kMost = int64_t{1} << 40;
  add_number(verb, "--key-requests-per-minute", each.requests_per_minute, "of each key, or of all clients where there are no keys; 0: no bound", 0,
             kMost);
  add_number(verb, "--key-tokens-per-minute", each.tokens_per_minute, "prompts and answers of each key, likewise; 0: no bound", 0, kMost);
  add_number(verb, "--key-concurrent", each.concurrent, "requests of each key that run at once, likewise; 0: no bound", 0, kMost);
}

void add_limits(CLI::App& verb, server::Limits& l) {
  add_number(verb, "--max-queue", l.waiting, "answers that may wait beyond those that run (--max-batch); more get 429 and are told when to come back",
             0, 1 << 20);
  add_number(verb, "--max-connections", l.connections, "open connections; more get 503", 1, 1 << 20);
  add_number(verb, "--max-body-bytes", l.body_bytes, "of one request; more get 413", 1 << 10, 1 << 30);
  add_number(verb, "--max-header-bytes", l.header_bytes, "of one request, its first line among them; more get 431", 1 << 10, 1 << 20);
  add_number(verb, "--max-headers", l.headers, "fields of one request's header; more get 431", 8, 1 << 16);
  add_number(verb, "--max-messages", l.messages, "of one conversation; more get 400", 1, 1 << 20);
  add_seconds(verb, "--header-timeout", l.header_timeout, "from a connection, or the first byte of a later request, to the end of the header", 1,
              kLimits);
  add_seconds(verb, "--body-timeout", l.body_timeout, "from there to the end of the body", 1, kLimits);
  add_seconds(verb, "--idle-timeout", l.idle_timeout, "that a connection may stay open between two requests", 1, kLimits);
  add_seconds(verb, "--write-timeout", l.write_timeout, "that a client may leave what was sent to it untaken; then its request is cancelled", 1,
              kLimits);
}

}  // namespace

void add_serve_flags(CLI::App& verb, ServeFlags& f) {
  add_listening(verb, f);
  add_access(verb, f);
  add_limits(verb, f.server.limits);
}

server::ServerOptions server_options(const ServeFlags& f) {
  server::ServerOptions o = f.server;
  if (o.tls_cert.empty() != o.tls_key.empty())
    throw wrong(o.tls_cert.empty() ? "--tls-key" : "--tls-cert", fmt::format("needs {} too", o.tls_cert.empty() ? "--tls-cert" : "--tls-key"));
  for (const std::string& origin : o.cors_origins) check_origin(origin);
  if (!o.otlp_endpoint.empty()) check_endpoint(o.otlp_endpoint);
  read_keys(f, &o.keys);
  if (o.metrics_open && o.keys.empty())
    throw wrong("--metrics-open", "there are no keys that /metrics could ask for; leave it out or give --api-key-file");
  o.limits.running = f.model.max_batch;
  o.json_logs = f.log_format == "json";
  return o;
}

}  // namespace winnow::cli
