#!/usr/bin/env python3
"""Reference data for src/text, from the Hugging Face packages.

    python tools/oracles/text_oracle.py make            writes tests/data/text/
    python tools/oracles/text_oracle.py random PROGRAM  compares PROGRAM (build target `tokenize`) with the package on random text

Needs: pip install tokenizers==0.23.3 transformers==5.17.0 jinja2==3.1.6 (any later transformers renders the same).
Files written:
    tokenizer_<family>.json   small tokenizers trained here, with the pre-tokenizers of Llama-3, Qwen and DeepSeek-V3
    tokens.json               [{"name", "bytes": hex, "ids": {tokenizer: [..]}, "decoded": {..}, "skipped": {..}}], long texts as {"repeat": [..]}
    template.json             [{"name", "template", "context", "text" or "error"}]
"""
import json
import os
import random
import subprocess
import sys
import unicodedata

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "tests", "data", "text")
MODEL = os.path.join(ROOT, "models", "winnow-tiny")

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+")

TRAINING_TEXT = """
The quick brown fox jumps over the lazy dog. There is no reason why the words of this text should be interesting; they
only have to hold common letters in common order, so that the trainer finds some merges: the, there, then, other, another,
winnow, winnowing, tokens, tokenizer, string, strings, stringing. Don't, can't, we're, they've, I'm, you'll, he'd, it's.
Numbers: 1, 12, 123, 1234, 1999, 2024, 3.14159, 1,000,000. Code: for (int i = 0; i < n; ++i) { sum += a[i]; }
    return sum;\t// with tabs\r\n\r\nand carriage returns.
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Voix ambiguë d'un cœur qui au zéphyr préfère les jattes.
В чащах юга жил бы цитрус? Да, но фальшивый экземпляр! Эх, чужак, общий съём цен шляп.
我能吞下玻璃而不伤身体。我能吞下玻璃。いろはにほへと ちりぬるを。カタカナとひらがな。
نص حكيم له سر قاطع وذو شأن عظيم. ทุกคนเกิดมาอิสระ. सभी मनुष्यों को गौरव. 키스의 고유조건은 입술끼리.
Emoji: 😀 😁 👩‍👩‍👧 🇩🇪 ❤️. Accents: e\u0301 e\u0301 a\u0308 o\u0302. Fullwidth ＡＢＣ. Maths: ∀x ∈ ℝ: x² ≥ 0, a → b.
"""

