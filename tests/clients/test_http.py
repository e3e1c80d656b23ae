"""What no good client sends: raw sockets, broken requests, slow ones, and a server told to stop."""
import json
import signal
import socket
import threading
import time

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
ENDLESS = {**CHAT, "ignore_eos": True, "max_tokens": 20000}


def request(method, path, body=b"", headers=""):
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def read_response(sock):
    """status, headers, body; takes no byte of what follows"""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        more = sock.recv(1)
        if not more:
            return None, {}, data
        data += more
    lines = data.decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:] if line)}
    body = b""
    while len(body) < int(headers.get("content-length", 0)):
        body += sock.recv(int(headers["content-length"]) - len(body))
    return int(lines[0].split()[1]), headers, body


def ask(server, raw):
    with server.connect() as s:
        s.sendall(raw)
        return read_response(s)


def error_of(response):
    status, headers, body = response
    assert headers["content-type"] == "application/json"
    e = json.loads(body)["error"]
    assert set(e) == {"message", "type", "param", "code"} and e["message"]
    return status, e


def health(server):
    return ask(server, request("GET", "/health"))[0]


def test_routes(server):
    assert health(server) == 200
    assert error_of(ask(server, request("GET", "/nothing")))[0] == 404
    assert error_of(ask(server, request("GET", "/v1/chat/completions/more")))[0] == 404
    response = ask(server, request("GET", "/v1/chat/completions"))
    assert error_of(response)[0] == 405 and response[1]["allow"] == "POST"
    assert error_of(ask(server, request("POST", "/v1/models")))[0] == 405
    assert error_of(ask(server, request("DELETE", "/health")))[0] == 405
    assert ask(server, request("GET", "/v1/models?x=1"))[0] == 200
    assert ask(server, request("HEAD", "/health"))[0] == 405


def test_broken_bodies(server):
    for body in [b"", b"{", b"[]", b"\xff\xfe", b'{"messages": ' + b"[" * 1000 + b"]" * 1000 + b"}", b"null", b'"x"', b"{}"]:
        status, e = error_of(ask(server, request("POST", "/v1/chat/completions", body)))
        assert status == 400 and e["type"] == "invalid_request_error", body
    assert health(server) == 200


def test_not_http(server):
    for raw in [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20, b"GET / HTTP/9.9\r\n\r\n", b"GET /\r\n\r\n",
                b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]:
        status, _, _ = ask(server, raw)
        assert status in (400, None), raw
    assert health(server) == 200


def test_huge_header(server):
    assert error_of(ask(server, b"GET /health HTTP/1.1\r\nX: " + b"a" * 20000 + b"\r\n\r\n"))[0] == 431
    assert error_of(ask(server, b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n"))[0] == 431


def test_huge_body(server):
    assert error_of(ask(server, b"POST /v1/completions HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n"))[0] == 413
    with server.connect() as s:  # sent whole, in spite of the refusal
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 40000000\r\n\r\n")
        try:
            s.sendall(b"x" * 4000000)
        except OSError:
            pass
        assert read_response(s)[0] == 413
    with server.connect() as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(40):
                s.sendall(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
        except OSError:
            pass
        assert read_response(s)[0] == 413


def test_expect_continue(server):
    body = json.dumps({**CHAT, "max_tokens": 1}).encode()
    with server.connect() as s:
        s.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        assert read_response(s)[0] == 100
        s.sendall(body)
        assert read_response(s)[0] == 200


def test_keep_alive_and_pipelining(server):
    with server.connect() as s:
        for _ in range(3):
            s.sendall(request("GET", "/health"))
            assert read_response(s)[0] == 200
    with server.connect() as s:
        s.sendall(request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1}) + request("GET", "/nothing"))
        assert read_response(s)[0] == 200
        assert read_response(s)[0] == 404


def test_slow_requests_do_not_hold_others_up(server):
    slow = [server.connect() for _ in range(50)]
    for s in slow:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Le")
    start = time.time()
    assert ask(server, request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1}))[0] == 200
    assert time.time() - start < 10
    start = time.time()
    assert slow[0].recv(1) == b""  # given up by the server
    assert time.time() - start < 40
    for s in slow:
        s.close()


def test_byte_by_byte(server):
    with server.connect() as s:
        for b in request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1}):
            s.sendall(bytes([b]))
        assert read_response(s)[0] == 200


def test_http_1_0(server):
    body = json.dumps({**CHAT, "max_tokens": 3, "stream": True}).encode()
    with server.connect() as s:
        s.sendall(f"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        data = b""
        while more := s.recv(65536):
            data += more
    assert b"chunked" not in data and data.endswith(b"data: [DONE]\n\n")


def running(server, **fields):
    s = server.connect()
    s.sendall(request("POST", "/v1/chat/completions", {**ENDLESS, **fields}))
    return s


def test_disconnects_cancel(server):
    for stream in (True, False):
        for _ in range(20):
            s = running(server, stream=stream)
            if stream:
                s.recv(100)
            s.close()
    start = time.time()
    assert ask(server, request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 5}))[0] == 200
    assert time.time() - start < 30  # it did not wait for 40 answers of 20000 tokens
    assert health(server) == 200


