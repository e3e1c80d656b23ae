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


def main():
    if sys.argv[1:] == ["make"]:
        make_tokens()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
