"""Starts the built program. WINNOW names another binary than build/release/winnow."""
import os, pathlib, re, signal, socket, subprocess, threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WINNOW = os.environ.get("WINNOW", str(ROOT / "build" / "release" / "winnow"))


class Server:
    def __init__(self, *arguments, env=None):
        self.process = subprocess.Popen([WINNOW, "serve", "--port", "0", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})})
        self.errors = []
        self.reader = threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True)
        self.reader.start()
        line = self.process.stdout.readline()
        found = re.search(r"serving (\S+) at (https?)://(?:127\.0\.0\.1|0\.0\.0\.0):(\d+)$", line.strip())
        assert found, f"no port in {line!r}: {''.join(self.errors)}"
        self.name, self.port = found[1], int(found[3])
        self.url = f"{found[2]}://127.0.0.1:{self.port}"

    def stop(self, sig=signal.SIGTERM, timeout=120):
        self.process.send_signal(sig)
        return self.process.wait(timeout)

    def connect(self, timeout=100):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)


@pytest.fixture(scope="session")
def server():
    s = Server()
    yield s
    if s.process.poll() is None:
        assert s.stop() == 0


@pytest.fixture
def own_server():
    """For tests that stop or overload it."""
    started = []

    def start(*arguments, env=None):
        started.append(Server(*arguments, env=env))
        return started[-1]

    yield start
    for s in started:
        if s.process.poll() is None:
            s.process.kill()
            s.process.wait()


@pytest.fixture
def winnow():
    def run(*arguments, stdin="", timeout=120):
        return subprocess.run([WINNOW, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout)

    return run
