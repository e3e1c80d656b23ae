"""Answers that must have a form: JSON by schema, expressions, grammars, and calls of tools that must come."""
import json
import os
import random
import re

import anthropic
import jsonschema
import openai
import pydantic
import pytest
import schemas
from test_http import ask, request

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
          "tags": {"type": "array", "items": {"enum": ["a", "b", None]}, "maxItems": 3}}, "required": ["name", "age"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": {
             "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 5}},
             "required": ["city", "days"], "additionalProperties": False}}},
         {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=300, max_retries=0)


def chat(client, messages=ASK, **fields):
    return client.chat.completions.create(model="winnow-tiny", messages=messages, **{"temperature": 1, "seed": 1, "max_tokens": 400, **fields})


@pytest.fixture(scope="module")
def ends(server):
    """Bias towards what ends a string, a list and a value: the small model was not taught to write JSON."""
    ids = {}
    for text in ('"', '"}', '"]', "]", "}", "}}"):
        tokens = ask_json(server, "/tokenize", {"prompt": text})["tokens"]
        ids |= {str(tokens[0]): 8} if len(tokens) == 1 else {}
    closing = ask_json(server, "/tokenize", {"messages": [{"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}]}, {"role": "tool", "content": "x"}]})["tokens"]
    return ids | {str(t): 6 for t in closing[-8:] if t > 6130}


def ask_json(server, path, body):
    status, _, text = ask(server, request("POST", path, body))
    assert status == 200, text
    return json.loads(text)


def form(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, **more}}


def test_json_schema_behind_a_thought_and_without(client):
    for seed in range(5):
        for budget in (0, 12):
            r = chat(client, seed=seed, response_format=form(PERSON, strict=True), extra_body={"thinking_token_budget": budget})
            assert r.choices[0].finish_reason == "stop"
            jsonschema.validate(json.loads(r.choices[0].message.content), PERSON)
            assert bool(getattr(r.choices[0].message, "reasoning_content", None)) == (budget > 0)


def test_any_json_object(client):
    r = chat(client, messages=[{"role": "user", "content": "Hello"}], temperature=0, response_format={"type": "json_object"}, max_tokens=300,
             extra_body={"thinking_token_budget": 0})
    text = r.choices[0].message.content
    assert text.startswith("{") and (r.choices[0].finish_reason == "length" or isinstance(json.loads(text), dict))


def test_the_client_parses_into_its_own_classes(client):
    class Step(pydantic.BaseModel):
        text: str
        done: bool

    class Plan(pydantic.BaseModel):
        steps: list[Step]
        note: str | None

    r = client.chat.completions.parse(model="winnow-tiny", messages=ASK, response_format=Plan, seed=3, max_tokens=1500,
                                      extra_body={"thinking_token_budget": 5, "logit_bias": {}})
    assert r.choices[0].finish_reason == "length" or isinstance(r.choices[0].message.parsed, Plan)
    r = client.responses.parse(model="winnow-tiny", input="Hello", text_format=Step, extra_body={"thinking_token_budget": 5, "seed": 1})
    assert isinstance(r.output_parsed, Step) and r.text.format.type == "json_schema"


def test_expressions_choices_and_grammars(client):
    def content(**form):
        r = chat(client, extra_body={"structured_outputs": form, "thinking_token_budget": 0})
        assert r.choices[0].finish_reason == "stop"
        return r.choices[0].message.content

    assert re.fullmatch(r"[A-Z]{3}-\d{2,4}", content(regex="[A-Z]{3}-[0-9]{2,4}"))
    assert content(choice=["yes, 語", "no"]) in ("yes, 語", "no")
    assert re.fullmatch(r"\[\d\](, \[\d\]){2}", content(grammar='root ::= item (", " item){2}\nitem ::= "[" [0-9] "]"'))
    jsonschema.validate(json.loads(content(json=PERSON)), PERSON)
    r = client.completions.create(model="winnow-tiny", prompt="Is it so?", extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert r.choices[0].text in ("yes", "no") and r.choices[0].finish_reason == "stop"


def test_each_choice_has_its_own_place_in_the_grammar(client):
    r = chat(client, n=4, temperature=1.5, extra_body={"structured_outputs": {"regex": "[a-f]{8,12}"}, "thinking_token_budget": 3})
    texts = [c.message.content for c in r.choices]
    assert len(set(texts)) > 1 and all(re.fullmatch("[a-f]{8,12}", t) for t in texts)


def test_min_tokens_and_ignore_eos_do_not_break_the_form(client):
    for extra in ({"min_tokens": 100}, {"ignore_eos": True}):
        r = chat(client, extra_body={"structured_outputs": {"choice": ["yes", "no"]}, "thinking_token_budget": 0, **extra})
        assert r.choices[0].message.content in ("yes", "no") and r.choices[0].finish_reason == "stop"


def test_forced_calls(client):
    for choice, names in (("required", {"get_weather", "now"}), ({"type": "function", "function": {"name": "now"}}, {"now"}),
                          ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}},
                           {"get_weather"})):
        for budget in (0, 10):
            for parallel in (True, False):
                fields = dict(messages=[{"role": "user", "content": "Hello"}], tools=TOOLS, tool_choice=choice, parallel_tool_calls=parallel, max_tokens=300,
                              extra_body={"thinking_token_budget": budget})
                r = chat(client, **fields)
                calls = r.choices[0].message.tool_calls
                assert r.choices[0].finish_reason in ("tool_calls", "length") and not r.choices[0].message.content
                assert {c.function.name for c in calls} <= names and (parallel or len(calls) == 1)
                for c in calls[:-1] if r.choices[0].finish_reason == "length" else calls:
                    jsonschema.validate(json.loads(c.function.arguments), next(t for t in TOOLS if t["function"]["name"] == c.function.name)["function"]["parameters"])
                pieces = [d for chunk in chat(client, stream=True, **fields) for d in (chunk.choices[0].delta.tool_calls or [])]
                assert "".join(p.function.arguments or "" for p in pieces) == "".join(c.function.arguments for c in calls)


def test_forced_calls_of_the_other_apis(server, client):
    messages = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300)
    tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]
    hello = [{"role": "user", "content": "Hello"}]
    for choice, names in (({"type": "any"}, {"get_weather", "now"}), ({"type": "tool", "name": "now"}, {"now"})):
        m = messages.messages.create(model="winnow-tiny", max_tokens=300, messages=hello, tools=tools, tool_choice={**choice, "disable_parallel_tool_use": True})
        assert m.stop_reason == "tool_use" and {b.name for b in m.content if b.type == "tool_use"} <= names
    m = messages.messages.create(model="winnow-tiny", max_tokens=300, messages=hello, extra_body={"output_config": {"format": {"type": "json_schema", "schema": PERSON}}})
    jsonschema.validate(json.loads(m.content[0].text), PERSON)
    r = client.responses.create(model="winnow-tiny", input="Hello", tools=[{"type": "function", **t["function"]} for t in TOOLS],
                                tool_choice={"type": "function", "name": "now"}, parallel_tool_calls=False)
    assert [o.name for o in r.output if o.type == "function_call"] == ["now"] and r.tool_choice.name == "now"


