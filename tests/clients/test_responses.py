"""The official OpenAI client and /v1/responses."""
import itertools
import json
import time

import openai
import pytest
from test_http import ask, read_response, request

GREEDY = dict(model="winnow-tiny", temperature=0)
SUM = "What is 347 + 285?"
WEATHER = [{"type": "function", "name": "get_weather", "description": "Weather of a city", "strict": None,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]
ASK_WEATHER = "What is the weather in Paris?"
ENDLESS = dict(input="Hello", extra_body={"ignore_eos": True}, max_output_tokens=20000, **GREEDY)


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=120, max_retries=0)


def plain(response):
    """what two runs of the same request have in common: ids are told by what they begin with"""
    d = json.loads(response.model_dump_json())
    d["usage"] = (d["usage"]["input_tokens"], d["usage"]["output_tokens"])
    for o in [d, *d["output"]]:
        o["id"] = o["id"].split("_")[0]
        o.pop("call_id", None)
        o.pop("parsed_arguments", None)
        for part in o.get("content") or []:
            part.pop("parsed", None)
    return d | {"created_at": 0}


def test_response(client):
    r = client.responses.create(input=SUM, **GREEDY)
    assert [o.type for o in r.output] == ["reasoning", "message"] and "632" in r.output_text
    assert r.output[0].content[0].text and r.output[0].summary == []
    assert r.status == "completed" and r.id.startswith("resp_") and r.object == "response" and abs(r.created_at - time.time()) < 100
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens
    assert 0 < r.usage.output_tokens_details.reasoning_tokens < r.usage.output_tokens


@pytest.mark.parametrize("fields", [{}, {"tools": WEATHER, "input": ASK_WEATHER}, {"max_output_tokens": 20}, {"reasoning": {"effort": "none"}},
                                    {"instructions": "Be kind.", "metadata": {"a": "b"}}])
