// The one translation unit that includes Beast. What a coroutine awaits gets named objects by reference: g++ 12 destroys
// temporaries of some co_await expressions twice.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <boost/asio.hpp>
#include <boost/beast.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>
#include <list>
#include <optional>

#include "base/json_writer.h"
#include "server/metrics.h"
#include "server/openai.h"
#include "server/server.h"
#include "server/sse.h"

namespace winnow::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using beast::error_code;

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);  // errors as values
constexpr int kTextThreads = 2;
constexpr std::chrono::hours kForever{24 * 365};

constexpr std::string_view kOther = "other";  // route of what is none
constexpr std::string_view kHealth = "/health", kMetrics = "/metrics", kModels = "/v1/models", kChat = "/v1/chat/completions",
                           kCompletions = "/v1/completions";

using HttpRequest = http::request<http::string_body>;
using HttpResponse = http::response<http::string_body>;

// Something to wait for: news of a generation, a client that went away, the end of the grace. All but ring() belongs to
// the I/O thread.
class Bell : public std::enable_shared_from_this<Bell> {
 public:
  explicit Bell(asio::io_context& io) : io_(io), timer_(io) {}
  void ring() {  // from any thread; many rings before the reader looks are one
    if (rung_.exchange(true)) return;
    asio::post(io_, [self = shared_from_this()] { self->timer_.cancel(); });
  }
  // False if nothing rang for so long.
  asio::awaitable<bool> wait(std::chrono::steady_clock::duration longest) {
    bool late = false;
    if (!rung_) {
      timer_.expires_after(longest);
      auto [cancelled] = co_await timer_.async_wait(kResult);
      late = !cancelled;  // a ring that was already seen may cancel too: look again, it costs nothing
    }
    co_return rung_.exchange(false) || !late;
  }
  bool gone = false;     // the client
  bool watched = false;  // a coroutine looks for that
  bool abort = false;    // the grace is over

 private:
  asio::io_context& io_;
  asio::steady_timer timer_;
  std::atomic<bool> rung_{false};
};

struct Connection {
  Connection(tcp::socket socket, asio::io_context& io) : stream(std::move(socket)), bell(std::make_shared<Bell>(io)) {}
  beast::tcp_stream stream;
  beast::flat_buffer buffer;
  std::shared_ptr<Bell> bell;
  bool busy = false;                // with a request
  bool unread = false;              // the client may still be sending what was refused
  std::string_view route = kOther;  // of its request
  size_t body = 0;                  // bytes of its request that have come and count among State::bodies
};

std::string random_id() {
  static constexpr char kLetters[] = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::random_device entropy;
  std::string id;
  for (int i = 0; i < 24; ++i) id += kLetters[entropy() % 36];
  return id;
}

HttpResponse respond(const HttpRequest& request, int status, std::string body, bool keep_alive) {
  HttpResponse r(static_cast<http::status>(status), request.version());
  r.set(http::field::server, "winnow");
  r.set(http::field::content_type, "application/json");
  r.keep_alive(keep_alive);
  if (request.method() != http::verb::head) r.body() = std::move(body);
  r.prepare_payload();
  return r;
}

}  // namespace

struct Server::State {
  explicit State(const ServerOptions& o) : options(o), acceptor(io), signals(io), grace(io) {}
  const Services& services() const { return *services_; }

  const Services* services_ = nullptr;  // set by listen(), with metrics
  std::optional<Metrics> metrics;
  const ServerOptions options;
  asio::io_context io{1};
  asio::thread_pool text{kTextThreads};
  tcp::acceptor acceptor;
  asio::signal_set signals;
  asio::steady_timer grace;
  std::list<Connection> connections;
  bool stopping = false;
  size_t bodies = 0;
  bool finished() const { return stopping && connections.empty(); }

