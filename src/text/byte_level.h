// The byte alphabet of GPT-2: tokenizer.json writes each byte of a token as one printable character.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace winnow::text {

// The bytes that a vocabulary entry stands for; none if one of its characters is outside the alphabet.
std::optional<std::string> bytes_of_symbols(std::string_view entry);

}  // namespace winnow::text
