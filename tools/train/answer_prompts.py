"""Answers the prompts of make_prompts.py with the reference implementation (transformers, float32, greedy).

usage: answer_prompts.py MODEL_DIR PROMPTS.json.xz OUT.json.xz [--batch 100]

Writes, for each prompt, the token ids of the answer with its stop token, and whether the grader accepts it.
"""
import argparse, json, lzma, re, time
import torch
from transformers import AutoTokenizer
from transformers.models.glm5_next import Glm5NextForConditionalGeneration
import evaluate, skills


class Asked:
    def __init__(self, p):
        self.how, k = p["how"], p["answer_key"]
        self.answer_key = re.compile(k["pattern"], k["flags"]) if isinstance(k, dict) and "pattern" in k else k


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model"); p.add_argument("prompts"); p.add_argument("out"); p.add_argument("--batch", type=int, default=100)
    a = p.parse_args()
    t0 = time.time()
    prompts = json.load(lzma.open(a.prompts, "rt", encoding="utf-8"))
    tok = AutoTokenizer.from_pretrained(a.model)
    ref = Glm5NextForConditionalGeneration.from_pretrained(a.model, dtype=torch.float32, attn_implementation="eager").to(evaluate.DEV).eval()
    outs = evaluate.greedy(ref, tok, [q["text"] for q in prompts], 180, a.batch)
    right = {}
    result = []
    for q, o in zip(prompts, outs):
        text = tok.decode(o)
        ok = skills.correct(Asked(q), text)
        right.setdefault(q["skill"], []).append(ok)
        result.append(dict(tokens=o, text=text, correct=ok))
    with lzma.open(a.out, "wt", encoding="utf-8", preset=9) as f:
        json.dump(result, f, ensure_ascii=False)
    print({k: sum(v) / len(v) for k, v in right.items()}, f"{time.time() - t0:.0f} s", flush=True)


if __name__ == "__main__":
    main()