  void bind();
  asio::awaitable<void> accept();
  asio::awaitable<void> serve(std::list<Connection>::iterator c);
  asio::awaitable<void> swallow(Connection& c);
  asio::awaitable<void> stop_watching(Connection& c);
  void forget_body(Connection& c) { bodies -= std::exchange(c.body, 0); }
  asio::awaitable<bool> read(Connection& c, HttpRequest* request);
  asio::awaitable<bool> route(Connection& c, const HttpRequest& request);
  asio::awaitable<bool> generate(Connection& c, const HttpRequest& request, Kind kind);
  asio::awaitable<bool> tell(Connection& c, const HttpRequest& request, Generation& generation, RequestMetrics::Clock::time_point received);
  HttpResponse refused(const HttpRequest& request, const Refusal& refusal, bool keep_alive) const;
  std::optional<HttpResponse> at_once(Connection& c, const HttpRequest& request, const std::string& path) const;
  asio::awaitable<bool> send(Connection& c, HttpResponse& response);
  asio::awaitable<bool> send_text(Connection& c, const std::string& text, bool chunked);
  asio::awaitable<bool> healthy();
  asio::awaitable<void> watch_signals();
  void stop();
  void abort_all();
  void check_finished();

  // Runs `work` on a text thread and continues on the I/O thread.
  template <class F>
  asio::awaitable<void> aside(F& work) {
    auto run = [&work]() -> asio::awaitable<void> {
      work();
      co_return;
    };
    const auto executor = text.get_executor();
    co_await asio::co_spawn(executor, run, asio::use_awaitable);
  }
};

void Server::State::bind() {
  error_code bad;
  const asio::ip::address address = asio::ip::make_address(options.host, bad);
  tcp::endpoint endpoint(address, options.port);
  if (bad) {
    tcp::resolver resolver(io);
    const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, bad);
    if (bad || found.empty()) throw Error(fmt::format("--host {}: {}", options.host, bad.message()), Failure::cannot_run);
    endpoint = found.begin()->endpoint();
  }
  const auto step = [&](auto&& result) {
    (void)result;
    if (bad) throw Error(fmt::format("--host {} --port {}: cannot listen: {}", options.host, options.port, bad.message()), Failure::cannot_run);
  };
  step(acceptor.open(endpoint.protocol(), bad));
  step(acceptor.set_option(tcp::acceptor::reuse_address(true), bad));
  step(acceptor.bind(endpoint, bad));
}

asio::awaitable<void> Server::State::accept() {
  while (acceptor.is_open()) {
    auto [bad, socket] = co_await acceptor.async_accept(kResult);
    if (bad == asio::error::operation_aborted) break;
    if (bad) {  // out of descriptors: let some close
      asio::steady_timer pause(io, std::chrono::milliseconds(50));
      co_await pause.async_wait(kResult);
      continue;
    }
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    connections.emplace_back(std::move(socket), io);
    asio::co_spawn(io, serve(std::prev(connections.end())), asio::detached);
  }
}

asio::awaitable<void> Server::State::serve(std::list<Connection>::iterator c) {
  try {
    if (static_cast<int>(connections.size()) > options.limits.connections) {
      const HttpRequest none;
      HttpResponse response = refused(none, {503, "too many connections; try again later", {}, {}}, false);
      co_await send(*c, response);
    } else {
      bool more = true;
      while (more && !stopping) {
        HttpRequest request;
        more = co_await read(*c, &request);
        if (more) more = co_await route(*c, request);
        c->busy = false;
        forget_body(*c);
      }
    }
  } catch (const std::exception& e) {  // out of memory and the like: this client's loss, not the server's
    spdlog::error("connection: {}", e.what());
  }
  forget_body(*c);
  co_await stop_watching(*c);
  error_code ignored;
  c->stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  if (c->unread && !stopping) co_await swallow(*c);
  connections.erase(c);
  check_finished();
}

