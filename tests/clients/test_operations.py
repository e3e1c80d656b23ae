"""What an operator sees and sets: logs, metrics, the state at /ready, the config file, packaging."""
import json
import re
import socket
import subprocess
import time
import tomllib
import urllib.error
import urllib.request

import pytest
from conftest import WINNOW
from test_access import ALICE, bearer
from test_http import CHAT, ENDLESS, ask, metric, read_response, request, running

SECRET = "Zanzibar-Marmalade"  # a word that no log may hold


def lines_of(server):
    """The log after the server ended."""
    assert server.stop() == 0
    server.reader.join(30)
    return "".join(server.errors).splitlines()


def ask_all(server, **headers):
    more = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    prompt = {"messages": [{"role": "user", "content": SECRET}], "temperature": 0, "max_tokens": 5, "ignore_eos": True}
    answers = [ask(server, request("POST", "/v1/chat/completions", prompt, "X-Request-Id: mine-1\r\n" + more)),
               ask(server, request("POST", "/v1/messages", {**prompt, "ignore_eos": True}, "X-Request-Id: bad id;\r\n" + more)),
               ask(server, request("POST", "/v1/chat/completions", {**prompt, SECRET: 1}, more)),
               ask(server, request("GET", f"/{SECRET}", headers=more)),
               ask(server, request("GET", "/health")), ask(server, request("GET", "/v1/models", headers=more))]
    assert [a[0] for a in answers] == [200, 200, 400, 404, 200, 200], answers
    return answers


def test_json_logs(own_server):
    server = own_server("--log-format", "json", env={"WINNOW_API_KEY": ALICE})
    answers = ask_all(server, Authorization=f"Bearer {ALICE}")
    assert answers[0][1]["x-request-id"] == "mine-1"
    given = answers[1][1]["x-request-id"]
    assert re.fullmatch("[0-9a-z]{24}", given) and answers[1][1]["request-id"] == given and "request-id" not in answers[0][1]
    stream = running_with_key(server)
    data = b""
    while data.count(b"data: ") < 3:
        data += stream.recv(1000)
    stream.close()
    usage = json.loads(answers[0][2])["usage"]
    log = lines_of(server)
    objects = [json.loads(line) for line in log]
    assert not [line for line in log if SECRET in line or ALICE in line]
    for o in objects:
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ", o["time"]) and o["level"] and o["event"] in ("log", "request")
    requests = [o for o in objects if o["event"] == "request"]
    assert [(r["method"], r["route"], r["status"]) for r in requests] == [
        ("POST", "/v1/chat/completions", 200), ("POST", "/v1/messages", 200), ("POST", "/v1/chat/completions", 400), ("GET", "other", 404),
        ("GET", "/v1/models", 200), ("POST", "/v1/chat/completions", 200)]
    first, left = requests[0], requests[-1]
    assert first["request_id"] == "mine-1" and first["key"] == "WINNOW_API_KEY" and first["client"] == "127.0.0.1"
    assert first["prompt_tokens"] == usage["prompt_tokens"] and first["answer_tokens"] == 5 and first["choices"] == 1 and "end" not in first
    assert 0 < first["prefill_s"] + first["decode_s"] <= first["duration_s"]
    assert left["end"] == "cut" and left["answer_tokens"] > 0


def running_with_key(server):
    s = server.connect()
    s.sendall(request("POST", "/v1/chat/completions", {**ENDLESS, "stream": True}, bearer(ALICE)))
    return s


def test_text_logs(own_server):
    server = own_server()
    ask_all(server)
    log = lines_of(server)
    assert not [line for line in log if SECRET in line]
    found = [line for line in log if "request_id=mine-1 client=127.0.0.1 method=POST route=/v1/chat/completions status=200 duration_s=" in line]
    assert len(found) == 1 and " answer_tokens=5 " in found[0], log


def test_log_level_silences_requests(own_server):
    server = own_server("--log-level", "warn")
    ask_all(server)
    assert lines_of(server) == []


def test_metrics_of_steps_keys_and_refusals(own_server):
    server = own_server("--metrics-open", env={"WINNOW_API_KEY": ALICE})
    answers = ask_all(server, Authorization=f"Bearer {ALICE}")
    used = sum(json.loads(a[2])["usage"].get("total_tokens", 0) for a in answers[:1])
    assert metric(server, "key_requests_total", 'key="WINNOW_API_KEY"') == 5
    assert metric(server, "key_tokens_total", 'key="WINNOW_API_KEY"') >= used + 5
    assert metric(server, "step_time_seconds_count") == metric(server, "steps_total") > 0
    assert metric(server, "step_rows_sum") > 0
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert metric(server, name + "_count") > 0, name


