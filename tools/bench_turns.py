"""Time to the first token at the thirtieth turn of a conversation, against prompts that have only that turn's new tokens.

  python3 tools/bench_turns.py build/release/winnow [--turns 30] [--words 120] [--runs 5] [flags of winnow serve]

Plays a conversation over HTTP with the small model, then asks different next turns of it and, in between, first turns of as much new text
behind nothing, five of each if --runs says nothing else, and prints the medians and their ratio.
"""
import argparse
import json
import random
import statistics
import subprocess
import time
import urllib.request


def ask(url, messages, max_tokens):
    """Seconds to the first token, the whole answer, and usage."""
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    start, first, text, usage = time.perf_counter(), None, "", None
    with urllib.request.urlopen(request) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                first = first or time.perf_counter() - start
                text += choice["delta"].get("content") or ""
    return first, text, usage


def main():
    options = argparse.ArgumentParser()
    options.add_argument("winnow")
    options.add_argument("--turns", type=int, default=30)
    options.add_argument("--words", type=int, default=120)
    options.add_argument("--runs", type=int, default=5)
    known, flags = options.parse_known_args()
    server = subprocess.Popen([known.winnow, "serve", "--port", "0", "--log-level", "off", *flags], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().split()[-1]
        dice = random.Random(1)

        def words():
            return " ".join(dice.choice("seven blue copy the next number after list reverse word 4 19".split()) for _ in range(known.words))

        messages = []
        for _ in range(known.turns - 1):
            messages.append({"role": "user", "content": words()})
            _, text, _ = ask(url, messages, 24)
            messages.append({"role": "assistant", "content": text})
        late, alone = [], []
        for _ in range(known.runs):
            new = {"role": "user", "content": words()}
            seconds, _, usage = ask(url, messages + [new], 1)
            late.append((seconds, usage))
            seconds, _, usage = ask(url, [{"role": "user", "content": words()}], 1)
            alone.append((seconds, usage))
        for name, runs in (("turn %d" % known.turns, late), ("new tokens only", alone)):
            tokens, cached = (statistics.median(f(u) for _, u in runs) for f in (lambda u: u["prompt_tokens"], lambda u: u["prompt_tokens_details"]["cached_tokens"]))
            print(f"{name}: {tokens:.0f} tokens, {cached:.0f} of them cached, first token after {1e3 * statistics.median(s for s, _ in runs):.1f} ms")
        print(f"ratio {statistics.median(s for s, _ in late) / statistics.median(s for s, _ in alone):.2f}")
    finally:
        server.terminate()
        server.wait()


main()