// Takes what a refused client still sends, for a while: closing over unread bytes would reset the connection and with
// it the answer that says why.
asio::awaitable<void> Server::State::swallow(Connection& c) {
  std::array<char, 16384> bytes;
  c.stream.expires_after(std::chrono::seconds(2));
  for (bool more = true; more;) {
    auto [bad, n] = co_await c.stream.async_read_some(asio::buffer(bytes), kResult);
    more = !bad;
  }
}

// The next request; false if there is none, or one that cannot be answered further.
asio::awaitable<bool> Server::State::read(Connection& c, HttpRequest* request) {
  c.route = kOther;
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(options.limits.header_bytes));
  parser.body_limit(options.limits.body_bytes);
  c.stream.expires_after(options.limits.header_timeout);
  auto [bad, header_bytes] = co_await http::async_read_header(c.stream, c.buffer, parser, kResult);
  c.busy = !bad;
  bool full = false;
  if (!bad && !parser.is_done()) {
    c.stream.expires_after(options.limits.body_timeout);
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      http::response<http::empty_body> go_on(http::status::continue_, parser.get().version());
      co_await http::async_write(c.stream, go_on, kResult);
    }
    while (!bad && !full && !parser.is_done()) {
      auto [bad_part, part_bytes] = co_await http::async_read_some(c.stream, c.buffer, parser, kResult);
      bad = bad_part;
      bodies += parser.get().body().size() - c.body;
      c.body = parser.get().body().size();
      full = bodies > options.limits.bodies_bytes;
    }
  }
  c.stream.expires_never();
  if (!bad && !full) {
    *request = parser.release();
    co_return true;
  }
  const HttpRequest& so_far = parser.get();
  Refusal why{.message = {}, .param = {}, .code = {}};
  if (full) why = {503, "too many bytes of other requests are being read; try again later", {}, {}};
  else if (bad == http::error::body_limit) why = {413, fmt::format("the body exceeds {} bytes", options.limits.body_bytes), {}, {}};
  else if (bad == http::error::header_limit) why = {431, fmt::format("the header exceeds {} bytes", options.limits.header_bytes), {}, {}};
  else if (bad.category() == http::make_error_code(http::error::bad_method).category() && bad != http::error::end_of_stream &&
           bad != http::error::partial_message)
    why = {400, "not HTTP: " + bad.message(), {}, {}};
  if (!why.message.empty()) {
    HttpResponse response = refused(so_far, why, false);
    co_await send(c, response);
    c.unread = true;
  }
  co_return false;
}

// What needs no waiting: unknown places, wrong methods, the models.
std::optional<HttpResponse> Server::State::at_once(Connection& c, const HttpRequest& request, const std::string& path) const {
  struct Route {
    std::string_view path;
    http::verb method;
    std::string_view name;
  };
  const std::string one_model = "/v1/models/" + services().facts.name;
  const Route routes[] = {{kHealth, http::verb::get, kHealth}, {kMetrics, http::verb::get, kMetrics},
                          {kModels, http::verb::get, kModels}, {one_model, http::verb::get, kModels},
                          {kChat, http::verb::post, kChat},    {kCompletions, http::verb::post, kCompletions}};
  const bool keep = request.keep_alive() && !stopping;
  const Route* found = nullptr;
  for (const Route& r : routes)
    if (r.path == path) found = &r;
  if (!found && path.starts_with("/v1/models/"))
    return refused(request,
                   {404, fmt::format("model: there is no such model here; this server has '{}'", services().facts.name), "model", "model_not_found"},
                   keep);
  if (!found) return refused(request, {404, "there is nothing at " + path.substr(0, 200), {}, "not_found"}, keep);
  c.route = found->name;
  if (request.method() != found->method) {
    const std::string method(http::to_string(found->method));
    HttpResponse r = refused(request, {405, fmt::format("{} takes {} only", path, method), {}, "method_not_allowed"}, keep);
    r.set(http::field::allow, method);
    return r;
  }
  if (path == kMetrics) {
    HttpResponse r = respond(request, 200, metrics->text(services().engine.totals()), keep);
    r.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    return r;
  }
  if (path == kModels) return respond(request, 200, models_json(services().facts), keep);
  if (path == one_model) return respond(request, 200, model_json(services().facts), keep);
  return std::nullopt;
}

