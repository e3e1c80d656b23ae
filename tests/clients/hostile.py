"""Requests that nobody means well with, made by rules: bodies() for the JSON layer, wires() for bytes on a socket. Each case says what
must come of it. Nothing here is random, so a case has the same name and bytes in every run."""
import dataclasses
import json
import typing

CHAT, COMPLETION, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
COUNT, TOKENIZE, DETOKENIZE = "/v1/messages/count_tokens", "/tokenize", "/detokenize"
SAY = [{"role": "user", "content": "Hi"}]
# A request that each route takes.
GOOD = {
    CHAT: {"messages": SAY, "max_tokens": 2}, COMPLETION: {"prompt": "Hi",
                                                           "max_tokens": 2}, RESPONSES: {"input": "Hi", "max_output_tokens": 2},
    MESSAGES: {"messages": SAY, "max_tokens": 2}, COUNT: {"messages": SAY}, TOKENIZE: {"prompt": "Hi"}, DETOKENIZE: {"tokens": [1, 2]}
}
PROMPT = {
    CHAT: "messages", COMPLETION: "prompt", RESPONSES: "input", MESSAGES: "messages", COUNT: "messages", TOKENIZE: "prompt",
    DETOKENIZE: "tokens"
}
GENERATE = [CHAT, COMPLETION, RESPONSES, MESSAGES]
OPENAI = [CHAT, COMPLETION]
OK = 200


@dataclasses.dataclass
class Case:
    name: str
    path: str
    body: typing.Callable[[], bytes]
    status: int = 400
    param: str | None = None  # the field at fault, or how its name begins; None: the body as a whole


@dataclasses.dataclass
class Wire:
    name: str
    parts: typing.Callable[[], list]  # bytes to send; a number is a pause in seconds, HALF closes the sending side, RESET the connection
    statuses: tuple  # of the answers in their order; () is none, and the connection closed


HALF, RESET = object(), object()


def dump(value):
    return json.dumps(value).encode()


def raw(path, field, text):
    """The route's good request with `field` as it is written in `text`."""
    rest = {k: v for k, v in GOOD[path].items() if k != field}
    return (dump(rest)[:-1] + (b", " if rest else b"") + dump(field) + b": " + (text if isinstance(text, bytes) else text.encode()) + b"}")


def broken_json():
    """name, bytes: none is a JSON text (RFC 8259)."""
    out = {
        "empty": b"", "space": b" \n\t ", "brace": b"{", "bracket": b"[", "end": b"}", "two": b"{}{}", "comma": b'{"a": 1,}',
        "leading comma": b'{, "a": 1}', "no colon": b'{"a" 1}', "no value": b'{"a": }', "bare key": b"{a: 1}", "single quotes": b"{'a': 1}",
        "comment": b"{/* a */}", "line comment": b"{} // a", "open string": b'{"a": "b', "open escape": b'{"a": "\\',
        "bad escape": b'{"a": "\\x41"}', "short unicode": b'{"a": "\\u12"}', "bad unicode": b'{"a": "\\uzzzz"}',
        "lone high surrogate": b'{"a": "\\ud800"}', "lone low surrogate": b'{"a": "\\udc00"}',
        "swapped surrogates": b'{"a": "\\udc00\\ud800"}', "high and text": b'{"a": "\\ud83dx"}', "two high": b'{"a": "\\ud83d\\ud83d"}',
        "surrogate key": b'{"\\ud800": 1}', "raw newline": b'{"a": "b\nc"}', "raw NUL": b'{"a": "b\0c"}', "NUL": b"\0",
        "NUL behind": b"{}\0", "tab": b'{"a": "\t"}', "NaN": b'{"a": NaN}', "Infinity": b'{"a": Infinity}',
        "minus Infinity": b'{"a": -Infinity}', "plus": b'{"a": +1}', "leading zero": b'{"a": 01}', "dot": b'{"a": .5}',
        "dot behind": b'{"a": 1.}', "exponent": b'{"a": 1e}', "hex": b'{"a": 0x10}', "minus": b'{"a": -}', "True": b'{"a": True}',
        "undefined": b'{"a": undefined}', "tru": b'{"a": tru}', "byte order mark": b"\xef\xbb\xbf{}", "UTF-16": '{"a": 1}'.encode("utf-16"),
        "UTF-32": '{"a": 1}'.encode("utf-32-le"), "latin-1": b'{"a": "\xe4"}', "overlong": b'{"a": "\xc0\xaf"}',
        "long overlong": b'{"a": "\xe0\x80\xaf"}', "encoded surrogate": b'{"a": "\xed\xa0\x80"}',
        "beyond unicode": b'{"a": "\xf4\x90\x80\x80"}', "five bytes": b'{"a": "\xf8\x88\x80\x80\x80"}',
        "cut sequence": b'{"a": "\xe2\x82"}', "continuation": b'{"a": "\x80"}', "bad key": b'{"\xff": 1}', "0xff": b"\xff" * 100,
        "form": b"prompt=Hi&max_tokens=1", "XML": b"<prompt>Hi</prompt>",
        "multipart": b'--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nHi\r\n--x--', "gzip": b"\x1f\x8b\x08\0\0\0\0\0",
        "half": dump(GOOD[CHAT])[:-9], "deep array": b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "very deep array": b"[" * 200000,
        "very deep object": b'{"a":' * 200000, "deep closed": b'{"a":' * 50 + b"1" + b"}" * 50, "mixed deep": b'{"a":[' * 100000,
        "long number and a fault": b'{"a": ' + b"1" * 100000 + b"x}", "long key and a fault": b'{"' + b"k" * 100000
    }
    return out