def test_an_answer_is_either_a_call_or_of_the_form(client):
    for seed in range(6):
        m = chat(client, seed=seed, tools=TOOLS, response_format=form(PERSON), extra_body={"thinking_token_budget": 10}).choices[0].message
        if m.tool_calls:
            assert not m.content
        else:
            jsonschema.validate(json.loads(m.content), PERSON)


def test_refused_with_the_place(client):
    for fields, param, text in (
            (dict(response_format=form({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}})), "response_format.json_schema.schema", "#/properties/a: uniqueItems"),
            (dict(response_format=form({"$ref": "#/$defs/none"})), "response_format.json_schema.schema", "none"),
            (dict(response_format=form({"type": "string", "pattern": "("})), "response_format.json_schema.schema", "arenthes"),
            (dict(response_format=form({"type": "integer", "minimum": 5, "maximum": 3})), "response_format.json_schema.schema", "minimum"),
            (dict(response_format=form(False)), "response_format.json_schema.schema", "false"),
            (dict(extra_body={"structured_outputs": {"regex": "[a"}}), "structured_outputs.regex", ""),
            (dict(extra_body={"structured_outputs": {"grammar": "root ::= other"}}), "structured_outputs.grammar", "other"),
            (dict(tools=[TOOLS[1], {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(x"}}}}}]),
             "tools[1]", "arenthes"),
            (dict(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}}), "tool_choice", "no tool 'f'")):
        with pytest.raises(openai.BadRequestError) as e:
            chat(client, **fields)
        assert e.value.body["param"] == param and text in e.value.body["message"], e.value.body


def test_tools_that_are_not_strict_do_not_loosen_the_form(client):
    both = {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]}  # XGrammar takes it for anyOf
    for tools in ([], [TOOLS[1]]):
        with pytest.raises(openai.BadRequestError) as e:
            chat(client, response_format=form(both, strict=True), **({"tools": tools} if tools else {}))
        assert e.value.body["param"] == "response_format.json_schema.schema"