asio::awaitable<bool> Server::State::route(Connection& c, const HttpRequest& request) {
  const auto target = boost::urls::parse_origin_form(boost::core::string_view(request.target().data(), request.target().size()));
  std::optional<HttpResponse> response;
  std::string path;
  if (target) {
    path = target->path();
    response = at_once(c, request, path);
  } else {
    response = refused(request, {400, "the request target is no path", {}, {}}, false);
  }
  if (!response && path == kHealth) {
    const bool well = co_await healthy();
    JsonWriter w;
    w.begin_object().field("status", well ? "ok" : "the engine finished no step within the deadline").end_object();
    response = respond(request, well ? 200 : 503, w.take(), request.keep_alive() && !stopping);
  }
  if (response) co_return co_await send(c, *response);
  const Kind kind = path == kChat ? Kind::chat : Kind::completion;
  co_return co_await generate(c, request, kind);
}

// True if the engine thread showed itself within the deadline, or does so until another one. Asks in turns: a thread that
// waits would be missing to the requests.
asio::awaitable<bool> Server::State::healthy() {
  constexpr std::chrono::milliseconds kTurn{5};
  const auto asked = std::chrono::steady_clock::now();
  const auto deadline = options.limits.health_deadline;
  for (;;) {
    const engine::Pulse pulse = services().engine.pulse(asked - deadline);
    if (pulse != engine::Pulse::asked) co_return pulse == engine::Pulse::alive;
    if (std::chrono::steady_clock::now() >= asked + deadline) co_return false;
    asio::steady_timer turn(io, kTurn);
    co_await turn.async_wait(kResult);
  }
}

HttpResponse Server::State::refused(const HttpRequest& request, const Refusal& refusal, bool keep_alive) const {
  spdlog::debug("{} {}: {} {}", std::string_view(request.method_string()), std::string_view(request.target().substr(0, 200)), refusal.status,
                refusal.message);
  return respond(request, refusal.status, error_json(refusal), keep_alive && !stopping);
}

asio::awaitable<bool> Server::State::send(Connection& c, HttpResponse& response) {
  metrics->answered(c.route, static_cast<int>(response.result_int()));
  c.stream.expires_after(options.limits.write_timeout);
  auto [bad, n] = co_await http::async_write(c.stream, response, kResult);
  c.stream.expires_never();
  co_return !bad && response.keep_alive();
}

asio::awaitable<bool> Server::State::send_text(Connection& c, const std::string& text, bool chunked) {
  c.stream.expires_after(options.limits.write_timeout);
  error_code bad;
  if (chunked) {
    const auto chunk = http::make_chunk(asio::buffer(text));
    std::tie(bad, std::ignore) = co_await asio::async_write(c.stream, chunk, kResult);
  } else {
    std::tie(bad, std::ignore) = co_await asio::async_write(c.stream, asio::buffer(text), kResult);
  }
  c.stream.expires_never();
  co_return !bad;
}

// Rings when the client closes its side, and when it ends: when that wait is cancelled, or the client sends more. The socket
// is the connection's, which waits for that end (stop_watching).
asio::awaitable<void> watch(tcp::socket& socket, std::shared_ptr<Bell> bell) {
  auto [bad] = co_await socket.async_wait(tcp::socket::wait_read, kResult);
  if (!bad) {
    char byte = 0;
    const ssize_t n = ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    bell->gone = n == 0 || (n < 0 && errno != EAGAIN);
  }
  bell->watched = false;
  bell->ring();
}

asio::awaitable<void> Server::State::stop_watching(Connection& c) {
  while (c.bell->watched) {
    error_code ignored;
    c.stream.socket().cancel(ignored);  // no effect on a wait that is over and has not had its turn
    co_await c.bell->wait(std::chrono::milliseconds(10));
  }
}

