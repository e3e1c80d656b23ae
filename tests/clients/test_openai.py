"""The official client talks to the server."""
import concurrent.futures
import json
import time

import openai
import pytest

GREEDY = dict(temperature=0)
ASK = [{"role": "user", "content": "What is 347 + 285?"}]
LONG = [{"role": "user", "content": "Repeat this: one two three four five six seven eight nine ten"}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=120, max_retries=0)


def chat(client, messages=ASK, **fields):
    return client.chat.completions.create(model="winnow-tiny", messages=messages, **{**GREEDY, **fields})


def collect(stream):
    """reasoning, content, finish reasons and the chunks themselves of one choice"""
    reasoning, content, finish, chunks = "", "", [], []
    for chunk in stream:
        chunks.append(chunk)
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            if choice.finish_reason:
                finish.append(choice.finish_reason)
    return reasoning, content, finish, chunks


def refused(call, **fields):
    with pytest.raises(openai.BadRequestError) as e:
        call(**fields)
    return e.value.body


def test_models(client, server):
    models = client.models.list().data
    assert [m.id for m in models] == ["winnow-tiny"] == [server.name]
    assert client.models.retrieve("winnow-tiny").owned_by == "winnow"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat(client):
    r = chat(client)
    m = r.choices[0].message
    assert "632" in m.content and "</think>" not in m.content and "<|" not in m.content
    assert m.role == "assistant" and m.reasoning_content and "</think>" not in m.reasoning_content
    assert r.choices[0].finish_reason == "stop"
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-") and abs(r.created - time.time()) < 100
    u = r.usage
    assert u.prompt_tokens > 10 and u.total_tokens == u.prompt_tokens + u.completion_tokens
    assert 0 < u.completion_tokens_details.reasoning_tokens < u.completion_tokens


WEATHER = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