WRONG_TOPS = {
    "array": b"[]", "string": b'"x"', "number": b"5", "null": b"null", "true": b"true", "list of bodies": b'[{"prompt": "Hi"}]',
    "1e999": b"1e999"
}

# What is no whole number that any field takes.
ODD = {
    "2^31 and a half": "2147483648.5", "2^63": "9223372036854775808", "2^64": "18446744073709551616", "-2^63-1": "-9223372036854775809",
    "1e999": "1e999", "-1e999": "-1e999", "1e308": "1e308", "1e-999": "0.5e-300", "half": "0.5", "many digits": "9" * 400,
    "many decimals": "0." + "1" * 400, "string": '"5"', "true": "true", "list": "[5]", "object": "{}", "empty string": '""',
    "NUL string": '"\\u0000"'
}
INTEGERS = {
    CHAT: ["n", "max_tokens", "max_completion_tokens", "min_tokens", "top_logprobs", "priority", "top_k",
           "thinking_token_budget"], COMPLETION: ["n", "best_of", "max_tokens", "min_tokens", "logprobs", "priority", "top_k"],
    RESPONSES: ["max_output_tokens", "min_tokens", "priority", "top_k",
                "thinking_token_budget"], MESSAGES: ["max_tokens", "min_tokens", "priority", "top_k"]
}
FLOATS = {
    "temperature": ["-0.1", "2.1", "-1"], "top_p": ["0", "1.1", "-1"], "min_p": ["-0.1", "1.5"], "presence_penalty": ["-2.1", "2.1"],
    "frequency_penalty": ["-2.1", "3"], "repetition_penalty": ["0", "-1", "11"], "timeout": ["0", "-1", "86401"]
}
NO_NUMBER = ["1e999", "-1e999", "1e308", "9" * 400, '"1"', "true", "[]", "{}", "9223372036854775808", "-9223372036854775809"]


def number_cases():
    for path, fields in INTEGERS.items():
        for i, field in enumerate(fields):
            for j, (name, text) in enumerate(ODD.items()):
                if (i + j) % 3 == 0 or name in ("1e999", "2^63"):
                    yield Case(f"{path} {field} {name}", path, lambda p=path, f=field, t=text: raw(p, f, t), param=field)
            for text in ["-2", "2147483648"] if field in ("n", "best_of", "logprobs", "top_logprobs",
                                                          "top_k") else ["-1"] if field != "priority" else ["2147483648"]:
                yield Case(f"{path} {field} {text}", path, lambda p=path, f=field, t=text: raw(p, f, t), param=field)
    for i, (field, wrong) in enumerate(FLOATS.items()):
        path = GENERATE[i % 4]
        for text in wrong + NO_NUMBER:
            yield Case(f"{path} {field} {text[:24]}", path, lambda p=path, f=field, t=text: raw(p, f, t), param=field)
    for path in GENERATE:
        for text in ["1.5", "18446744073709551616", '"7"', "-9223372036854775809", "1e3", "1e999"]:
            yield Case(f"{path} seed {text}", path, lambda p=path, t=text: raw(p, "seed", t), param="seed")
        for text in ["18446744073709551615", "-9223372036854775808", "0"]:
            yield Case(f"{path} seed {text}", path, lambda p=path, t=text: raw(p, "seed", t), OK)
    yield Case("a temperature too small to tell from none", CHAT, lambda: raw(CHAT, "temperature", "1e-999"), OK)
    yield Case("a number of 100,000 digits behind the dot", CHAT, lambda: raw(CHAT, "temperature", "0." + "3" * 100000), OK)
    yield Case("a number of a million digits", CHAT, lambda: raw(CHAT, "temperature", "1" * 1000000), param="temperature")