asio::awaitable<bool> Server::State::generate(Connection& c, const HttpRequest& request, Kind kind) {
  const auto received = RequestMetrics::Clock::now();
  std::variant<Generation, Refusal> started = Refusal{.status = 500, .message = "the request could not be started", .param = {}, .code = {}};
  const auto begin = [&]() -> std::variant<Generation, Refusal> {
    std::variant<Request, Refusal> parsed = parse_request(kind, request.body(), services().facts, options.limits);
    if (auto* refusal = std::get_if<Refusal>(&parsed)) return std::move(*refusal);
    return Generation::start(std::move(std::get<Request>(parsed)), services());
  };
  auto start = [&] {
    try {
      started = begin();
    } catch (const Error& e) {  // a text beyond what the tokenizer or the template can take
      started = Refusal{.status = 400, .message = e.what(), .param = {}, .code = {}};
    }
  };
  co_await aside(start);
  forget_body(c);
  if (auto* refusal = std::get_if<Refusal>(&started)) {
    HttpResponse response = refused(request, *refusal, request.keep_alive());
    co_return co_await send(c, response);
  }

  Generation& generation = std::get<Generation>(started);
  c.bell->gone = false;
  c.bell->watched = true;
  generation.on_news([bell = c.bell] { bell->ring(); });
  c.bell->ring();  // for what came before
  asio::co_spawn(io, watch(c.stream.socket(), c.bell), asio::detached);
  const bool more = co_await tell(c, request, generation, received);
  co_await stop_watching(c);
  const Usage u = generation.usage();
  spdlog::debug("POST {}: {} prompt and {} answer tokens{}", std::string_view(request.target()), u.prompt_tokens, u.completion_tokens,
                generation.done() ? "" : ", cancelled");
  co_return more;
}

// Answers with a running generation, as a stream or as a whole. Leaves early, which cancels it, if the client is gone.
asio::awaitable<bool> Server::State::tell(Connection& c, const HttpRequest& request, Generation& generation,
                                          RequestMetrics::Clock::time_point received) {
  const Request& r = generation.request();
  RequestMetrics seen(*metrics, generation, received);
  const std::string id = fmt::format("{}-{}", r.kind == Kind::chat ? "chatcmpl" : "cmpl", random_id());
  Answer answer(r, services().tokenizer, services().facts.name, id,
                std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count());
  const bool chunked = request.version() >= 11;
  if (r.stream) {
    http::response<http::empty_body> head(http::status::ok, request.version());
    head.set(http::field::server, "winnow");
    head.set(http::field::content_type, "text/event-stream");
    head.set(http::field::cache_control, "no-cache");
    head.keep_alive(chunked && request.keep_alive() && !stopping);
    if (chunked) head.chunked(true);
    http::response_serializer<http::empty_body> serializer(head);
    c.stream.expires_after(options.limits.write_timeout);
    metrics->answered(c.route, 200);
    auto [bad, n] = co_await http::async_write_header(c.stream, serializer, kResult);
    if (bad) co_return false;
  }
  while (!generation.done()) {
    const std::chrono::steady_clock::duration longest = r.stream ? std::chrono::steady_clock::duration(options.limits.ping_interval) : kForever;
    const bool rang = co_await c.bell->wait(longest);
    if (c.bell->gone) co_return false;
    if (c.bell->abort) generation.cancel();
    std::string events;
    for (Delta& delta : generation.poll()) {
      seen.see(delta);
      if (delta.empty()) continue;
      const bool failed = delta.finish == engine::FinishReason::error || delta.finish == engine::FinishReason::cancelled;
      if (failed) {
        const bool stopped = delta.finish == engine::FinishReason::cancelled;
        Refusal why{stopped ? 503 : 500, stopped ? "the server is stopping" : delta.error, {}, {}};
        if (delta.late) why = {504, fmt::format("timeout: {}", delta.error), "timeout", "timeout"};
        generation.cancel();
        if (!r.stream) {
          HttpResponse response = refused(request, why, false);
          if (delta.late) response.set("x-should-retry", "false");  // OpenAI's clients repeat a 504 unless told that its end was asked for
          co_return co_await send(c, response);
        }
        events += sse_event(error_json(why));
        co_await send_text(c, events, chunked);
        co_return false;
      }
      if (r.stream) events += sse_event(answer.chunk(delta));
      else answer.add(std::move(delta));
    }
    if (r.stream && !rang && events.empty()) events = kSsePing;
    if (generation.done() && r.stream) {
      if (r.include_usage) events += sse_event(answer.usage_chunk(generation.usage()));
      events += kSseDone;
    }
    if (events.empty()) continue;
    const bool taken = co_await send_text(c, events, chunked);
    if (!taken) co_return false;
  }
  const bool keep = request.keep_alive() && !stopping;
  if (!r.stream) {
    HttpResponse response = respond(request, 200, answer.whole(generation.usage()), keep);
    co_return co_await send(c, response);
  }
  if (!chunked) co_return false;
  const auto end = http::make_chunk_last();
  auto [bad, n] = co_await asio::async_write(c.stream, end, kResult);
  co_return !bad && keep;
}

