// The HTTP server. One I/O thread owns all sockets; a few others do what may take long: parsing and tokenising a request. A
// connection is a coroutine that reads a request, answers it and reads the next. A generation wakes its connection's coroutine
// from the engine's thread; nothing else crosses threads.
//
// It answers from listen() on, so that somebody who waits for the weights can ask how far they are (/ready); all else is told
// to come back until open().
//
// What a request is asked before its body is read (http_gate.cpp): its key, what that key may still use, and whether the queue has
// room. Backpressure: a connection has one request at a time, a request has a bounded number of choices and tokens, what is
// written waits in a bounded buffer, and a client that does not take its events within the write timeout is gone. A client that
// closes its side, even only the sending half, has gone too, and its request is cancelled.
//
// SIGINT or SIGTERM: no new connections, idle ones are closed, running requests get `drain` to finish and are cancelled
// after it (at once on a second signal), then wait() returns.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/keys.h"
#include "server/limits.h"
#include "server/load_progress.h"

namespace winnow::server {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;                   // 0: any free one
  std::string tls_cert, tls_key;          // PEM files; empty: no TLS
  std::vector<std::string> cors_origins;  // of pages that may use the API; "*": any
  Keys keys;                              // none: whoever reaches the port may use it
  bool metrics_open = false;              // /metrics asks for no key
  std::string otlp_endpoint;              // of a collector of traces; empty: none
  bool json_logs = false;                 // how the log has its lines
  Limits limits;
};

class Server {
 public:
  explicit Server(const ServerOptions& options);  // takes the port, before anything costly is loaded; throws Error if it cannot
  ~Server();
  std::string url() const;  // http://127.0.0.1:8080, with the port that it got
  LoadProgress& progress();
  void listen();                        // from here on clients can connect, and are told that the model loads
  void open(const Services& services);  // requests are taken; services outlive wait()
  void wait();                          // until a signal
  // Behind wait(): from now on SIGINT or SIGTERM ends the process at once.
  void release_signals();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace winnow::server
