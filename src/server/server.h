// The HTTP server. One I/O thread (the caller of run()) owns all sockets; a few others do what may take long: parsing and
// tokenising a request. A connection is a coroutine that reads a request, answers it and reads the next. A generation wakes
// its connection's coroutine from the engine's thread; nothing else crosses threads.
//
// Backpressure: a connection has one request at a time, a request has a bounded number of choices and tokens, and a client
// that does not take its events within the write timeout is gone. A client that closes its side, even only the sending
// half, has gone too, and its request is cancelled.
//
// SIGINT or SIGTERM: no new connections, idle ones are closed, running requests get `grace` to finish and are cancelled
// after it (at once on a second signal), then run() returns.
#pragma once

#include <memory>
#include <string>

#include "server/generation.h"
#include "server/limits.h"

namespace winnow::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any free one
  Limits limits;
};

class Server {
 public:
  explicit Server(const ServerOptions& options);  // takes the port, before anything costly is loaded; throws Error if it cannot
  ~Server();
  std::string url() const;                // http://127.0.0.1:8080, with the port that it got
  void listen(const Services& services);  // from here on clients can connect; services outlive run()
  void run();
  // Behind run(): from now on SIGINT or SIGTERM ends the process at once.
  void release_signals();  // until a signal

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace winnow::server