def test_a_schema_that_is_not_strict_is_held_to_as_far_as_can_be(client):
    loose = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 2}}, "required": ["a"]}
    r = chat(client, response_format=form(loose, strict=False), extra_body={"thinking_token_budget": 0})
    assert all(isinstance(i, int) for i in json.loads(r.choices[0].message.content)["a"])
    tool = {"type": "function", "function": {"name": "f", "parameters": loose}}
    r = chat(client, tools=[tool], tool_choice="required", parallel_tool_calls=False, extra_body={"thinking_token_budget": 0})
    assert len(json.loads(r.choices[0].message.tool_calls[0].function.arguments)["a"]) <= 2


def test_random_schemas(client, ends):
    """WINNOW_SCHEMAS tools with random schemas, called in every way under random bias: each whole call is valid, and told alike in a stream."""
    whole = 0
    for seed in range(int(os.environ.get("WINNOW_SCHEMAS", "40"))):
        rng = random.Random(seed)
        functions = [{"name": f"tool_{i}" if rng.random() < 0.8 else f"ütil-{i}", "strict": True, "parameters": schemas.parameters(rng)} for i in range(rng.randint(1, 3))]
        name = rng.choice(functions)["name"]
        choice = rng.choice(["auto", "required", {"type": "function", "function": {"name": name}}])
        fields = dict(messages=[{"role": "user", "content": rng.choice(["Hello", "What is the weather in Paris?", "Call " + name])}],
                      tools=[{"type": "function", "function": f} for f in functions], tool_choice=choice, seed=seed, max_tokens=600,
                      parallel_tool_calls=rng.random() < 0.5, logit_bias=ends | {str(rng.randrange(6000)): rng.uniform(-20, 6) for _ in range(20)},
                      extra_body={"thinking_token_budget": rng.choice([0, 8])})
        r = chat(client, **fields).choices[0]
        calls = r.message.tool_calls or []
        assert r.finish_reason in ("tool_calls", "length", "stop") and (calls or choice == "auto" or r.finish_reason == "length")
        for c in calls[:-1] if r.finish_reason == "length" else calls:
            f = next(f for f in functions if f["name"] == c.function.name)
            jsonschema.validate(json.loads(c.function.arguments), f["parameters"])
            assert choice == "auto" or choice == "required" or f["name"] == name
            whole += 1
        told = {}
        content = ""
        for chunk in chat(client, stream=True, **fields):
            content += chunk.choices[0].delta.content or ""
            for d in chunk.choices[0].delta.tool_calls or []:
                old = told.setdefault(d.index, ["", ""])
                old[0] += d.function.name or ""
                old[1] += d.function.arguments or ""
        assert [tuple(t) for t in told.values()] == [(c.function.name, c.function.arguments) for c in calls]
        assert content == (r.message.content or "")
    assert whole > 10


def test_random_schemas_of_answers(client, ends):
    whole = 0
    for seed in range(int(os.environ.get("WINNOW_SCHEMAS", "40"))):
        rng = random.Random(10**6 + seed)
        schema = schemas.value(rng, 0)
        r = chat(client, seed=seed, max_tokens=600, response_format=form(schema, strict=True), extra_body={"thinking_token_budget": 0},
                 logit_bias=ends | {str(rng.randrange(6000)): rng.uniform(-20, 6) for _ in range(20)}).choices[0]
        if r.finish_reason == "stop":
            jsonschema.validate(json.loads(r.message.content), schema)
            whole += 1
    assert whole > 10