asio::awaitable<void> Server::State::watch_signals() {
  while (!finished()) {
    auto [bad, signal] = co_await signals.async_wait(kResult);
    if (bad) co_return;
    if (stopping) {
      abort_all();
      continue;
    }
    spdlog::info("signal {}: stopping", signal);
    stop();
  }
}

void Server::State::stop() {
  stopping = true;
  error_code ignored;
  acceptor.close(ignored);
  for (Connection& c : connections)
    if (!c.busy) c.stream.cancel();
  grace.expires_after(options.limits.grace);
  grace.async_wait([this](error_code cancelled) {
    if (!cancelled) abort_all();
  });
  check_finished();
}

// Running requests are told, and what does not end then is cut.
void Server::State::abort_all() {
  for (Connection& c : connections) {
    c.bell->abort = true;
    c.bell->ring();
  }
  grace.expires_after(std::chrono::seconds(2));
  grace.async_wait([this](error_code cancelled) {
    if (cancelled) return;
    for (Connection& c : connections) c.stream.close();
    grace.expires_after(std::chrono::seconds(1));
    grace.async_wait([this](error_code done) {
      if (!done) io.stop();  // a text that is still being cut into tokens
    });
  });
}

void Server::State::check_finished() {
  if (!finished()) return;
  grace.cancel();
  signals.cancel();
}

Server::Server(const ServerOptions& options) : state_(std::make_unique<State>(options)) { state_->bind(); }

Server::~Server() {
  state_->text.stop();
  state_->text.join();
}

std::string Server::url() const {
  const tcp::endpoint at = state_->acceptor.local_endpoint();
  const std::string host = at.address().is_v6() ? "[" + at.address().to_string() + "]" : at.address().to_string();
  return fmt::format("http://{}:{}", host, at.port());
}

void Server::listen(const Services& services) {
  state_->services_ = &services;
  state_->metrics.emplace(services.facts.name, services.version, services.engine.limits());
  error_code bad;
  state_->acceptor.listen(asio::socket_base::max_listen_connections, bad);
  if (bad) throw Error(fmt::format("--port: cannot listen at {}: {}", url(), bad.message()), Failure::cannot_run);
  state_->signals.add(SIGINT);  // whoever hears that it listens may tell it to stop
  state_->signals.add(SIGTERM);
}

void Server::run() {
  asio::co_spawn(state_->io, state_->watch_signals(), asio::detached);
  asio::co_spawn(state_->io, state_->accept(), asio::detached);
  state_->io.run();
  state_->text.stop();  // what waits there is dropped; what runs uses the services
  state_->text.join();
}

void Server::release_signals() {
  error_code ignored;
  state_->signals.clear(ignored);
}

}  // namespace winnow::server
