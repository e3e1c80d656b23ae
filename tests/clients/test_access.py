"""Who may use the server, and how much: keys, limits of keys, the queue, pages of other sites."""
import json
import threading
import time

import anthropic
import openai
import pytest
from test_http import CHAT, ENDLESS, ask, error_of, read_response, request, running

ALICE, BOB = "alice-0123456789abcdef", "bob-fedcba9876543210"
KEYS = f"""# who
alice: {ALICE}
bob: {BOB} requests_per_minute=3 tokens_per_minute=100000 concurrent=1
"""
# Each route with a request that it takes; a test below holds the list to what the server has.
ROUTES = [("GET", "/version", b""), ("GET", "/v1/models", b""), ("GET", "/v1/models/winnow-tiny", b""), ("GET", "/metrics", b""),
          ("POST", "/v1/chat/completions", CHAT), ("POST", "/v1/completions", {"prompt": "a"}), ("POST", "/v1/messages", {**CHAT, "max_tokens": 1}),
          ("POST", "/v1/messages/count_tokens", CHAT), ("POST", "/v1/responses", {"input": "a"}), ("GET", "/v1/responses/resp_x", b""),
          ("DELETE", "/v1/responses/resp_x", b""), ("POST", "/v1/responses/resp_x/cancel", b""), ("POST", "/tokenize", {"prompt": "a"}),
          ("POST", "/detokenize", {"tokens": [1]}), ("GET", "/nothing", b""), ("POST", "/health", b"")]
OPEN = [("GET", "/health"), ("GET", "/ready"), ("GET", "/"), ("GET", "/page/main.js")]


def bearer(key):
    return f"Authorization: Bearer {key}\r\n"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def guarded(own_server, keys):
    return own_server("--api-key-file", keys)


def refused(server):
    """Refusals by reason, as the metrics count them."""
    text = ask(server, request("GET", "/metrics", headers=bearer(ALICE)))[2].decode()
    lines = [line for line in text.splitlines() if line.startswith("winnow:refused_total{")]
    return {line.split('reason="')[1].split('"')[0]: int(line.split()[-1]) for line in lines}


def test_every_route_wants_a_key_but_those_of_health_and_the_page(guarded):
    for method, path in OPEN:
        assert ask(guarded, request(method, path))[0] == 200, path
    for method, path, body in ROUTES:
        for headers in ("", bearer("wrong-key-0123456789"), bearer(ALICE + "x"), bearer(ALICE[:-1]), bearer("alice"), "x-api-key: \r\n",
                        f"Authorization: Basic {ALICE}\r\n"):
            status, head, text = ask(guarded, request(method, path, body, headers))
            assert status == 401 and head["www-authenticate"] == "Bearer", (path, headers)
            e = json.loads(text)
            if path.startswith("/v1/messages"):
                assert e["type"] == "error" and e["error"]["type"] == "authentication_error", e
            else:
                assert e["error"]["type"] == "invalid_request_error" and e["error"]["code"] == "invalid_api_key", e
    for headers in (bearer(ALICE), f"x-api-key: {ALICE}\r\n", f"authorization: bearer {ALICE}\r\n"):
        for method, path, body in ROUTES:
            assert ask(guarded, request(method, path, body, headers))[0] in (200, 400, 404, 405), (path, headers)
    counts = refused(guarded)
    assert counts["no_key"] > 0 and counts["wrong_key"] > counts["no_key"]


def test_a_body_without_a_key_is_not_read(guarded):
    with guarded.connect() as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n")
        status, headers, _ = read_response(s)
        assert status == 401 and headers["connection"] == "close"
    with guarded.connect() as s:  # where there is none the connection goes on
        for _ in range(3):
            s.sendall(request("GET", "/v1/models"))
            assert read_response(s)[0] == 401
        s.sendall(request("GET", "/v1/models", headers=bearer(ALICE)))
        assert read_response(s)[0] == 200


def test_the_clients_say_that_the_key_is_wrong(guarded):
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=guarded.url + "/v1", api_key="wrong", max_retries=0).chat.completions.create(model="winnow-tiny", messages=CHAT["messages"])
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=guarded.url, api_key="wrong", max_retries=0).messages.create(
            model="winnow-tiny", max_tokens=3, messages=CHAT["messages"])
    assert openai.OpenAI(base_url=guarded.url + "/v1", api_key=ALICE).models.list().data
    assert anthropic.Anthropic(base_url=guarded.url, api_key=ALICE).messages.create(
        model="winnow-tiny", max_tokens=3, messages=CHAT["messages"]).usage.output_tokens == 3


