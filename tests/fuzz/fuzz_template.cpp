// A chat template, perhaps with a zero byte and a JSON object as context after it. What is accepted renders within its
// bounds to well-formed UTF-8 or fails with an error; refusals are one line.
#include <boost/json.hpp>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/chat_template.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace winnow::text;
  static const boost::json::object sample = boost::json::parse(R"({
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "<|user|> é\n"},
      {"role": "assistant", "content": "a</think>b", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"k": [1, 2.5, null, true]}}}]},
      {"role": "tool", "content": [{"type": "text", "text": "t"}], "tool_call_id": "1"}],
    "tools": [{"function": {"name": "f", "parameters": {"x": {}}}}], "add_generation_prompt": true, "n": -3, "s": "Straße"})")
                                                .as_object();
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.find('\0');
  const auto parsed = ChatTemplate::parse(all.substr(0, zero), "t");
  if (!parsed) {
    if (std::string_view(parsed.error().what()).find('\n') != std::string_view::npos) std::abort();
    return 0;
  }
  boost::json::object context = sample;
  if (zero != std::string_view::npos) {
    boost::system::error_code failed;
    const boost::json::value given = boost::json::parse(all.substr(zero + 1), failed);
    if (!failed && given.is_object()) context = given.get_object();
  }
  const auto pieces = parsed->render(context);
  if (!pieces) return 0;
  for (const Piece& piece : *pieces)
    if (piece.text.empty() || !is_utf8(piece.text)) std::abort();
  return 0;
}
