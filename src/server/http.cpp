// Connections: accepting, TLS, reading requests within limits and timeouts, writing, stopping.
#include <fmt/format.h>
#include <pthread.h>

#include "server/http_state.h"
#include "server/tls.h"

namespace winnow::server {
namespace {

constexpr std::chrono::seconds kSwallow{2};         // what a refused client still sends is taken for so long
constexpr std::chrono::milliseconds kGoodbye{500};  // for the end of TLS
constexpr size_t kUnread = 256 << 10;  // bytes of a connection that are no part of a body yet: else chunks without an end would fill memory

std::vector<KeyLimits> limits_of_keys(const ServerOptions& o) {
  std::vector<KeyLimits> all;
  for (size_t i = 0; i < o.keys.size(); ++i) all.push_back(o.keys.limits(i));
  if (all.empty()) all.push_back(o.limits.each_key);
  return all;
}

}  // namespace

Server::State::State(const ServerOptions& o)
    : options(o), quota(o.limits, limits_of_keys(o)), responses(o.limits), acceptor(io), signals(io), drain(io) {
  access = spdlog::get("access");
  if (!access) access = spdlog::default_logger();
  if (!o.otlp_endpoint.empty()) tracer.emplace(TraceOptions{.endpoint = o.otlp_endpoint});
  if (!o.tls_cert.empty()) tls.emplace(tls_context(o.tls_cert, o.tls_key));
}

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
    socket.set_option(asio::socket_base::send_buffer_size(options.limits.send_buffer_bytes), ignored);
    connections.emplace_back(std::move(socket), tls ? &*tls : nullptr, io);
    connections.back().buffer.max_size(options.limits.header_bytes + kUnread);
    asio::co_spawn(io, serve(std::prev(connections.end())), asio::detached);
  }
}

asio::awaitable<void> Server::State::serve(std::list<Connection>::iterator c) {
  try {
    co_await exchange(*c);
  } catch (const std::exception& e) {  // out of memory and the like: this client's loss, not the server's
    spdlog::error("connection: {}", e.what());
  }
  forget_body(*c);
  c->place = {};
  co_await stop_watching(*c);
  error_code ignored;
  if (auto* encrypted = c->stream.tls(); encrypted && c->stream.socket().is_open()) {
    c->stream.tcp().expires_after(kGoodbye);
    co_await encrypted->async_shutdown(kResult);
  }
  c->stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
  if (c->unread && !stopping) co_await swallow(*c);
  connections.erase(c);
  check_finished();
}

// The requests of a connection, one behind the other.
asio::awaitable<void> Server::State::exchange(Connection& c) {
  const bool wanted = co_await greet(c);
  if (!wanted) co_return;
  Next next = Next::read;
  while (next != Next::close && !stopping) {
    Asked asked;
    c.visit = {.id = {}, .client = c.client, .method = {}, .key = {}};
    next = co_await read(c, &asked);
    if (next == Next::answer) {
      const bool more = co_await answer(c, asked);
      next = more ? Next::read : Next::close;
    }
    if (c.busy) end_visit(c);
    c.busy = false;
    c.place = {};
    forget_body(c);
  }
}

// False if there is no room for the connection, or TLS came to nothing.
asio::awaitable<bool> Server::State::greet(Connection& c) {
  error_code bad;
  const tcp::endpoint peer = c.stream.socket().remote_endpoint(bad);
  if (!bad) c.client = peer.address().to_string();
  const bool full = static_cast<int>(connections.size()) > options.limits.connections;
  if (full && metrics) metrics->refused("connections");
  if (auto* encrypted = c.stream.tls()) {
    if (full) co_return false;  // to say so in TLS would cost what is short
    c.stream.tcp().expires_after(options.limits.header_timeout);
    std::tie(bad) = co_await encrypted->async_handshake(asio::ssl::stream_base::server, kResult);
    c.stream.tcp().expires_never();
    if (bad) spdlog::debug("{}: TLS: {}", c.client, bad.message());
    if (bad && metrics) metrics->refused("tls");
    co_return !bad;
  }
  if (!full) co_return true;
  const HttpRequest none;
  HttpResponse response = refused(none, {.status = 503, .message = "too many connections; try again later", .retry_after_s = 1}, false);
  co_await send(c, response);
  co_return false;
}