def test_the_way_of_events_to_their_sockets_is_timed(own_server):
    server = own_server()
    status, _, _ = ask(server, request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 5, "ignore_eos": True}))
    assert status == 200 and metric(server, "event_delay_seconds_count") == 0  # of streams only
    with server.connect() as s:
        s.sendall(request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 5, "ignore_eos": True, "stream": True}, "Connection: close\r\n"))
        while s.recv(65536):
            pass
    assert 1 <= metric(server, "event_delay_seconds_count") <= 5
    assert 0 < metric(server, "event_delay_seconds_sum") < 5


def test_the_port_answers_before_the_model_is_there(own_server):
    """The small model loads too quickly to be caught at it for certain: what is seen has to be one of the two."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    process = subprocess.Popen([WINNOW, "serve", "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        seen, deadline = [], time.time() + 60
        while not seen or seen[-1][0] != 200:
            assert time.time() < deadline
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready") as r:
                    seen.append((r.status, json.load(r)))
            except urllib.error.HTTPError as e:
                seen.append((e.code, json.load(e)))
                assert int(e.headers["Retry-After"]) >= 1
            except OSError:
                pass
        for status, body in seen[:-1]:
            assert status == 503 and body["status"] == "loading" and 0 <= body["progress"] <= 1
        assert seen[-1] == (200, {"status": "ready"})
    finally:
        process.terminate()
        assert process.wait(60) == 0
        process.stdout.close()
        process.stderr.close()


def test_ready_says_that_it_stops(own_server):
    server = own_server("--drain-timeout", "100")
    stream = running(server, stream=True, max_tokens=2000)
    stream.recv(100)
    with server.connect() as kept:
        kept.sendall(request("GET", "/ready"))
        assert read_response(kept)[0] == 200
    assert server.stop() == 0
    data = b""
    while more := stream.recv(65536):
        data += more
    assert b"[DONE]" in data  # it was drained


# --- the config file -----------------------------------------------------------------------------------------------------


def test_a_config_file_is_equal_to_flags(winnow, own_server, tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text('# a comment\nname = "from file"\nmax-batch = 3\nmetrics-open = false\ncors-origin = ["https://a.example", "https://b.example"]\n'
                    'drain-timeout = 7 # seconds\nlog-format = json\n')
    shown = tomllib.loads(winnow("serve", "--config", str(path), "--print-config").stdout)
    assert shown["name"] == "from file" and shown["max-batch"] == 3 and shown["cors-origin"] == ["https://a.example", "https://b.example"]
    assert shown["drain-timeout"] == 7 and shown["log-format"] == "json" and shown["metrics-open"] is False
    over = tomllib.loads(winnow("serve", "--config", str(path), "--print-config", "--max-batch", "5", "--cors-origin", "https://c.example").stdout)
    assert over["max-batch"] == 5 and over["cors-origin"] == ["https://c.example"] and over["name"] == "from file"
    server = own_server("--config", str(path), "--name", "tiny")
    assert server.name == "tiny"
    assert ask(server, request("GET", "/health", headers="Origin: https://a.example\r\n"))[1]["access-control-allow-origin"] == "https://a.example"


def test_what_is_printed_is_read_again_and_has_every_flag(winnow, tmp_path):
    printed = winnow("serve", "--print-config").stdout
    flags = {w.split("=")[0].rstrip(",")[2:] for w in winnow("serve", "--help").stdout.split() if w.startswith("--")} - {"help", "config", "print-config"}
    keys = {line.lstrip("# ").split(" =")[0] for line in printed.splitlines() if " =" in line and re.match(r"^(# )?[a-z-]+ =", line)}
    assert keys == flags | {"model"}, keys ^ (flags | {"model"})
    tomllib.loads(printed)
    path = tmp_path / "all.toml"
    path.write_text(printed)
    assert winnow("serve", "--config", str(path), "--print-config").stdout == printed


@pytest.mark.parametrize("text, words", [
    ("prot = 8080", ["'prot'", "did you mean port"]),
    ("[serve]\nport = 8080", ["[serve]", "stand alone"]),
    ("port = 8080\nname = x\nport = 8081", ["port", "twice"]),
    ("port = 80800000", ["port"]),
    ("port = yes", ["port"]),
    ("max-batch = 0", ["max-batch"]),
    ("metrics-open = maybe", ["metrics-open", "true or false"]),
    ("name = a b", ["name", "quotes"]),
    ('name = ""', ["name", "empty"]),
    ("config = other", ["'config'"]),
    ("metrics-open = true", ["--metrics-open", "no keys"]),
])
def test_wrong_config_files(winnow, tmp_path, text, words):
    path = tmp_path / "serve.toml"
    path.write_text(text + "\n")
    r = winnow("serve", "--config", str(path), "--print-config")
    assert r.returncode == 2 and r.stdout == "" and r.stderr.count("\n") == 1, r.stderr
    for w in words:
        assert w in r.stderr, r.stderr


def test_a_config_file_that_is_not_there(winnow, tmp_path):
    r = winnow("serve", "--config", str(tmp_path / "none.toml"))
    assert r.returncode == 3 and "--config" in r.stderr and "none.toml" in r.stderr, r.stderr
