// Encodes texts for tools/oracles/text_oracle.py: each line of stdin is one text in hexadecimal, each line of stdout its ids.
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "text/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: tokenize TOKENIZER.JSON\n", stderr), 2;
  try {
    const auto tokenizer = winnow::text::Tokenizer::load(argv[1]).or_throw();
    for (std::string line; std::getline(std::cin, line); std::cout << '\n') {
      std::string text;
      for (size_t i = 0; i + 1 < line.size(); i += 2) text += static_cast<char>(std::stoi(line.substr(i, 2), nullptr, 16));
      for (const winnow::text::Token id : tokenizer.encode(text, true)) std::cout << id << ' ';
    }
  } catch (const std::exception& e) { return std::fprintf(stderr, "tokenize: %s\n", e.what()), 1; }
}
