"""Traces as a collector gets them: read with opentelemetry-proto, the definition of the format."""
import base64
import http.server
import json
import threading
import time

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from test_http import CHAT, ENDLESS, ask, metric, request, running, until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def parse(body):
    """OTLP's JSON has ids in hex, where protobuf's own JSON has base64."""
    def fix(o):
        if isinstance(o, list):
            return [fix(x) for x in o]
        if not isinstance(o, dict):
            return o
        return {k: base64.b64encode(bytes.fromhex(v)).decode() if k in ("traceId", "spanId", "parentSpanId") else fix(v) for k, v in o.items()}
    return json_format.Parse(json.dumps(fix(json.loads(body))), ExportTraceServiceRequest())  # refuses what it does not know


class Collector:
    def __init__(self, status=200, pause=0):
        self.requests, self.status, self.pause = [], status, pause
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
                outer.requests.append(body)
                time.sleep(outer.pause)
                self.send_response(outer.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self):
        return [s for r in list(self.requests) for one in parse(r).resource_spans for scope in one.scope_spans for s in scope.spans]


@pytest.fixture
def collector():
    c = Collector()
    yield c
    c.server.shutdown()


def attributes(span):
    return {a.key: a.value.string_value or a.value.int_value for a in span.attributes}


def test_spans_of_a_request(own_server, collector):
    server = own_server("--otlp-endpoint", collector.url)
    before = time.time_ns()
    answer = ask(server, request("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 20, "ignore_eos": True},
                                 f"X-Request-Id: r1\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n"))
    usage = json.loads(answer[2])["usage"]
    after = time.time_ns()
    assert ask(server, request("POST", "/v1/chat/completions", b"{"))[0] == 400
    assert ask(server, request("GET", "/health"))[0] == 200
    ask(server, request("POST", "/tokenize", {"prompt": "a"}, f"traceparent: 00-{TRACE}-{PARENT}-00\r\n"))  # its caller records nothing
    ask(server, request("GET", "/v1/models", headers="traceparent: nonsense\r\n"))
    until(lambda: len(collector.spans()) >= 6)
    assert server.stop() == 0
    spans = collector.spans()
    assert len(spans) == 6
    root, queue, prefill, decode = spans[:4]
    assert root.name == "POST /v1/chat/completions" and root.kind == Span.SPAN_KIND_SERVER
    assert root.trace_id.hex() == TRACE and root.parent_span_id.hex() == PARENT
    a = attributes(root)
    assert a["winnow.request_id"] == "r1" and a["http.response.status_code"] == 200 and a["http.route"] == "/v1/chat/completions"
    assert a["gen_ai.usage.input_tokens"] == usage["prompt_tokens"] and a["gen_ai.usage.output_tokens"] == 20 and a["gen_ai.request.model"] == "winnow-tiny"
    assert [s.name for s in (queue, prefill, decode)] == ["queue", "prefill", "decode"]
    at = root.start_time_unix_nano
    for s in (queue, prefill, decode):
        assert s.trace_id == root.trace_id and s.parent_span_id == root.span_id and s.kind == Span.SPAN_KIND_INTERNAL
        assert at <= s.start_time_unix_nano <= s.end_time_unix_nano
        at = s.end_time_unix_nano
    assert before <= root.start_time_unix_nano < after and at <= root.end_time_unix_nano + 5_000_000
    assert len({s.span_id for s in spans}) == 6 and all(len(s.span_id) == 8 and len(s.trace_id) == 16 for s in spans)
    wrong, models = spans[4:]
    assert attributes(wrong)["http.response.status_code"] == 400 and wrong.status.code == Status.STATUS_CODE_UNSET
    assert models.name == "GET /v1/models" and not models.parent_span_id and models.trace_id.hex() != TRACE
    resource = {a.key: a.value.string_value for a in parse(collector.requests[0]).resource_spans[0].resource.attributes}
    assert resource["service.name"] == "winnow" and resource["service.version"]


def test_what_waits_is_sent_at_the_end(own_server, collector):
    server = own_server("--otlp-endpoint", collector.url)
    stream = running(server, stream=True)
    stream.recv(10)
    stream.close()
    until(lambda: metric(server, "num_requests_running") == 0)
    for _ in range(20):
        ask(server, request("GET", "/v1/models"))
    assert server.stop() == 0
    names = [s.name for s in collector.spans()]
    assert names.count("GET /v1/models") == 20 and names.count("POST /v1/chat/completions") == 1


def test_a_collector_that_fails_or_hangs_costs_nothing(own_server):
    for collector in (Collector(status=500), Collector(pause=3)):
        server = own_server("--otlp-endpoint", collector.url)
        for _ in range(600):  # more than one batch
            assert ask(server, request("GET", "/v1/models"))[0] == 200
        if collector.status == 500:
            until(lambda: metric(server, "traces_dropped_total") == 600)
            assert metric(server, "traces_sent_total") == 0
            assert "takes no traces" in "".join(server.errors)
        start = time.time()
        assert server.stop() == 0
        assert time.time() - start < 20
        collector.server.shutdown()


def test_wrong_endpoints(winnow):
    for endpoint in ("127.0.0.1:4318", "ftp://x", "http://", "http://x?y"):
        r = winnow("serve", "--port", "0", "--otlp-endpoint", endpoint)
        assert r.returncode == 2 and "--otlp-endpoint" in r.stderr and "http://127.0.0.1:4318" in r.stderr, r.stderr
