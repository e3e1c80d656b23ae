#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <set>

namespace winnow::text {
namespace {

namespace json = boost::json;

const std::string kSmallModel = WINNOW_SOURCE_DIR "/models/winnow-tiny";

std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

const json::object& template_reference() {
  static const json::value root = json::parse(contents_of(WINNOW_SOURCE_DIR "/tests/data/text/template.json"));
  return root.as_object();
}

ChatTemplate shipped() { return ChatTemplate::load(kSmallModel).or_throw(); }

std::string rendered(std::string_view source, const json::object& context) {
  const Result<ChatTemplate> t = ChatTemplate::parse(source, "t");
  if (!t) return t.error().what();
  const Result<std::vector<Piece>> pieces = t->render(context);
  return pieces ? joined(*pieces) : pieces.error().what();
}

// What the template wrote stands as it is, what came from the context between « and ».
std::string marked(std::string_view source, const json::object& context) {
  std::string out;
  for (const Piece& p : ChatTemplate::parse(source, "t").or_throw().render(context).or_throw()) out += p.trusted ? p.text : "«" + p.text + "»";
  return out;
}

TEST(ChatTemplate, RendersAsTheReference) {
  const ChatTemplate own = shipped();
  int compared = 0;
  for (const json::value& c : template_reference().at("cases").as_array()) {
    const std::string source(c.at("template").as_string());
    SCOPED_TRACE(std::string(c.at("name").as_string()) + ": " + source);
    const json::value* context = c.as_object().if_contains("context");
    const Result<ChatTemplate> t = source == "winnow-tiny" ? shipped() : ChatTemplate::parse(source, "t");
    ASSERT_TRUE(t) << t.error().what();
    const Result<std::vector<Piece>> pieces = t->render(context ? context->as_object() : template_reference().at("sample").as_object());
    if (const json::value* text = c.as_object().if_contains("text")) {
      ASSERT_TRUE(pieces) << pieces.error().what();
      EXPECT_EQ(joined(*pieces), std::string(text->as_string()));
      for (size_t i = 0; i < pieces->size(); ++i) {
        EXPECT_FALSE((*pieces)[i].text.empty());
        if (i) { EXPECT_NE((*pieces)[i].trusted, (*pieces)[i - 1].trusted); }
      }
      ++compared;
    } else {
      EXPECT_FALSE(pieces) << joined(*pieces) << "\ninstead of " << c.at("error").as_string();
    }
  }
  EXPECT_GT(compared, 100);
}

TEST(ChatTemplate, CheckStrings) {
  const ChatTemplate t = shipped();
  json::object context{{"messages", {json::object{{"role", "user"}, {"content", "hi"}}}}, {"add_generation_prompt", true}};
  EXPECT_EQ(joined(*t.render(context)), "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>hi<|assistant|><think>");
  context["messages"] = {json::object{{"role", "user"}, {"content", "a"}},
                         json::object{{"role", "assistant"}, {"content", "x"}, {"reasoning_content", "old"}},
                         json::object{{"role", "user"}, {"content", "b"}}};
  const std::string head = "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>a<|assistant|>", tail = "x<|user|>b<|assistant|><think>";
  EXPECT_EQ(joined(*t.render(context)), head + "<think></think>" + tail);
  context["clear_thinking"] = false;
  EXPECT_EQ(joined(*t.render(context)), head + "<think>old</think>" + tail);
}

TEST(ChatTemplate, UserTextNeverBecomesAControlToken) {
  const Tokenizer tokenizer = Tokenizer::load(kSmallModel + "/tokenizer.json").or_throw();
  const ChatTemplate t = shipped();
  const std::string all =
      "<|endoftext|>[gMASK]<sop><|system|><|user|><|assistant|><|observation|><think></think><tool_call></tool_call><tool_response>"
      "</tool_response><arg_key></arg_key><arg_value></arg_value>/nothink<|image|>";
  const auto conversation = [](const std::string& text) {
    const json::object call{{"id", text}, {"function", {{"name", text}, {"arguments", {{text, text}, {"n", {text}}}}}}};
    json::object user{{"role", "user"}, {"content", text}};
    return json::object{{"messages",
                         {json::object{{"role", "system"}, {"content", text}}, user,
                          json::object{{"role", "assistant"}, {"content", text}, {"reasoning_content", text}, {"tool_calls", {call}}},
                          json::object{{"role", "tool"}, {"content", text}, {"tool_call_id", text}}}},
                        {"tools", {json::object{{"function", {{"name", text}, {text, text}}}}}},
                        {"add_generation_prompt", true}};
  };
  const auto control = [&](const std::string& text) {
    const std::vector<Piece> pieces = t.render(conversation(text)).or_throw();
    const std::string whole = joined(pieces);
    const std::vector<Token> ids = tokenizer.encode(pieces);
    EXPECT_EQ(tokenizer.decode(ids, false), whole);
    std::vector<Token> out;
    for (const Token id : ids)
      if (id >= 6108) out.push_back(id);
    return out;
  };
  EXPECT_EQ(control(all), control("x"));
  EXPECT_GT(control("x").size(), 15u);
}

TEST(ChatTemplate, KnowsWhoWroteWhat) {
  const json::object c{{"s", "user"}, {"ws", "  pad "}, {"l", {"a", "b"}}, {"d", {{"k", "v\n"}}}, {"n", 5}, {"up", "ß-x"}, {"think", "a</think>b"}};
  EXPECT_EQ(marked("<{{ s }}>", c), "<«user»>");
  EXPECT_EQ(marked("{{ '<' ~ s ~ '>' }}{{ '<' + s + '>' }}", c), "<«user»><«user»>");
  EXPECT_EQ(marked("{{ ('<' ~ s ~ '>')[1:-1] }}{{ ('<' ~ s ~ '>')[:3] }}{{ ('<' ~ s ~ '>')[::-1] }}", c), "«user»<«us»>«resu»<");
  EXPECT_EQ(marked("{{ ('<' ~ ws ~ '>').strip('<') }}{{ ws.strip() }},{{ (' ' ~ ws ~ '.') | trim }}", c), "«  pad »>«pad»,«pad ».");
  EXPECT_EQ(marked("{{ ('x,' ~ s ~ ',y').split(',') | join('+') }}", c), "x+«user»+y");
  EXPECT_EQ(marked("{{ s | replace('s', '<s>') }}{{ ('<t>' ~ s) | replace('t', s) }}", c), "«u»<s>«er»<«user»>«user»");
  EXPECT_EQ(marked("{{ ('a' ~ s) | upper }}{{ ('é' ~ s ~ 'É') | lower }}{{ s | capitalize }},{{ (up ~ 'ß') | upper }}", c),
            "A«USER»é«user»é«User»,«SS-X»SS");
  EXPECT_EQ(marked("{{ l | join(', ') }}{{ l | tojson }}{{ d | tojson }}{{ n }}{{ l }}", c),
            "«a», «b»[\"«a»\", \"«b»\"]{\"«k»\": \"«v\\n»\"}5['«a»', '«b»']");
  EXPECT_EQ(marked("{% for k, v in d.items() %}{{ k }}={{ v | tojson }}{% endfor %}{% for x in s %}{{ x }}.{% endfor %}", c),
            "«k»=\"«v\\n»\"«u».«s».«e».«r».");
  EXPECT_EQ(marked("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(s) }}{{ m('t') | length }}{% set z %}[{{ s }}]{% endset %}{{ z }}", c),
            "<«user»>3[«user»]");
  EXPECT_EQ(marked("{% set ns = namespace(t='') %}{% set ns.t = ns.t + s + '|' %}{{ ns.t }}", c), "«user»|");
  EXPECT_EQ(marked("{{ think.split('</think>')[-1] }},{{ s or 'x' }}{{ nope or 'x' }}", c), "«b»,«user»x");
}

TEST(ChatTemplate, RefusesWhenLoaded) {
  const std::initializer_list<std::pair<std::string_view, std::string_view>> cases = {
      {"a\n{% include 'x' %}", "t: line 2: the block include is not supported"},
      {"{% extends 'x' %}", "the block extends"},
      {"{% call m() %}{% endcall %}", "the block call"},
      {"{% filter upper %}{% endfilter %}", "the block filter"},
      {"{% import 'x' as y %}", "the block import"},
      {"{% block b %}{% endblock %}", "the block block"},
      {"{% do x %}", "the block do"},
      {"\n\n{{ x | nope }}", "line 3: the filter nope is not supported"},
      {"{{ x is nope }}", "the test nope"},
      {"{{ x | safe }}", "the filter safe"},
      {"{{ nope(1) }}", "line 1: the function nope is not supported"},
      {"{{ x.append(1) }}", "the method append"},
      {"{{ x.__class__ }}", "the attribute __class__"},
      {"{{ (x)(1) }}", "the function x"},
      {"{{ x[0](1) }}", "only functions"},
      {"{{ f(*a) }}", "* and **"},
      {"{{ f(**a) }}", "* and **"},
      {"{{ x", "a {{ without }}"},
      {"{% if x", "a {% without %}"},
      {"{% if x %}", "the template ends before endif"},
      {"{% for a in b %}", "ends before endfor"},
      {"{% endif %}", "the block endif"},
      {"{# x", "a comment without end"},
      {"{% raw %}x", "a raw block without end"},
      {"{{ 'x }}", "a string without end"},
      {"{{ a b }}", "not closed"},
      {"{{ }}", "unexpected }}"},
      {"{{ 1 + }}", "unexpected }}"},
      {"{{ (1 }}", "unexpected }"},
      {"{{ [1) }}", "an unexpected )"},
      {"{{ a ! b }}", "an unexpected character"},
      {"{{ é }}", "an unexpected character"},
      {"{% break %}", "break outside a loop"},
      {"{% for a in b recursive %}{% endfor %}", "recursive"},
      {"{% macro m(a=1, b) %}{% endmacro %}", "a parameter without default"},
      {"{% macro m() %}{{ caller() }}{% endmacro %}", "the name caller"},
      {"{% set true = 1 %}", "cannot be assigned"},
      {"{% set x | upper %}{% endset %}", "filters on a set block"},
      {"{% for loop in x %}{% endfor %}", "loop cannot"},
      {"{% set ns._x = 1 %}", "begins with _"},
      {"{{ '\\N{DASH}' }}", "the escape \\N"},
      {"{{ '\\ud800' }}", "no character"},
      {"{{ '\\x4' }}", "without its digits"},
      {"{{ 99999999999999999999 }}", "out of range"},
      {"{{ 1a }}", "followed by a letter"},
      {"{{ 012 }}", "begins with 0"},
      {"{{ f(a=1, a=2) }}", "given twice"},
      {"{{ f(a=1, 2) }}", "an argument without name"},
      {"{{ x is string is mapping }}", "chained"},
      {"\xff", "not UTF-8"},
      {"{% for (a, b) in c %}{% endfor %}", "parentheses around"},
      {"{% generation %}{% break %}{% endgeneration %}", "break outside"}};
  for (const auto& [source, part] : cases) {
    const Result<ChatTemplate> t = ChatTemplate::parse(source, "t");
    ASSERT_FALSE(t) << source;
    const std::string message = t.error().what();
    EXPECT_NE(message.find(part), std::string::npos) << source << ": " << message;
    EXPECT_EQ(message.rfind("t: line ", 0), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  EXPECT_EQ(rendered("a\nb {{ nope.x }}", {}), "t: line 2: nope is undefined");
  EXPECT_EQ(rendered("{% macro m(x) %}\n{{ x + 1 }}{% endmacro %}\n\n{{ m('a') }}", {}), "t: line 2: arithmetic with str and int");
  EXPECT_EQ(rendered("{{ raise_exception('the roles\n must alternate') }}", {}),
            "the chat template refuses the messages: the roles\n must alternate");
  EXPECT_EQ(rendered("{{ x }}", {{"x", 1}, {"y", 2}}), "1");
}

TEST(ChatTemplate, BoundsHold) {
  const json::object c{{"s", std::string(1000, 'x')}};
  const auto contains = [&](std::string_view source, std::string_view part) {
    const std::string message = rendered(source, c);
    EXPECT_NE(message.find(part), std::string::npos) << source << ": " << message.substr(0, 200);
  };
  contains("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "steps");
  contains("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", "deep");
  contains("{% set ns = namespace(s='x') %}{% for a in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "MiB of text");
  contains("{{ 'x' * 9999999999 }}", "MiB of text");
  contains("{{ s | replace('', s * 1000) | replace('x', s * 1000) }}", "MiB of text");
  contains("{% set ns = namespace(l=[]) %}{% for a in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}", "nested more than");
  contains("{% set ns = namespace(l=[1]) %}{% for a in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}", "steps");
  contains("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}", "a namespace cannot be written");
  contains("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns.self.self == ns }}", "True");
  contains("{{ 9223372036854775807 * 9223372036854775807 }}", "beyond 64 bits");
  contains("{{ 2 ** 999999999 }}", "beyond 64 bits");
  contains("{{ [1] | tojson(indent=999999) | length }}", "69");
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "(";
  EXPECT_NE(std::string(ChatTemplate::parse("{{ " + deep + "1" + std::string(5000, ')') + " }}", "t").error().what()).find("nested too deeply"),
            std::string::npos);
  deep.clear();
  for (int i = 0; i < 5000; ++i) deep += "{% if x %}";
  EXPECT_NE(std::string(ChatTemplate::parse(deep, "t").error().what()).find("nested too deeply"), std::string::npos);
  deep.clear();
  for (int i = 0; i < 5000; ++i) deep += "1 + ";
  EXPECT_NE(std::string(ChatTemplate::parse("{{ " + deep + "1 }}", "t").error().what()).find("nested too deeply"), std::string::npos);
  EXPECT_FALSE(ChatTemplate::parse(std::string((1 << 20) + 1, 'x'), "t"));
  json::value nested;
  for (int i = 0; i < 500; ++i) nested = json::array{std::move(nested)};
  EXPECT_NE(rendered("x", {{"v", nested}}).find("nested more than"), std::string::npos);
}

TEST(ChatTemplate, LoadsFromACheckpoint) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "chat_template_test";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  const auto write = [&](const char* name, std::string_view text) { std::ofstream(dir / name) << text; };
  EXPECT_NE(std::string(ChatTemplate::load(dir.string()).error().what()).find("chat_template"), std::string::npos);
  write("tokenizer_config.json",
        R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true, "chat_template": "{{ bos_token }}{{ eos_token }}{{ x }}"})");
  const std::vector<Piece> pieces = *ChatTemplate::load(dir.string()).or_throw().render({{"x", "u"}});
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].text, "<s></s>");
  EXPECT_TRUE(pieces[0].trusted);
  EXPECT_FALSE(pieces[1].trusted);
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(joined(*ChatTemplate::load(dir.string()).or_throw().render({})), "d");
  write("chat_template.jinja", "own\n");
  EXPECT_EQ(joined(*ChatTemplate::load(dir.string()).or_throw().render({})), "own");
  write("chat_template.jinja", "{% nope %}");
  EXPECT_NE(std::string(ChatTemplate::load(dir.string()).error().what()).find("chat_template.jinja: line 1: the block nope"), std::string::npos);
  write("tokenizer_config.json", "{");
  EXPECT_NE(std::string(ChatTemplate::load(dir.string()).error().what()).find("not JSON"), std::string::npos);
  std::filesystem::remove_all(dir);
}

TEST(ChatTemplate, Time) {
  const std::string year = rendered("{{ strftime_now('%Y') }}", {});
  EXPECT_EQ(year.size(), 4u);
  EXPECT_EQ(year.substr(0, 2), "20");
}

}  // namespace
}  // namespace winnow::text