def test_the_key_of_the_environment_and_open_metrics(own_server):
    s = own_server("--metrics-open", env={"WINNOW_API_KEY": ALICE})
    assert ask(s, request("GET", "/v1/models"))[0] == 401
    assert ask(s, request("GET", "/v1/models", headers=bearer(ALICE)))[0] == 200
    assert ask(s, request("GET", "/metrics"))[0] == 200


def test_a_response_belongs_to_its_key(guarded):
    def respond(key, **fields):
        return ask(guarded, request("POST", "/v1/responses", {"input": "Hello", "max_output_tokens": 2, **fields}, bearer(key)))
    kept = json.loads(respond(ALICE)[2])["id"]
    for method, path in [("GET", ""), ("DELETE", ""), ("POST", "/cancel")]:
        assert ask(guarded, request(method, f"/v1/responses/{kept}{path}", headers=bearer(BOB)))[0] == 404, (method, path)
    assert respond(BOB, previous_response_id=kept)[0] == 400
    assert respond(ALICE, previous_response_id=kept)[0] == 200
    assert ask(guarded, request("GET", f"/v1/responses/{kept}", headers=bearer(ALICE)))[0] == 200


def test_a_port_that_others_reach_without_keys_is_warned_of(own_server, keys):
    """127.0.0.1 is where the test asks; the warning is about what the flag says."""
    for arguments, warned in [(["--host", "0.0.0.0"], True), (["--host", "0.0.0.0", "--api-key-file", keys], False), ([], False)]:
        server = own_server(*arguments)
        assert server.stop() == 0
        server.reader.join(30)
        assert ("whoever reaches the port" in "".join(server.errors)) == warned, arguments


def test_wrong_key_files(winnow, tmp_path):
    path = tmp_path / "keys"
    for text, words in [("", "has no key"), ("# only\n", "has no key"), ("short", "line 1"), (f"a: {ALICE}\na: {BOB}", "line 2"),
                        (f"{ALICE} concurrent=x", "line 1: concurrent"), (f"{ALICE} {BOB}", "line 1")]:
        path.write_text(text)
        r = winnow("serve", "--port", "0", "--api-key-file", str(path))
        assert r.returncode == 3 and words in r.stderr and "--api-key-file" in r.stderr and BOB not in r.stderr, r.stderr
    r = winnow("serve", "--port", "0", "--api-key-file", str(tmp_path / "none"))
    assert r.returncode == 3 and "none" in r.stderr


def test_requests_a_minute(guarded):
    small = {**CHAT, "max_tokens": 1}
    statuses = [ask(guarded, request("POST", "/v1/chat/completions", small, bearer(BOB)))[0] for _ in range(3)]
    assert statuses == [200] * 3
    status, headers, body = ask(guarded, request("POST", "/v1/chat/completions", small, bearer(BOB)))
    e = json.loads(body)["error"]
    assert status == 429 and e["code"] == "rate_limit_exceeded" and "3 requests a minute" in e["message"]
    assert 10 <= int(headers["retry-after"]) <= 20
    status, headers, body = ask(guarded, request("POST", "/v1/messages", {**small, "max_tokens": 1}, bearer(BOB)))
    assert status == 429 and json.loads(body)["error"]["type"] == "rate_limit_error" and int(headers["retry-after"]) >= 1
    assert ask(guarded, request("POST", "/v1/chat/completions", small, bearer(ALICE)))[0] == 200
    assert ask(guarded, request("GET", "/v1/models", headers=bearer(BOB)))[0] == 200  # looking is free
    with pytest.raises(openai.RateLimitError):
        openai.OpenAI(base_url=guarded.url + "/v1", api_key=BOB, max_retries=0).completions.create(model="winnow-tiny", prompt="a")
    assert refused(guarded)["key_requests"] == 3


def test_tokens_a_minute_and_at_once(own_server, tmp_path):
    (tmp_path / "keys").write_text(f"alice: {ALICE}\nbob: {BOB} concurrent=0\n")
    s = own_server("--api-key-file", str(tmp_path / "keys"), "--key-tokens-per-minute", "60", "--key-concurrent", "1")
    ignoring = {**CHAT, "ignore_eos": True}
    status, _, body = ask(s, request("POST", "/v1/chat/completions", {**ignoring, "max_tokens": 80}, bearer(ALICE)))
    used = json.loads(body)["usage"]["total_tokens"]
    status, headers, body = ask(s, request("POST", "/v1/chat/completions", {**ignoring, "max_tokens": 1}, bearer(ALICE)))
    assert status == 429 and "60 tokens a minute" in json.loads(body)["error"]["message"]
    assert used - 65 <= int(headers["retry-after"]) <= min(60, used - 58)  # a token a second refills
    assert ask(s, request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, bearer(BOB)))[0] == 200  # bob has his own bucket
    assert refused(s)["key_tokens"] == 1


