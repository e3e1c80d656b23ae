// Cuts a template into text and the tokens inside {{ }} and {% %}, with trim_blocks, lstrip_blocks and the - and + marks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace winnow::text::jinja {

struct Token {
  enum Kind { data, block_begin, block_end, print_begin, print_end, name, string, integer, real, op, end } kind = end;
  int line = 0;
  std::string text;  // data, name, string (unescaped), op
  Int whole = 0;
  double number = 0;
};

// Throws Error "line N: ..." for what is no template.
std::vector<Token> tokenize(std::string_view source);

}  // namespace winnow::text::jinja