CORPUS = {
    "empty": "",
    "space": " ",
    "hello": "Hello, world!",
    "prose": "It was a bright cold day in April, and the clocks were striking thirteen. Nobody's there; we'll see, they're late.",
    "contractions": "I'm he's SHE'S we'RE they'Ve it'LL I'd o'clock 'tis rock 'n' roll don''t 's'T're'x it\u2019s it'\u017f IT'\u017f",
    "digits": "1 12 123 1234 12345678901234567890 3.14 1e-9 0x7F \u0663\u0664\u0665 \u096a\u096b \u216b \u00bd \u00b2\u00b3 1st 2nd",
    "code": "def f(x):\n\treturn {'a': [1, 2, 3]}  # comment\n\n\n    if x != y and z: pass;;\r\n\r\n#include <vector>\nint main(){}\n",
    "latin": "Zwölf Boxkämpfer; ça va très bien, señor. Łódź, İstanbul, ıspanak, ŉ, ǆ, ß ẞ ﬁ ﬆ.",
    "greek_cyrillic": "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία. Съешь ещё этих мягких французских булок, да выпей чаю.",
    "cjk": "我能吞下玻璃而不伤身体。私はガラスを食べられます。それは私を傷つけません。나는 유리를 먹을 수 있어요. ㄱㄴㄷ 〆々 𠮷野家 ｶﾞ",
    "arabic_hebrew": "أنا قادر على أكل الزجاج و هذا لا يؤلمني. אני יכול לאכול זכוכית וזה לא מזיק לי. \u0627\u064b\u0652",
    "indic": "मैं काँच खा सकता हूँ। আমি কাঁচ খেতে পারি। நான் கண்ணாடி சாப்பிடுவேன். ฉันกินกระจกได้ ကျွန်တော် ខ្ញុំអាចញុំកញ្ចក់",
    "other_scripts": "ᎠᎡᎢ ᚠᛇᚻ ⴰⴱ ߒߞߏ ꦲ ᠮᠣᠩᠭᠣᠯ 𐍈𐌰 𐎀𐎁 𓀀𓀁 𝔘𝔫𝔦 𞤀𞤣 ꙮ",
    "emoji": "😀👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️‍🔥 ☺︎ 1️⃣ #️⃣ 🧑🏿‍🚀 👨‍👩‍👧 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "combining": "e\u0301 a\u0308\u0323 a\u0323\u0308 Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f n\u0303 \u0301x \u1100\u1161\u11a8 \u212b \u2126 \u0958 \u0344 \ufb1d",
    "whitespace": "a b  c   d\te\t\tf\n\ng \n h\r\ni\r\rj\u00a0k\u1680l\u2003\u2003m\u2028n\u2029o\u202fp\u205fq\u3000r\x0bs\x0ct\x85u\u180ev\u200bw\ufeffx  \n  \n y  ",
    "trailing_space": "word    ",
    "leading_space": "    word",
    "newlines": "\n\n\n a\n\n \n\t\n  b \r\n \r\n",
    "controls": "".join(chr(i) for i in range(32)) + "\x7f\x80\x81\x9f\xad\u2060\u206a\ufff9\ufffd\uffff\U0010ffff\ue000",
    "symbols": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ «» “” ‘’ – — … € £ ¥ § ¶ † ‡ • ‰ ™ ∑∏√∞≠≈ ←↑→↓ ☃★ ▁▂▃",
    "punctuation_words": ".net #tag @user $var -flag --flag /path/to/file C:\\dir\\file http://a.b/c?d=e&f=g _x_ __init__ a.b.c (word) [word] \"word\"",
    "control_lookalikes": "<|user|>hi<|assistant|><think></think> [gMASK]<sop> <|endoftext|> /nothink <|user |> <| user|> <|user|<|user|>> <tool_call>f</tool_call>",
    "llama_lookalikes": "<|begin_of_text|><|eot_id|> <|im_start|>user\n<|im_end|> <｜begin▁of▁sentence｜>x<｜end▁of▁sentence｜> <mask> <mask>  x\t<mask>\n",
    "adjacent_specials": "<|user|><|user|> <|user|>\n<|user|>x",
    "single_words": "solo solos asolo solo_ solo. (solo) \u00e9solo solo\u0301 -solo- SOLO so lo",
    "strips": "a  <left> b <left>c \t\n<left>  d  <right>  e<right>f<right> \n g <both>  <both> h  <both><left><right> i",
    "normalized_added": "caf\u00e9!tok cafe\u0301!tok caf\u00e9!to x\u0301caf\u00e9!tok\u0301",
    "mixed": "Price: 12,345.67€ (≈$13k) 在2024年 for \"naïve\" users—см. §4.2!\n\tOK? 👌🏽 yes… no",
}
INVALID = {
    "truncated": b"ab\xe4\xb8", "truncated_four": b"ab\xf0\x9f\x98", "continuation": b"\x80\xbfab", "overlong": b"\xc0\xaf\xe0\x80\xaf\xf0\x80\x80\xaf",
    "surrogates": b"x\xed\xa0\x80\xed\xb0\x80y", "too_large": b"\xf4\x90\x80\x80\xf5\xff\xfe", "mixed_invalid": b"a\xe4\xb8b\xf0\x9fc\xc3d\xe4\xb8\xad\xffe",
    "every_byte": bytes(range(256)), "split_emoji": b"\xf0\x9f \x98\x80",
}
LONG = {  # (unit, times): results are stored as runs
    "long_letters": ("a", 100_000), "long_spaces": (" ", 100_000), "long_newlines": ("\n", 50_000), "long_mixed_space": (" \n", 50_000),
    "long_digits": ("7", 30_000), "long_punctuation": ("!", 30_000), "long_cjk": ("中", 20_000), "long_word": ("stringing", 5_000),
    "long_marks": ("\u0301\u0323", 5_000), "long_tabs": ("\t ", 20_000), "long_brackets": ("<|", 10_000),
}


def added(content, **flags):
    from tokenizers import AddedToken
    return AddedToken(content, **{"normalized": False, **flags})


