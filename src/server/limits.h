// Every bound of the server in one place. What a client sends is held to these before it costs anything.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "grammar/answer_form.h"

namespace winnow::server {

// What one API key may use; 0: no bound. Requests and tokens refill evenly, and a minute's worth of them can be saved.
struct KeyLimits {
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;  // of prompts and answers
  int64_t concurrent = 0;         // requests that generate
};

struct Limits {
  // connections
  size_t header_bytes = 16 << 10;
  size_t headers = 100;  // fields of one
  size_t body_bytes = 32 << 20;
  size_t bodies_bytes = 256 << 20;          // of all requests that are being read or prepared
  int connections = 512;                    // more are told so and closed
  std::chrono::seconds header_timeout{15};  // from a connection, or the first byte of a later request, to the end of the header
  std::chrono::seconds body_timeout{60};
  std::chrono::seconds idle_timeout{75};   // from an answer to the first byte of the next request
  std::chrono::seconds write_timeout{30};  // a reader that takes nothing for this long is gone
  std::chrono::seconds ping_interval{15};  // a comment on a silent event stream
  int send_buffer_bytes = 256 << 10;       // of a connection: what is written and not taken; the system doubles it
  std::chrono::seconds drain{30};          // of a stop, for requests that run
  std::chrono::milliseconds health_deadline{5000};
  std::chrono::seconds longest_retry{60};  // that Retry-After asks for

  // all requests
  KeyLimits each_key;     // a key file may say otherwise of a key; without keys, of all clients together
  int64_t running = 16;   // choices that the engine runs at once
  int64_t waiting = 256;  // choices that may wait for that

  // requests
  int json_depth = 32;
  size_t messages = 8192;
  size_t tools = 256;
  int64_t choices = 8;  // n times the number of prompts
  size_t stop_strings = 16;
  size_t stop_bytes = 256;  // of one stop string
  size_t stop_tokens = 64;
  size_t logit_bias = 1024;                       // entries
  int64_t logprobs = 20;                          // most likely tokens beside each token
  size_t salt_bytes = 1024;                       // of cache_salt
  double timeout_s = 86400;                       // the longest that a request may ask for
  size_t name_bytes = 256;                        // of a tool's name, an id, a key of metadata
  size_t metadata = 16;                           // entries
  size_t tokens = 4 << 20;                        // of a list to turn into text
  grammar::FormLimits forms;                      // of schemas and other forms of answers
  std::chrono::milliseconds grammar_time{10000};  // of the compilation of one
  size_t grammar_bytes = 128 << 20;               // of compiled ones that are kept

  // kept responses
  size_t responses = 1024;
  size_t responses_bytes = 128 << 20;  // of all; one that exceeds a quarter of them is not kept
};

}  // namespace winnow::server
