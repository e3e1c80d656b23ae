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
    for fields, param in (({"tool_choice": "required"}, "tool_choice"), ({"background": True, "store": False}, "background"), ({"background": True, "stream": True}, "stream"),
                          ({"top_logprobs": 2}, "top_logprobs"), ({"include": ["file_search_call.results"]}, "include[0]"), ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
                          ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"), ({"max_output_tokens": 10**6}, "max_output_tokens"),
                          ({"input": "word " * 40000}, "input")):
        with pytest.raises(openai.BadRequestError) as e:
            client.responses.create(**{"input": SUM, **GREEDY, **fields})
        assert e.value.body["param"] == param


def test_logprobs_of_the_text(client):
    chat = client.chat.completions.create(model="winnow-tiny", messages=[{"role": "user", "content": SUM}], temperature=0, logprobs=True, top_logprobs=3)
    want = [(t.token, t.logprob, [(o.token, o.logprob) for o in t.top_logprobs]) for t in chat.choices[0].logprobs.content]
    fields = dict(input=SUM, include=["message.output_text.logprobs"], top_logprobs=3, **GREEDY)
    whole = client.responses.create(**fields)
    part = whole.output[-1].content[0]
    of = lambda tokens: [(t.token, t.logprob, [(o.token, o.logprob) for o in t.top_logprobs]) for t in tokens]
    assert "".join(t.token for t in part.logprobs) == part.text and whole.top_logprobs == 3
    assert of(part.logprobs) == want[-1 - len(part.logprobs):-1]  # behind them is the stop token, before them the thought
    events = list(client.responses.create(**fields, stream=True))
    deltas = [e for e in events if e.type == "response.output_text.delta"]
    assert all("".join(t.token for t in e.logprobs) == e.delta for e in deltas)
    assert of(t for e in deltas for t in e.logprobs) == of(part.logprobs) == of(next(e for e in events if e.type == "response.output_text.done").logprobs)
    assert events[-1].response.output[-1].content[0].logprobs == part.logprobs
    with_call = client.responses.create(**{**fields, "input": ASK_WEATHER}, tools=WEATHER)
    assert all("".join(t.token for t in o.content[0].logprobs) == o.content[0].text for o in with_call.output if o.type == "message")
    assert client.responses.create(input=SUM, **GREEDY).output[-1].content[0].logprobs == []
    stopped = client.responses.create(**{**fields, "input": "Repeat this: red green blue"}, extra_body={"stop": "green"}).output[-1].content[0]
    assert "".join(t.token for t in stopped.logprobs).startswith(stopped.text) and "green" not in stopped.text


def wait_for(client, id, seconds=60):
    end = time.time() + seconds
    while (r := client.responses.retrieve(id)).status in ("queued", "in_progress"):
        assert time.time() < end
        time.sleep(0.02)
    return r


def test_background(client):
    fore = client.responses.create(input=SUM, **GREEDY)
    back = client.responses.create(input=SUM, background=True, **GREEDY)
    assert back.status == "queued" and back.background and back.output == [] and back.usage is None
    done = wait_for(client, back.id)
    assert plain(done) == {**plain(fore), "background": True}
    then = client.responses.create(input="And 1 more?", previous_response_id=back.id, **GREEDY)
    assert then.usage.input_tokens > done.usage.input_tokens
    assert client.responses.cancel(back.id) == done  # it has ended


def test_background_is_cancelled_and_dropped(client, server):
    back = client.responses.create(**ENDLESS, background=True)
    while client.responses.retrieve(back.id).status == "queued":
        time.sleep(0.01)
    assert client.responses.retrieve(back.id).status == "in_progress"
    with pytest.raises(openai.BadRequestError) as e:
        client.responses.create(input="x", previous_response_id=back.id, **GREEDY)
    assert e.value.body["param"] == "previous_response_id"
    cancelled = client.responses.cancel(back.id)
    assert cancelled.status == "cancelled" and cancelled.output and client.responses.retrieve(back.id) == cancelled
    dropped = client.responses.create(**ENDLESS, background=True)
    client.responses.delete(dropped.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(dropped.id)
    running = lambda: [line for line in ask(server, request("GET", "/metrics"))[2].decode().split("\n") if line.startswith("winnow:num_requests_running")][0].split()[-1]
    end = time.time() + 30
    while running() != "0":
        assert time.time() < end
        time.sleep(0.05)


def test_background_is_bounded_like_all_that_waits(own_server):
    own = own_server("--max-batch", "1", "--max-queue", "2")
    client = openai.OpenAI(base_url=own.url + "/v1", api_key="none", timeout=60, max_retries=0)
    kept = [client.responses.create(**ENDLESS, background=True) for _ in range(3)]
    with pytest.raises(openai.RateLimitError):
        client.responses.create(**ENDLESS, background=True)
    assert client.responses.cancel(kept[0].id).status == "cancelled"
    client.responses.create(**ENDLESS, background=True)
    assert own.stop() == 0  # nobody can ask for them any more: they do not hold it up


def test_a_failed_background_response_says_why(client):
    back = client.responses.create(**{**ENDLESS, "extra_body": {"ignore_eos": True, "timeout": 0.3}}, background=True)
    r = wait_for(client, back.id)
    assert r.status == "failed" and "deadline" in r.error.message


def test_kept_responses_are_not_streamed_again(client):
    r = client.responses.create(input=SUM, **GREEDY)
    for fields in (dict(stream=True), dict(stream=True, starting_after=3)):
        with pytest.raises(openai.BadRequestError) as e:
            list(client.responses.retrieve(r.id, **fields))
        assert e.value.body["param"] in fields


def test_input_items(client):
    r = client.responses.create(input=ASK_WEATHER, tools=WEATHER, **GREEDY)
    one = client.responses.input_items.list(r.id).data
    assert [(i.type, i.role, i.content[0].type, i.content[0].text) for i in one] == [("message", "user", "input_text", ASK_WEATHER)]
    call = r.output[-1]
    items = [{"role": "user", "content": ASK_WEATHER}, *[o.model_dump(exclude_none=True) for o in r.output],
             {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 21, "sky": "clear"}'}]
    r = client.responses.create(input=items, tools=WEATHER, instructions="Be kind.", **GREEDY)
    all = client.responses.input_items.list(r.id, order="asc").data
    assert [i.type for i in all] == ["message", "reasoning", "function_call", "function_call_output"]
    assert all[2].id == call.id and all[3].output.startswith("{") and len({i.id for i in all}) == 4
    assert [i.id for i in client.responses.input_items.list(r.id).data] == [i.id for i in reversed(all)]  # the newest first, as OpenAI has it
    page = client.responses.input_items.list(r.id, order="asc", limit=3)
    assert [i.id for i in page.data] == [i.id for i in all[:3]] and page.has_more
    assert [i.id for i in client.responses.input_items.list(r.id, order="asc", limit=1)] == [i.id for i in all]  # page by page
    rest = client.responses.input_items.list(r.id, order="asc", after=all[1].id)
    assert [i.id for i in rest.data] == [i.id for i in all[2:]] and not rest.has_more
    for fields, param in ((dict(limit=0), "limit"), (dict(limit=101), "limit"), (dict(after="none"), "after"), (dict(extra_query={"page": 1}), "page"),
                          (dict(extra_query={"order": "up"}), "order")):
        with pytest.raises(openai.BadRequestError) as e:
            client.responses.input_items.list(r.id, **fields)
        assert e.value.body["param"] == param
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list("resp_none")


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