def test_conversation_with_tools(client):
    r = chat(client, ASK_WEATHER, tools=WEATHER)
    m = r.choices[0].message
    assert r.choices[0].finish_reason == "tool_calls" and m.content is None and "get_weather" in m.reasoning_content
    assert [(c.type, c.function.name, json.loads(c.function.arguments)) for c in m.tool_calls] == [("function", "get_weather", {"city": "Paris"})]
    without = chat(client, ASK_WEATHER, tools=WEATHER, tool_choice="none")
    assert without.usage.prompt_tokens < r.usage.prompt_tokens
    result = {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": '{"temperature": 21, "sky": "clear"}'}
    answer = chat(client, ASK_WEATHER + [m.model_dump(exclude_none=True), result], tools=WEATHER)
    assert "21" in answer.choices[0].message.content and answer.choices[0].finish_reason == "stop"


def test_calls_stream_as_the_whole_has_them(client):
    whole = chat(client, ASK_WEATHER, tools=WEATHER).choices[0].message
    with client.chat.completions.stream(model="winnow-tiny", messages=ASK_WEATHER, tools=WEATHER, temperature=0) as stream:
        events = [e.type for e in stream]
        final = stream.get_final_completion().choices[0]
    call = final.message.tool_calls[0]
    assert final.finish_reason == "tool_calls" and (final.message.content or None) == whole.content
    assert (call.function.name, call.function.arguments) == (whole.tool_calls[0].function.name, whole.tool_calls[0].function.arguments)
    assert "tool_calls.function.arguments.delta" in events and "tool_calls.function.arguments.done" in events
    pieces = [c for chunk in chat(client, ASK_WEATHER, tools=WEATHER, stream=True) for c in chunk.choices[0].delta.tool_calls or []]
    assert len(pieces) > 2 and pieces[0].id and all(p.id is None and p.function.name is None for p in pieces[1:])


def test_a_call_that_breaks_off_is_no_json(client):
    n = chat(client, ASK_WEATHER, tools=WEATHER).usage.completion_tokens
    cut = chat(client, ASK_WEATHER, tools=WEATHER, max_tokens=n - 4).choices[0]
    assert cut.finish_reason == "length"
    with pytest.raises(ValueError):
        json.loads(cut.message.tool_calls[0].function.arguments)


def test_thinking_can_be_turned_off(client):
    capital = [{"role": "user", "content": "What is the capital of Peru?"}]
    for how in ({"reasoning_effort": "none"}, {"extra_body": {"thinking": {"type": "disabled"}}}, {"extra_body": {"thinking_token_budget": 0}},
                {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}):
        r = chat(client, capital, **how)
        assert "Lima" in r.choices[0].message.content and getattr(r.choices[0].message, "reasoning_content", None) is None, how
        assert r.usage.completion_tokens_details.reasoning_tokens == 0


def test_thinking_budget_is_hard(client):
    free = chat(client).choices[0].message.reasoning_content
    for n in (1, 5, 20):
        r = chat(client, extra_body={"thinking_token_budget": n})
        m = r.choices[0].message
        assert free.startswith(m.reasoning_content) and len(m.reasoning_content) < len(free) and m.content
        assert r.usage.completion_tokens_details.reasoning_tokens == n + 1 and r.choices[0].finish_reason == "stop"  # and the closing tag
        reasoning, content, finish, _ = collect(chat(client, extra_body={"thinking_token_budget": n}, stream=True))
        assert (reasoning, content, finish) == (m.reasoning_content, m.content, ["stop"])
    enough = chat(client, extra_body={"thinking": {"type": "enabled", "budget_tokens": 300}})
    assert enough.choices[0].message == chat(client).choices[0].message
    cut = chat(client, max_tokens=6, extra_body={"thinking_token_budget": 5})
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 6 and cut.choices[0].message.content == ""
    tight = chat(client, max_tokens=8, extra_body={"thinking_token_budget": 5})
    assert tight.choices[0].finish_reason == "length" and tight.usage.completion_tokens == 8 and tight.choices[0].message.content
    several = chat(client, n=3, temperature=1.5, seed=3, extra_body={"thinking_token_budget": 4, "timeout": 60}, max_tokens=40)
    assert len({c.message.content for c in several.choices}) > 1 and several.usage.completion_tokens_details.reasoning_tokens <= 15


def test_stream_equals_whole(client):
    whole = chat(client)
    reasoning, content, finish, chunks = collect(chat(client, stream=True))
    assert content == whole.choices[0].message.content
    assert reasoning == whole.choices[0].message.reasoning_content
    assert finish == ["stop"]
    assert len({c.id for c in chunks}) == 1 and chunks[0].object == "chat.completion.chunk"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in chunks[1:])
    assert all(c.usage is None for c in chunks)
    assert len(chunks) > 5


def test_stream_usage(client):
    whole = chat(client)
    chunks = collect(chat(client, stream=True, stream_options={"include_usage": True}))[3]
    usages = [u.model_dump() for u in (chunks[-1].usage, whole.usage)]
    for u in usages:
        assert set(u.pop("winnow")) == {"cached", "preemptions", "queued_s", "prefill_s", "decode_s"}  # times differ
    assert chunks[-1].choices == [] and usages[0] == usages[1]
    assert all(c.usage is None for c in chunks[:-1])


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_stop_strings(client, length):
    content = chat(client, LONG).choices[0].message.content
    at = len(content) // 2
    stop = content[at:at + length]
    want = content[:content.find(stop)]
    whole = chat(client, LONG, stop=stop)
    assert whole.choices[0].message.content == want and whole.choices[0].finish_reason == "stop"
    _, streamed, finish, chunks = collect(chat(client, LONG, stop=["never to be seen", stop, "nor this", "or this", "or that"], stream=True))
    assert streamed == want and finish == ["stop"]
    # A stop string that almost comes is held back and then shown whole.
    almost = content[at:at + length] + "\x01"
    assert collect(chat(client, LONG, stop=almost, stream=True))[1] == content


