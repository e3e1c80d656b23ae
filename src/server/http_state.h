// What the parts of the HTTP server share, the only ones that include Beast: http.cpp has connections, reading and writing,
// http_gate.cpp what a request is asked before it may cost anything, http_answer.cpp the answers. What a coroutine awaits gets
// named objects by reference: g++ 12 destroys temporaries of some co_await expressions twice.
#pragma once

#include <spdlog/spdlog.h>

#include <boost/asio.hpp>
#include <boost/beast.hpp>
#include <boost/url/parse.hpp>
#include <boost/url/url_view.hpp>
#include <future>
#include <list>
#include <map>
#include <optional>
#include <thread>

#include "server/api_answer.h"
#include "server/http_wire.h"
#include "server/metrics.h"
#include "server/quota.h"
#include "server/response_store.h"
#include "server/routes.h"
#include "server/server.h"
#include "server/traces.h"
#include "server/visit.h"

namespace winnow::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using beast::error_code;

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);  // errors as values
constexpr int kTextThreads = 2;
constexpr std::chrono::milliseconds kTurn{5};  // between two looks at what rings no bell

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
  Connection(tcp::socket socket, asio::ssl::context* tls, asio::io_context& io) : stream(std::move(socket), tls), bell(std::make_shared<Bell>(io)) {}
  Wire stream;
  beast::flat_buffer buffer;
  std::shared_ptr<Bell> bell;
  std::string client;         // its address
  bool fresh = true;          // it has sent nothing yet
  bool busy = false;          // with a request
  bool unread = false;        // the client may still be sending what was refused
  size_t body = 0;            // bytes of its request that have come and count among State::bodies
  Visit visit;                // its request
  std::optional<size_t> key;  // that the request showed
  std::string origin;         // of the page that sent it, where that may know the answer
  Quota::Place place;
};

// A request's header, then all of it, and what it asks for.
struct Asked {
  HttpRequest request;
  std::string path;   // decoded; empty: the target is none
  std::string allow;  // methods that the path has, where it lacks this one
  std::variant<Match, Refusal> found = Refusal{400, "the request target is no path", {}, {}};
};

// A response that nobody waits for. It holds what a connection would: a place, a bell.
struct Background {
  Generation generation;
  ResponsesAnswer answer;
  Quota::Place place;
  std::shared_ptr<Bell> bell;
  std::string kept;  // kept_id
  std::string key;   // name of the API key
  RequestMetrics::Clock::time_point received;
};

enum class Next : uint8_t { answer, read, close };  // what a connection does next

struct Server::State {
  explicit State(const ServerOptions& o);
  const Services& services() const { return *services_; }
  bool loading() const { return !services_; }

  const ServerOptions options;
  const Services* services_ = nullptr;  // null: the model loads
  std::optional<Metrics> metrics;       // with services
  LoadProgress progress;
  std::shared_ptr<spdlog::logger> access;  // whose lines are requests: the one named "access", or the default one
  std::optional<Tracer> tracer;
  std::optional<asio::ssl::context> tls;
  Quota quota;
  ResponseStore responses;                                         // by kept_id
  std::map<std::string, std::shared_ptr<Bell>> running_responses;  // likewise
  asio::io_context io{1};
  asio::thread_pool text{kTextThreads};
  std::thread thread;  // of the I/O
  tcp::acceptor acceptor;
  asio::signal_set signals;
  asio::steady_timer drain;
  std::list<Connection> connections;
  std::vector<std::shared_ptr<Background>> background;
  bool stopping = false;
  size_t bodies = 0;
  bool finished() const { return stopping && connections.empty() && background.empty(); }

  // http.cpp
  void bind();
  void run();
  asio::awaitable<void> accept();
  asio::awaitable<void> serve(std::list<Connection>::iterator c);
  asio::awaitable<void> exchange(Connection& c);
  asio::awaitable<bool> greet(Connection& c);
  asio::awaitable<void> swallow(Connection& c);
  asio::awaitable<Next> read(Connection& c, Asked* asked);
  asio::awaitable<error_code> read_body(Connection& c, http::request_parser<http::string_body>& parser);
  asio::awaitable<Next> refuse(Connection& c, const HttpRequest& so_far, error_code bad);
  asio::awaitable<void> stop_watching(Connection& c);
  asio::awaitable<bool> send(Connection& c, HttpResponse& response);
  asio::awaitable<bool> send_text(Connection& c, const std::string& text, bool chunked);
  void forget_body(Connection& c) { bodies -= std::exchange(c.body, 0); }
  asio::awaitable<void> watch_signals();
  void stop();
  void abort_all();
  void check_finished();

  // http_gate.cpp
  void find(Connection& c, Asked* asked);
  std::optional<HttpResponse> gate(Connection& c, const Asked& asked);
  std::optional<Refusal> who(Connection& c, const Asked& asked);
  HttpResponse refused(const HttpRequest& request, const Refusal& refusal, bool keep_alive) const;
  void mark(const Connection& c, http::fields& head) const;
  void end_visit(Connection& c);
  std::string kept_id(const Connection& c, std::string_view response) const;

  // http_answer.cpp
  asio::awaitable<bool> answer(Connection& c, const Asked& asked);
  asio::awaitable<bool> generate(Connection& c, const HttpRequest& request, Api api);
  asio::awaitable<bool> tell(Connection& c, const HttpRequest& request, Generation& generation, ApiAnswer& answer,
                             RequestMetrics::Clock::time_point received);
  asio::awaitable<void> keep(const std::string& kept, const ResponsesAnswer& answer, const Generation& generation);
  asio::awaitable<void> work_on(std::shared_ptr<Background> b);
  asio::awaitable<void> finish(Background& b);
  HttpResponse get_response(const HttpRequest& request, const Match& match, const std::string& kept, bool keep_alive);
  static void settle(Connection& c, const Generation& generation);
  asio::awaitable<bool> send_head(Connection& c, const HttpRequest& request, const std::string& first, bool chunked);
  asio::awaitable<bool> without_model(Connection& c, const HttpRequest& request, Api api);
  asio::awaitable<bool> cancel_response(Connection& c, const HttpRequest& request, const std::string& id);
  HttpResponse at_once(const Connection& c, const HttpRequest& request, const Match& match);
  asio::awaitable<bool> healthy();

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

HttpResponse respond(const HttpRequest& request, int status, std::string body, bool keep_alive);

}  // namespace winnow::server