def test_resets_mid_stream(server):
    s = running(server, stream=True)
    s.recv(100)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # close sends a reset
    s.close()
    assert health(server) == 200


def test_idle_server_stops_at_once(own_server):
    for sig in (signal.SIGTERM, signal.SIGINT):
        s = own_server()
        idle = s.connect()
        assert health(s) == 200
        start = time.time()
        assert s.stop(sig) == 0
        assert time.time() - start < 5
        assert idle.recv(1) == b""


def test_stop_lets_requests_finish(own_server):
    s = own_server("--drain-timeout", "100")
    got = {}
    body = {**CHAT, "ignore_eos": True, "max_tokens": 200}
    asking = threading.Thread(target=lambda: got.update(r=ask(s, request("POST", "/v1/chat/completions", body))))
    asking.start()
    time.sleep(0.3)
    assert s.stop(timeout=120) == 0
    asking.join()
    assert got["r"][0] == 200 and json.loads(got["r"][2])["usage"]["completion_tokens"] == 200


def test_stop_cancels_after_the_drain_timeout(own_server):
    s = own_server("--drain-timeout", "1")
    streaming, whole = running(s, stream=True), running(s)
    streaming.recv(10)
    start = time.time()
    assert s.stop() == 0
    assert 0.5 < time.time() - start < 10
    data = b""
    while more := streaming.recv(65536):
        data += more
    assert b'"error"' in data and b"[DONE]" not in data
    assert error_of(read_response(whole))[0] == 503


def test_second_signal_cancels_at_once(own_server):
    s = own_server("--drain-timeout", "100")
    stream = running(s, stream=True)
    stream.recv(10)
    s.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert s.process.poll() is None
    start = time.time()
    assert s.stop(signal.SIGINT) == 0
    assert time.time() - start < 10


def test_port_in_use(own_server, winnow):
    s = own_server()
    r = winnow("serve", "--port", str(s.port))
    assert r.returncode == 3 and "--port" in r.stderr.splitlines()[-1]


def test_a_text_that_cannot_fit_is_refused_before_it_is_cut_into_tokens(server):
    start = time.monotonic()
    status, e = error_of(ask(server, request("POST", "/v1/completions", {"prompt": "a" * (24 << 20)})))
    assert status == 400 and e["code"] == "context_length_exceeded" and e["param"] == "prompt" and "bytes" in e["message"]
    status, e = error_of(ask(server, request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * (24 << 20)}]})))
    assert status == 400 and e["code"] == "context_length_exceeded" and e["param"] == "messages" and "bytes" in e["message"]
    assert time.monotonic() - start < 20


