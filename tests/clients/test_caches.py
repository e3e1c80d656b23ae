"""Caches and scheduling as clients and operators see them: usage, metrics, salts, priorities, timeouts, and a cache folder that outlives its server."""
import concurrent.futures
import json
import re
import shutil
import signal
import time
import urllib.error
import urllib.request

import openai
import pytest
from conftest import ROOT
from prometheus_client.parser import text_string_to_metric_families
from test_cli import failed

MODEL = str(ROOT / "models" / "winnow-tiny")
CUTS = ("whole", "last_token", "no_page", "evicted", "no_snapshot")
SYSTEM = {"role": "system", "content": "You are a careful assistant who answers briefly and never guesses. " * 12}


def post(server, body, path="/v1/chat/completions"):
    """status, headers, JSON"""
    ask = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(ask, timeout=100) as r:
            return r.status, r.headers, json.load(r)
    except urllib.error.HTTPError as e:
        return e.code, e.headers, json.load(e)


def conversation(server, turns=3, **fields):
    """prompt tokens, usage.winnow and content of each turn"""
    messages, out = [SYSTEM, {"role": "user", "content": "What is 2 + 3?"}], []
    for _ in range(turns):
        status, _, r = post(server, {"messages": messages, "temperature": 0, "max_tokens": 24, **fields})
        assert status == 200, r
        content = r["choices"][0]["message"]["content"]
        out.append((r["usage"]["prompt_tokens"], r["usage"]["winnow"], content))
        assert r["usage"]["prompt_tokens_details"]["cached_tokens"] == r["usage"]["winnow"]["cached"]["tokens"]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "And 4 + 5?"}]
    return out


def cached(turns):
    return [w["cached"]["tokens"] for _, w, _ in turns]


def answers(turns):
    return [content for _, _, content in turns]


def metrics(server):
    with urllib.request.urlopen(server.url + "/metrics", timeout=60) as r:
        assert r.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = list(text_string_to_metric_families(r.read().decode()))
    assert len({f.name for f in families}) == len(families)
    values = {}
    for f in families:
        assert f.name.startswith("winnow:") and f.documentation and f.type in ("counter", "gauge", "histogram"), f
        for s in f.samples:
            assert s.labels.pop("model_name") == server.name
            values[(s.name.removeprefix("winnow:"), *sorted(s.labels.values()))] = s.value
    return values


def settled(server, running=0):
    """The engine's numbers are those of its last finished step, which an answer may overtake."""
    for _ in range(200):
        m = metrics(server)
        if m[("num_requests_running",)] == running and m[("num_requests_waiting",)] == m[("num_requests_swapped",)] == 0:
            return m
        time.sleep(0.05)
    assert False, f"the engine does not come to {running} requests"


def moved(before, after):
    return {k[0] if len(k) == 1 else k: v - before.get(k, 0) for k, v in after.items() if v != before.get(k, 0)}


# --- usage and metrics ------------------------------------------------------------------------------------------------


def test_usage_says_what_a_turn_began_with(server):
    salt = {"cache_salt": "usage"}
    turns = conversation(server, **salt)
    first = turns[0][1]
    assert first["cached"] == {"tokens": 0, "pages": {"device": 0, "host": 0, "disk": 0}, "snapshot": None, "cut": "no_page"}
    assert first["preemptions"] == 0 and first["prefill_s"] > 0 and first["decode_s"] > 0 and first["queued_s"] >= 0
    for (before, _, _), (_, w, _) in zip(turns, turns[1:]):
        c = w["cached"]
        assert c["tokens"] >= (before - 1) // 64 * 64 > 0
        assert sum(c["pages"].values()) * 64 == c["tokens"] and c["snapshot"] in ("device", "host") and c["cut"] in CUTS
    assert cached(turns) == sorted(cached(turns))
    again = conversation(server, **salt)
    assert answers(again) == answers(turns)
    assert again[0][1]["cached"]["tokens"] == (again[0][0] - 1) // 64 * 64
    stream = post_stream(server, {"messages": [SYSTEM, {"role": "user", "content": "Hi"}], "max_tokens": 2, "stream": True,
                                  "stream_options": {"include_usage": True}, **salt})
    assert stream[-1]["usage"]["winnow"]["cached"]["tokens"] > 0


