#!/usr/bin/env python3
"""Asks the small model its held-out evaluation prompts over HTTP and grades the answers with the grader of its training.

usage: grade.py WINNOW [--profile exact|fast] [--index-keys f32|bf16|fp8] [--n 10] [--json FILE]

exact: every answer must be the reference's, character for character (answers.json.xz, made by transformers in float32).
fast:  each skill must stay within two points of the reference's accuracy (of the first n prompts of each skill, rounded up to one answer).
The prompts go through the chat template, the tokenizer, the engine in batches, and the server: the whole walk of a request.
With all prompts of a skill (--n 100) the reference's share must be the one of the model card (models/winnow-tiny/eval.json), so that in exact the API is shown to
give the figures that were measured offline.
"""
import argparse, collections, concurrent.futures, json, lzma, math, os, re, signal, subprocess, sys, time, urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools", "train"))
import skills  # noqa: E402


class Asked:
    def __init__(self, p):
        self.how, k = p["how"], p["answer_key"]
        self.answer_key = re.compile(k["pattern"], k["flags"]) if isinstance(k, dict) and "pattern" in k else k


def load(name):
    return json.load(lzma.open(os.path.join(HERE, name), "rt", encoding="utf-8"))


def serve(winnow, arguments):
    server = subprocess.Popen([winnow, "serve", "--port", "0", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen = []
    for line in server.stdout:
        seen.append(line)
        m = re.search(r"serving \S+ at http://[\d.]+:(\d+)", line)
        if m:
            return server, int(m.group(1))
    sys.exit("the server did not start:\n" + "".join(seen))


def as_written(call):
    """A call as the model wrote it: every value as it is, or as JSON if it is no text."""
    arguments = "".join(f"<arg_key>{k}</arg_key><arg_value>{v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}</arg_value>"
                        for k, v in json.loads(call["arguments"]).items())
    return f"<tool_call>{call['name']}{arguments}</tool_call>"


def ask(port, p):
    body = dict(model="winnow-tiny", messages=p["messages"], reasoning_effort=p["reasoning_effort"], temperature=0, max_tokens=180)
    if p["tools"]:
        body["tools"] = p["tools"]
    r = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(r, timeout=600) as f:
        choice = json.load(f)["choices"][0]
    m = choice["message"]
    reasoning, content = m.get("reasoning_content"), m.get("content")
    calls = "".join(as_written(c["function"]) for c in m.get("tool_calls") or [])
    return (reasoning or "") + ("</think>" + (content or "") + calls if content is not None or calls else "")


def without_stop(text):
    return re.sub(r"<\|(user|observation|endoftext)\|>$", "", text)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("winnow"); p.add_argument("--profile", default="exact"); p.add_argument("--index-keys"); p.add_argument("--n", type=int, default=10); p.add_argument("--json")
    a = p.parse_args()
    count = collections.Counter()
    todo = []
    for q, ref in zip(load("prompts.json.xz"), load("answers.json.xz")):
        count[q["skill"]] += 1
        if count[q["skill"]] <= a.n:
            todo.append((q, ref))
    arguments = ["--profile", a.profile] + (["--index-keys", a.index_keys] if a.index_keys else [])
    t0 = time.time()
    server, port = serve(a.winnow, arguments)
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda x: ask(port, x[0]), todo))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    shown = 0
    same, ours, theirs, total = (collections.Counter() for _ in range(4))
    for (q, ref), got in zip(todo, answers):
        k, want = q["skill"], without_stop(ref["text"])
        total[k] += 1
        same[k] += got == want
        ours[k] += skills.correct(Asked(q), got)
        theirs[k] += ref["correct"]
        if a.profile == "exact" and got != want and shown < 3:
            shown += 1
            print(f"{k}: differs\n  asked:     {q['text'][-120:]!r}\n  reference: {want!r}\n  winnow:    {got!r}")
    failed = 0
    card = json.load(open(os.path.join(HERE, "..", "..", "models", "winnow-tiny", "eval.json")))["skill_accuracy"]
    print(f"{'skill':14} {'prompts':>7} {'correct':>8} {'reference':>10} {'same answer':>12}")
    for k in total:
        allowed = math.ceil(0.02 * total[k])
        bad = same[k] != total[k] or ours[k] != theirs[k] if a.profile == "exact" else ours[k] < theirs[k] - allowed
        if total[k] == count[k]:
            bad = bad or theirs[k] / total[k] != card[k]
        failed += bad
        print(f"{k:14} {total[k]:7} {ours[k]:8} {theirs[k]:10} {same[k]:12}{'   FAILED' if bad else ''}")
    if a.json:
        json.dump({k: dict(prompts=total[k], correct=ours[k], reference=theirs[k], same=same[k]) for k in total}, open(a.json, "w"), indent=1)
    print(f"profile {a.profile}: {len(total) - failed} passed, {failed} failed in {time.time() - t0:.0f} s")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