def test_errors_of_the_template_name_no_folder(server):
    status, e = error_of(ask(server, request("POST", "/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"range": 5, "namespace": 1}})))
    assert status == 400 and "chat_template.jinja" in e["message"] and "/" not in e["message"], e


def test_the_next_turn_begins_behind_the_one_before(server):
    messages = [{"role": "system", "content": "You are a careful assistant. " * 30}, {"role": "user", "content": "What is 2 + 3?"}]
    turns = []
    for _ in range(3):
        status, _, body = ask(server, request("POST", "/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 40}))
        answer = json.loads(body)
        turns.append((answer["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]))
        messages += [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, {"role": "user", "content": "And 4 + 5?"}]
        assert status == 200
    for (before, _), (_, cached) in zip(turns, turns[1:]):
        assert cached >= (before - 1) // 64 * 64, turns


def test_bodies_of_all_requests_are_bounded(own_server):
    server = own_server("--log-level", "warn")
    part = b"x" * (30 << 20)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 33000000\r\n\r\n"
    sockets = []
    try:
        for _ in range(10):  # none is complete; together they are more than the server holds
            s = server.connect()
            sockets.append(s)
            try:
                s.sendall(head + part)
            except OSError:
                pass
        statuses = []
        for s in sockets[8:]:
            s.settimeout(20)
            statuses.append(read_response(s)[0])
        assert 503 in statuses, statuses
        assert health(server) == 200
    finally:
        for s in sockets:
            s.close()
    for _ in range(12):  # what they held is free again; small bodies in chunks are counted by what comes
        raw = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1d\r\n" + b'{"prompt":"a","max_tokens":1}' + b"\r\n0\r\n\r\n"
        assert ask(server, raw)[0] == 200


# --- limits and slow clients ---------------------------------------------------------------------------------------------


def metric(server, name, labels=""):
    """A sample of /metrics; `labels` has to be part of its labels."""
    text = ask(server, request("GET", "/metrics"))[2].decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"winnow:{name}{{") and labels in line)


def until(condition, seconds=30):
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline
        time.sleep(0.05)


def closed(sock):
    """All that comes until the server closes its side."""
    sock.settimeout(30)
    data = b""
    try:
        while more := sock.recv(65536):
            data += more
    except ConnectionResetError:
        pass
    return data


def drip(sock, data, pause):
    """A byte now and then, until the server has had enough; False if it took all."""
    for b in data:
        try:
            sock.sendall(bytes([b]))
        except OSError:
            return True
        sock.settimeout(pause)
        try:
            if sock.recv(1) == b"":
                return True
        except TimeoutError:
            pass
        except OSError:
            return True
    return False


def test_slow_clients_are_left(own_server):
    s = own_server("--header-timeout", "1", "--body-timeout", "2", "--idle-timeout", "3")
    silent, head, body, idle = (s.connect() for _ in range(4))
    idle.sendall(request("GET", "/health"))
    assert read_response(idle)[0] == 200
    results = {}
    threads = [threading.Thread(target=lambda: results.update(head=drip(head, request("GET", "/health"), 0.2))),
               threading.Thread(target=lambda: results.update(body=drip(body, request("POST", "/v1/completions", b'{"prompt": "' + b"a" * 100), 0.1)))]
    body.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
    start = time.time()
    for t in threads:
        t.start()
    assert closed(silent) == b"" and 0.5 < time.time() - start < 20
    assert closed(idle) == b"" and 2 < time.time() - start < 20
    for t in threads:
        t.join()
    assert results == {"head": True, "body": True}
    assert metric(s, "refused_total", 'reason="header_timeout"') == 2 and metric(s, "refused_total", 'reason="body_timeout"') == 1
    with s.connect() as again:  # a new request on a connection has its own time
        for _ in range(3):
            again.sendall(request("GET", "/health"))
            assert read_response(again)[0] == 200
            time.sleep(0.6)


def test_a_client_that_does_not_read_is_left(own_server):
    s = own_server("--write-timeout", "1")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", s.port))
    sock.sendall(request("POST", "/v1/chat/completions", {**ENDLESS, "stream": True, "logprobs": True, "top_logprobs": 20}))
    until(lambda: metric(s, "num_requests_running") == 1)
    until(lambda: metric(s, "refused_total", 'reason="write_timeout"') == 1, 60)
    until(lambda: metric(s, "num_requests_running") == 0 and metric(s, "kv_pages_held") == 0)
    sock.close()
    assert ask(s, request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1}))[0] == 200


def test_connections_are_bounded(own_server):
    s = own_server("--max-connections", "3")
    held = [s.connect() for _ in range(3)]
    for h in held:
        h.sendall(request("GET", "/health"))
        assert read_response(h)[0] == 200
    with s.connect() as more:
        status, headers, _ = read_response(more)
        assert status == 503 and headers["retry-after"] == "1" and headers["connection"] == "close"
        assert closed(more) == b""
    held[0].close()
    until(lambda: ask(s, request("GET", "/health"))[0] == 200)


def test_sizes_are_bounded_by_flags(own_server):
    s = own_server("--max-header-bytes", "2048", "--max-headers", "20", "--max-body-bytes", "4096", "--max-messages", "2")
    assert ask(s, request("GET", "/health", headers="X: " + "a" * 1500 + "\r\n"))[0] == 200
    assert error_of(ask(s, request("GET", "/health", headers="X: " + "a" * 2500 + "\r\n")))[0] == 431
    assert ask(s, request("GET", "/health", headers="".join(f"X{i}: 1\r\n" for i in range(18))))[0] == 200
    status, e = error_of(ask(s, request("GET", "/health", headers="".join(f"X{i}: 1\r\n" for i in range(19)))))
    assert status == 431 and "20 fields" in e["message"]
    assert error_of(ask(s, request("POST", "/v1/completions", b"x" * 5000)))[0] == 413
    status, e = error_of(ask(s, request("POST", "/v1/chat/completions", {"messages": CHAT["messages"] * 3})))
    assert status == 400 and e["param"] == "messages" and "2" in e["message"]
    for reason, n in [("header_bytes", 1), ("header_fields", 1), ("body_bytes", 1)]:
        assert metric(s, "refused_total", f'reason="{reason}"') == n, reason


def test_what_is_sent_behind_a_request_is_kept(server):
    second = request("POST", "/v1/completions", {"prompt": "a" * 5000, "max_tokens": 1})  # more than is taken at once while the first runs
    with server.connect() as s:
        s.sendall(request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 200, "ignore_eos": True}))
        time.sleep(0.05)
        s.sendall(second)
        assert read_response(s)[0] == 200
        assert read_response(s)[0] == 200
