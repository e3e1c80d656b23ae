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
#include <map>
#include <optional>

#include "base/json_writer.h"
#include "server/api_answer.h"
#include "server/metrics.h"
#include "server/page.h"
#include "server/routes.h"
#include "server/server.h"
#include "server/sse.h"
#include "server/tokenize.h"

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

constexpr std::string_view kOther = "other";   // route of what is none
constexpr std::chrono::milliseconds kTurn{5};  // between two looks at what rings no bell
constexpr std::chrono::seconds kCancelled{5};  // to the end of a request that was cancelled

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
  bool cancel = false;   // another connection asked for the end

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

int64_t unix_seconds() { return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string_view path_of(const HttpRequest& request) {
  const std::string_view target(request.target().data(), request.target().size());
  return target.substr(0, target.find('?'));
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

HttpResponse page_response(const HttpRequest& request, const std::string& path, bool keep_alive) {
  const PageAnswer page = page_answer(std::string_view(request.method_string()), path, std::string_view(request[http::field::if_none_match]));
  HttpResponse r = respond(request, page.status, std::string(page.body), keep_alive);
  r.erase(http::field::content_type);
  for (const auto& [name, value] : page.headers) r.set(boost::core::string_view(name.data(), name.size()), value);
  if (request.method() == http::verb::head) r.content_length(page.body.size());
  return r;
}

}  // namespace

struct Server::State {
  explicit State(const ServerOptions& o) : options(o), responses(o.limits), acceptor(io), signals(io), grace(io) {}
  const Services& services() const { return *services_; }

  const Services* services_ = nullptr;  // set by listen(), with metrics
  std::optional<Metrics> metrics;
  const ServerOptions options;
  ResponseStore responses;
  std::map<std::string, std::shared_ptr<Bell>> running_responses;  // by id
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
  asio::awaitable<bool> generate(Connection& c, const HttpRequest& request, Api api);
  asio::awaitable<bool> tell(Connection& c, const HttpRequest& request, Generation& generation, ApiAnswer& answer,
                             RequestMetrics::Clock::time_point received);
  asio::awaitable<bool> send_head(Connection& c, const HttpRequest& request, const std::string& first, bool chunked);
  asio::awaitable<bool> without_model(Connection& c, const HttpRequest& request, Api api);
  asio::awaitable<bool> cancel_response(Connection& c, const HttpRequest& request, const std::string& id);
  HttpResponse refused(const HttpRequest& request, const Refusal& refusal, bool keep_alive) const;
  HttpResponse at_once(const HttpRequest& request, const Match& match);
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

// What needs no waiting.
HttpResponse Server::State::at_once(const HttpRequest& request, const Match& match) {
  const bool keep = request.keep_alive() && !stopping;
  JsonWriter w;
  switch (match.route->does) {
    case Does::metrics: {
      HttpResponse r = respond(request, 200, metrics->text(services().engine.totals()), keep);
      r.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
      return r;
    }
    case Does::version: return respond(request, 200, w.begin_object().field("version", services().version).end_object().take(), keep);
    case Does::ready:
      return respond(request, stopping ? 503 : 200, w.begin_object().field("status", stopping ? "stopping" : "ready").end_object().take(), keep);
    case Does::models: return respond(request, 200, models_json(services().facts), keep);
    case Does::model:
      if (match.id == services().facts.name) return respond(request, 200, model_json(services().facts), keep);
      return refused(
          request, {404, fmt::format("model: there is no such model here; this server has '{}'", services().facts.name), "model", "model_not_found"},
          keep);
    case Does::get_response:
      if (const auto found = responses.find(match.id)) return respond(request, 200, found->json, keep);
      return refused(request, unknown_response(match.id), keep);
    case Does::delete_response:
      if (responses.erase(match.id)) return respond(request, 200, deleted_json(match.id), keep);
      return refused(request, unknown_response(match.id), keep);
    default: return refused(request, {500, "the route is known and has no answer", {}, {}}, keep);
  }
}

asio::awaitable<bool> Server::State::route(Connection& c, const HttpRequest& request) {
  const auto target = boost::urls::parse_origin_form(boost::core::string_view(request.target().data(), request.target().size()));
  std::optional<HttpResponse> response;
  std::string allow;
  std::variant<Match, Refusal> found = Refusal{400, "the request target is no path", {}, {}};
  if (target && is_page(target->path())) {
    c.route = "/";
    response = page_response(request, target->path(), request.keep_alive() && !stopping);
    co_return co_await send(c, *response);
  }
  if (target) found = find_route({request.method_string().data(), request.method_string().size()}, target->path(), &allow);
  if (const auto* refusal = std::get_if<Refusal>(&found)) {
    response = refused(request, *refusal, target && request.keep_alive());
    if (!allow.empty()) response->set(http::field::allow, allow);
    co_return co_await send(c, *response);
  }
  const Match& match = std::get<Match>(found);
  c.route = match.route->path;
  switch (match.route->does) {
    case Does::generate: co_return co_await generate(c, request, match.route->api);
    case Does::count_tokens:
    case Does::tokenize:
    case Does::detokenize: co_return co_await without_model(c, request, match.route->api);
    case Does::cancel_response: co_return co_await cancel_response(c, request, match.id);
    case Does::health: {
      const bool well = co_await healthy();
      JsonWriter w;
      w.begin_object().field("status", well ? "ok" : "the engine finished no step within the deadline").end_object();
      response = respond(request, well ? 200 : 503, w.take(), request.keep_alive() && !stopping);
      break;
    }
    default: response = at_once(request, match);
  }
  co_return co_await send(c, *response);
}

// True if the engine thread showed itself within the deadline, or does so until another one. Asks in turns: a thread that
// waits would be missing to the requests.
asio::awaitable<bool> Server::State::healthy() {
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
  return respond(request, refusal.status, error_json(path_of(request), refusal), keep_alive && !stopping);
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

asio::awaitable<bool> Server::State::without_model(Connection& c, const HttpRequest& request, Api api) {
  std::variant<std::string, Refusal> answer;
  auto work = [&] {
    try {
      answer = answer_without_model(api, request.body(), services(), options.limits);
    } catch (const Error& e) {  // a text beyond what the tokenizer or the template can take
      answer = Refusal{.status = 400, .message = e.what(), .param = {}, .code = {}};
    }
  };
  co_await aside(work);
  const bool keep = request.keep_alive() && !stopping;
  HttpResponse response;
  if (const auto* refusal = std::get_if<Refusal>(&answer)) response = refused(request, *refusal, keep);
  else response = respond(request, 200, std::move(std::get<std::string>(answer)), keep);
  co_return co_await send(c, response);
}

// Ends a response that runs and answers with what it came to; one that has ended stays as it is.
asio::awaitable<bool> Server::State::cancel_response(Connection& c, const HttpRequest& request, const std::string& id) {
  if (const auto running = running_responses.find(id); running != running_responses.end()) {
    running->second->cancel = true;
    running->second->ring();
  }
  const auto latest = std::chrono::steady_clock::now() + kCancelled;
  while (running_responses.contains(id) && std::chrono::steady_clock::now() < latest) {
    asio::steady_timer turn(io, kTurn);
    co_await turn.async_wait(kResult);
  }
  const bool keep = request.keep_alive() && !stopping;
  const auto found = responses.find(id);
  HttpResponse response = found ? respond(request, 200, found->json, keep) : refused(request, unknown_response(id), keep);
  co_return co_await send(c, response);
}

asio::awaitable<bool> Server::State::generate(Connection& c, const HttpRequest& request, Api api) {
  const auto received = RequestMetrics::Clock::now();
  std::variant<Generation, Refusal> started = Refusal{.status = 500, .message = "the request could not be started", .param = {}, .code = {}};
  const auto begin = [&]() -> std::variant<Generation, Refusal> {
    std::variant<Request, Refusal> parsed = parse_request(api, request.body(), services().facts, options.limits);
    if (auto* refusal = std::get_if<Refusal>(&parsed)) return std::move(*refusal);
    if (auto refusal = continue_previous(&std::get<Request>(parsed), responses, options.limits)) return std::move(*refusal);
    return Generation::start(std::move(std::get<Request>(parsed)), services());
  };
  const std::string id = random_id();
  std::optional<ApiAnswer> made;
  auto start = [&] {
    try {
      started = begin();
      if (const auto* g = std::get_if<Generation>(&started)) made.emplace(make_answer(g->request(), services(), id, unix_seconds()));
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
  ApiAnswer& answer = *made;
  auto* const response = std::get_if<ResponsesAnswer>(&answer);
  if (response) {
    running_responses[response->id()] = c.bell;
    if (response->stored()) responses.put(response->id(), response->record(nullptr));
  }
  c.bell->gone = c.bell->cancel = false;
  c.bell->watched = true;
  generation.on_news([bell = c.bell] { bell->ring(); });
  c.bell->ring();  // for what came before
  asio::co_spawn(io, watch(c.stream.socket(), c.bell), asio::detached);
  const bool more = co_await tell(c, request, generation, answer, received);
  const Usage u = generation.usage();
  if (response) {
    if (!generation.done()) response->cancelled();  // its client is gone
    auto keep = [&] { responses.put(response->id(), response->record(&u)); };
    if (response->stored() && responses.find(response->id())) co_await aside(keep);  // unless it was deleted
    running_responses.erase(response->id());
  }
  co_await stop_watching(c);
  spdlog::debug("POST {}: {} prompt and {} answer tokens{}", std::string_view(request.target()), u.prompt_tokens, u.completion_tokens,
                generation.done() ? "" : ", cancelled");
  co_return more;
}

asio::awaitable<bool> Server::State::send_head(Connection& c, const HttpRequest& request, const std::string& first, bool chunked) {
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
  if (first.empty()) co_return true;
  co_return co_await send_text(c, first, chunked);
}

// Why a generation ended that gave no answer.
Refusal why_failed(const Delta& delta) {
  if (delta.late) return {504, fmt::format("timeout: {}", delta.error), "timeout", "timeout"};
  const bool stopped = delta.finish == engine::FinishReason::cancelled;
  return {stopped ? 503 : 500, stopped ? "the server is stopping" : delta.error, {}, {}};
}

// Answers with a running generation, as a stream or as a whole. Leaves early, which cancels it, if the client is gone.
asio::awaitable<bool> Server::State::tell(Connection& c, const HttpRequest& request, Generation& generation, ApiAnswer& answer,
                                          RequestMetrics::Clock::time_point received) {
  const bool stream = generation.request().stream, chunked = request.version() >= 11;
  RequestMetrics seen(*metrics, generation, received);
  const auto say = [&answer](auto what) { return std::visit(what, answer); };
  bool begun = false;
  if (stream) {
    const std::string first = say([](auto& a) { return a.head(); });
    const bool taken = co_await send_head(c, request, first, chunked);
    if (!taken) co_return false;
  }
  while (!generation.done()) {
    const std::chrono::steady_clock::duration longest = stream ? std::chrono::steady_clock::duration(options.limits.ping_interval) : kForever;
    const bool rang = co_await c.bell->wait(longest);
    if (c.bell->gone) co_return false;
    if (c.bell->abort || c.bell->cancel) generation.cancel();
    std::string events;
    for (Delta& delta : generation.poll()) {
      seen.see(delta);
      if (delta.empty()) continue;
      const bool cancelled = delta.finish == engine::FinishReason::cancelled;
      if (cancelled && c.bell->cancel && !c.bell->abort) std::get<ResponsesAnswer>(answer).cancelled();  // nothing else is cancelled by name
      else if (cancelled || delta.finish == engine::FinishReason::error) {
        const Refusal why = why_failed(delta);
        generation.cancel();
        say([&](auto& a) { return a.add(delta); });
        if (!stream) {
          HttpResponse response = refused(request, why, false);
          if (delta.late) response.set("x-should-retry", "false");  // OpenAI's clients repeat a 504 unless told that its end was asked for
          co_return co_await send(c, response);
        }
        events += say([&](auto& a) { return a.failed(why); });
        co_await send_text(c, events, chunked);
        co_return false;
      }
      if (!stream) {
        say([&](auto& a) { a.add(delta); });
        continue;
      }
      if (!std::exchange(begun, true)) events += say([&](auto& a) { return a.begin(generation.usage()); });
      events += say([&](auto& a) { return a.events(delta); });
    }
    if (stream && !rang && events.empty()) events = kSsePing;
    if (generation.done() && stream) events += say([&](auto& a) { return a.end(generation.usage()); });
    if (events.empty()) continue;
    const bool taken = co_await send_text(c, events, chunked);
    if (!taken) co_return false;
  }
  const bool keep = request.keep_alive() && !stopping;
  if (!stream) {
    HttpResponse response = respond(request, 200, say([&](auto& a) { return a.whole(generation.usage()); }), keep);
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
