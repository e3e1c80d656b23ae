#include "text/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "base/file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_json.h"
#include "text/utf8.h"

namespace winnow::text {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;
constexpr int64_t kMaxFileBytes = int64_t{1} << 30;

// The runs of text [begin, end), counted from begin.
Runs runs_of(const Runs& runs, size_t begin, size_t end) {
  Runs out;
  for (const Run& r : runs)
    if (const size_t last = std::clamp(r.end, begin, end) - begin; last > (out.empty() ? 0 : out.back().end)) out.push_back({last, r.trusted});
  return out;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerFile&& f);
  std::vector<Token> encode(std::string text, Runs runs) const;
  void encode_normalised(std::string_view text, const Runs& runs, PreTokenizer::Cutter& cutter, std::vector<Token>& out) const;

  std::vector<std::string> decoded;
  std::vector<bool> special;
  size_t longest = 1;
  std::unordered_map<std::string, Token> added;
  bool nfc;
  AddedTokens before, after;  // looked for before and after normalisation
  PreTokenizer pre;
  Bpe bpe;
};

Tokenizer::Impl::Impl(TokenizerFile&& f)
    : decoded(std::move(f.decoded)),
      special(decoded.size()),
      nfc(f.nfc),
      pre(std::move(f.steps)),
      bpe(std::move(f.encoded), f.symbols, f.merges, f.ignore_merges) {
  for (const std::string& t : decoded) longest = std::max(longest, t.size());
  std::vector<AddedToken> raw, normalized;
  for (AddedToken& t : f.added) {
    special[static_cast<size_t>(t.id)] = t.special;
    added.emplace(t.content, t.id);
    if (nfc && t.normalized) {
      Runs none{{t.content.size(), false}};
      to_nfc(t.content, none);
    }
    (t.normalized ? normalized : raw).push_back(std::move(t));
  }
  before = AddedTokens(std::move(raw));
  after = AddedTokens(std::move(normalized));
}

std::vector<Token> Tokenizer::Impl::encode(std::string text, Runs runs) const {
  if (text.size() > kMaxTextBytes) throw error("a text of {} bytes is too long to tokenize (at most {})", text.size(), kMaxTextBytes);
  replace_ill_formed(text, runs);
  std::vector<Token> out;
  out.reserve(text.size() / 4);
  PreTokenizer::Cutter cutter(pre);
  for (const AddedTokens::Part& part : before.find(text, runs)) {
    if (part.id >= 0) {
      out.push_back(part.id);
      continue;
    }
    const std::string_view piece = std::string_view(text).substr(part.begin, part.end - part.begin);
    if (!nfc && after.empty()) {
      encode_normalised(piece, {}, cutter, out);
      continue;
    }
    Runs piece_runs = runs_of(runs, part.begin, part.end);
    std::string normalised(piece);
    if (nfc) to_nfc(normalised, piece_runs);
    encode_normalised(normalised, piece_runs, cutter, out);
  }
  return out;
}

void Tokenizer::Impl::encode_normalised(std::string_view text, const Runs& runs, PreTokenizer::Cutter& cutter, std::vector<Token>& out) const {
  for (const AddedTokens::Part& part : after.find(text, runs)) {
    if (part.id >= 0) out.push_back(part.id);
    else cutter.cut(text.substr(part.begin, part.end - part.begin), [&](std::string_view word) { bpe.encode(word, out); });
  }
}

Tokenizer::Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  const Result<std::string> text = read_text(path, kMaxFileBytes);
  if (!text) return text.error();
  return parse(*text, path);
}

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view where) {
  Result<TokenizerFile> file = read_tokenizer_json(json, where);
  if (!file) return file.error();
  Tokenizer t;
  t.impl_ = std::make_unique<Impl>(std::move(*file));
  return t;
}

std::vector<Token> Tokenizer::encode(std::string_view text, bool control) const { return impl_->encode(std::string(text), {{text.size(), control}}); }

std::vector<Token> Tokenizer::encode(std::span<const Piece> pieces) const {
  std::string text;
  Runs runs;
  for (const Piece& p : pieces) {
    if (p.text.empty()) continue;
    text += p.text;
    if (!runs.empty() && runs.back().trusted == p.trusted) runs.back().end = text.size();
    else runs.push_back({text.size(), p.trusted});
  }
  return impl_->encode(std::move(text), std::move(runs));
}

size_t Tokenizer::longest_token() const { return impl_->longest; }

std::string_view Tokenizer::bytes(Token id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(impl_->decoded[static_cast<size_t>(id)]) : std::string_view();
}

std::string Tokenizer::decode(std::span<const Token> ids, bool skip_special) const {
  std::string out;
  for (const Token id : ids)
    if (!skip_special || !is_special(id)) out += bytes(id);
  return replace_ill_formed(out);
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(impl_->decoded.size()); }

bool Tokenizer::is_special(Token id) const { return id >= 0 && id < vocab_size() && impl_->special[static_cast<size_t>(id)]; }

Token Tokenizer::find(std::string_view added_token) const {
  const auto found = impl_->added.find(std::string(added_token));
  return found == impl_->added.end() ? -1 : found->second;
}

std::vector<Token> Tokenizer::added_tokens() const {
  std::vector<Token> ids;
  for (const auto& [text, id] : impl_->added) ids.push_back(id);
  std::ranges::sort(ids);
  return ids;
}

std::string Detokenizer::append(Token id) {
  if (!skip_special_ || !tokenizer_->is_special(id)) pending_ += tokenizer_->bytes(id);
  const size_t whole = complete_length(pending_);
  std::string out = replace_ill_formed(std::string_view(pending_).substr(0, whole));
  pending_.erase(0, whole);
  return out;
}

std::string Detokenizer::flush() {
  std::string out = replace_ill_formed(pending_);
  pending_.clear();
  return out;
}

}  // namespace winnow::text
