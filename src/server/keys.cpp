#include "server/keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>

namespace winnow::server {
namespace {

constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(kBlanks);
  return first == s.npos ? std::string_view() : s.substr(first, s.find_last_not_of(kBlanks) - first + 1);
}

// The first word, which leaves `rest`.
std::string_view word(std::string_view* rest) {
  *rest = trimmed(*rest);
  const std::string_view w = rest->substr(0, rest->find_first_of(kBlanks));
  rest->remove_prefix(w.size());
  return w;
}

bool plain(std::string_view s) {
  return std::ranges::all_of(s, [](char c) { return c > 0x20 && c < 0x7f; });
}

// Why the word is no limit; empty if it was one.
std::string read_limit(std::string_view w, KeyLimits* limits) {
  static constexpr std::pair<std::string_view, int64_t KeyLimits::*> kLimits[] = {{"requests_per_minute", &KeyLimits::requests_per_minute},
                                                                                  {"tokens_per_minute", &KeyLimits::tokens_per_minute},
                                                                                  {"concurrent", &KeyLimits::concurrent}};
  const size_t eq = std::min(w.find('='), w.size());
  for (const auto& [name, member] : kLimits) {
    if (w.substr(0, eq) != name) continue;
    const std::string_view digits = w.substr(std::min(eq + 1, w.size()));
    int64_t n = 0;
    const auto [end, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (bad != std::errc{} || end != digits.data() + digits.size() || n < 0 || n > int64_t{1} << 40)
      return fmt::format("{} has to be a whole number from 0 (no bound) to 2^40", name);
    limits->*member = n;
    return {};
  }
  // The word may be a piece of a key with a blank in it: it is not repeated.
  return "behind the key only requests_per_minute=N, tokens_per_minute=N and concurrent=N can stand";
}

}  // namespace

Keys::Digest Keys::digest_of(std::string_view secret) {
  Digest d{};
  unsigned n = 0;
  check(EVP_Digest(secret.data(), secret.size(), d.data(), &n, EVP_sha256(), nullptr) == 1 && n == d.size(), "SHA-256 of a key");
  return d;
}

std::optional<Error> Keys::add(std::string name, std::string_view secret, std::string_view source, const KeyLimits& limits) {
  const auto wrong = [&](std::string_view why) { return Error(fmt::format("{}: {}", source, why)); };
  if (secret.size() < kShortest)
    return wrong(fmt::format("the key is shorter than {} characters and could be guessed; make one with 'openssl rand -hex 32'", kShortest));
  if (!plain(secret)) return wrong("a key has printable ASCII characters only, no blanks");
  const Digest digest = digest_of(secret);
  for (const Key& k : keys_) {
    if (k.name == name) return wrong(fmt::format("another key has the name '{}' already", name));
    if (CRYPTO_memcmp(k.digest.data(), digest.data(), digest.size()) == 0) return wrong(fmt::format("the key of '{}' is here again", k.name));
  }
  keys_.push_back({std::move(name), limits, digest});
  return {};
}

std::optional<Error> Keys::add_lines(std::string_view text, std::string_view source, const KeyLimits& otherwise) {
  int number = 0;
  while (!text.empty()) {
    ++number;
    std::string_view rest = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(rest.size() + 1, text.size()));
    rest = trimmed(rest);
    if (rest.empty() || rest.front() == '#') continue;
    const std::string line = fmt::format("{}, line {}", source, number);
    std::string name = fmt::format("key-{}", number);
    std::string_view secret = word(&rest);
    if (secret.ends_with(':')) {
      name = secret.substr(0, secret.size() - 1);
      if (name.empty() || name.size() > 64 || !plain(name)) return Error(line + ": a name has 1 to 64 printable ASCII characters, no blanks");
      secret = word(&rest);
    }
    KeyLimits limits = otherwise;
    for (std::string_view w = word(&rest); !w.empty(); w = word(&rest))
      if (const std::string why = read_limit(w, &limits); !why.empty()) return Error(line + ": " + why);
    if (auto why = add(std::move(name), secret, line, limits)) return why;
  }
  return {};
}

std::optional<size_t> Keys::find(std::string_view secret) const {
  const Digest digest = digest_of(secret);
  size_t found = keys_.size();
  for (size_t i = 0; i < keys_.size(); ++i)
    if (CRYPTO_memcmp(keys_[i].digest.data(), digest.data(), digest.size()) == 0) found = i;
  if (found == keys_.size()) return {};
  return found;
}

std::string_view shown_key(std::string_view authorization, std::string_view x_api_key) {
  constexpr std::string_view kScheme = "bearer ";
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  if (authorization.size() > kScheme.size() && std::ranges::equal(authorization.substr(0, kScheme.size()), kScheme, {}, lower))
    return trimmed(authorization.substr(kScheme.size()));
  return trimmed(x_api_key);
}

}  // namespace winnow::server