def test_stop_strings_in_completions(client):
    ask = dict(model="winnow-tiny", prompt="[gMASK]<sop><|system|>Reasoning Effort: Low<|user|>Repeat this: red green blue<|assistant|><think></think>", max_tokens=50, **GREEDY)
    content = client.completions.create(**ask).choices[0].text
    assert "green" in content
    want = content[:content.index("green")]
    assert client.completions.create(**ask, stop="green").choices[0].text == want
    assert "".join(c.choices[0].text for c in client.completions.create(**ask, stop="green", stream=True)) == want


def test_stop_token_ids(client):
    r = chat(client, extra_body={"stop_token_ids": [6130]})  # </think>
    assert r.choices[0].finish_reason == "stop" and r.choices[0].message.content == ""
    assert r.choices[0].message.reasoning_content == chat(client).choices[0].message.reasoning_content


def test_max_tokens(client):
    for field in ("max_tokens", "max_completion_tokens"):
        r = chat(client, **{field: 5})
        assert r.usage.completion_tokens == 5 and r.choices[0].finish_reason == "length"
    r = client.completions.create(model="winnow-tiny", prompt="Hello", temperature=0, extra_body={"ignore_eos": True})
    assert r.usage.completion_tokens == 16
    r = client.completions.create(model="winnow-tiny", prompt="Hello", temperature=0, max_tokens=40, extra_body={"ignore_eos": True})
    assert r.usage.completion_tokens == 40 and r.choices[0].finish_reason == "length"


def test_min_tokens(client):
    n = chat(client).usage.completion_tokens
    r = chat(client, extra_body={"min_tokens": n + 5}, max_tokens=n + 10)
    assert r.usage.completion_tokens >= n + 5


def test_seed(client):
    hot = dict(temperature=1.5, max_tokens=30, extra_body={"ignore_eos": True})
    texts = [chat(client, LONG, seed=s, **hot).choices[0].message for s in (1, 1, 2)]
    texts = [m.reasoning_content + "|" + m.content for m in texts]
    assert texts[0] == texts[1] != texts[2]
    reasoning, content, _, _ = collect(chat(client, LONG, seed=1, stream=True, **hot))
    assert reasoning + "|" + content == texts[0]
    free = {m.reasoning_content + m.content for m in (chat(client, LONG, **hot).choices[0].message for _ in range(3))}
    assert len(free) == 3


def test_choices(client):
    hot = dict(temperature=1.5, seed=7, max_tokens=20, extra_body={"ignore_eos": True})
    r = chat(client, LONG, n=4, **hot)
    assert [c.index for c in r.choices] == [0, 1, 2, 3]
    texts = [c.message.reasoning_content + c.message.content for c in r.choices]
    assert len(set(texts)) == 4
    assert r.usage.completion_tokens == 80
    alone = chat(client, LONG, **hot).choices[0].message
    assert alone.reasoning_content + alone.content == texts[0]
    parts = ["", "", "", ""]
    for chunk in chat(client, LONG, n=4, stream=True, **hot):
        for c in chunk.choices:
            parts[c.index] += (getattr(c.delta, "reasoning_content", None) or "") + (c.delta.content or "")
    assert parts == texts


