// The answer to one request, in the words of the API that asked. Each of these classes has
//   head()         events that go out at once, before there is an answer
//   begin(usage)   events before the first news; the prompt's part of the usage is known
//   events(delta)  takes news in and gives the events that tell of them
//   add(delta)     only takes them in
//   end(usage)     the last events
//   whole(usage)   the answer as one JSON value, of what was taken in
//   failed(why)    events that tell that there is no more, and why
//   error(why)     an error as one JSON value
// A stream is head, begin, events..., end; a whole answer is add..., whole. Events are finished text for the wire.
#pragma once

#include <variant>

#include "server/anthropic.h"
#include "server/openai.h"
#include "server/responses.h"

namespace winnow::server {

using ApiAnswer = std::variant<OpenAiAnswer, AnthropicAnswer, ResponsesAnswer>;

// `id` has no prefix.
inline ApiAnswer make_answer(const Request& r, const Services& s, const std::string& id, int64_t created) {
  if (r.api == Api::messages) return AnthropicAnswer(s.facts.name, id);
  if (r.api == Api::responses) return ResponsesAnswer(r, s.tokenizer, s.facts.name, id, created);
  return OpenAiAnswer(r, s.tokenizer, s.facts.name, id, created);
}

// An error of the API that lives at this path.
inline std::string error_json(std::string_view path, const Refusal& why) {
  return path.starts_with("/v1/messages") ? anthropic_error(why) : openai_error(why);
}

}  // namespace winnow::server
