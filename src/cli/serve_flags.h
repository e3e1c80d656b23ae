// The flags of `winnow serve` beside those of the model: where it listens, who may use it, and its limits.
#pragma once

#include <string>
#include <vector>

#include "cli/flags.h"
#include "server/server.h"

namespace winnow::cli {

struct ServeFlags {
  ModelFlags model;
  server::ServerOptions server;
  std::string name;
  std::string api_key_file;
  std::string log_format = "text";
  std::string config;  // read by main, which knows what the command line left open
  bool print_config = false;
};
void add_serve_flags(CLI::App& verb, ServeFlags& flags);

// What the flags and the environment say, checked; an Error names the flag.
server::ServerOptions server_options(const ServeFlags& flags);

}  // namespace winnow::cli
