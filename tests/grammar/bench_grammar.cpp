// Times grammars over a vocabulary: bench_grammar TOKENIZER.json SCHEMA.json...; one JSON line with percentiles in microseconds.
// Each schema is compiled as the form of an answer and then followed for up to 256 random tokens that the mask allows, ends preferred.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <fstream>
#include <iterator>
#include <random>

#include "base/units.h"
#include "grammar/answer_form.h"

namespace {

using namespace winnow;
using Clock = std::chrono::steady_clock;
namespace json = boost::json;

double since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }

std::string percentiles(std::vector<double> v) {
  std::ranges::sort(v);
  const auto at = [&](double share) { return v.empty() ? 0 : v[std::min(v.size() - 1, static_cast<size_t>(share * static_cast<double>(v.size())))]; };
  return fmt::format(R"({{"n": {}, "p50": {:.1f}, "p90": {:.1f}, "p99": {:.1f}, "max": {:.1f}}})", v.size(), at(0.5), at(0.9), at(0.99), at(1));
}

}  // namespace

int main(int argc, char** argv) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(argv[1]).or_throw();
  const int64_t vocabulary = tokenizer.vocab_size();
  const std::vector<text::Token> stop{tokenizer.find("<|endoftext|>")};
  const auto start = Clock::now();
  grammar::Compiler compiler(tokenizer, vocabulary, stop, {.time_limit = std::chrono::seconds(30), .cache_bytes = 0});
  const double prepare = since(start);
  std::vector<double> compiles, masks, accepts;
  std::vector<uint32_t> words(static_cast<size_t>(ceil_div(vocabulary, 32)));
  int refused = 0, late = 0;
  std::mt19937_64 random(1);
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i]);
    const std::string source{std::istreambuf_iterator<char>(file), {}};
    json::error_code bad;
    grammar::OutputForm form{
        .kind = grammar::OutputForm::Kind::json_schema, .schema = json::parse(source, bad), .strictness = grammar::Strictness::lenient};
    if (bad || grammar::check_output(form, {})) {
      ++refused;
      continue;
    }
    const auto tag = grammar::answer_form({.output = &form}, tokenizer);
    const auto begin = Clock::now();
    const auto compiled = compiler.compile(tag->structural_tag, tag->strictness);
    if (!compiled) {
      ++(compiled.error().kind() == Failure::usage ? refused : late);
      continue;
    }
    compiles.push_back(since(begin));
    grammar::Matcher matcher(*compiled);
    for (int n = 0; n < 256 && !matcher.is_done(); ++n) {
      auto t = Clock::now();
      matcher.mask(words);
      masks.push_back(since(t));
      std::vector<text::Token> allowed;
      for (text::Token id = 0; id < vocabulary; ++id)
        if (words[static_cast<size_t>(id / 32)] >> (id % 32) & 1) allowed.push_back(id);
      if (allowed.empty()) break;
      t = Clock::now();
      matcher.accept(allowed[random() % allowed.size()]);
      accepts.push_back(since(t));
    }
  }
  fmt::print(R"({{"vocabulary": {}, "prepare_us": {:.0f}, "refused": {}, "late": {}, "compile": {}, "mask": {}, "accept": {}}})"
             "\n",
             vocabulary, prepare, refused, late, percentiles(compiles), percentiles(masks), percentiles(accepts));
}