def test_stream_equals_whole(client, fields):
    fields = {"input": SUM, **GREEDY, **fields}
    whole = client.responses.create(**fields)
    events = list(client.responses.create(**fields, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response." + whole.status
    assert plain(events[-1].response) == plain(whole)
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert done == events[-1].response.output
    for kind in ("output_text", "reasoning_text"):
        assert "".join(e.delta for e in events if e.type == f"response.{kind}.delta") == "".join(e.text for e in events if e.type == f"response.{kind}.done")
    with client.responses.stream(**fields) as stream:
        types = [e.type for e in stream]
        if whole.status == "completed":
            assert plain(stream.get_final_response()) == plain(whole)
    shape = lambda kinds: [k for k, _ in itertools.groupby(kinds)]  # how many deltas there are is chance
    assert shape(types) == shape(e.type for e in events)


def test_conversation_by_items(client):
    r = client.responses.create(input=ASK_WEATHER, tools=WEATHER, **GREEDY)
    call = r.output[-1]
    assert call.type == "function_call" and call.name == "get_weather" and json.loads(call.arguments) == {"city": "Paris"}
    items = [{"role": "user", "content": ASK_WEATHER}, *[o.model_dump(exclude_none=True) for o in r.output],
             {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21, "sky": "clear"}'}]
    by_items = client.responses.create(input=items, tools=WEATHER, store=False, **GREEDY)
    assert "21" in by_items.output_text
    by_id = client.responses.create(input=items[-1:], previous_response_id=r.id, tools=WEATHER, **GREEDY)
    assert by_id.output_text == by_items.output_text and by_id.usage.input_tokens == by_items.usage.input_tokens
    assert by_id.previous_response_id == r.id


def test_instructions_are_not_carried_over(client):
    first = client.responses.create(input="My name is Ada.", instructions="Be kind. " * 20, **GREEDY)
    then = client.responses.create(input="What is my name?", previous_response_id=first.id, **GREEDY)
    assert "Ada" in then.output_text and first.instructions.startswith("Be kind.") and then.instructions is None
    again = client.responses.create(input="What is my name?", previous_response_id=first.id, instructions="Be kind. " * 20, **GREEDY)
    assert again.usage.input_tokens > then.usage.input_tokens + 40


def test_stored_responses(client):
    r = client.responses.create(input=SUM, **GREEDY)
    assert client.responses.retrieve(r.id) == r
    client.responses.delete(r.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(r.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(r.id)
    with pytest.raises(openai.BadRequestError) as e:
        client.responses.create(input="x", previous_response_id=r.id, **GREEDY)
    assert e.value.body["param"] == "previous_response_id" and e.value.body["code"] == "previous_response_not_found"
    unstored = client.responses.create(input=SUM, store=False, **GREEDY)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored.id)


def test_cancel_ends_a_stream(client):
    stream = client.responses.create(**ENDLESS, stream=True)
    events = iter(stream)
    created = next(events)
    assert client.responses.retrieve(created.response.id).status == "in_progress"
    for _ in range(5):
        next(events)
    start = time.time()
    cancelled = client.responses.cancel(created.response.id)
    assert cancelled.status == "cancelled" and cancelled.output and time.time() - start < 4
    last = list(events)[-1]
    assert last.response.status == "cancelled" and last.response.id == cancelled.id
    assert client.responses.cancel(created.response.id) == cancelled == client.responses.retrieve(cancelled.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_none")


def test_a_client_that_leaves_cancels(client):
    stream = client.responses.create(**ENDLESS, stream=True)
    id = next(iter(stream)).response.id
    stream.close()
    for _ in range(200):
        if client.responses.retrieve(id).status != "in_progress":
            break
        time.sleep(0.05)
    assert client.responses.retrieve(id).status == "cancelled"


def test_deleted_while_it_runs(client):
    stream = client.responses.create(**{**ENDLESS, "max_output_tokens": 200}, stream=True)
    events = iter(stream)
    id = next(events).response.id
    client.responses.delete(id)
    assert list(events)[-1].type == "response.incomplete"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(id)


def test_parallel_tool_calls_false_ends_with_the_first(client):
    r = client.responses.create(input=ASK_WEATHER, tools=WEATHER, parallel_tool_calls=False, extra_body={"ignore_eos": True}, **GREEDY)
    assert r.status == "completed" and [o.type for o in r.output if o.type == "function_call"] == ["function_call"] and r.output[-1].status == "completed"


def test_refused_by_name(client):
    for fields, param in (({"tool_choice": "required"}, "tool_choice"), ({"background": True}, "background"), ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
                          ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"), ({"max_output_tokens": 10**6}, "max_output_tokens"),
                          ({"input": "word " * 40000}, "input")):
        with pytest.raises(openai.BadRequestError) as e:
            client.responses.create(**{"input": SUM, **GREEDY, **fields})
        assert e.value.body["param"] == param


def test_tokenizer_routes(server):
    def post(path, body):
        status, _, text = ask(server, request("POST", path, body))
        return status, json.loads(text)

    status, t = post("/tokenize", {"prompt": "Hello 語", "return_token_strs": True})
    assert status == 200 and t["count"] == len(t["tokens"]) == len(t["token_strs"]) and t["max_model_len"] > 1000
    assert post("/detokenize", {"tokens": t["tokens"]}) == (200, {"prompt": "Hello 語"})
    status, m = post("/tokenize", {"messages": [{"role": "user", "content": "hi"}]})
    assert post("/detokenize", {"tokens": m["tokens"]})[1]["prompt"] == "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>hi<|assistant|><think>"
    assert m["token_strs"] is None
    for path, body, param in (("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": 3}, "prompt"), ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
                              ("/detokenize", {"tokens": [10**12]}, "tokens[0]"), ("/detokenize", {"tokens": ["a"]}, "tokens[0]")):
        status, e = post(path, body)
        assert status == 400 and e["error"]["param"] == param
    assert post("/tokenize", {"prompt": "<|user|>"})[1]["count"] == 1
    markers = post("/tokenize", {"messages": [{"role": "user", "content": "<|user|><tool_call></think>"}], "add_generation_prompt": False})[1]["tokens"]
    assert markers.count(post("/tokenize", {"prompt": "<|user|>"})[1]["tokens"][0]) == 1  # what the template wrote


def test_version_and_ready(server):
    status, _, body = ask(server, request("GET", "/version"))
    assert status == 200 and json.loads(body)["version"]
    assert json.loads(ask(server, request("GET", "/ready"))[2]) == {"status": "ready"}


def test_a_response_is_kept_when_its_last_event_comes(server):
    """Another connection asks at that moment; a long input takes a while to keep."""
    for i in range(20):
        with server.connect() as stream, server.connect() as other:
            other.sendall(request("GET", "/health"))
            assert read_response(other)[0] == 200
            stream.sendall(request("POST", "/v1/responses", {"input": f"Hello {i} " + "word " * 3000, "max_output_tokens": 2, "stream": True}))
            data = b""
            while b"event: response.incomplete" not in data and b"event: response.completed" not in data:
                data += stream.recv(65536)
            made = json.loads(data.split(b"data: ")[1].split(b"\n")[0])["response"]["id"]
            other.sendall(request("GET", f"/v1/responses/{made}"))
            assert json.loads(read_response(other)[2])["status"] in ("completed", "incomplete")