def post_stream(server, body):
    ask = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(ask, timeout=100) as r:
        events = [line[6:] for line in r.read().decode().split("\n") if line.startswith("data: ")]
    return [json.loads(e) for e in events if e != "[DONE]"]


def test_salts_keep_clients_apart(server):
    one, other = conversation(server, cache_salt="one"), conversation(server, cache_salt="other")
    assert cached(one) == cached(other) and cached(one)[0] == 0
    assert other[0][1]["cached"]["cut"] == "no_page"  # not that somebody else has it
    assert answers(one) == answers(other)
    assert cached(conversation(server, turns=1, cache_salt="one"))[0] > 0


def test_metrics_count_what_happens(server):
    assert urllib.request.urlopen(server.url + "/metrics").status == 200
    before = settled(server)
    turns = conversation(server, turns=2, cache_salt="metrics")
    post(server, {"messages": [], "temperature": 0})
    after = settled(server)
    got = moved(before, after)
    prompts, cached_tokens = sum(t[0] for t in turns), sum(cached(turns))
    assert got["prompt_tokens_total"] == got["prefix_cache_queries_total"] == prompts
    assert got["prefix_cache_hits_total"] == cached_tokens > 0
    assert got["prefill_tokens_total"] == prompts - cached_tokens
    assert got.get(("request_success_total", "stop"), 0) + got.get(("request_success_total", "length"), 0) == 2
    assert got[("http_requests_total", "/v1/chat/completions", "200")] == 2
    assert got[("http_requests_total", "/v1/chat/completions", "400")] == 1
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
                 "request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens"):
        assert got[name + "_count"] == 2, name
    assert got["generation_tokens_total"] == got["inter_token_latency_seconds_count"] + 2 == got["request_generation_tokens_sum"]
    assert 0 < got["time_to_first_token_seconds_sum"] <= got["e2e_request_latency_seconds_sum"]
    assert got["prefix_lookups_total"] >= 2 and got["prefix_lookup_hits_total"] >= 1
    assert sum(v for k, v in got.items() if k[0] == "prefix_cuts_total") == got["prefix_lookups_total"]
    assert after[("prefix_tier_pages", "device")] > 0 and after[("prefix_tier_snapshots", "device")] > 0 and after[("prefix_index_bytes",)] > 0
    assert after[("kv_cache_usage_perc",)] == after[("num_requests_running",)] == 0 and after[("kv_pages_free",)] < after[("kv_pages",)]
    assert after[("build_info", "0.1.0")] == 1
    leaving = urllib.request.urlopen(urllib.request.Request(server.url + "/v1/completions", json.dumps(
        {"prompt": "x", "max_tokens": 20000, "ignore_eos": True, "stream": True}).encode(), {"Content-Type": "application/json"}))
    leaving.read(10)
    during = settled(server, running=1)
    assert during[("kv_cache_usage_perc",)] > 0
    leaving.close()
    for _ in range(100):
        if metrics(server)[("request_success_total", "abort")] > before[("request_success_total", "abort")]:
            break
        time.sleep(0.05)
    else:
        assert False, "a client that left was not counted"


# --- scheduling -------------------------------------------------------------------------------------------------------

ENDLESS = {"prompt": "Hello", "ignore_eos": True, "max_tokens": 20000, "temperature": 0}