def test_requests_at_once(own_server, keys):
    s = own_server("--api-key-file", keys)
    first = s.connect()
    first.sendall(request("POST", "/v1/chat/completions", {**ENDLESS, "stream": True}, bearer(BOB)))
    first.recv(100)
    status, headers, body = ask(s, request("POST", "/v1/chat/completions", CHAT, bearer(BOB)))
    assert status == 429 and "at once" in json.loads(body)["error"]["message"] and int(headers["retry-after"]) >= 1
    first.close()  # which cancels it
    deadline = time.time() + 30
    while ask(s, request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1}, bearer(BOB)))[0] != 200:
        assert time.time() < deadline
        time.sleep(0.1)


def test_without_keys_the_limits_are_of_all_clients(own_server):
    s = own_server("--key-requests-per-minute", "2")
    statuses = [ask(s, request("POST", "/tokenize", {"prompt": "a"}))[0] for _ in range(3)]
    assert statuses == [200, 200, 429]


def test_the_queue_is_bounded(own_server):
    s = own_server("--max-batch", "2", "--max-queue", "3")
    streams = [running(s, stream=True) for _ in range(5)]
    for stream in streams[:2]:
        stream.recv(100)
    deadline = time.time() + 30
    while (answer := ask(s, request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1})))[0] != 429:
        assert time.time() < deadline
    assert error_of(answer)[1]["code"] == "rate_limit_exceeded" and 1 <= int(answer[1]["retry-after"]) <= 60
    assert ask(s, request("GET", "/v1/models"))[0] == 200 and ask(s, request("GET", "/health"))[0] == 200
    for stream in streams:
        stream.close()
    while ask(s, request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1}))[0] != 200:
        assert time.time() < deadline + 30
        time.sleep(0.1)


def test_choices_take_places_too(own_server):
    s = own_server("--max-batch", "2", "--max-queue", "2")
    first = running(s, stream=True, n=4)
    first.recv(100)
    assert ask(s, request("POST", "/v1/chat/completions", CHAT))[0] == 429


# --- pages of other sites ------------------------------------------------------------------------------------------------


def test_pages_of_other_sites_are_kept_out(server):
    body = {**CHAT, "max_tokens": 1}
    preflight = "Origin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n"
    status, headers, _ = ask(server, request("OPTIONS", "/v1/chat/completions", headers=preflight))
    assert status == 405 and not any(h.startswith("access-control") for h in headers)
    status, headers, text = ask(server, request("POST", "/v1/chat/completions", body, "Origin: https://evil.example\r\nSec-Fetch-Site: cross-site\r\n"))
    assert status == 403 and "--cors-origin" in json.loads(text)["error"]["message"] and "access-control-allow-origin" not in headers
    assert ask(server, request("POST", "/v1/chat/completions", body, "Origin: http://x\r\nSec-Fetch-Site: same-origin\r\n"))[0] == 200
    status, headers, _ = ask(server, request("GET", "/v1/models", headers="Origin: https://evil.example\r\n"))
    assert status == 200 and "access-control-allow-origin" not in headers


def test_a_page_that_is_allowed(own_server):
    origin = "https://chat.example.org:8443"
    s = own_server("--cors-origin", origin, "--cors-origin", "http://localhost:3000", env={"WINNOW_API_KEY": ALICE})
    preflight = f"Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, x-stainless-os\r\n"
    with s.connect() as sock:
        sock.sendall(request("OPTIONS", "/v1/chat/completions", headers=preflight))
        status, headers, _ = read_response(sock)
        assert status == 204 and headers["access-control-allow-origin"] == origin and "POST" in headers["access-control-allow-methods"]
        assert "x-stainless-os" in headers["access-control-allow-headers"] and headers["vary"] == "Origin" and "content-length" not in headers
        sock.sendall(request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1}, f"Origin: {origin}\r\nSec-Fetch-Site: cross-site\r\n" + bearer(ALICE)))
        status, headers, _ = read_response(sock)
        assert status == 200 and headers["access-control-allow-origin"] == origin
        sock.sendall(request("GET", "/v1/models", headers=f"Origin: {origin}\r\n"))
        status, headers, _ = read_response(sock)
        assert status == 401 and headers["access-control-allow-origin"] == origin  # else the page could not read why
    assert "access-control-allow-origin" not in ask(s, request("GET", "/health", headers="Origin: https://chat.example.org\r\n"))[1]


@pytest.mark.parametrize("origin", ["chat.example.org", "https://x/", "https://x/y", "ftp://x", "https://", "https://u@x", "null"])
def test_wrong_origins(winnow, origin):
    r = winnow("serve", "--port", "0", "--cors-origin", origin)
    assert r.returncode == 2 and "--cors-origin" in r.stderr and "https://chat.example.org" in r.stderr, r.stderr
