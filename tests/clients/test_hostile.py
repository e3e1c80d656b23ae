"""The corpus of hostile.py against a server with short timeouts: every request gets its own error and no other, nothing of the machine
is told, and afterwards all is as before. A tenth of it by default, all of it with WINNOW_HOSTILE=all."""
import concurrent.futures
import json
import os
import re
import socket
import struct
import time
import zlib

import hostile
import pytest
from conftest import Server
from test_http import metric, read_response, request, until

ALL = os.environ.get("WINNOW_HOSTILE") == "all"
MOST_GROWTH = 100 << 20  # bytes of resident memory between two passes
# Paths, addresses, what a crash prints, names of types.
TELLS = re.compile(
    rb"/(?:home|root|usr|tmp|work|proc|src|etc|opt|var|build)/|0x[0-9a-f]{6,}|\.(?:cpp|h|hpp|cc):\d+|std::|boost::|xgrammar|terminate called|what\(\)",
    re.I)


def chosen(cases):
    """Those of this run; a case stays chosen however many others are added."""
    return [c for c in cases if ALL or zlib.crc32(c.name.encode()) % 10 == 0]


def resident(server):
    with open(f"/proc/{server.process.pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def server():
    s = Server("--header-timeout", "2", "--body-timeout", "4", "--idle-timeout", "3", "--write-timeout", "5", "--max-batch", "4",
               "--log-level", "warn")
    yield s
    assert s.process.poll() is None and s.stop() == 0
    s.reader.join(30)
    log = "".join(s.errors)
    assert "connection:" not in log, log  # what a connection's coroutine did not expect


def trouble_of(case, status, headers, body):
    """What is wrong with an answer; None: nothing."""
    if status != case.status:
        return f"{status}, not {case.status}: {body[:300]}"
    found = TELLS.search(re.sub(rb"\.\./\.\./etc/passwd", b"", body))  # what the client sent may come back
    if found:
        return f"tells {found[0]}: {body[:300]}"
    if status == 200:
        return None
    try:
        e = json.loads(body)["error"]
    except ValueError:
        return f"no JSON: {body[:300]}"
    if len(body) > 3000:
        return f"an error of {len(body)} bytes"
    keys = {"type", "message"} if case.path.startswith("/v1/messages") else {"message", "type", "param", "code"}
    if set(e) != keys or not e["message"] or headers.get("content-type") != "application/json":
        return f"not the API's form: {body[:300]}"
    if case.param is None:
        return f"param: {e['param']}" if e.get("param") else None
    if not e["message"].startswith(case.param) or not (e.get("param") or e["message"]).startswith(case.param):
        return f"the field is not {case.param}: {body[:300]}"
    return None


def send_body(server, case):
    data = request("POST", case.path, case.body())
    with server.connect(60) as s:
        try:
            s.sendall(data)
        except OSError:
            pass  # refused before all of it was there
        start = time.monotonic()
        try:
            trouble = trouble_of(case, *read_response(s))
        except OSError as e:
            trouble = f"no answer after {time.monotonic() - start:.1f} s: {e}"
    return trouble and f"{case.name}: {trouble}"


def answers(data):
    """Statuses of the answers in what a connection gave, their bodies whole or ended by the connection's end."""
    statuses = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        statuses.append(int(head.split()[1]))
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        data = rest[int(length[1]):] if length and not head.startswith(b"HTTP/1.1 204") else b""
    return tuple(statuses)


def send_wire(server, case):
    parts, data, reset = case.parts(), b"", False
    with server.connect(60) as s:
        try:
            for part in parts:
                if part is hostile.HALF:
                    s.shutdown(socket.SHUT_WR)
                elif part is hostile.RESET:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    reset = True
                elif isinstance(part, float):
                    time.sleep(part)
                else:
                    s.sendall(part)
        except OSError:
            pass  # the server had enough
        try:
            while not reset and (more := s.recv(65536)):
                data += more
        except ConnectionError:
            pass
        except TimeoutError:
            return f"{case.name}: still open: {data[:300]}"
    try:
        statuses = answers(data)
    except (ValueError, IndexError):
        return f"{case.name}: no HTTP: {data[:300]}"
    found = TELLS.search(data.replace(b"/etc/passwd", b""))
    if found:
        return f"{case.name}: tells {found[0]}: {data[:600]}"
    return None if statuses == case.statuses or reset else f"{case.name}: {statuses}, not {case.statuses}: {data[:300]}"


def in_parallel(send, server, cases, threads):
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        wrong = [w for w in pool.map(lambda c: send(server, c), cases) if w]
    assert not wrong, f"{len(wrong)} of {len(cases)} in {time.monotonic() - start:.0f} s:\n" + "\n".join(wrong)


def well(server):
    """A normal request is answered, and everything that was taken is back."""
    with server.connect() as s:
        s.sendall(request("POST", hostile.CHAT, {"messages": hostile.SAY, "temperature": 0, "max_tokens": 4}))
        status, _, body = read_response(s)
    assert status == 200 and json.loads(body)["usage"]["completion_tokens"] > 0
    until(lambda: metric(server, "num_requests_running") == 0 and metric(server, "num_requests_waiting") == 0 and metric(
        server, "kv_pages_held") == 0)
    assert metric(server, "kv_pages") - metric(server, "kv_pages_free") <= metric(server, "prefix_pages")


def test_the_corpus_is_large_and_its_names_differ():
    names = [c.name for c in hostile.bodies()] + [c.name for c in hostile.wires()]
    assert len(names) >= 500 and len(set(names)) == len(names), len(names)


def test_bodies(server):
    in_parallel(send_body, server, chosen(hostile.bodies()), 4)
    well(server)


def test_wires(server):
    in_parallel(send_wire, server, chosen(hostile.wires()), 16)
    well(server)


def test_memory_is_back(server):
    """What the first pass left is caches within their bounds; a second one adds nothing."""
    cases = chosen(hostile.bodies())
    for c in cases:
        send_body(server, c)
    before = resident(server)
    for _ in range(1 if ALL else 3):
        for c in cases:
            send_body(server, c)
    well(server)
    assert resident(server) - before < MOST_GROWTH, (before >> 20, resident(server) >> 20)