def train(name):
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    split = lambda p: pre_tokenizers.Split(Regex(p), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    if name == "llama3":
        t.pre_tokenizer = pre_tokenizers.Sequence([split(LLAMA3), byte_level])
    elif name == "qwen":
        t.normalizer = normalizers.NFC()
        t.pre_tokenizer = pre_tokenizers.Sequence([split(QWEN), byte_level])
        t.post_processor = processors.ByteLevel(trim_offsets=False)
    elif name == "deepseek":
        t.normalizer = normalizers.Sequence([])
        t.pre_tokenizer = pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK), byte_level])
    elif name == "steps":  # the remaining kinds of step and behaviour
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex("[\r\n]"), "merged_with_previous"), pre_tokenizers.Split("--", "merged_with_next"),
            pre_tokenizers.Split(Regex(r"\s?\p{L}+"), "isolated"), pre_tokenizers.Split(Regex(r"[€£¥]"), "removed"),
            pre_tokenizers.Split(Regex(r"[☃★]+"), "contiguous", invert=True),
            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([TRAINING_TEXT] * 2, trainers.BpeTrainer(
        vocab_size=700, min_frequency=2, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens([added(c, special=True) for c in {
        "llama3": ["<|begin_of_text|>", "<|eot_id|>", "<|user|>"], "qwen": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        "deepseek": ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"], "steps": ["<s>"]}[name]])
    t.add_tokens([added("solo", single_word=True), added("<left>", lstrip=True), added("<right>", rstrip=True),
                  added("<both>", lstrip=True, rstrip=True, normalized=True), added("<mask>", lstrip=True, normalized=False),
                  added("café!tok", normalized=True), added("<|"), added("<|user|>x")])
    if name == "llama3":  # adds a token at the front unless asked not to; prompts never ask
        t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])])
    path = os.path.join(DATA, f"tokenizer_{name}.json")
    os.makedirs(DATA, exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(json.loads(t.to_str()), f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
    return path


def tokenizers_used():
    from tokenizers import Tokenizer
    names = {"winnow-tiny": os.path.join(MODEL, "tokenizer.json")}
    names |= {n: os.path.join(DATA, f"tokenizer_{n}.json") for n in ("llama3", "qwen", "deepseek", "steps")}
    return {n: Tokenizer.from_file(p) for n, p in names.items()}


def runs(ids):
    """[id, count] for a long list."""
    out = []
    for i in ids:
        if out and out[-1][0] == i:
            out[-1][1] += 1
        else:
            out.append([i, 1])
    return out


def make_tokens():
    for name in ("llama3", "qwen", "deepseek", "steps"):
        train(name)
    used = tokenizers_used()
    cases = []
    texts = {n: s.encode() for n, s in CORPUS.items()} | INVALID
    for name, data in texts.items():
        text = data.decode("utf-8", "replace")
        ids = {n: t.encode(text, add_special_tokens=False).ids for n, t in used.items()}
        cases.append({"name": name, "bytes": data.hex(), "ids": ids,
                      "decoded": {n: t.decode(ids[n], skip_special_tokens=False) for n, t in used.items()},
                      "skipped": {n: t.decode(ids[n], skip_special_tokens=True) for n, t in used.items()}})
    for name, (unit, times) in LONG.items():
        for tail in ("", "x", " x\n"):
            ids = {n: t.encode(unit * times + tail, add_special_tokens=False).ids for n, t in used.items()}
            compact = {n: runs(i) for n, i in ids.items()}
            cases.append({"name": f"{name}+{tail!r}", "repeat": [unit, times], "tail": tail,
                          "runs": {n: r for n, r in compact.items() if len(r) < 40},
                          "count_and_sum": {n: [len(i), sum((k % 1000 + 1) * x for k, x in enumerate(i))] for n, i in ids.items()}})
    random.seed(7)  # partial decodes: any ids, in any order
    streams = []
    for n, t in used.items():
        size = t.get_vocab_size()
        for _ in range(12):
            ids = [random.choice([random.randrange(size), random.randrange(256)]) for _ in range(random.randrange(1, 40))]
            streams.append({"tokenizer": n, "ids": ids, "text": t.decode(ids, skip_special_tokens=False), "skipped": t.decode(ids, skip_special_tokens=True)})
    with open(os.path.join(DATA, "tokens.json"), "w", encoding="utf-8") as f:
        f.write('{"cases":[\n' + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + '\n],"streams":[\n')
        f.write(",\n".join(json.dumps(s, separators=(",", ":")) for s in streams) + "\n]}\n")


def template_cases():
    """(name, template, context): the template that ships with the small model on conversations, then one feature at a time."""
    say = lambda role, content, **more: {"role": role, "content": content, **more}
    fn = lambda name, args, id=None: {"type": "function", "function": {"name": name, "arguments": args}, **({"id": id} if id else {})}
    weather = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a place — “now”", "strict": True, "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "default": 1.5}}, "required": ["city"], "x": None}}}
    search = {"name": "search", "description": "Größe <tags> & \"quotes\"\n", "parameters": {}}
    deferred = {"type": "function", "defer_loading": True, "function": {"name": "later", "parameters": {"type": "object"}}}
    cases = {
        "hi": dict(messages=[say("user", "hi")]),
        "history": dict(messages=[say("user", "a"), say("assistant", "x", reasoning_content="old"), say("user", "b")]),
        "history_kept": dict(messages=[say("user", "a"), say("assistant", "x", reasoning_content="old"), say("user", "b")], clear_thinking=False),
        "history_cleared": dict(messages=[say("user", "a"), say("assistant", "x", reasoning_content="old"), say("user", "b")], clear_thinking=True),
        "no_generation_prompt": dict(messages=[say("user", "a"), say("assistant", "b")], add_generation_prompt=False),
        "system": dict(messages=[say("system", "  Be brief.\n"), say("user", " hi ")]),
        "effort_low": dict(messages=[say("user", "hi")], reasoning_effort="low"),
        "effort_high": dict(messages=[say("user", "hi")], reasoning_effort="high"),
        "effort_other": dict(messages=[say("user", "hi")], reasoning_effort="medium"),
        "effort_null": dict(messages=[say("user", "hi")], reasoning_effort=None),
        "inline_reasoning": dict(messages=[say("user", "q"), say("assistant", "<think>\nwhy\n</think>\n\n answer \n")]),
        "inline_reasoning_twice": dict(messages=[say("user", "q"), say("assistant", "a<think>b<think>c</think>d</think> e ")]),
        "inline_reasoning_closed": dict(messages=[say("user", "q"), say("assistant", "x</think>y"), say("user", "z")]),
        "reasoning_empty": dict(messages=[say("user", "q"), say("assistant", " a ", reasoning_content="")]),
        "reasoning_none": dict(messages=[say("user", "q"), say("assistant", None, reasoning_content=None)]),
        "reasoning_space": dict(messages=[say("user", "q"), say("assistant", "\u2003a\u00a0\n", reasoning_content=" r ")]),
        "tools": dict(messages=[say("user", "Weather in Köln?")], tools=[weather, search, deferred]),
        "tools_empty": dict(messages=[say("user", "hi")], tools=[]),
        "tool_call": dict(messages=[say("user", "w"), say("assistant", "", reasoning_content="use the tool", tool_calls=[fn("get_weather", {
            "city": "Köln", "days": 3, "exact": True, "none": None, "list": [1, "zwei", 3.5, {"a": "b"}], "text": "line\n\"q\" <&>", "big": 12345678901234567890})]),
            say("tool", "sunny")], tools=[weather]),
        "tool_call_bare": dict(messages=[say("user", "w"), say("assistant", None, tool_calls=[{"name": "f", "arguments": {}}])]),
        "tool_results_in_call_order": dict(messages=[say("user", "w"), say("assistant", "t", tool_calls=[fn("f", {"a": 1}, "c1"), fn("g", {"b": ""}, "c2")]),
                                                     say("tool", "two", tool_call_id="c2"), say("tool", "one", tool_call_id="c1"), say("user", "next")]),
        "tool_results_without_ids": dict(messages=[say("user", "w"), say("assistant", "t", tool_calls=[fn("f", {}, "c1"), fn("g", {})]),
                                                   say("tool", "two", tool_call_id="c2"), say("tool", "one", tool_call_id="c1")]),
        "tool_results_unknown_id": dict(messages=[say("user", "w"), say("assistant", "t", tool_calls=[fn("f", {}, "c1"), fn("g", {}, "c2")]),
                                                  say("tool", "two", tool_call_id="c2"), say("tool", "one", tool_call_id="c9")]),
        "tool_results_two_runs": dict(messages=[say("user", "w"), say("assistant", "", tool_calls=[fn("f", {}, "a")]), say("tool", "1", tool_call_id="a"),
                                                say("assistant", "", tool_calls=[fn("g", {}, "b"), fn("h", {}, "c")]), say("tool", "3", tool_call_id="c"),
                                                say("tool", "2", tool_call_id="b"), say("assistant", "done"), say("user", "ok")]),
        "tool_references": dict(messages=[say("user", "w"), say("assistant", "", tool_calls=[fn("find", {}, "a")]), say("tool", [
            {"type": "tool_reference", "name": "later"}, {"type": "tool_reference", "tool_name": "search"}, {"type": "text", "text": "x"}], tool_call_id="a")],
            tools=[search, deferred]),
        "parts": dict(messages=[say("user", [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {"url": "x"}}, "raw", {"type": "video"},
                                             {"type": "input_audio"}, {"type": "other"}, {"type": "text", "text": " end"}]), say("assistant", [{"type": "text", "text": "  ok "}])]),
        "control_lookalikes": dict(messages=[say("system", "<|user|>"), say("user", "<|assistant|><think></think>[gMASK]<sop>"), say("assistant", "<|endoftext|>"),
                                             say("user", "</tool_response><|observation|>")]),
        "unicode": dict(messages=[say("user", "日本語 👩‍👩‍👧 e\u0301 \u2028 \u0000 \ufffd نص"), say("assistant", "\u3000ok\u3000")]),
        "no_messages": dict(messages=[]),
        "odd_role": dict(messages=[say("developer", "x"), say("user", "y")]),
    }
    with open(os.path.join(MODEL, "chat_template.jinja"), encoding="utf-8") as f:
        shipped = f.read()
    out = []
    for name, context in cases.items():
        full = {"tools": None, "documents": None, "add_generation_prompt": True, **context}
        out.append({"name": name, "template": "winnow-tiny", "context": full})
    for i, template in enumerate(FEATURES):
        out.append({"name": f"feature_{i}", "template": template, "context": SAMPLE})
    return shipped, out


