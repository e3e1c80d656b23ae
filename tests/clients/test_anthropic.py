"""The official Anthropic client talks to the server."""
import json

import anthropic
import pytest
from test_http import ask, request

SUM = [{"role": "user", "content": "What is 347 + 285?"}]
WEATHER = [{"name": "get_weather", "description": "Weather of a city",
            "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
THINK = {"type": "adaptive"}
CAPITAL = [{"role": "user", "content": "What is the capital of Peru?"}]


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", timeout=120, max_retries=0)


def greedy(**fields):
    extra = {"temperature": 0, **fields.pop("extra_body", {})}
    return dict(model="winnow-tiny", max_tokens=400, extra_body=extra, **{"messages": SUM, **fields})


def plain(message):
    """what two runs of the same request have in common"""
    d = message.model_dump()
    d.pop("id")
    d["usage"] = (d["usage"]["input_tokens"] + d["usage"]["cache_read_input_tokens"], d["usage"]["output_tokens"])
    for block in d["content"]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    return d


def test_message(client):
    m = client.messages.create(**greedy(thinking=THINK))
    assert [b.type for b in m.content] == ["thinking", "text"] and "632" in m.content[1].text and m.content[0].signature
    assert m.role == "assistant" and m.type == "message" and m.id.startswith("msg_") and m.stop_reason == "end_turn" and m.stop_sequence is None
    assert 0 < m.usage.output_tokens_details.thinking_tokens < m.usage.output_tokens


def test_thinking_is_off_unless_asked_for(client):
    for fields in ({}, {"thinking": {"type": "disabled"}}):
        m = client.messages.create(**greedy(messages=CAPITAL, **fields))
        assert [b.type for b in m.content] == ["text"] and "Lima" in m.content[0].text
        assert m.usage.output_tokens_details.thinking_tokens == 0


@pytest.mark.parametrize("fields", [{"thinking": THINK}, {"messages": CAPITAL}, {"messages": ASK_WEATHER, "tools": WEATHER, "thinking": THINK},
                                    {"thinking": THINK, "stop_sequences": ["= 6"]}, {"thinking": THINK, "max_tokens": 20}])
def test_stream_equals_whole(client, fields):
    fields = {**greedy(), **fields}
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        events = [e.type for e in stream]
        assert plain(stream.get_final_message()) == plain(whole)
    assert events[0] == "message_start" and events[-2:] == ["message_delta", "message_stop"]
    assert events.count("content_block_start") == events.count("content_block_stop") == len(whole.content)
    raw = list(client.messages.create(**fields, stream=True))
    assert {e.index for e in raw if e.type == "content_block_start"} == set(range(len(whole.content)))


def test_stop_reasons(client):
    m = client.messages.create(**greedy(stop_sequences=["never", "= 6"], thinking=THINK))
    assert (m.stop_reason, m.stop_sequence) == ("stop_sequence", "= 6") and m.content[-1].text == "347 + 285 "
    m = client.messages.create(**{**greedy(thinking=THINK), "max_tokens": 20})
    assert m.stop_reason == "max_tokens" and m.usage.output_tokens == 20 and [b.type for b in m.content] == ["thinking"]


def test_system(client):
    text = "You are a careful assistant. "
    blocks = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
    one, other = (client.messages.create(**greedy(messages=CAPITAL, system=s)) for s in (text, blocks))
    assert plain(one) == plain(other)
    none = client.messages.create(**greedy(messages=CAPITAL))
    assert plain(none)["usage"][0] < plain(one)["usage"][0]


def test_tools(client):
    m = client.messages.create(**greedy(messages=ASK_WEATHER, tools=WEATHER, thinking=THINK))
    assert m.stop_reason == "tool_use" and [b.type for b in m.content] == ["thinking", "tool_use"]
    use = m.content[1]
    assert use.name == "get_weather" and use.input == {"city": "Paris"} and use.id.startswith("toolu_")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": '{"temperature": 21, "sky": "clear"}'}
    turn = {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in m.content]}
    answer = client.messages.create(**greedy(messages=ASK_WEATHER + [turn, {"role": "user", "content": [result]}], tools=WEATHER, thinking=THINK))
    assert "21" in answer.content[-1].text and answer.stop_reason == "end_turn"
    off = client.messages.create(**greedy(messages=ASK_WEATHER, tools=WEATHER, tool_choice={"type": "none"}))
    assert plain(off)["usage"][0] < plain(m)["usage"][0]


def test_a_call_that_breaks_off_has_what_is_whole(client):
    fields = greedy(messages=ASK_WEATHER, tools=WEATHER, thinking=THINK)
    n = client.messages.create(**fields).usage.output_tokens
    m = client.messages.create(**{**fields, "max_tokens": n - 4})
    assert m.stop_reason == "max_tokens" and m.content[-1].type == "tool_use" and m.content[-1].input == {}


def test_an_answer_is_continued(client):
    begun = CAPITAL + [{"role": "assistant", "content": "The capital of Peru is"}]
    m = client.messages.create(**greedy(messages=begun))
    assert "Lima" in m.content[0].text and "capital" not in m.content[0].text


def test_cached_tokens(client):
    long = [{"role": "user", "content": "Here is a list: " + "one two three four five six seven " * 30 + "What is the first item?"}]
    usages = [client.messages.create(**{**greedy(messages=long), "max_tokens": 1}).usage for _ in range(2)]
    assert usages[1].cache_read_input_tokens > 0
    assert usages[0].input_tokens + usages[0].cache_read_input_tokens == usages[1].input_tokens + usages[1].cache_read_input_tokens
    stream = list(client.messages.create(**{**greedy(messages=long), "max_tokens": 1}, stream=True))
    start = stream[0].message.usage
    assert start.cache_read_input_tokens > 0 and start.output_tokens == 0


def test_count_tokens(client):
    for fields in ({"messages": SUM}, {"messages": ASK_WEATHER, "tools": WEATHER, "system": "be kind", "thinking": THINK}):
        m = client.messages.create(**{**greedy(**fields), "max_tokens": 1})
        counted = client.messages.count_tokens(model="winnow-tiny", **fields).input_tokens
        assert counted == m.usage.input_tokens + m.usage.cache_read_input_tokens


def test_errors(client, server):
    with pytest.raises(anthropic.BadRequestError) as e:
        client.messages.create(**{**greedy(), "max_tokens": -1})
    assert e.value.body["type"] == "error" and e.value.body["error"]["type"] == "invalid_request_error"
    assert e.value.body["error"]["message"].startswith("max_tokens: ")
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**greedy(), "model": "claude"})
    with pytest.raises(anthropic.BadRequestError, match="tool_choice: there is no tool 'x'"):
        client.messages.create(**greedy(tools=WEATHER, tool_choice={"type": "tool", "name": "x"}))
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(**greedy(messages=[{"role": "user", "content": "word " * 40000}]))
    for raw in (request("POST", "/v1/messages", b"{"), request("GET", "/v1/messages"), request("GET", "/v1/messages/x")):
        status, _, body = ask(server, raw)
        assert json.loads(body)["type"] == "error" and status in (400, 404, 405)


def test_both_headers_of_a_key_are_taken(server):
    for header in ("x-api-key: k\r\n", "Authorization: Bearer k\r\n"):
        body = {"model": "winnow-tiny", "max_tokens": 1, "messages": CAPITAL}
        assert ask(server, request("POST", "/v1/messages", body, header + "anthropic-version: 2023-06-01\r\n"))[0] == 200