// Takes what a refused client still sends, for a while: closing over unread bytes would reset the connection and with
// it the answer that says why.
asio::awaitable<void> Server::State::swallow(Connection& c) {
  std::array<char, 16384> bytes;
  c.stream.tcp().expires_after(kSwallow);
  for (bool more = true; more;) {
    auto [bad, n] = co_await c.stream.tcp().async_read_some(asio::buffer(bytes), kResult);
    more = !bad;
  }
}

// The next request: to be answered, or refused already, or there is none.
asio::awaitable<Next> Server::State::read(Connection& c, Asked* asked) {
  const bool first = std::exchange(c.fresh, false);
  error_code bad;
  if (c.buffer.size() == 0) {
    c.stream.tcp().expires_after(first ? options.limits.header_timeout : options.limits.idle_timeout);
    const auto room = c.buffer.prepare(options.limits.header_bytes);
    auto [late, n] = co_await c.stream.async_read_some(room, kResult);
    c.buffer.commit(n);
    if (late && first && late == beast::error::timeout && metrics) metrics->refused("header_timeout");
    if (late) co_return Next::close;
  }
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(options.limits.header_bytes));
  parser.body_limit(options.limits.body_bytes);
  c.stream.tcp().expires_after(options.limits.header_timeout);
  std::tie(bad, std::ignore) = co_await http::async_read_header(c.stream, c.buffer, parser, kResult);
  c.stream.tcp().expires_never();
  c.busy = !bad;
  c.visit.began = Visit::Clock::now();
  c.visit.began_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  if (bad) co_return co_await refuse(c, parser.get(), bad);
  asked->request.base() = parser.get().base();
  find(c, asked);
  if (auto response = gate(c, *asked)) {
    c.unread = c.unread || !parser.is_done();
    if (c.unread) response->keep_alive(false);
    const bool more = co_await send(c, *response);
    co_return more ? Next::read : Next::close;
  }
  if (!parser.is_done()) bad = co_await read_body(c, parser);
  if (bad) co_return co_await refuse(c, parser.get(), bad);
  asked->request = parser.release();
  co_return Next::answer;
}

// no_buffer_space: all requests together have as many bytes here as may be.
asio::awaitable<error_code> Server::State::read_body(Connection& c, http::request_parser<http::string_body>& parser) {
  c.stream.tcp().expires_after(options.limits.body_timeout);
  error_code bad;
  if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    http::response<http::empty_body> go_on(http::status::continue_, parser.get().version());
    co_await http::async_write(c.stream, go_on, kResult);
  }
  while (!bad && !parser.is_done()) {
    std::tie(bad, std::ignore) = co_await http::async_read_some(c.stream, c.buffer, parser, kResult);
    bodies += parser.get().body().size() - c.body;
    c.body = parser.get().body().size();
    if (bodies > options.limits.bodies_bytes) bad = asio::error::no_buffer_space;
  }
  c.stream.tcp().expires_never();
  co_return bad;
}

// A request that could not be read: an answer where there is one.
asio::awaitable<Next> Server::State::refuse(Connection& c, const HttpRequest& so_far, error_code bad) {
  Refusal why{.message = {}, .param = {}, .code = {}};
  const Limits& l = options.limits;
  if (bad == asio::error::no_buffer_space)
    why = {.status = 503, .message = "too many bytes of other requests are being read; try again later", .retry_after_s = 1};
  else if (bad == http::error::body_limit) why = {413, fmt::format("the body exceeds {} bytes", l.body_bytes), {}, {}};
  else if (bad == http::error::buffer_overflow) why = {400, "what stands around the chunks of the body is too long", {}, {}};
  else if (bad == http::error::header_limit) why = {431, fmt::format("the header exceeds {} bytes", l.header_bytes), {}, {}};
  else if (bad.category() == http::make_error_code(http::error::bad_method).category() && bad != http::error::end_of_stream &&
           bad != http::error::partial_message)
    why = {400, "not HTTP: " + bad.message(), {}, {}};
  if (metrics) {
    if (bad == beast::error::timeout) metrics->refused(c.busy ? "body_timeout" : "header_timeout");
    if (why.status == 503) metrics->refused("body_memory");
    if (why.status == 413) metrics->refused("body_bytes");
    if (why.status == 431) metrics->refused("header_bytes");
  }
  if (!why.message.empty()) {
    c.busy = true;
    HttpResponse response = refused(so_far, why, false);
    co_await send(c, response);
    c.unread = true;
  }
  co_return Next::close;
}