def field_cases():
    """Wrong types, unknown values and names, floods."""
    for path in GOOD:
        yield Case(f"{path} unknown field", path, lambda p=path: raw(p, "no_such_field", "1"), param="no_such_field")
        yield Case(f"{path} field with a control character", path, lambda p=path: raw(p, "a\x1b[31m\u0000", "1"), param="a\x1b")
        yield Case(f"{path} field of 100,000 letters", path, lambda p=path: raw(p, "k" * 100000, "1"), param="kkk")
        yield Case(f"{path} 50,000 unknown fields", path, lambda: dump({f"f{i}": i for i in range(50000)}), param="f0")
        yield Case(f"{path} empty object", path, lambda: b"{}", param=PROMPT[path])
        yield Case(f"{path} empty name", path, lambda p=path: raw(p, "", "1"), param="")
        yield Case(f"{path} other model", path, lambda p=path: raw(p, "model", '"../../etc/passwd"'), 404, "model")
        yield Case(f"{path} model of bytes", path, lambda p=path: raw(p, "model", '"' + "x" * 100000 + '"'), 404, "model")
        yield Case(f"{path} model as a number", path, lambda p=path: raw(p, "model", "1"), param="model")
        for text in ["5", "true", "{}", '[{"a": 1}]', "[[]]", "[null]", "[]"]:
            yield Case(f"{path} {PROMPT[path]} {text}",
                       path,
                       lambda p=path, t=text: raw(p, PROMPT[p], t),
                       OK if path == DETOKENIZE and text == "[]" else 400,
                       PROMPT[path])
    for path in GENERATE:
        for field, texts in {
                "stream": ['"yes"', "1", "{}"], "ignore_eos": ["1"], "logit_bias": [
                    "[]", '{"x": 1}', '{"-1": 1}', '{"99999999999": 1}', '{"1": 101}', '{"1": "1"}', '{"1": 1e999}', '{"1 ": 1}',
                    '{"0x1": 1}', '{"\\u0000": 1}', '{"": 1}', '{"1": null}'
                ], "stop_token_ids": ["5", "[-1]", "[2147483648]", '["1"]', "[1.5]", "[[]]"], "cache_salt": ['""', "5"],
                "stop_sequences" if path == MESSAGES else "stop": ["5", '[""]', "[5]", '""', "[[]]", "{}"]
        }.items():
            for text in texts:
                yield Case(f"{path} {field} {text}", path, lambda p=path, f=field, t=text: raw(p, f, t), param=field)
        stop = "stop_sequences" if path == MESSAGES else "stop"
        yield Case(f"{path} 100,000 stop strings",
                   path,
                   lambda p=path, f=stop: raw(p, f, dump([str(i) for i in range(100000)])),
                   param=stop)
        yield Case(f"{path} a stop string of 1 MB", path, lambda p=path, f=stop: raw(p, f, dump(["x" * 1000000])), param=stop)
        yield Case(f"{path} 100,000 stop tokens", path, lambda p=path: raw(p, "stop_token_ids", dump([1] * 100000)), param="stop_token_ids")
        yield Case(f"{path} a flood of logit_bias",
                   path,
                   lambda p=path: raw(p, "logit_bias", dump({str(i): 1
                                                             for i in range(200000)})),
                   param="logit_bias")
        yield Case(f"{path} a salt of 1 MB", path, lambda p=path: raw(p, "cache_salt", dump("s" * 1000000)), param="cache_salt")
        yield Case(f"{path} the key that comes last counts",
                   path,
                   lambda p=path: dump(GOOD[p])[:-1] + b', "temperature": 9, "temperature": 0}',
                   OK)
        yield Case(f"{path} and if it is wrong",
                   path,
                   lambda p=path: dump(GOOD[p])[:-1] + b', "temperature": 0, "temperature": 9}',
                   param="temperature")
        yield Case(f"{path} 100,000 times the same key", path, lambda p=path: dump(GOOD[p])[:-1] + b', "seed": 1' * 100000 + b"}", OK)
        yield Case(f"{path} more tokens than the context",
                   path,
                   lambda p=path: raw(p, "max_output_tokens" if p == RESPONSES else "max_tokens", "2147483647"),
                   param="max_output_tokens" if path == RESPONSES else "max_tokens")
    for field, texts in {
            "tool_choice": ['"x"', "5", '{"type": "x"}', '"required"', '{"type": "function", "function": {"name": "no"}}',
                            "[]"], "tools": ["5", "[5]", "[{}]"], "reasoning_effort": ['"huge"', "5"],
            "response_format": ['"json"', '{"type": "x"}', '{"type": "json_schema"}', "5", "{}"], "stream_options": ["{}", "5"],
            "chat_template_kwargs": ["5", '{"messages": []}'], "structured_outputs": [
                "5", '{"x": 1}', '{"regex": 5}', '{"regex": ""}', '{"choice": []}', '{"choice": [""]}', '{"json": "{"}',
                '{"regex": "a", "choice": ["b"]}'
            ]
    }.items():
        for text in texts:
            yield Case(f"{CHAT} {field} {text}", CHAT, lambda f=field, t=text: raw(CHAT, f, t), param=field)


