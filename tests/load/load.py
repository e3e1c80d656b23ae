#!/usr/bin/env python3
"""128 streams at once over loopback, some of them cancelled and some left: how long an event takes from the engine to its socket, what the
output path costs, and whether everything that was taken comes back. Figures are printed; only what is lost is an error.

usage: tests/load/load.py [WINNOW] [--seconds N] [--streams N] [SERVE FLAGS]"""
import argparse
import json
import os
import random
import re
import selectors
import signal
import socket
import subprocess
import sys
import time

CANCELS, DISCONNECTS = 0.10, 0.05
MOST_GROWTH = 64 << 20  # bytes of resident memory, once as many streams have been there as will be
WARM_UP = 0.2  # of the time, does not count
MEMORY = "200MB"  # of the device: pages are first touched when they are first used, so resident memory is steady only once all of them were


def http(method, path, body=None):
    data = json.dumps(body).encode() if body is not None else b""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


class Server:

    def __init__(self, winnow, flags):
        self.process = subprocess.Popen([winnow, "serve", "--port", "0", "--log-level", "warn", *flags], stdout=subprocess.PIPE, text=True)
        self.port = int(re.search(r":(\d+)$", self.process.stdout.readline().strip())[1])

    def ask(self, method, path, body=None):
        with socket.create_connection(("127.0.0.1", self.port), 60) as s:
            s.sendall(http(method, path, body))
            data = b""
            while more := s.recv(1 << 16):
                data += more
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    def metrics(self):
        out = {}
        for line in self.ask("GET", "/metrics")[1].decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                out[re.sub(r'model_name="[^"]*",?', "", name).replace("{}", "")] = float(value)
        return out

    def resident(self):
        with open(f"/proc/{self.process.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self, thread=None):
        """Seconds on a processor, of one thread by name or of all."""
        total = 0
        for task in os.listdir(f"/proc/{self.process.pid}/task"):
            base = f"/proc/{self.process.pid}/task/{task}"
            with open(base + "/comm") as f:
                if thread and f.read().strip() != thread:
                    continue
            with open(base + "/schedstat") as f:
                total += int(f.read().split()[0])
        return total / 1e9


class Stream:

    def __init__(self, server, rng, number):
        self.responses = rng.random() < 0.5
        kind = rng.random()
        self.leaves = kind < DISCONNECTS
        self.cancels = DISCONNECTS <= kind < DISCONNECTS + CANCELS
        self.responses = self.responses or self.cancels  # only those can be cancelled by name
        tokens = rng.randint(50, 300)
        self.until = rng.randint(2, tokens // 2)  # events before it is cancelled or left
        text = f"Count {number} apples and tell me about {rng.choice(['rain', 'bread', 'stone', 'light'])}."
        common = {"stream": True, "ignore_eos": True, "temperature": 1, "seed": number}
        if self.responses:
            request = http("POST", "/v1/responses", {**common, "input": text, "max_output_tokens": tokens})
        else:
            request = http("POST", "/v1/chat/completions",
                           {**common, "messages": [{"role": "user", "content": text}], "max_tokens": tokens})
        self.socket = socket.create_connection(("127.0.0.1", server.port), 60)
        self.socket.sendall(request)
        self.socket.setblocking(False)
        self.events, self.start, self.end = 0, b"", b""


def quantile(before, after, q):
    """Of a histogram's growth, straight between the bounds of its bucket; in seconds."""
    bucket = re.compile(r'winnow:event_delay_seconds_bucket\{.*le="([^"]+)"')
    counts = sorted((float(found[1]), n - before.get(name, 0)) for name, n in after.items() if (found := bucket.match(name)))
    wanted, low, seen = q * counts[-1][1], 0.0, 0.0
    for bound, n in counts:
        if n >= wanted:
            return low + (bound - low) * (wanted - seen) / max(n - seen, 1) if bound < float("inf") else low
        low, seen = bound, n
    return low


def run(server, streams, seconds):
    rng, selector, number, ends = random.Random(1), selectors.DefaultSelector(), 0, {"whole": 0, "cancelled": 0, "left": 0, "refused": 0}
    faults = []

    def begin():
        nonlocal number
        number += 1
        s = Stream(server, rng, number)
        selector.register(s.socket, selectors.EVENT_READ, s)

    def finish(s, how):
        selector.unregister(s.socket)
        s.socket.close()
        ends[how] += 1

    for _ in range(streams):
        begin()
    start, counted = time.monotonic(), None
    warm_up = seconds * WARM_UP
    while time.monotonic() - start < seconds + warm_up:
        if counted is None and time.monotonic() - start > warm_up:
            counted = {
                "metrics": server.metrics(), "io": server.cpu_s("winnow-io"), "all": server.cpu_s(), "at": time.monotonic(),
                "resident": server.resident()
            }
        for key, _ in selector.select(1):
            s = key.data
            data = s.socket.recv(1 << 16)
            s.events += data.count(b"data: ")
            if len(s.start) < 1000:
                s.start += data
            s.end = (s.end + data)[-200:]
            if not data:
                good = s.start.startswith(b"HTTP/1.1 200")
                if not good:
                    faults.append(s.start[:300])
                whole = s.end.endswith(b"0\r\n\r\n")  # the last chunk
                if good and not whole and not s.cancels:
                    faults.append(s.end)
                finish(s, "refused" if not good else "cancelled" if s.cancels and s.until < 0 else "whole")
                begin()
            elif s.leaves and s.events >= s.until:
                finish(s, "left")
                begin()
            elif s.cancels and s.events >= s.until >= 0:
                s.until = -1
                found = re.search(rb'"id":"(resp_[0-9a-z]+)"', s.start)
                status, body = server.ask("POST", f"/v1/responses/{found[1].decode()}/cancel")
                if status != 200:
                    faults.append(body[:300])
    after = {"metrics": server.metrics(), "io": server.cpu_s("winnow-io"), "all": server.cpu_s(), "at": time.monotonic()}
    for key in list(selector.get_map().values()):
        key.data.socket.close()
    return counted, after, ends, faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("winnow", nargs="?", default="build/release/winnow")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--streams", type=int, default=128)
    a, flags = parser.parse_known_args()
    server = Server(a.winnow, ["--max-batch", str(a.streams), "--max-context", "2048", "--memory", MEMORY, "--host-memory", "0", *flags])
    try:
        before, after, ends, faults = run(server, a.streams, a.seconds)
        deadline = time.monotonic() + 30
        while (m := server.metrics())["winnow:num_requests_running"] + m["winnow:num_requests_waiting"] + m["winnow:kv_pages_held"] > 0:
            if time.monotonic() > deadline:
                faults.append("requests or pages are still held")
                break
            time.sleep(0.05)
        if m["winnow:kv_pages_free"] + m["winnow:prefix_pages"] < m["winnow:kv_pages"]:
            faults.append("pages are lost")
        grown = server.resident() - before["resident"]
        if grown > MOST_GROWTH:
            faults.append(f"resident memory grew by {grown >> 20} MiB")
        took = after["at"] - before["at"]
        sent = after["metrics"]["winnow:event_delay_seconds_count"] - before["metrics"]["winnow:event_delay_seconds_count"]
        io = after["io"] - before["io"]
        print(
            f"{a.streams} streams, {took:.0f} s: {ends['whole']} whole, {ends['cancelled']} cancelled, {ends['left']} left, {ends['refused']} refused"
        )
        print(
            f"sampled id to socket: p50 {quantile(before['metrics'], after['metrics'], 0.5) * 1e6:.0f} us, p99 {quantile(before['metrics'], after['metrics'], 0.99) * 1e6:.0f} us"
            f" (target: 1000, wished: 150)")
        print(
            f"{sent / took:.0f} events/s; the I/O thread was on a processor {100 * io / took:.1f} % of the time, the server {(after['all'] - before['all']) / took:.2f} processors"
        )
        print(
            f"output path: {sent / io:.0f} events/s a core, {1e6 * io / sent:.1f} us an event, requests and connections included (target: 100000)"
        )
        print(
            f"resident memory {server.resident() >> 20} MiB, {grown / (1 << 20):+.1f} since the warm-up; pages held: {m['winnow:kv_pages_held']:.0f}"
        )
        for f in faults[:10]:
            print(f"FAULT: {f}")
        server.process.send_signal(signal.SIGTERM)
        stopped = server.process.wait(60)
        sys.exit(1 if faults or stopped != 0 else 0)
    finally:
        if server.process.poll() is None:
            server.process.kill()


main()
