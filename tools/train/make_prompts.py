"""Writes the held-out prompts of evaluate.py, 100 a skill, so that they can be asked without the corpus.

usage: make_prompts.py CORPUS.txt.xz OUT.json.xz [--n 100]

The same generator, seed and order as evaluate.py; each entry holds what is asked and what its grader needs.
"""
import argparse, json, lzma, random, re
import data, skills


def key(k):
    return {"pattern": k.pattern, "flags": k.flags} if isinstance(k, re.Pattern) else k


def main():
    p = argparse.ArgumentParser()
    p.add_argument("corpus"); p.add_argument("out"); p.add_argument("--n", type=int, default=100)
    a = p.parse_args()
    data.load_corpus(a.corpus)
    r = random.Random(4242)
    out = []
    for k in skills.SKILLS:
        for _ in range(a.n):
            s = skills.make(r, k, "test")
            out.append(dict(skill=k, messages=s.prompt, tools=s.tools, reasoning_effort=s.effort, text=s.text(), how=s.how, answer_key=key(s.answer_key)))
    with lzma.open(a.out, "wt", encoding="utf-8", preset=9) as f:
        json.dump(out, f, ensure_ascii=False)
    print(len(out), "prompts")


if __name__ == "__main__":
    main()