def test_timeouts_end_requests(server):
    start = time.monotonic()
    status, headers, r = post(server, {**ENDLESS, "timeout": 0.5}, "/v1/completions")
    assert 0.4 < time.monotonic() - start < 20
    assert status == 504 and r["error"]["code"] == r["error"]["param"] == "timeout" and "0.5 s" in r["error"]["message"], r
    assert headers["x-should-retry"] == "false"
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=2)
    before = metrics(server)
    with pytest.raises(openai.InternalServerError) as e:
        client.completions.create(model="winnow-tiny", prompt="Hello", max_tokens=20000, extra_body={"ignore_eos": True, "timeout": 0.3})
    assert e.value.status_code == 504 and e.value.code == "timeout"
    got = moved(before, metrics(server))
    assert got[("http_requests_total", "/v1/completions", "504")] == 1  # the client did not ask again
    assert got[("request_success_total", "timeout")] == 1
    text = ""
    with pytest.raises(openai.APIError) as e:
        for chunk in client.completions.create(model="winnow-tiny", prompt="Hello", max_tokens=20000, stream=True,
                                               extra_body={"ignore_eos": True, "timeout": 0.5}):
            text += chunk.choices[0].text
    assert text and "timeout" in str(e.value)
    assert post(server, {"prompt": "Hello", "max_tokens": 2, "timeout": 60}, "/v1/completions")[0] == 200


def test_a_lower_priority_number_goes_first(own_server):
    server = own_server("--max-batch", "1", "--log-level", "warn")
    long = {"prompt": "Hello", "ignore_eos": True, "max_tokens": 800, "temperature": 0}
    alone = post(server, {**long, "cache_salt": "alone"}, "/v1/completions")[2]["choices"][0]["text"]
    order = []

    def ask(name, **fields):
        r = post(server, {**long, **fields}, "/v1/completions")[2]
        order.append(name)
        return r

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        first = pool.submit(ask, "first", priority=5)
        while metrics(server)[("num_requests_running",)] < 1:
            time.sleep(0.01)
        last = pool.submit(ask, "last", priority=7, max_tokens=4)
        urgent = pool.submit(ask, "urgent", priority=-1, max_tokens=4)
    assert order == ["urgent", "first", "last"]
    assert first.result()["usage"]["winnow"]["preemptions"] == 1 and urgent.result()["usage"]["winnow"]["preemptions"] == 0
    assert first.result()["choices"][0]["text"] == alone
    assert last.result()["usage"]["winnow"]["queued_s"] > urgent.result()["usage"]["winnow"]["queued_s"]
    assert metrics(server)[("num_preemptions_total",)] == 1


# --- a folder that outlives its server ----------------------------------------------------------------------------------


@pytest.fixture
def cached_server(own_server, tmp_path):
    return lambda *more: own_server("--cache-dir", str(tmp_path / "cache"), *more)


def records(tmp_path):
    return sorted(p for p in (tmp_path / "cache").rglob("*") if p.suffix in (".page", ".snapshot"))


def log_of(server):
    server.reader.join(60)
    return server.errors


