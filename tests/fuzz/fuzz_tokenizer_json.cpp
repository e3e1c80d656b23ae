// A tokenizer.json, a zero byte, and a text to encode. An accepted tokenizer gives only ids that it has, never a control
// token for untrusted text, and its text comes back; a refusal is one line.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace winnow::text;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t zero = all.find('\0');
  const std::string_view text = zero == std::string_view::npos ? std::string_view("a <x> 12") : all.substr(zero + 1);
  const auto tokenizer = Tokenizer::parse(all.substr(0, zero), "tokenizer.json");
  if (!tokenizer) return 0;
  try {
    const std::vector<Token> plain = tokenizer->encode(text, false), control = tokenizer->encode(text, true);
    for (const std::vector<Token>* ids : {&plain, &control})
      for (const Token id : *ids)
        if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
    for (const Token id : plain)
      if (tokenizer->is_special(id)) std::abort();
    Detokenizer incremental(*tokenizer, false);
    std::string back;
    for (const Token id : plain) back += incremental.append(id);
    back += incremental.flush();
    if (back != tokenizer->decode(plain, false) || !is_utf8(back)) std::abort();
  } catch (const winnow::Error&) {  // the file's own pattern takes too long
  }
  return 0;
}
