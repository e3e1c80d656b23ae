"""One conversation through every API, streamed and not: all say the same of it."""
import itertools
import json

import httpx
import pytest

SYSTEM, ASK = "Be brief. " * 40, "What is 347 + 285?"
SALTS = itertools.count()
APIS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASK}], "max_tokens": 400}),
    "messages": ("/v1/messages", {"system": SYSTEM, "messages": [{"role": "user", "content": ASK}], "thinking": {"type": "adaptive"}, "max_tokens": 400}),
    "responses": ("/v1/responses", {"instructions": SYSTEM, "input": ASK, "max_output_tokens": 400}),
    "completions": ("/v1/completions", {"max_tokens": 400}),
}
COUNTS = ("prompt", "cached", "answer", "reasoning")


def events(text):
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ") and line != "data: [DONE]"]


def told(api, stream, r):
    """prompt, cached, answer and reasoning tokens, and what only this server tells"""
    if api in ("chat", "completions"):
        u = events(r.text)[-1]["usage"] if stream else r.json()["usage"]
        assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"]
        counts = u["prompt_tokens"], u["prompt_tokens_details"]["cached_tokens"], u["completion_tokens"], u["completion_tokens_details"]["reasoning_tokens"]
    elif api == "responses":
        u = events(r.text)[-1]["response"]["usage"] if stream else r.json()["usage"]
        assert u["total_tokens"] == u["input_tokens"] + u["output_tokens"]
        counts = u["input_tokens"], u["input_tokens_details"]["cached_tokens"], u["output_tokens"], u["output_tokens_details"]["reasoning_tokens"]
    else:
        all = events(r.text) if stream else [r.json()]
        u = next(e for e in all if e["type"] == "message_delta")["usage"] if stream else all[0]["usage"]
        if stream:
            first = all[0]["message"]["usage"]
            assert all[0]["type"] == "message_start" and {k: first[k] for k in ("input_tokens", "cache_read_input_tokens")} == {
                k: u[k] for k in ("input_tokens", "cache_read_input_tokens")}
        counts = u["input_tokens"] + u["cache_read_input_tokens"], u["cache_read_input_tokens"], u["output_tokens"], u["output_tokens_details"]["thinking_tokens"]
    return dict(zip(COUNTS, counts)), u["winnow"]


def ask(server, api, stream, salt):
    path, fields = APIS[api]
    body = {**fields, "model": server.name, "temperature": 0, "cache_salt": salt, "stream": stream}
    if stream and api in ("chat", "completions"):
        body["stream_options"] = {"include_usage": True}
    if api == "completions":
        body["prompt"] = httpx.post(server.url + "/tokenize", json={"messages": APIS["chat"][1]["messages"]}).json()["tokens"]
    r = httpx.post(server.url + path, json=body, timeout=120)
    assert r.status_code == 200, r.text
    return told(api, stream, r)


def test_every_api_tells_the_same(server):
    seen = {}
    for api, stream in itertools.product(APIS, (False, True)):
        salt = f"usage {next(SALTS)}"
        for turn in ("cold", "again"):  # then all but what is behind the last page end is there already
            counts, ours = ask(server, api, stream, salt)
            if api == "completions":  # a text has no reasoning
                assert counts.pop("reasoning") == 0
            assert ours["cached"]["tokens"] == counts["cached"] == 64 * ours["cached"]["pages"]["device"] and ours["preemptions"] == 0
            assert ours["prefill_s"] > 0 and ours["decode_s"] > 0 and ours["queued_s"] >= 0
            seen[api, stream, turn] = counts
    for turn in ("cold", "again"):
        first = seen["chat", False, turn]
        assert 0 < first["reasoning"] < first["answer"] < 400
        assert (first["cached"] > 0) == (turn == "again") and first["cached"] < first["prompt"]
        for (api, stream, when), counts in seen.items():
            if when == turn:
                assert counts == {k: first[k] for k in counts}, (api, stream, turn)
    assert seen["chat", False, "cold"]["answer"] == seen["chat", False, "again"]["answer"]


def test_n_answers_count_their_prompt_once(server):
    path, fields = APIS["chat"]
    body = {**fields, "model": server.name, "temperature": 0, "n": 3, "max_tokens": 5, "ignore_eos": True}
    u = httpx.post(server.url + path, json=body, timeout=120).json()["usage"]
    assert u["prompt_tokens"] == ask(server, "chat", False, "n")[0]["prompt"] and u["completion_tokens"] == 15


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_usage_with_every_chunk(server, api):
    path, fields = APIS[api]
    body = {**fields, "model": server.name, "temperature": 0, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    if api == "completions":
        body["prompt"] = "Hello there"
    all = events(httpx.post(server.url + path, json=body, timeout=120).text)
    counts = [e["usage"]["completion_tokens"] for e in all]
    last = all[-1]["usage"]
    assert counts == sorted(counts) and len(counts) > 3 and counts[-2] == last["completion_tokens"]
    assert all[-1]["choices"] == [] and {e["usage"]["prompt_tokens"] for e in all} == {last["prompt_tokens"]}
    assert all[0]["usage"]["total_tokens"] == all[0]["usage"]["prompt_tokens"] + all[0]["usage"]["completion_tokens"]