def test_a_conversation_goes_on_after_a_restart(cached_server, tmp_path, winnow):
    server = cached_server("--cache-size", "2GB")
    cold = conversation(server)
    refused = winnow("serve", "--port", "0", "--cache-dir", str(tmp_path / "cache"), "--log-level", "off")
    failed(refused, 3, "--cache-dir", str(tmp_path / "cache"))  # while the other one uses it
    assert server.stop() == 0
    assert records(tmp_path)

    server = cached_server()
    warm = conversation(server)
    assert answers(warm) == answers(cold)
    assert cached(warm)[0] == (cold[0][0] - 1) // 64 * 64 > 0 and warm[0][1]["cached"]["pages"]["disk"] > 0
    assert warm[0][1]["cached"]["snapshot"] == "disk"
    m = metrics(server)
    assert m[("disk_found_records",)] > 0 and m[("disk_reads_total",)] > 0 and m[("prefix_tier_hits_total", "disk")] > 0
    assert m[("disk_bytes",)] > 0 and m[("disk_foreign_records",)] == 0
    server.stop(signal.SIGKILL)

    for p in records(tmp_path)[::2]:  # what a disk may do
        data = bytearray(p.read_bytes())
        data[len(data) // 2] ^= 1
        p.write_bytes(data)
    broken = next(p for p in records(tmp_path)[1::2])
    broken.write_bytes(broken.read_bytes()[:100])
    server = cached_server()
    assert answers(conversation(server)) == answers(cold)
    assert server.stop() == 0
    lines = [l for l in log_of(server) if "damaged" in l]
    assert len(lines) == 1 and str(tmp_path / "cache") in lines[0], log_of(server)


def test_another_profile_does_not_use_the_folder(cached_server, tmp_path):
    server = cached_server()
    conversation(server, turns=1)
    assert server.stop() == 0
    assert records(tmp_path)
    server = cached_server("--profile", "exact")
    assert cached(conversation(server, turns=1)) == [0]
    assert metrics(server)[("disk_foreign_records",)] > 0
    server.stop(signal.SIGKILL)
    assert any(str(tmp_path / "cache") in l and "warning" in l for l in log_of(server)), log_of(server)


def test_changed_weights_of_equal_shapes_do_not_use_the_folder(own_server, tmp_path):
    flags = ["--cache-dir", str(tmp_path / "cache"), "--log-level", "warn"]
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    server = own_server(str(model), *flags)
    conversation(server, turns=1)
    assert server.stop() == 0
    shard = model / "model-00003-of-00003.safetensors"
    data = bytearray(shard.read_bytes())
    for i in range(8 + int.from_bytes(data[:8], "little"), len(data), 4):
        data[i] ^= 1  # the last bit of a number
    shard.write_bytes(data)
    server = own_server(str(model), *flags)
    assert cached(conversation(server, turns=1)) == [0]
    assert metrics(server)[("disk_foreign_records",)] > 0


def test_killed_servers_leave_whole_records_or_none(cached_server, tmp_path):
    server = cached_server("--snapshot-interval", "64")
    cold = conversation(server, turns=2)
    server.stop(signal.SIGKILL)
    server = cached_server("--snapshot-interval", "64")
    assert answers(conversation(server, turns=2)) == answers(cold)
    assert metrics(server)[("disk_damaged_records",)] == 0
    server.stop(signal.SIGKILL)


# --- plan and flags ---------------------------------------------------------------------------------------------------


def test_plan_is_what_serve_has(own_server, winnow, tmp_path):
    flags = [MODEL, "--memory", "300MB", "--max-batch", "3", "--max-context", "2048", "--host-memory", "20MiB"]
    snapshots = ["--snapshot-memory", "10MB"]
    kept = ["--cache-dir", str(tmp_path / "cache"), "--cache-size", "1GB", "--snapshot-interval", "128", "--kernel", "linear=linear.cpu_avx2"]
    for more in (snapshots, [*snapshots, "--weights", "map", "--profile", "exact"], ["--reuse", "none"], kept):
        planned = winnow("plan", *flags, *more)
        assert planned.returncode == 0 and planned.stderr == "", planned.stderr
        lines = [l for l in planned.stdout.split("\n\n")[0].splitlines()[1:]]
        server = own_server(*flags, *more)
        assert server.stop() == 0
        logged = [l.split("memory: ")[1].rstrip() for l in log_of(server) if "memory: " in l]
        assert logged == lines and len(lines) >= 8, (logged, lines)
        plan = json.loads(winnow("plan", *flags, *more, "--json").stdout)
        assert ("disk buffers" in plan["kinds"]) == (more == kept) and (plan["snapshots"] == 0) == (more == ["--reuse", "none"])
        assert ("page ends" in plan["kinds"]) == (more != ["--reuse", "none"])
        assert plan["fits"] and plan["sum_bytes"] == sum(plan["kinds"].values()) <= plan["memory_bytes"] == 300_000_000
        assert plan["remaining_bytes"] == plan["memory_bytes"] - plan["sum_bytes"]
        assert plan["kinds"]["host tier"] <= 20 << 20 and plan["tokens"] == plan["pages"] * plan["page_tokens"] == 3 * 2048
        fits = {(c["context"], c["batch"]): c["fits"] for c in plan["table"]}
        assert fits[(2048, 3)] and fits[(4096, 1)] and not fits[(16384, 32)]


def test_plan_of_what_does_not_fit(winnow):
    r = winnow("plan", "--shape", "glm-5.3-flash", "--layers", "45", "--json")
    assert r.returncode == 0, r.stderr
    plan = json.loads(r.stdout)
    assert plan["kinds"]["weights"] > 3e11 and (plan["fits"] or "lacking" in plan)
    r = winnow("plan", "--shape", "glm-5.3-flash", "--layers", "45", "--memory", "100GB")
    assert r.returncode == 3 and "lacking" in r.stdout and "does not fit" in r.stdout and r.stderr == ""
    r = winnow("plan", "--memory", "60MB", "--host-memory", "50MB")  # the weights would fit without the second
    assert r.returncode == 3 and "--host-memory" in r.stdout and "does not fit" in r.stdout, r.stdout
    assert winnow("plan", "--memory", "60MB").returncode == 0
    r = winnow("plan", "--shape", "glm-5.3-flash", "--layers", "45", "--memory", "1TB", "--max-context", "65536", "--max-batch", "4")
    assert r.returncode == 0 and "remains" in r.stdout and re.search(r"^ +64k.*yes", r.stdout, re.M), r.stdout


@pytest.mark.parametrize("arguments, code, words", [
    (["serve", "--memory", "8G"], 2, ["--memory", "8G", "GB or GiB"]),
    (["serve", "--memory", "lots"], 2, ["--memory", "lots", "8GB"]),
    (["serve", "--memory", "0"], 2, ["--memory"]),
    (["serve", "--host-memory", "-1"], 2, ["--host-memory"]),
    (["serve", "--memory", "1MB"], 3, ["--memory", "weights"]),
    (["run", "-p", "x", "--memory", "1MB"], 3, ["--memory", "weights"]),
    (["serve", "--cache-size", "1GB"], 2, ["--cache-size", "--cache-dir"]),
    (["serve", "--cache-dir", "/tmp/x", "--reuse", "none"], 2, ["--cache-dir", "--reuse none"]),
    (["serve", "--cache-dir", "/nonexistent/x"], 3, ["--cache-dir", "/nonexistent/x"]),
    (["serve", "--cache-dir", "/etc/passwd"], 3, ["--cache-dir", "/etc/passwd"]),
    (["serve", "--snapshot-interval", "100"], 2, ["--snapshot-interval", "64", "128"]),
    (["serve", "--snapshot-interval", "64", "--reuse", "none"], 2, ["--snapshot-interval", "--reuse none"]),
    (["serve", "--max-itl-ms", "-1"], 2, ["--max-itl-ms"]),
    (["chat", "--max-itl-ms", "5"], 2, ["--max-itl-ms"]),
    (["plan", "--memory", "1XB"], 2, ["--memory"]),
    (["plan", "--kernel", "linear=fast"], 2, ["--kernel", "linear.cpu_avx2"]),
    (["plan", "--snapshot-interval", "100"], 2, ["--snapshot-interval", "128"]),
    (["plan", "--shape", "gpt-5"], 2, ["--shape", "glm-5.3-flash"]),
    (["plan", MODEL, "--shape", "glm-5.3-flash"], 2, ["--shape", "MODEL"]),
    (["plan", "/nonexistent"], 3, ["/nonexistent"]),
])
def test_wrong_flags_are_named(winnow, arguments, code, words):
    quiet = ["--port", "0"] if arguments[0] == "serve" else []
    failed(winnow(*arguments, *quiet, "--log-level", "off"), code, *words)