def message_cases():
    many = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * 50000
    for path in [CHAT, MESSAGES, COUNT]:
        yield Case(f"{path} 100,000 messages", path, lambda p=path: raw(p, "messages", dump(many)), param="messages")
        for name, message in {
                "no role": {"content": "x"}, "odd role": {"role": "root",
                                                          "content": "x"}, "role as a list": {"role": ["user"], "content": "x"},
                "no content": {"role": "user"}, "number": {"role": "user", "content": 5},
                "part without a type": {"role": "user", "content": [{"text": "x"}]}, "part as a number": {"role": "user", "content": [5]},
                "image": {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]},
                "unknown field": {"role": "user", "content": "x", "\u0000": 1}, "role with NUL": {"role": "user\0", "content": "x"}
        }.items():
            yield Case(f"{path} message: {name}", path, lambda p=path, m=message: raw(p, "messages", dump([m])), param="messages[0]")
    yield Case("tools for a prompt that is no conversation", TOKENIZE, lambda: dump({"prompt": "Hi", "tools": [tool()]}), param="tools")
    yield Case("100,000 items", RESPONSES, lambda: raw(RESPONSES, "input", dump(many)), param="input")
    yield Case("100,000 parts",
               CHAT,
               lambda: raw(CHAT, "messages", dump([{"role": "user", "content": [{"type": "text", "text": "x"}] * 100000}])),
               param="messages")
    yield Case("100,000 prompts", COMPLETION, lambda: raw(COMPLETION, "prompt", dump(["x"] * 100000)), param="prompt")
    yield Case("more answers than there may be", COMPLETION, lambda: dump({"prompt": ["x"] * 8, "n": 8}), param="n")
    for name, text in {
            "NUL": "a\0b", "all controls": "".join(map(chr, range(32))), "right to left": "\u202eabc\u202c", "tags": "\U000e0041" * 50,
            "noncharacters": "\uffff\ufffe\U0010ffff", "private use": "\ue000" * 20, "zalgo": "a" + "\u0301" * 2000,
            "byte order marks": "\ufeff" * 50, "emoji": "👩‍👩‍👧‍👦" * 50, "markers": "<|user|><|assistant|><think></think><tool_call>",
            "replacement": "\ufffd" * 50, "line separators": "\u2028\u2029\x85" * 30, "template": "{{ 7 * 7 }}{% for x in y %}",
            "fullwidth": "＜｜user｜＞"
    }.items():
        yield Case(f"a prompt of {name}", CHAT, lambda t=text: raw(CHAT, "messages", dump([{"role": "user", "content": t}])), OK)
        yield Case(f"text of {name} into tokens", TOKENIZE, lambda t=text: raw(TOKENIZE, "prompt", dump(t)), OK)
    yield Case("every token", COMPLETION, lambda: raw(COMPLETION, "prompt", dump(list(range(0, 6000, 7)))), OK)
    for text in ["[-1]", "[2147483648]", "[9223372036854775808]", "[1e999]", "[1.5]", '[1, "a"]', "[null]", "[1, [2]]"]:
        yield Case(f"tokens {text}", COMPLETION, lambda t=text: raw(COMPLETION, "prompt", t), param="prompt")
        yield Case(f"text of tokens {text}", DETOKENIZE, lambda t=text: raw(DETOKENIZE, "tokens", t), param="tokens")
    yield Case("a million tokens of a context of far fewer",
               COMPLETION,
               lambda: raw(COMPLETION, "prompt", b"[" + b"1," * 999999 + b"1]"),
               param="prompt")
    yield Case("text of five million tokens", DETOKENIZE, lambda: raw(DETOKENIZE, "tokens", b"[" + b"1," * 4999999 + b"1]"), param="tokens")
    yield Case("a prompt of 20 MB", COMPLETION, lambda: raw(COMPLETION, "prompt", dump("a" * 20000000)), param="prompt")
    yield Case("text of 20 MB into tokens", TOKENIZE, lambda: raw(TOKENIZE, "prompt", dump("a" * 20000000)), param="prompt")
    yield Case("a body of 40 MB", COMPLETION, lambda: raw(COMPLETION, "prompt", dump("a" * 40000000)), 413)
    for name in ["resp_none", "../../etc/passwd", "\0", "x" * 300, "%00"]:
        yield Case(f"the response before: {name[:20]!r}",
                   RESPONSES,
                   lambda n=name: raw(RESPONSES, "previous_response_id", dump(n)),
                   param="previous_response_id")


