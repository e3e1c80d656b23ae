// Bodies of requests, of every API, as bytes.
#include <cstdint>

#include "checked_request.h"

using namespace winnow::server;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const Api api : {Api::chat, Api::completion, Api::messages, Api::responses, Api::count_tokens, Api::tokenize, Api::detokenize})
    check_body(api, std::string_view(reinterpret_cast<const char*>(data), size), nullptr);
  return 0;
}