SAMPLE = {"s": "Hello, Wörld", "e": "", "n": None, "t": True, "f": False, "i": 7, "neg": -3, "x": 2.5, "l": [1, 2, 3], "d": {"a": 1, "b": {"c": [True, None]}},
              "m": [{"role": "a", "k": 1}, {"role": "b", "k": 0}], "ws": " \t\n pad \u00a0\n", "q": "it's", "qq": "it's \"both\"", "u": "日\x00\x7f\u200b\U0001f600é"}
# One feature of the language each, rendered with SAMPLE.
FEATURES = [
    'a\n{% if t %}\n  b\n{% endif %}\nc\n',
    'a \n  {%- if t -%}  \n b \n {%- endif %} \n c',
    '  {% if t %}x{% endif %}  y',
    'x  {% if t %}y{% endif %}',
    '\t{%+ if t %}x{% endif +%}\ny',
    '{# c #}\nx\n  {# d #}\ny {#- e -#} \n z',
    '  {{ s }}\n\n',
    '{{- s -}}\n  end\n\n',
    'a\r\nb\rc\n',
    '{% raw %}{{ x }} {% y %}{% endraw %}\nz',
    '  {%- raw -%}  a  {%- endraw -%}  b',
    'x\n  {% raw %}\n  a\n  {% endraw %}\ny',
    '{% if t -%}\n\n  x\n{%- endif %}',
    "{{ '{{' }} {{ '%}' }}",
    "{{ {'a': {'b': 1}}}}",
    'line {# a\nb\n#}\n{{ s }}',
    '{{ s }}{{ s }}\n',
    '\n\n{{ s }}\n\n\n',
    '',
    '{%- set z = 1 %}\n{{ z }}',
    '{% for a in l %}\n{{ a }}\n{% endfor %}\n',
    'a\xa0{%- if t %}b{% endif %}',
    '{',
    '{ {',
    'a{b}c #} %} }}',
    '{{ n }} {{ t }} {{ f }} {{ i }} {{ x }} {{ neg }} {{ nothing }}|',
    "{{ l }} {{ d }} {{ [s, q, qq, u, 'a\\\\b\\n\\t\\r'] }}",
    "{{ (1,) }} {{ (1, 'a') }} {{ () }} {{ 1, 2 }}",
    '{{ 1e16 }} {{ 1e15 }} {{ 0.1 }} {{ 1.0 }} {{ 1e-5 }} {{ 123456789.123 }} {{ 1e300 * 1e10 }}',
    '{{ \'a\' \'b\' "c" }}',
    "{{ '\\x41\\u00e9\\101\\q\\'' }}",
    '{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 6 / 2 }}',
    "{{ 'a' + 'b' }} {{ 'a' ~ 1 ~ n ~ t ~ 2.0 }} {{ l + [4] }} {{ 'ab' * 3 }} {{ t + 1 }} {{ 1 ~ 2 + 3 ~ 4 if f else 'x' }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ t == 1 }} {{ 'a' == s }} {{ n == nothing }} {{ nothing == other }} {{ l == [1,2,3] }} {{ d == {'b': {'c': [true, none]}, 'a': 1} }} {{ (1,2) == [1,2] }}",
    "{{ 2 in l }} {{ 'ell' in s }} {{ 'a' in d }} {{ 1 in d }} {{ 5 not in l }} {{ 1 in nothing }} {{ not 1 in l }}",
    "{{ t and 'x' }} {{ f or 'y' }} {{ e or n or 0 or 'z' }} {{ not e }} {{ not not s }} {{ t and f or i }}",
    "{{ 'y' if t }} {{ 'n' if f }} {{ 'a' if f else 'b' if f else 'c' }}",
    '{{ +i }} {{ -i }} {{ - -i }} {{ -x|int }}',
    "{{ (i + 1) * 2 }} {{ [1, 2,] }} {{ {'a': 1,} }}",
    "{{ d.a }} {{ d['b'].c[0] }} {{ d.b['c'][-1] }} {{ l[0] }} {{ l[-1] }} {{ l.0 }} {{ l[9] }}| {{ d.zz }}| {{ d.zz is defined }} {{ s[0] }} {{ s[-2] }} {{ s[99] }}|",
    '{{ l[1:] }} {{ l[:2] }} {{ l[::-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[-5:] }} {{ s[::2] }} {{ l[5:] }} {{ s[7:100] }} {{ l[-2:-1] }} {{ l[None:2] }} {{ u[1:] }}',
    "{{ n.x }}| {{ i.x }}| {{ n.x is defined }} {{ d.items is defined }} {{ d.get('a') }} {{ d.get('z') }} {{ d.get('z', 5) }} {{ d['get'] is defined }}",
    '{{ d.keys() | list }} {{ d.values() | list }} {{ d.items() | list }}',
    '{% for a in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }},{% endfor %}',
    '{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}',
    '{% for a in [] %}x{% else %}none{% endfor %}',
    '{% for a in l if a != 2 %}{{ a }}{{ loop.index }}{% endfor %}',
    '{% for a in l %}{% if a == 2 %}{% continue %}{% endif %}{{ a }}{% if a == 3 %}{% break %}{% endif %}{% endfor %}',
    "{% for a in l %}{{ loop.previtem }}-{{ loop.nextitem }}-{{ loop.cycle('x', 'y') }} {% endfor %}",
    "{% for c in 'añb' %}{{ c }}.{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for z in nothing %}q{% endfor %}",
    '{% for a in l %}{% for b in l %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index }}{{ loop.depth0 }}{% endfor %}',
    '{% set z = 1 %}{% for a in l %}{{ z }}{% set z = a %}{{ z }}{% endfor %}{{ z }}',
    "{% set ns = namespace(c=0, k='v') %}{% for a in l %}{% set ns.c = ns.c + a %}{% endfor %}{{ ns.c }}{{ ns.k }}{{ ns.zz }}|",
    '{% set a, b = [1, 2] %}{{ b }}{{ a }}',
    '{% set z %}  in{{ i }}  {% endset %}[{{ z }}]',
    '{% if f %}1{% elif i == 7 %}2{% else %}3{% endif %}{% if n %}x{% endif %}',
    '{% if t %}{% set v = 5 %}{% endif %}{{ v }}',
    '{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}|{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=1, a=0) }}{{ m() }}',
    "{% macro outer() %}{{ g }}{{ s }}{% endmacro %}{% set g = 'late' %}{{ outer() }}",
    "{% if t %}{% macro inner(v) %}<{{ v }}>{% endmacro %}{% endif %}{{ inner('q') | upper }}",
    '{% macro fact(k) %}{{ 1 if k < 2 else k * (fact(k - 1) | int) }}{% endmacro %}{{ fact(6) }}',
    "{% macro em() %}{% endmacro %}{{ 'yes' if em() else 'no' }}",
    '{% for x in range(3) %}{{ x }}{% endfor %}{{ range(2, 8, 3) | list }}{{ range(5, 0, -2) | list }}{{ range(0) | list }}',
    '{% generation %}a{{ i }}{% endgeneration %}\nb',
    '{{ dict(a=1, b=s) }}',
    '{% set loop = 5 %}{{ loop }}',
    "{{ ws | trim }}|{{ 'xxaxx' | trim('x') }}|{{ ws.strip() }}|{{ ws.lstrip() }}|{{ ws.rstrip() }}|{{ '\\x1c a\\x1f'.strip() }}|",
    '{{ s | length }}{{ l | length }}{{ d | count }}{{ u | length }}{{ nothing | length }}',
    "{{ 'hELLO wORLD' | capitalize }} {{ 'ßx' | capitalize }} {{ 'ΑΣ' | capitalize }} {{ 'ǆA' | capitalize }} {{ 'éÉ' | upper }} {{ 'ÀΣΑΣ İ' | lower }} {{ 'straße ﬁ' | upper }} {{ 12 | capitalize }}",
    "{{ s | replace('l', 'LL') }} {{ s.replace('l', '', 1) }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 'ab'.replace('', '-') }} {{ 123 | replace(2, 'x') }}",
    "{{ l | join(', ') }} {{ l | join }} {{ m | join('+', attribute='role') }} {{ ','.join(['a', 'b']) }} {{ s | join('.') }}",
    '{{ l | first }}{{ l | last }}{{ [] | first }}|{{ s | first }}{{ s | last }}{{ l | reverse | list }}{{ s | reverse }}',
    "{{ nothing | default('d') }}{{ e | default('d') }}{{ e | default('d', true) }}{{ n | d('x') }}{{ nothing | default }}|",
    "{{ '12' | int }}{{ ' 5 ' | int }}{{ 'x' | int }}{{ 'x' | int(9) }}{{ 3.9 | int }}{{ '2.7' | int }}{{ t | int }}{{ n | int }}{{ i | string ~ 1 }}",
    '{{ d | tojson }} {{ u | tojson }} {{ u | tojson(ensure_ascii=true) }} {{ d | tojson(indent=2) }} {{ d | tojson(separators=(\',\', \':\')) }} {{ {\'b\': 1, \'a\': 2} | tojson(sort_keys=true) }} {{ [1.5, 1e20, true, none, \'x"\\\\/<>\'] | tojson }} {{ [] | tojson }}{{ {} | tojson(indent=1) }}',
    "{{ m | map(attribute='role') | list }} {{ l | map('string') | list }} {{ m | selectattr('k') | list }} {{ m | selectattr('role', 'equalto', 'b') | list }} {{ m | rejectattr('k', 'eq', 1) | list }} {{ l | select('odd') | list }} {{ l | reject('gt', 1) | list }} {{ m | map(attribute='zz', default='?') | list }}",
    '{{ d | items | list }}',
    '{{ s is string }}{{ l is string }}{{ l is iterable }}{{ s is iterable }}{{ i is iterable }}{{ d is mapping }}{{ l is mapping }}{{ d is sequence }}{{ n is none }}{{ n is not none }}{{ nothing is defined }}{{ nothing is undefined }}{{ t is boolean }}{{ t is number }}{{ i is integer }}{{ t is integer }}{{ x is float }}{{ t is true }}{{ f is false }}{{ 1 is true }}',
    "{{ 3 is odd }}{{ 3 is even }}{{ 6 is divisibleby 3 }}{{ 2 is in l }}{{ 2 is eq 2 }}{{ 2 is lt(3) }}{{ 2 is ge 3 }}{{ 'a' is equalto 'a' }}{{ 2 is ne 2 }}",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ ' a b  c '.split(none, 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'abc'.split('bc') }}",
    "{{ s.startswith('He') }}{{ s.endswith('x') }}{{ s.endswith(('x', 'ld')) }}{{ s.find('W') }}{{ s.find('z') }}{{ 'äb'.find('b') }}{{ s.upper() }}{{ s.lower() }}{{ 'abc'.capitalize() }}",
    '{{ raise_exception is defined }}{{ strftime_now is defined }}{{ range is defined }}{{ zz is defined }}',
    '{{ s | upper | lower | length }}',
    '{{ (s | upper)[0] }} {{ s | upper | first }} {{ -1 | string }}',
    "{{ [[1, 2], [3]] | map('length') | list }} {{ l | list == l }}",
    "{{ raise_exception('no ' ~ s) }}",
    '{{ nothing.x }}',
    '{{ nothing + 1 }}',
    "{{ 1 + 'a' }}",
    '{{ l.x.y }}',
    '{{ 1 / 0 }}',
    '{% for a in 5 %}{% endfor %}',
    '{% set s.x = 1 %}',
    '{% set a, b = [1] %}',
    "{{ 'a'.split('') }}",
    '{{ nothing | tojson }}',
    '{{ i[1:] }}',
    "{{ 1 < 'a' }}",
    "{{ 1 in 'a' }}",
    '{{ range(1000000) }}',
    "{{ 'a' in i }}",
    '{{ n | length }}',
]


