#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <ctime>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "text/nfc.h"
#include "text/utf8.h"

namespace winnow::text {
namespace {

namespace json = boost::json;

const std::string kData = WINNOW_SOURCE_DIR "/tests/data/text/";

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string path_of(std::string_view name) {
  if (name == "winnow-tiny") return WINNOW_SOURCE_DIR "/models/winnow-tiny/tokenizer.json";
  return kData + "tokenizer_" + std::string(name) + ".json";
}

const Tokenizer& tokenizer(std::string_view name) {
  static std::map<std::string, Tokenizer, std::less<>> loaded;
  auto found = loaded.find(name);
  if (found == loaded.end()) found = loaded.emplace(name, Tokenizer::load(path_of(name)).or_throw()).first;
  return found->second;
}

const json::object& reference() {
  static const json::value root = json::parse(read_file(kData + "tokens.json"));
  return root.as_object();
}

std::string from_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2) out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

std::vector<Token> tokens_of(const json::value& list) { return json::value_to<std::vector<Token>>(list); }

constexpr std::string_view kNames[] = {"winnow-tiny", "llama3", "qwen", "deepseek", "steps"};

TEST(Tokenizer, EncodesAsTheReference) {
  for (const json::value& c : reference().at("cases").as_array()) {
    if (!c.as_object().contains("bytes")) continue;
    for (const auto& [name, ids] : c.at("ids").as_object()) {
      SCOPED_TRACE(std::string(c.at("name").as_string()) + " " + std::string(name));
      const std::vector<Token> got = tokenizer(name).encode(from_hex(c.at("bytes").as_string()), true);
      EXPECT_EQ(got, tokens_of(ids));
      EXPECT_EQ(tokenizer(name).decode(got, false), std::string(c.at("decoded").at(name).as_string()));
      EXPECT_EQ(tokenizer(name).decode(got, true), std::string(c.at("skipped").at(name).as_string()));
    }
  }
}

TEST(Tokenizer, EncodesLongRunsAsTheReference) {
  for (const json::value& c : reference().at("cases").as_array()) {
    if (!c.as_object().contains("repeat")) continue;
    const std::string unit(c.at("repeat").at(0).as_string());
    std::string text;
    for (int64_t n = c.at("repeat").at(1).as_int64(); n > 0; --n) text += unit;
    text += std::string_view(c.at("tail").as_string());
    for (const std::string_view name : kNames) {
      SCOPED_TRACE(std::string(c.at("name").as_string()) + " " + std::string(name));
      const std::vector<Token> got = tokenizer(name).encode(text, true);
      int64_t sum = 0;
      for (size_t k = 0; k < got.size(); ++k) sum += (static_cast<int64_t>(k) % 1000 + 1) * got[k];
      EXPECT_EQ(static_cast<int64_t>(got.size()), c.at("count_and_sum").at(name).at(0).as_int64());
      EXPECT_EQ(sum, c.at("count_and_sum").at(name).at(1).as_int64());
      const json::value* runs = c.at("runs").as_object().if_contains(name);
      if (!runs) continue;
      std::vector<Token> want;
      for (const json::value& run : runs->as_array())
        want.insert(want.end(), static_cast<size_t>(run.at(1).as_int64()), static_cast<Token>(run.at(0).as_int64()));
      EXPECT_EQ(got, want);
    }
  }
}

TEST(Tokenizer, DecodesAnyIdsAsTheReference) {
  for (const json::value& s : reference().at("streams").as_array()) {
    const Tokenizer& t = tokenizer(s.at("tokenizer").as_string());
    const std::vector<Token> ids = tokens_of(s.at("ids"));
    EXPECT_EQ(t.decode(ids, false), std::string(s.at("text").as_string()));
    EXPECT_EQ(t.decode(ids, true), std::string(s.at("skipped").as_string()));
    for (const bool skip : {false, true}) {
      Detokenizer d(t, skip);
      std::string text;
      for (const Token id : ids) {
        const std::string part = d.append(id);
        EXPECT_TRUE(is_utf8(part));
        text += part;
      }
      EXPECT_EQ(text + d.flush(), t.decode(ids, skip));
    }
  }
}

TEST(Tokenizer, IdsWithoutTokenHaveNoBytes) {
  const Tokenizer& t = tokenizer("winnow-tiny");
  EXPECT_EQ(t.vocab_size(), 6144);
  EXPECT_EQ(t.bytes(-1), "");
  EXPECT_EQ(t.bytes(6144), "");
  EXPECT_EQ(t.bytes(t.find("<think>")), "<think>");
  EXPECT_EQ(t.find("<|user|>"), 6115);
  EXPECT_EQ(t.find("nothing"), -1);
  EXPECT_TRUE(t.is_special(6115));
  EXPECT_FALSE(t.is_special(6129));  // <think>
  EXPECT_FALSE(t.is_special(0));
  EXPECT_FALSE(t.is_special(1 << 30));
}

TEST(Tokenizer, NoControlTokenFromUntrustedText) {
  for (const std::string_view name : kNames) {
    const Tokenizer& t = tokenizer(name);
    const json::value file = json::parse(read_file(path_of(name)));
    for (const json::value& entry : file.at("added_tokens").as_array()) {
      const std::string content(entry.at("content").as_string());
      const auto id = static_cast<Token>(entry.at("id").as_int64());
      for (const std::string& text : {content, "a " + content + " b", content + " " + content}) {
        const std::vector<Token> plain = t.encode(text, false);
        EXPECT_EQ(std::count(plain.begin(), plain.end(), id), 0) << content;
        if (name != "qwen") { EXPECT_EQ(t.decode(plain, false), text) << content; }  // normalises
        const std::vector<Token> control = t.encode(text, true);
        EXPECT_NE(plain, control) << content;
      }
    }
  }
}

TEST(Tokenizer, PiecesAreOneText) {
  const Tokenizer& t = tokenizer("winnow-tiny");
  const Token user = t.find("<|user|>");
  using Pieces = std::vector<Piece>;
  EXPECT_EQ(t.encode(Pieces{{"wat", false}, {"er", true}}), t.encode("water", true));
  EXPECT_EQ(t.encode(Pieces{{"<|us", true}, {"er|>", true}}), std::vector<Token>{user});
  EXPECT_EQ(t.encode(Pieces{{"<|us", true}, {"", false}, {"er|>", true}}), std::vector<Token>{user});
  EXPECT_EQ(t.encode(Pieces{{"<|us", true}, {"er|>", false}}), t.encode("<|user|>", false));
  EXPECT_EQ(t.encode(Pieces{{"<|us", false}, {"er|>", true}}), t.encode("<|user|>", false));
  EXPECT_EQ(t.encode(Pieces{{"<|user|>", false}}), t.encode("<|user|>", false));
  // Untrusted text that could be the beginning of a control token does not hide the trusted one behind it.
  std::vector<Token> want = t.encode("<|user", false);
  want.push_back(user);
  EXPECT_EQ(t.encode(Pieces{{"<|user", false}, {"<|user|>", true}}), want);
  const Tokenizer& l = tokenizer("llama3");  // has "<|" and "<|user|>x" as well
  EXPECT_EQ(l.encode(Pieces{{"<|user|>", true}, {"x", true}}), std::vector<Token>{l.find("<|user|>x")});
  EXPECT_EQ(l.encode(Pieces{{"<|user|>", true}, {"x", false}})[0], l.find("<|user|>"));
  // Bytes that make one character only together.
  EXPECT_EQ(t.encode(Pieces{{"\xe4\xb8", false}, {"\xad", true}}), t.encode("\xe4\xb8\xad", false));
  EXPECT_EQ(t.encode(Pieces{{"\xe4\xb8", true}, {"<sop>", true}}), t.encode("\xef\xbf\xbd<sop>", true));
  EXPECT_EQ(t.encode(Pieces{}), std::vector<Token>{});
}

TEST(Tokenizer, TrustSurvivesNormalisation) {
  const Tokenizer& t = tokenizer("qwen");
  using Pieces = std::vector<Piece>;
  const Token cafe = t.find("caf\xc3\xa9!tok");
  ASSERT_GE(cafe, 0);
  const auto has = [&](const Pieces& pieces) {
    const std::vector<Token> ids = t.encode(pieces);
    return std::count(ids.begin(), ids.end(), cafe) == 1;
  };
  EXPECT_TRUE(has({{"cafe\xcc\x81!tok", true}}));
  EXPECT_TRUE(has({{"e\xcc\x81", false}, {"cafe\xcc\x81!tok", true}, {"e\xcc\x81", false}}));
  EXPECT_TRUE(has({{"cafe", true}, {"\xcc\x81!tok", true}}));
  EXPECT_FALSE(has({{"cafe\xcc\x81!tok", false}}));
  EXPECT_FALSE(has({{"cafe", true}, {"\xcc\x81", false}, {"!tok", true}}));
  EXPECT_FALSE(has({{"caf", true}, {"e", false}, {"\xcc\x81!tok", true}}));
  // All is one text: composed across the border.
  EXPECT_EQ(t.encode(Pieces{{"e", false}, {"\xcc\x81", false}}), t.encode("\xc3\xa9", false));
}

TEST(Tokenizer, ManyThreads) {
  const Tokenizer& t = tokenizer("winnow-tiny");
  const std::string text = "It was the best of times, <|user|> it was the worst of times. 123";
  const std::vector<Token> want = t.encode(text, true);
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) EXPECT_EQ(t.encode(text, true), want);
    });
  for (std::thread& thread : threads) thread.join();
}

