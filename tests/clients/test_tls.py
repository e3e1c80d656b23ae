"""HTTPS, with certificates that openssl makes."""
import json
import socket
import ssl
import subprocess
import time

import httpx
import openai
import pytest
from test_http import CHAT, ENDLESS, closed, read_response, request


def make_certificate(folder, name="server", extra=()):
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", key, "-out", cert, "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", *(extra or ["-nodes"])], check=True, capture_output=True)
    return str(cert), str(key)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def secure(own_server, certificate):
    return own_server("--tls-cert", certificate[0], "--tls-key", certificate[1], "--header-timeout", "2")


def trusting(certificate, low=None, high=None):
    c = ssl.create_default_context(cafile=certificate[0])
    if high:
        c.minimum_version, c.maximum_version = low, high
        c.set_ciphers("ALL:@SECLEVEL=0")
    return c


def connect(server, context):
    return context.wrap_socket(server.connect(), server_hostname="127.0.0.1")


def get(server, context, path):
    with httpx.Client(verify=context, base_url=server.url) as c:
        return c.get(path)


def running(server, context):
    text = get(server, context, "/metrics").text
    return {name: float(next(line for line in text.splitlines() if line.startswith(f"winnow:{name}{{")).split()[-1])
            for name in ("num_requests_running", "kv_pages_held")}


def test_clients_use_https(secure, certificate):
    assert secure.url.startswith("https://")
    context = trusting(certificate)
    assert get(secure, context, "/ready").json() == {"status": "ready"}
    with httpx.Client(verify=context) as http:
        client = openai.OpenAI(base_url=secure.url + "/v1", api_key="none", http_client=http, max_retries=0)
        whole = client.chat.completions.create(model="winnow-tiny", messages=[{"role": "user", "content": "What is 347 + 285?"}], temperature=0)
        assert "632" in whole.choices[0].message.content
        stream = client.chat.completions.create(model="winnow-tiny", messages=[{"role": "user", "content": "What is 347 + 285?"}], temperature=0, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == whole.choices[0].message.content


def test_versions(secure, certificate):
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with connect(secure, trusting(certificate, version, version)) as s:
            s.sendall(request("GET", "/health"))
            assert read_response(s)[0] == 200 and s.version() == {771: "TLSv1.2", 772: "TLSv1.3"}[version]
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.raises((ssl.SSLError, OSError)):
            connect(secure, trusting(certificate, version, version))


def test_keep_alive_pipelining_and_large_bodies(secure, certificate):
    with connect(secure, trusting(certificate)) as s:
        for _ in range(3):
            s.sendall(request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 1}) + request("GET", "/nothing"))
            assert read_response(s)[0] == 200
            assert read_response(s)[0] == 404
        s.sendall(request("POST", "/detokenize", json.dumps({"tokens": [300] * 400000}).encode()))
        assert read_response(s)[0] == 200


def test_a_client_that_leaves_cancels(secure, certificate):
    context = trusting(certificate)
    for leave in (lambda s: s.unwrap(), lambda s: s.close()):  # with and without saying goodbye
        for stream in (True, False):
            s = connect(secure, context)
            s.sendall(request("POST", "/v1/chat/completions", {**ENDLESS, "stream": stream}))
            deadline = time.time() + 30
            while running(secure, context)["num_requests_running"] == 0:
                assert time.time() < deadline
            try:
                s.settimeout(5)
                leave(s)
            except OSError:  # data of the stream came before the other goodbye
                pass
            while any(running(secure, context).values()):
                assert time.time() < deadline
                time.sleep(0.05)
            s.close()


def test_what_is_no_tls(secure, certificate):
    with secure.connect() as s:
        s.sendall(request("GET", "/health"))
        assert b"200" not in closed(s)
    with secure.connect() as s:
        assert closed(s) == b""  # silent: given up after the header timeout
    with secure.connect() as s:
        s.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 600)
        closed(s)
    assert get(secure, trusting(certificate), "/health").status_code == 200


def test_stops_with_open_connections(secure, certificate):
    idle = connect(secure, trusting(certificate))
    idle.sendall(request("GET", "/health"))
    assert read_response(idle)[0] == 200
    start = time.time()
    assert secure.stop() == 0
    assert time.time() - start < 10
    assert idle.recv(1) == b""


def test_wrong_files(winnow, certificate, tmp_path):
    other = make_certificate(tmp_path, "other")
    locked = make_certificate(tmp_path, "locked", ["-passout", "pass:secret"])
    (tmp_path / "empty").write_text("")
    (tmp_path / "text").write_text("no certificate\n")
    for cert, key, words in [(certificate[0], other[1], "mismatch"), (certificate[0], str(tmp_path / "text"), "--tls-key"),
                             (str(tmp_path / "text"), certificate[1], "--tls-cert"), (str(tmp_path / "empty"), certificate[1], "--tls-cert"),
                             (str(tmp_path / "none"), certificate[1], "--tls-cert"), (certificate[0], str(tmp_path), "--tls-key"),
                             (locked[0], locked[1], "unencrypted")]:
        r = winnow("serve", "--port", "0", "--tls-cert", cert, "--tls-key", key)
        assert r.returncode == 3 and words in r.stderr and r.stderr.count("\n") == 1, r.stderr
    r = winnow("serve", "--tls-cert", certificate[0])
    assert r.returncode == 2 and "--tls-key" in r.stderr
    r = winnow("serve", "--tls-key", certificate[1])
    assert r.returncode == 2 and "--tls-cert" in r.stderr