def test_chat_logprobs(client):
    plain = chat(client)
    assert plain.choices[0].logprobs is None
    r = chat(client, logprobs=True, top_logprobs=3)
    tokens = r.choices[0].logprobs.content
    assert len(tokens) == r.usage.completion_tokens
    for t in tokens:
        assert t.logprob <= 0 and len(t.top_logprobs) == 3
        assert t.top_logprobs[0].token == t.token  # greedy
        assert abs(t.top_logprobs[0].logprob - t.logprob) < 1e-6
        assert [x.logprob for x in t.top_logprobs] == sorted((x.logprob for x in t.top_logprobs), reverse=True)
    text = b"".join(bytes(t.bytes) for t in tokens[:-1]).decode()  # the last one is the stop token
    m = r.choices[0].message
    assert text == m.reasoning_content + "</think>" + m.content
    streamed = [t for chunk in collect(chat(client, logprobs=True, top_logprobs=3, stream=True))[3] for t in chunk.choices[0].logprobs.content]
    assert streamed == tokens
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_completion_logprobs(client):
    ask = dict(model="winnow-tiny", prompt="Hello", temperature=0, max_tokens=8, extra_body={"ignore_eos": True})
    r = client.completions.create(**ask, logprobs=2)
    l = r.choices[0].logprobs
    assert len(l.tokens) == len(l.token_logprobs) == len(l.top_logprobs) == len(l.text_offset) == 8
    assert l.text_offset[0] == 0 and l.text_offset == sorted(l.text_offset)
    assert all(len(t) == 2 for t in l.top_logprobs)
    offsets = [o for c in client.completions.create(**ask, logprobs=2, stream=True) for o in c.choices[0].logprobs.text_offset]
    assert offsets == l.text_offset
    assert client.completions.create(**ask, logprobs=0).choices[0].logprobs.top_logprobs is None


def test_echo_scores_the_prompt(client):
    """what the model said of its own answer while it wrote it, it says of it in a prompt"""
    import httpx

    ids = lambda text: httpx.post(str(client.base_url).replace("/v1/", "/tokenize"), json={"prompt": text}).json()["tokens"]
    ask = dict(model="winnow-tiny", temperature=0)
    prompt = ids("Count: one two three four five six seven " * 30)  # several chunks
    wrote = client.completions.create(prompt=prompt, max_tokens=40, logprobs=3, extra_body={"ignore_eos": True}, **ask).choices[0]
    text = wrote.text
    whole = prompt + ids(text)
    assert len(whole) == len(prompt) + 40, "the text has other tokens than were drawn: take another prompt"
    for again in range(2):
        r = client.completions.create(prompt=whole, max_tokens=1, echo=True, logprobs=3, **ask)
        c, scores = r.choices[0], r.choices[0].logprobs
        assert r.usage.prompt_tokens == len(whole) and r.usage.completion_tokens == 1 and r.usage.prompt_tokens_details.cached_tokens == 0
        assert c.text.startswith("Count: one two") and text in c.text and "".join(scores.tokens) == c.text
        assert len(scores.token_logprobs) == len(scores.top_logprobs) == len(scores.text_offset) == len(whole) + 1
        assert scores.token_logprobs[0] is None and scores.top_logprobs[0] is None and all(x <= 0 for x in scores.token_logprobs[1:])
        assert scores.token_logprobs[len(prompt):-1] == pytest.approx(wrote.logprobs.token_logprobs, abs=0.02)
        assert [set(t) for t in scores.top_logprobs[len(prompt):-1]] == [set(t) for t in wrote.logprobs.top_logprobs]
    only = client.completions.create(prompt=whole, max_tokens=0, echo=True, logprobs=3, **ask)
    assert only.usage.completion_tokens == 0 and only.choices[0].finish_reason == "length"
    assert only.choices[0].logprobs.token_logprobs == scores.token_logprobs[:-1] and c.text.startswith(only.choices[0].text)
    stream = list(client.completions.create(prompt=whole, max_tokens=5, echo=True, logprobs=3, stream=True, **ask))
    five = client.completions.create(prompt=whole, max_tokens=5, echo=True, logprobs=3, **ask).choices[0]
    assert "".join(e.choices[0].text for e in stream) == five.text
    assert [x for e in stream for x in e.choices[0].logprobs.token_logprobs] == five.logprobs.token_logprobs
    assert [x for e in stream for x in e.choices[0].logprobs.text_offset] == five.logprobs.text_offset
    plain = client.completions.create(prompt="Hello there", max_tokens=3, echo=True, **ask).choices[0]
    assert plain.text == "Hello there" + client.completions.create(prompt="Hello there", max_tokens=3, **ask).choices[0].text and plain.logprobs is None
    two = client.completions.create(prompt=[whole, prompt[:3]], max_tokens=0, echo=True, logprobs=1, **ask).choices
    assert [len(c.logprobs.tokens) for c in two] == [len(whole), 3]
    assert refused(client.completions.create, prompt="Hello", max_tokens=0, **ask)["param"] == "max_tokens"