// A long run of one character must not take quadratic time. The bound, of processor time, leaves room for sanitizers.
TEST(Tokenizer, LongRunsTakeLinearTime) {
  for (const std::string_view name : kNames) {
    for (const std::string_view unit :
         {"a", " ", "\n", "\t", "!", "7", " \n", "\r", "\xe4\xb8\xad", "\xcc\x81\xcc\xa3", "<|", "'", "a'", "\xc2\xa0"}) {
      std::string text;
      while (text.size() < (name == "winnow-tiny" ? 1 << 20 : 1 << 18)) text += unit;
      const std::clock_t start = std::clock();
      EXPECT_FALSE(tokenizer(name).encode(text, true).empty());
      EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 10.0) << name << " " << unit;
    }
  }
}

std::string refusal(const std::function<void(json::object&)>& change) {
  static const std::string source = read_file(path_of("llama3"));
  json::value file = json::parse(source);
  change(file.as_object());
  const Result<Tokenizer> t = Tokenizer::parse(json::serialize(file), "t.json");
  return t ? "accepted" : t.error().what();
}

json::value split(std::string_view pattern) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {json::object{{"type", "Split"}, {"pattern", json::object{{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}},
            json::object{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}}}}};
}

TEST(TokenizerJson, RefusesByName) {
  using O = json::object;
  const auto expect = [](std::string_view part, const std::function<void(O&)>& change) {
    const std::string message = refusal(change);
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nwanted: " << part;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  };
  EXPECT_EQ(refusal([](O&) {}), "accepted");
  expect("t.json: .model.type: WordPiece", [](O& f) { f["model"].as_object()["type"] = "WordPiece"; });
  expect("dropout", [](O& f) { f["model"].as_object()["dropout"] = 0.1; });
  expect("end_of_word_suffix", [](O& f) { f["model"].as_object()["end_of_word_suffix"] = "</w>"; });
  expect("model.surprise: not known", [](O& f) { f["model"].as_object()["surprise"] = 1; });
  expect(".surprise: not known", [](O& f) { f["surprise"] = 1; });
  expect("merges[3]: \"zzzz\" is not in model.vocab", [](O& f) { f["model"].as_object()["merges"].as_array()[3] = {"zzzz", "y"}; });
  expect("merges[0]: must be two entries", [](O& f) { f["model"].as_object()["merges"].as_array()[0] = "a b c"; });
  expect("no symbol for byte 0x41", [](O& f) { f["model"].as_object()["vocab"].as_object().erase("A"); });
  expect("two entries have this id", [](O& f) { f["model"].as_object()["vocab"].as_object()["A"] = 300; });
  expect("must be an id", [](O& f) { f["model"].as_object()["vocab"].as_object()["A"] = -1; });
  expect("must be an id", [](O& f) { f["model"].as_object()["vocab"].as_object()["A"] = int64_t{1} << 40; });
  expect("must be an id", [](O& f) { f["model"].as_object()["vocab"].as_object()["A"] = 1.5; });
  expect("added_tokens[0].id", [](O& f) { f["added_tokens"].at(0).as_object()["id"] = 5; });
  expect("added_tokens[0].content", [](O& f) { f["added_tokens"].at(0).as_object()["content"] = ""; });
  expect("occurs twice", [](O& f) { f["added_tokens"].at(1).as_object()["content"] = f["added_tokens"].at(0).at("content"); });
  expect("normalizer.type: Lowercase", [](O& f) { f["normalizer"] = {{"type", "Lowercase"}}; });
  expect("pre_tokenizer.type: Metaspace", [](O& f) { f["pre_tokenizer"] = {{"type", "Metaspace"}}; });
  expect("pre_tokenizer: must be ByteLevel", [](O& f) { f["pre_tokenizer"] = nullptr; });
  expect("add_prefix_space", [](O& f) { f["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}}; });
  expect("post_processor.type: BertProcessing", [](O& f) { f["post_processor"] = {{"type", "BertProcessing"}}; });
  expect("decoder: must be ByteLevel", [](O& f) { f["decoder"] = nullptr; });
  expect("truncation", [](O& f) { f["truncation"] = json::object{}; });
  expect("padding", [](O& f) { f["padding"] = json::object{}; });
  for (const auto& [pattern, part] : std::initializer_list<std::pair<std::string_view, std::string_view>>{{"\\w+", "the escape \\w"},
                                                                                                          {"\\bx", "the escape \\b"},
                                                                                                          {"^x", "the anchor ^"},
                                                                                                          {"x$", "the anchor $"},
                                                                                                          {"[a[b]]", "a [ inside a class"},
                                                                                                          {"[a&&b]", "&& inside"},
                                                                                                          {"[\\S]", "\\S inside"},
                                                                                                          {"\\p{Klingon}", "Klingon"},
                                                                                                          {"\\pL", "\\p without"},
                                                                                                          {"(?m:x)", "the group"},
                                                                                                          {"(*ACCEPT)", "the group"},
                                                                                                          {"(?<n>x)", "the group"},
                                                                                                          {"x{2}+", "an interval followed"},
                                                                                                          {"x{,3}", "a { that"},
                                                                                                          {"(?i:ss)", "without case"},
                                                                                                          {"(?i:[a])", "without case"},
                                                                                                          {"x*", "empty string"},
                                                                                                          {"(", "does not compile"},
                                                                                                          {"[a", "an unclosed ["},
                                                                                                          {"\\1", "the escape \\1"},
                                                                                                          {"\\xff", "a byte"},
                                                                                                          {"\\x{110000}", "does not compile"},
                                                                                                          {"x**", "does not compile"},
                                                                                                          {"", "is empty"}})
    expect(part, [&](O& f) { f["pre_tokenizer"] = split(pattern); });
  EXPECT_NE(std::string(Tokenizer::parse("{", "t.json").error().what()).find("t.json: not JSON"), std::string::npos);
  EXPECT_EQ(std::string(Tokenizer::parse("[]", "t.json").error().what()).rfind("t.json: must be an object", 0), 0u);
  EXPECT_NE(std::string(Tokenizer::load("/nowhere/tokenizer.json").error().what()).find("/nowhere/tokenizer.json"), std::string::npos);
}

TEST(TokenizerJson, OlderMergesAreTheSame) {
  json::value file = json::parse(read_file(path_of("qwen")));
  for (json::value& m : file.at("model").at("merges").as_array()) m = std::string(m.at(0).as_string()) + " " + std::string(m.at(1).as_string());
  const Tokenizer old = Tokenizer::parse(json::serialize(file), "old").or_throw();
  const std::string text = "winnowing the strings, token by token";
  EXPECT_EQ(old.encode(text, true), tokenizer("qwen").encode(text, true));
}

TEST(Tokenizer, MatchLimitIsAnError) {
  const std::string source = read_file(path_of("llama3"));
  json::value file = json::parse(source);
  file.as_object()["pre_tokenizer"] = split("(?:a+a+)+[bc]");
  const Tokenizer t = Tokenizer::parse(json::serialize(file), "t.json").or_throw();
  EXPECT_THROW(t.encode(std::string(200, 'a'), false), Error);
}

TEST(Utf8, RunsMoveWithTheText) {
  std::string text =
      "a\xff"
      "b\xe4\xb8\xad"
      "c";
  Runs runs{{1, true}, {2, false}, {4, true}, {6, false}, {7, true}};
  replace_ill_formed(text, runs);
  EXPECT_EQ(text,
            "a\xef\xbf\xbd"
            "b\xe4\xb8\xad"
            "c");
  const size_t ends[] = {1, 4, 5, 8, 9};  // the character that trusted and untrusted text share is untrusted
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(runs[i].end, ends[i]) << i;
}

TEST(Nfc, ComposedAcrossAuthorsIsUntrusted) {
  std::string text = "ae\xcc\x81x";
  Runs runs{{2, true}, {4, false}, {5, true}};
  to_nfc(text, runs);
  EXPECT_EQ(text, "a\xc3\xa9x");
  std::string trust;
  size_t begin = 0;
  for (const auto& r : runs) {
    trust.append(r.end - begin, r.trusted ? 'T' : 'u');
    begin = r.end;
  }
  EXPECT_EQ(trust, "TuuT");
}

TEST(Utf8, CompleteLength) {
  EXPECT_EQ(complete_length("a\xf0\x9f\x98"), 1u);
  EXPECT_EQ(complete_length("a\xf0\x9f\x98\x80"), 5u);
  EXPECT_EQ(complete_length("a\xe0\x80"), 3u);  // cannot become valid any more
  EXPECT_EQ(complete_length("\x80"), 1u);
  EXPECT_EQ(complete_length("\xc3"), 0u);
  EXPECT_EQ(complete_length(""), 0u);
}

}  // namespace
}  // namespace winnow::text