def tool(name="f", parameters=None, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object", "properties": {}}, **more}}


def call(arguments):
    return [
        *SAY, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": "1", "content": "x"}
    ]


def tool_cases():

    def tools(*list, **more):
        return dump({**GOOD[CHAT], "tools": list, **more})

    for name in [
            "a\0b", "a\nb", "\x1b[2J", "a b", "</tool_call>", "<arg_key>", "<|user|>", "名前", "😀", "a\"b", "a\\b", "\u202e", "../x", "{{x}}",
            "x" * 256
    ]:
        yield Case(f"a tool called {name[:20]!r}", CHAT, lambda n=name: tools(tool(n)), OK)
        yield Case(f"a forced tool called {name[:20]!r}", CHAT, lambda n=name: tools(tool(n), tool_choice="required"), OK)
        yield Case(f"an argument called {name[:20]!r}",
                   CHAT,
                   lambda n=name: tools(tool(parameters={"type": "object", "properties": {n: {"type": "string"}}, "required": [n]}),
                                        tool_choice="required"),
                   OK)
    yield Case("a tool without a name", CHAT, lambda: tools(tool("")), param="tools[0].function.name")
    yield Case("a tool with a long name", CHAT, lambda: tools(tool("x" * 257)), param="tools[0].function.name")
    yield Case("a tool with a number for a name", CHAT, lambda: tools(tool(5)), param="tools[0].function.name")
    yield Case("100,000 tools", CHAT, lambda: tools(*[tool(f"f{i}") for i in range(100000)]), param="tools")
    yield Case("a tool of 10 MB", CHAT, lambda: tools(tool(description="d" * 10000000)), param="messages")
    yield Case("a tool with a schema of 10 MB",
               CHAT,
               lambda: tools(tool(parameters={"type": "object", "description": "d" * 10000000})),
               param="tools[0].function.parameters")
    yield Case("a tool with 10,000 properties",
               CHAT,
               lambda: tools(tool(parameters={"type": "object", "properties": {f"p{i}": {}
                                                                               for i in range(10000)}})),
               param="tools[0].function.parameters")
    yield Case("a tool that takes a list", CHAT, lambda: tools(tool(parameters={"type": "array"})), param="tools[0].function.parameters")
    for text in ["[]", "5", "{", '{"a": 1e999}', '"x"', '{"a": "\\ud800"}', "[" * 100000, '{"a":' * 100000, "nul"]:
        yield Case(f"arguments {text[:20]}",
                   CHAT,
                   lambda t=text: raw(CHAT, "messages", dump(call(t))),
                   OK if "1e999" in text else 400,
                   "messages[1].tool_calls[0].function.arguments")


def form_cases():

    def schema(s):
        return dump({**GOOD[CHAT], "response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": s}}})

    where = "response_format.json_schema.schema"
    deep = {"type": "string"}
    for _ in range(12):
        deep = {"type": "array", "items": deep, "maxItems": 2}
    defs = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}, "maxItems": 3}
            for i in range(300)} | {"d300": {"type": "null"}}
    wrong = {
        "10 MB": {"type": "string",
                  "description": "d" * 10000000}, "10 MB of names": {"enum": ["x" * 100] * 100000}, "a list": [], "a number": 5,
        "odd type": {"type": "strange"}, "type as a number": {"type": 5}, "properties as a list": {"type": "object", "properties": []},
        "negative length": {"type": "string", "minLength": -1}, "length in words": {"type": "string",
                                                                                    "maxLength": "many"}, "empty enum": {"enum": []},
        "missing $ref": {"$ref": "#/$defs/none"}, "$ref as a number": {"$ref": 5}, "$ref elsewhere": {"$ref": "http://127.0.0.1:1/schema"},
        "$ref to a file": {"$ref": "file:///etc/passwd"}, "$ref to itself": {"$ref": "#"},
        "$ref in a circle": {"$ref": "#/$defs/a",
                             "$defs": {"a": {"$ref": "#/$defs/b"},
                                       "b": {"$ref": "#/$defs/a"}}}, "not": {"not": {}}, "bad pattern": {"type": "string", "pattern": "(["},
        "pattern with a look ahead": {"type": "string",
                                      "pattern": "(?=a)b"}, "pattern with a back reference": {"type": "string", "pattern": "(a)\\1"},
        "3,000 schemas": {"anyOf": [{"type": "null"}] * 3000}, "nothing": {"type": "integer", "minimum": 5, "maximum": 1},
        "required as text": {"type": "object", "required": "a"}, "negative items": {"type": "array", "minItems": -5}, "more than most": {
            "type": "array", "minItems": 5, "maxItems": 1
        }, "lengths that exclude each other": {"type": "string", "minLength": 5,
                                               "maxLength": 1}, "2^63 items": {"type": "array", "minItems": 9223372036854775807},
        "2^63 letters": {"type": "string", "minLength": 9223372036854775807}, "1e300 items": {"type": "array", "minItems": 1e300}
    }
    for name, s in wrong.items():
        yield Case(f"schema: {name}", CHAT, lambda s=s: schema(s), param=where)
    right = {
        "recursive": {"type": "object",
                      "properties": {"a": {"$ref": "#"}}}, "nested": deep, "300 references": {"$ref": "#/$defs/d0", "$defs": defs},
        "control characters": {"type": "object", "properties": {"\0\x1b\u2028": {"const": "\0\r\n"}},
                               "required": ["\0\x1b\u2028"]}, "an enum of 5,000": {"enum": [f"w{i}" for i in range(5000)]},
        "huge numbers": {"type": "integer", "minimum": -9223372036854775808,
                         "maximum": 9223372036854775807}, "a very long text": {"type": "string", "maxLength": 1000000000},
        "a long list": {"type": "array", "items": {"type": "integer"}, "maxItems": 1000000}, "lists of lists": {
            "type": "array", "maxItems": 1000, "items": {"type": "array", "maxItems": 1000, "items": {"type": "string", "maxLength": 1000}}
        }, "2^31 letters": {"type": "string",
                            "maxLength": 2147483648}, "a repeated pattern": {"type": "string", "pattern": "^(a{1,100}){1,100}$"},
        "a pattern repeated without bound": {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
        "100 alternatives of 100": {"anyOf": [{"type": "object", "properties": {f"p{i}": {"enum": list(range(100))}}} for i in range(100)]}
    }
    for name, s in right.items():
        yield Case(f"schema: {name}", CHAT, lambda s=s: schema(s), OK)
    yield Case("a schema in Anthropic's form with a bad reference",
               MESSAGES,
               lambda: dump({**GOOD[MESSAGES], "output_config": {"format": {"type": "json_schema", "schema": {"$ref": "#/x"}}}}),
               param="output_config.format.schema")
    yield Case(
        "a schema of 10 MB for responses",
        RESPONSES,
        lambda: dump(
            {**GOOD[RESPONSES], "text": {"format": {"type": "json_schema", "name": "f", "schema": {"description": "d" * 10000000}}}}),
        param="text.format.schema")

    def outputs(**form):
        return dump({**GOOD[COMPLETION], "structured_outputs": form})

    for name, text in {
            "open group": "(a", "closed group": "a)", "open set": "[a", "bad range": "[z-a]", "nothing repeated": "*a",
            "60,000 groups": "(a)" * 60000, "bad count": "a{3,1}", "count beyond 2^31": "a{2147483648}",
            "count beyond 2^64": "a{99999999999999999999}", "exponential": "(" * 12 + "a" + "{0,9}){0,9}" * 12, "look ahead": "(?=a)b",
            "look behind": "(?<=a)b", "back reference": "(a)\\1", "trailing escape": "a\\", "bad escape": "\\q{",
            "unicode class": "\\p{L}+", "100 KB": "a" * 100000, "NUL": "a\0b", "15,000 open groups": "(" * 15000
    }.items():
        yield Case(f"expression: {name}", COMPLETION, lambda t=text: outputs(regex=t), param="structured_outputs.regex")
    for name, text in {
            "15,000 groups in each other": "(" * 15000 + "a" + ")" * 15000, "5,000 groups": "(a)" * 5000,
            "5,000 alternatives": "|".join(f"w{i}" for i in range(5000)), "stars in stars": "(" * 50 + "a" + ")*" * 50, "(a+)+": "(a+)+b",
            "(a|a)*": "(a|a)*b", "(a|aa)+": "(a|aa)+c", "emoji": "😀+|[😀-😎]{2}", "huge count": "a{1,100000}",
            "counts in counts": "(a{1,100}){1,100}", "counts three deep": "((a{1,1000}){1,1000}){1,1000}",
            "counts beside each other": "a{1,1000}" * 200, "sets of counts": "[a-z]{1,9999}[A-Z]{1,9999}"
    }.items():
        yield Case(f"expression: {name}",
                   COMPLETION,
                   lambda t=text: outputs(regex=t),
                   OK if "15,000" not in name else 400,
                   "structured_outputs.regex")
    for name, text in {
            "no rule": "x", "no root": 'a ::= "b"', "missing rule": "root ::= nothing", "open string": 'root ::= "a',
            "open group": 'root ::= ("a"', "itself": "root ::= root", "each other": "root ::= a\na ::= b\nb ::= a",
            "60,000 groups": "root ::= " + '("a")' * 60000, "twice": 'root ::= "a"\nroot ::= "b"', "bad escape": 'root ::= "\\q"',
            "left recursion": 'root ::= root "a"', "1 MB": "# " + "x" * 1000000,
            "3,000 groups in each other": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000,
            "no way behind the first letter": 'root ::= "a" b\nb ::= b "c"', "NUL": "root ::= \0"
    }.items():
        yield Case(f"grammar: {name}", COMPLETION, lambda t=text: outputs(grammar=t), param="structured_outputs.grammar")
    for name, text in {
            "ambiguous": 'root ::= root root | "a"', "nested groups": "root ::= " + "(" * 500 + '"a"' + ")" * 500,
            "huge count": 'root ::= "a"{1,100000}', "counts in counts": 'root ::= (("a"{1,100}){1,100}){1,100}',
            "counts through rules": "root ::= a{1,99}\na ::= b{1,99}\nb ::= c{1,99}\nc ::= \"x\"{1,99}",
            "2,000 rules": "\n".join([f"root ::= r0"] + [f"r{i} ::= r{i + 1}" for i in range(2000)] + ['r2000 ::= "x"']),
            "5,000 groups": "root ::= " + '("a")' * 5000
    }.items():
        yield Case(f"grammar: {name}", COMPLETION, lambda t=text: outputs(grammar=t), OK)
    yield Case("100,000 choices", COMPLETION, lambda: outputs(choice=[str(i) for i in range(100000)]), param="structured_outputs.choice")
    yield Case("a choice of 1 MB", COMPLETION, lambda: outputs(choice=["x" * 1000000]), param="structured_outputs.choice")
    yield Case("choices with control characters", COMPLETION, lambda: outputs(choice=["\0", "\x1b[2J", "\u2028"]), OK)


def bodies():
    for i, (name, body) in enumerate(broken_json().items()):
        for path in GOOD if name in ("empty", "brace", "raw NUL", "lone high surrogate", "latin-1",
                                     "very deep array") else [list(GOOD)[i % 7]]:
            yield Case(f"{path} no JSON: {name}", path, lambda b=body: b)
    for name, body in WRONG_TOPS.items():
        for path in [CHAT, COMPLETION, MESSAGES]:
            yield Case(f"{path} no object: {name}", path, lambda b=body: b)
    yield from number_cases()
    yield from field_cases()
    yield from message_cases()
    yield from tool_cases()
    yield from form_cases()


# --- bytes on a socket ---------------------------------------------------------------------------------------------------


def head(line, *fields, host=True):
    return "\r\n".join([line, *(["Host: x"] if host else []), *fields, "", ""]).encode("latin-1", "surrogateescape")


def post(path, body, *fields):
    return head(f"POST {path} HTTP/1.1", f"Content-Length: {len(body)}", *fields) + body


def chunked(data, path=COMPLETION):
    return head(f"POST {path} HTTP/1.1", "Transfer-Encoding: chunked") + data


def wires():
    good = dump(GOOD[COMPLETION])
    health = head("GET /health HTTP/1.1")
    chunk = f"{len(good):x}\r\n".encode() + good + b"\r\n"
    no = {  # one answer with this status, or the connection closed where it is 0
        "nothing but lines": (b"\r\n" * 100, 400), "a word": (b"hello\r\n\r\n",
                                                              400), "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 30, 400),
        "NULs": (b"\0" * 1000, 400), "0xff": (b"\xff" * 1000, 400), "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        "HTTP/9.9": (head("GET / HTTP/9.9"), 400), "HTTP/0.9": (b"GET /\r\n\r\n", 400), "no version": (b"GET /health \r\n\r\n", 0),
        "lower case version": (head("GET /health http/1.1"), 400), "version 1.10": (head("GET /health HTTP/1.10"), 400),
        "two spaces": (head("GET  /health HTTP/1.1"), 400), "tab": (head("GET\t/health\tHTTP/1.1"), 400),
        "bare line feeds": (b"GET /health HTTP/1.1\nHost: x\n\n", 400), "no method": (head(" /health HTTP/1.1"), 400),
        "odd method": (head("FROBNICATE /health HTTP/1.1"), 405), "method of 10,000 letters": (head("G" * 10000 + " / HTTP/1.1"), 405),
        "space before the colon": (head("GET /health HTTP/1.1", "X : 1"), 400), "field without a colon": (head("GET /health HTTP/1.1",
                                                                                                               "X"), 400),
        "folded field": (b"GET /health HTTP/1.1\r\nX: 1\r\n 2\r\n\r\n", 200), "NUL in a field": (head("GET /health HTTP/1.1",
                                                                                                      "X: a\0b"), 400),
        "control in a name": (head("GET /health HTTP/1.1", "X\x01: a"), 400), "empty name": (head("GET /health HTTP/1.1", ": a"), 400),
        "field of 20 KB": (head("GET /health HTTP/1.1",
                                "X: " + "a" * 20000), 431), "name of 20 KB": (head("GET /health HTTP/1.1", "X" * 20000 + ": 1"), 431),
        "200 fields": (head("GET /health HTTP/1.1", *[f"X{i}: 1" for i in range(200)]),
                       431), "5,000 fields": (head("GET /health HTTP/1.1", *[f"X{i}: 1" for i in range(5000)]),
                                              431), "path of 20 KB": (head("GET /" + "a" * 20000 + " HTTP/1.1"),
                                                                      431), "absolute form": (head("GET http://x/health HTTP/1.1"), 400),
        "authority form": (head("CONNECT x:443 HTTP/1.1"), 400), "asterisk": (head("OPTIONS * HTTP/1.1"),
                                                                              400), "relative path": (head("GET health HTTP/1.1"), 400),
        "NUL in the path": (head("GET /he\0alth HTTP/1.1"), 400), "%00 in the path": (head("GET /health%00 HTTP/1.1"), 404),
        "bad escape in the path": (head("GET /%zz HTTP/1.1"), 400), "bytes in the path": (head("GET /\xff\xfe HTTP/1.1"), 400),
        "dots": (head("GET /../../etc/passwd HTTP/1.1"),
                 404), "escaped dots": (head("GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1"),
                                        404), "a file of the page that is none": (head("GET /page/../main.js HTTP/1.1"),
                                                                                  404), "two slashes": (head("GET //health HTTP/1.1"), 404),
        "script in the path": (head("GET /<script>alert(1)</script> HTTP/1.1"), 400), "length in words": (head(
            "POST /v1/completions HTTP/1.1",
            "Content-Length: x"), 400), "negative length": (head("POST /v1/completions HTTP/1.1", "Content-Length: -5"),
                                                            400), "length with a plus": (head("POST /v1/completions HTTP/1.1",
                                                                                              "Content-Length: +5"), 400),
        "length 2^64": (head("POST /v1/completions HTTP/1.1", "Content-Length: 18446744073709551616"),
                        400), "length 2^63": (head("POST /v1/completions HTTP/1.1", "Content-Length: 9223372036854775808"),
                                              413), "length in hex": (head("POST /v1/completions HTTP/1.1", "Content-Length: 0x10"), 400),
        "two lengths": (head("POST /v1/completions HTTP/1.1", "Content-Length: 5", "Content-Length: 6") + b"x" * 6, 400),
        "length and chunks": (head("POST /v1/completions HTTP/1.1", f"Content-Length: {len(good)}", "Transfer-Encoding: chunked") + chunk +
                              b"0\r\n\r\n", 400), "gzip": (head("POST /v1/completions HTTP/1.1", "Transfer-Encoding: gzip") + good, 400),
        "chunks in chunks": (head("POST /v1/completions HTTP/1.1", "Transfer-Encoding: chunked, chunked") + chunk,
                             400), "chunk size in words": (chunked(b"zz\r\n"), 400), "negative chunk": (chunked(b"-1\r\n"), 400),
        "chunk of 2^64": (chunked(b"ffffffffffffffffff\r\n"), 400), "chunk of 2^63": (chunked(b"8000000000000000\r\n"), 413),
        "chunk without its end": (chunked(chunk[:-2] + b"xx\r\n"),
                                  400), "chunk longer than said": (chunked(b"2\r\n" + good + b"\r\n"),
                                                                   400), "chunk extension of 20 KB": (chunked(b"1;" + b"x" * 20000), 0),
        "bytes behind the last chunk": (chunked(chunk + b"0\r\nxx\r\n\r\n"),
                                        400), "body of GET": (head("GET /health HTTP/1.1", "Content-Length: 3") + b"abc",
                                                              200), "no body": (head("POST /v1/completions HTTP/1.1"),
                                                                                400), "shorter body": (post(COMPLETION, good[:-1]), 400),
        "length 1": (head("POST /v1/completions HTTP/1.1", "Content-Length: 1", "Connection: close") + good,
                     400), "no host": (head("GET /health HTTP/1.1", host=False), 200), "upgrade": (head(
                         "GET /health HTTP/1.1", "Upgrade: websocket",
                         "Connection: Upgrade"), 200), "an odd key": (head("GET /v1/models HTTP/1.1", "Authorization: Bearer \xff\xfe"),
                                                                      200), "traceparent": (head("GET /v1/models HTTP/1.1",
                                                                                                 "traceparent: 00-zz-\x7f-01"), 400)
    }
    for name, (data, status) in no.items():
        yield Wire(name, lambda d=data: [d, HALF], (status, ) if status else ())
    for name, start, more in [("chunk extension", b"1;", b"x"), ("trailer", b"0\r\nX: ", b"x"),
                              ("number of trailers", b"0\r\n", b"X: 1\r\n"), ("chunk size", b"", b"0")]:
        yield Wire(f"an endless {name}", lambda s=start, m=more: [chunked(s), m * (8000000 // len(m))], (400, ))
    for method in ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"]:
        yield Wire(f"{method} of chat completions", lambda m=method: [head(f"{m} {CHAT} HTTP/1.1"), HALF], (405, ))
    for path in [
            "/v1", "/v1/", "/v2/chat/completions", "/v1/chat/completions/", "/admin", "/.env", "/v1/responses//", "/v1/models/x/y",
            "/v1/embeddings", "/metrics/", "/page/"
    ]:
        yield Wire(f"nothing at {path}", lambda p=path: [post(p, b"{}"), HALF], (404, ))
    for method, path in [("GET", "/v1/responses/resp_none"), ("DELETE", "/v1/responses/%00"),
                         ("POST", "/v1/responses/" + "x" * 3000 + "/cancel"), ("GET", "/v1/models/%ff")]:
        yield Wire(f"{method} {path[:40]}", lambda m=method, p=path: [head(f"{m} {p} HTTP/1.1"), HALF], (404, ))
    yield Wire("a length longer than the body", lambda: [head("POST /v1/completions HTTP/1.1", "Content-Length: 500") + good, HALF], ())
    yield Wire("cut in the header", lambda: [health[:20], HALF], ())
    yield Wire("cut in the first line", lambda: [b"GE", HALF], ())
    yield Wire("cut in a chunk", lambda: [chunked(chunk[:10]), HALF], ())
    yield Wire("cut between chunks", lambda: [chunked(chunk), HALF], ())
    yield Wire("cut in the size of a chunk", lambda: [chunked(b"1"), HALF], ())
    yield Wire("closed at once", lambda: [HALF], ())
    yield Wire("reset at once", lambda: [RESET], ())
    yield Wire("reset in the header", lambda: [health[:20], RESET], ())
    yield Wire("reset in the body", lambda: [head("POST /v1/completions HTTP/1.1", "Content-Length: 500") + good, RESET], ())
    endless = dump({"prompt": "Hi", "max_tokens": 20000, "ignore_eos": True, "stream": True})
    yield Wire("reset behind a request", lambda: [post(COMPLETION, endless), RESET], ())
    yield Wire("reset in the stream", lambda: [post(COMPLETION, endless), 0.2, RESET], ())
    yield Wire("half closed in the stream", lambda: [post(COMPLETION, endless), 0.2, HALF], (200, ))
    yield Wire("half closed behind a request without a stream",
               lambda: [post(COMPLETION, dump({"prompt": "Hi", "max_tokens": 20000, "ignore_eos": True})), 0.2, HALF], ())
    yield Wire("silence", lambda: [], ())
    yield Wire("a header that does not end",
               lambda: [b"GET /health HTTP/1.1\r\n", *[x for i in range(12) for x in (f"X{i}: 1\r\n".encode(), 0.5)]], ())
    yield Wire("a body that does not come", lambda: [head("POST /v1/completions HTTP/1.1", "Content-Length: 500")], ())
    yield Wire("a body that comes slowly",
               lambda: [head("POST /v1/completions HTTP/1.1", "Content-Length: 500"), *[x for _ in range(20) for x in (b" ", 0.5)]], ())
    yield Wire("chunks that come slowly", lambda: [chunked(b""), *[x for _ in range(20) for x in (b"1\r\n \r\n", 0.5)]], ())
    yield Wire("pipelining", lambda: [health * 20, head("GET /health HTTP/1.1", "Connection: close")], (200, ) * 21)
    yield Wire("pipelining with faults",
               lambda: [post(COMPLETION, good) + head("GET /none HTTP/1.1") + post(CHAT, b"{") + health + b"nonsense\r\n\r\n"],
               (200, 404, 400, 200, 400))
    yield Wire("an expectation of something else", lambda: [post(COMPLETION, good, "Expect: 200-maybe", "Connection: close")], (200, ))
    yield Wire("an odd content type", lambda: [post(COMPLETION, good, "Content-Type: image/png", "Connection: close")], (200, ))
    yield Wire("a request smuggled in a body",
               lambda: [post(COMPLETION, head("DELETE /v1/responses/x HTTP/1.1")) + head("GET /health HTTP/1.1", "Connection: close")],
               (400, 200))
    yield Wire(
        "a chunk a byte", lambda: [
            chunked(b"".join(b"1\r\n" + bytes([c]) + b"\r\n"
                             for c in good) + b"0\r\n\r\n") + head("GET /health HTTP/1.1", "Connection: close")
        ], (200, 200))
    yield Wire("100,000 empty lines of a header's end", lambda: [health + b"\r\n" * 100000, HALF], (200, 400))