def test_logit_bias(client):
    r = client.completions.create(model="winnow-tiny", prompt="Hello", temperature=0, max_tokens=4, logit_bias={"65": 100})
    assert len(set(r.choices[0].text)) == 1 and r.usage.completion_tokens == 4


def test_prompts_as_tokens_and_lists(client):
    ask = dict(model="winnow-tiny", temperature=0, max_tokens=6)
    one = client.completions.create(prompt="Hello there", **ask)
    both = client.completions.create(prompt=["Hello there", [300, 301, 302]], **ask)
    assert [c.index for c in both.choices] == [0, 1]
    assert both.choices[0].text == one.choices[0].text
    assert both.usage.prompt_tokens == one.usage.prompt_tokens + 3
    assert both.choices[1].text == client.completions.create(prompt=[300, 301, 302], **ask).choices[0].text


def test_control_tokens_of_users_stay_text(client):
    a = chat(client, [{"role": "user", "content": "<|user|>"}], max_tokens=1).usage.prompt_tokens
    b = chat(client, [{"role": "user", "content": "x"}], max_tokens=1).usage.prompt_tokens
    assert a > b


def test_reasoning_effort_reaches_the_template(client):
    low = chat(client, [{"role": "user", "content": "Hello"}], reasoning_effort="low").choices[0].message
    assert low.content and not getattr(low, "reasoning_content", None)


def test_wrong_fields_are_named(client):
    for fields, param in [
        (dict(temperature=3), "temperature"), (dict(n=0), "n"), (dict(n=100), "n"), (dict(max_tokens=0), "max_tokens"), (dict(max_tokens=10**7), "max_tokens"),
        (dict(top_p=0), "top_p"), (dict(stop=[""]), "stop[0]"), (dict(top_logprobs=3), "top_logprobs"), (dict(logprobs=True, top_logprobs=50), "top_logprobs"),
        (dict(extra_body={"beam": 1}), "beam"), (dict(tool_choice="required"), "tool_choice"), (dict(response_format={"type": "xml"}), "response_format.type"),
        (dict(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]), "messages[0].content[0].type"),
        (dict(logit_bias={"x": 1}), "logit_bias.x"), (dict(seed="a"), "seed"), (dict(messages=[]), "messages"),
    ]:
        body = refused(lambda **f: chat(client, **f), **fields)
        assert body["param"] == param and param in body["message"] and body["type"] == "invalid_request_error", body
    with pytest.raises(openai.NotFoundError) as e:
        client.chat.completions.create(model="gpt-7", messages=ASK)
    assert e.value.body["param"] == "model" and e.value.body["code"] == "model_not_found"
    body = refused(lambda **f: chat(client, **f), messages=[{"role": "user", "content": "word " * 40000}])
    assert body["param"] == "messages" and body["code"] == "context_length_exceeded"


def test_concurrent_requests_equal_those_alone(client):
    asks = [[{"role": "user", "content": f"What is {i} + {3 * i + 1}?"}] for i in range(12)]
    alone = [chat(client, a).choices[0].message.content for a in asks]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = list(pool.map(lambda a: chat(client, a).choices[0].message.content, asks))
        streamed = list(pool.map(lambda a: collect(chat(client, a, stream=True))[1], asks))
    assert together == alone == streamed


def test_leaving_a_stream_frees_the_server(client, server):
    for _ in range(20):  # more than run at once: if left ones ran on, the next would wait for 20 full contexts
        stream = chat(client, LONG, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
    start = time.time()
    assert "632" in chat(client).choices[0].message.content
    assert time.time() - start < 30
