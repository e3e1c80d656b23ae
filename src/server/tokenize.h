// What needs the tokenizer and the template but not the model: /tokenize, /detokenize, /v1/messages/count_tokens.
// May take long for a long text: for threads that may block.
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "server/generation.h"
#include "server/limits.h"

namespace winnow::server {

// The answer, as JSON.
std::variant<std::string, Refusal> answer_without_model(Api api, std::string_view body, const Services& services, const Limits& limits);

}  // namespace winnow::server
