// UTF-8 as the engine treats it. Text from outside may hold any bytes; before it is tokenized each maximal ill-formed part
// becomes one U+FFFD (Unicode 15, section 3.9, "U+FFFD substitution of maximal subparts"), which is what Python's
// bytes.decode("utf-8", "replace") hands to the `tokenizers` package and what that package's decoder writes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace winnow::text {

// Who wrote a text, as runs: run i reaches from the end of run i - 1 to `end`. Runs may be empty.
struct Run {
  size_t end = 0;
  bool trusted = false;
};
using Runs = std::vector<Run>;

bool is_utf8(std::string_view text);
std::string replace_ill_formed(std::string_view text);

// The same, with the runs moved along. A code point that lies in a trusted and an untrusted run is untrusted.
void replace_ill_formed(std::string& text, Runs& runs);

// Length of `text` without trailing bytes that may still become a code point when more bytes follow.
size_t complete_length(std::string_view text);

}  // namespace winnow::text