def render(template, context):
    """What transformers makes of it, or the message of the exception."""
    from transformers.utils.chat_template_utils import _compile_jinja_template
    try:
        return {"text": _compile_jinja_template(template).render(**context)}
    except Exception as e:  # whatever Jinja or Python raises means that rendering fails
        return {"error": f"{type(e).__name__}: {e}"}


def make_templates():
    shipped, cases = template_cases()
    with open(os.path.join(DATA, "template.json"), "w", encoding="utf-8") as f:
        lines = []
        for c in cases:
            c.update(render(shipped if c["template"] == "winnow-tiny" else c["template"], c["context"]))
            if c["name"].startswith("feature_"):
                del c["context"]
            lines.append(json.dumps(c))
        f.write('{"sample":' + json.dumps(SAMPLE) + ',"cases":[\n' + ",\n".join(lines) + "\n]}\n")


def known(c):
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("random needs the character database of Unicode 14: Python 3.11")
    return unicodedata.category(chr(c)) not in ("Cs", "Cn")


def random_text(rng):
    """Anything: pieces of the corpus, code points of every plane, spaces, marks, look-alikes, ill-formed bytes."""
    pieces = list(CORPUS.values())
    spaces = " \t\n\r\x0b\x0c\x85\u00a0\u1680\u180e\u2003\u2028\u202f\u3000\ufeff"
    out = b""
    for _ in range(rng.randrange(1, 40)):
        kind = rng.randrange(8)
        if kind == 0:
            p = rng.choice(pieces)
            i = rng.randrange(len(p) + 1)
            out += p[i:i + rng.randrange(30)].encode()
        elif kind == 1:
            c = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x110000)])
            # Characters later than Unicode 14 are a known difference (src/text/tokenizer.h).
            out += (chr(c) if known(c) else "x").encode() * rng.choice([1, 1, 1, 2, 5])
        elif kind == 2:
            out += "".join(rng.choice(spaces) for _ in range(rng.randrange(1, 5))).encode()
        elif kind == 3:
            out += "".join(chr(rng.randrange(0x300, 0x370)) for _ in range(rng.randrange(1, 4))).encode()
        elif kind == 4:
            out += rng.choice(["<|user|>", "<think>", "solo", "<left>", "<right>", "<both>", "<mask>", "<|", "café!tok", "'S", "'re", "don't", "--", "☃"]).encode()
        elif kind == 5 and rng.randrange(4) == 0:
            out += bytes(rng.choice([rng.randrange(256), 0x80, 0xE4, 0xF0, 0xED, 0xFF]) for _ in range(rng.randrange(1, 3))) + b"~"
        else:
            out += "".join(rng.choice("abcdefghijklmnopqrstuvwxyz  ABC019.,;'\"-") for _ in range(rng.randrange(1, 12))).encode()
    return out


def compare_random(program, count=20_000):
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    texts = [random_text(rng) for _ in range(count)]
    bad = 0
    for name, t in tokenizers_used().items():
        path = os.path.join(MODEL, "tokenizer.json") if name == "winnow-tiny" else os.path.join(DATA, f"tokenizer_{name}.json")
        done = subprocess.run([program, path], input="".join(x.hex() + "\n" for x in texts), capture_output=True, text=True, check=True)
        for x, line in zip(texts, done.stdout.splitlines(), strict=True):
            want = t.encode(x.decode("utf-8", "replace"), add_special_tokens=False).ids
            if want != [int(i) for i in line.split()]:
                bad += 1
                if bad <= 10:
                    print(f"{name}: {x.hex()}\n  package {want}\n  winnow  {line}")
    print(f"seed {seed}: {count} texts, {len(tokenizers_used())} tokenizers, {bad} differ")
    return bad == 0


def main():
    if sys.argv[1:] == ["make"]:
        make_tokens()
        make_templates()
    elif sys.argv[1:2] == ["random"] and len(sys.argv) == 3:
        sys.exit(0 if compare_random(sys.argv[2]) else 1)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