asio::awaitable<bool> Server::State::send(Connection& c, HttpResponse& response) {
  c.visit.status = static_cast<int>(response.result_int());
  mark(c, response.base());
  if (metrics) metrics->answered(c.visit.route, c.visit.status);
  c.stream.tcp().expires_after(options.limits.write_timeout);
  auto [bad, n] = co_await http::async_write(c.stream, response, kResult);
  c.stream.tcp().expires_never();
  if (bad == beast::error::timeout && metrics) metrics->refused("write_timeout");
  co_return !bad && response.keep_alive();
}

asio::awaitable<bool> Server::State::send_text(Connection& c, const std::string& text, bool chunked) {
  c.stream.tcp().expires_after(options.limits.write_timeout);
  error_code bad;
  if (chunked) {
    const auto chunk = http::make_chunk(asio::buffer(text));
    std::tie(bad, std::ignore) = co_await asio::async_write(c.stream, chunk, kResult);
  } else {
    std::tie(bad, std::ignore) = co_await asio::async_write(c.stream, asio::buffer(text), kResult);
  }
  c.stream.tcp().expires_never();
  if (bad == beast::error::timeout && metrics) metrics->refused("write_timeout");
  co_return !bad;
}

asio::awaitable<void> Server::State::stop_watching(Connection& c) {
  while (c.bell->watched) {
    error_code ignored;
    c.stream.socket().cancel(ignored);  // no effect on a read that is over and has not had its turn
    co_await c.bell->wait(std::chrono::milliseconds(10));
  }
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
    if (!c.busy) c.stream.tcp().cancel();
  for (const auto& b : background) {  // nobody could ask for it later
    b->bell->abort = true;
    b->bell->ring();
  }
  drain.expires_after(options.limits.drain);
  drain.async_wait([this](error_code cancelled) {
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
  drain.expires_after(std::chrono::seconds(2));
  drain.async_wait([this](error_code cancelled) {
    if (cancelled) return;
    for (Connection& c : connections) c.stream.tcp().close();
    drain.expires_after(std::chrono::seconds(1));
    drain.async_wait([this](error_code done) {
      if (!done) io.stop();  // a text that is still being cut into tokens
    });
  });
}

void Server::State::check_finished() {
  if (!finished()) return;
  drain.cancel();
  signals.cancel();
}

void Server::State::run() {
  io.run();
  text.stop();  // what waits there is dropped; what runs uses the services
  text.join();
}

Server::Server(const ServerOptions& options) : state_(std::make_unique<State>(options)) { state_->bind(); }

Server::~Server() {
  state_->io.stop();
  wait();
  state_->text.stop();
  state_->text.join();
}

LoadProgress& Server::progress() { return state_->progress; }

std::string Server::url() const {
  const tcp::endpoint at = state_->acceptor.local_endpoint();
  const std::string host = at.address().is_v6() ? "[" + at.address().to_string() + "]" : at.address().to_string();
  return fmt::format("{}://{}:{}", state_->tls ? "https" : "http", host, at.port());
}

void Server::listen() {
  error_code bad;
  state_->acceptor.listen(asio::socket_base::max_listen_connections, bad);
  if (bad) throw Error(fmt::format("--port: cannot listen at {}: {}", url(), bad.message()), Failure::cannot_run);
  asio::co_spawn(state_->io, state_->accept(), asio::detached);
  state_->thread = std::thread([this] {
    pthread_setname_np(pthread_self(), "winnow-io");
    state_->run();
  });
}

void Server::open(const Services& services) {
  std::promise<void> done;
  asio::post(state_->io, [&] {
    State& s = *state_;
    s.metrics.emplace(services.facts.name, services.version, services.engine.limits());
    s.services_ = &services;
    if (s.tracer) s.tracer->describe(services.facts.name, services.version);
    s.signals.add(SIGINT);  // whoever hears that it is ready may tell it to stop; until now that ends the process
    s.signals.add(SIGTERM);
    asio::co_spawn(s.io, s.watch_signals(), asio::detached);
    done.set_value();
  });
  done.get_future().wait();
}

void Server::wait() {
  if (state_->thread.joinable()) state_->thread.join();
}

void Server::release_signals() {
  error_code ignored;
  state_->signals.clear(ignored);
}

}  // namespace winnow::server
