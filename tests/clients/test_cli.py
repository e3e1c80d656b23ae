"""The program on the command line: answers, exit codes, messages."""
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import time
import urllib.request

import pytest
from conftest import ROOT, WINNOW

MODEL = str(ROOT / "models" / "winnow-tiny")


def failed(r, code, *words):
    """One line on stderr that says what is wrong and where."""
    assert r.returncode == code, r.stderr
    assert r.stderr.startswith("winnow: ") and r.stderr.count("\n") == 1, r.stderr
    assert r.stdout == ""
    for w in words:
        assert w in r.stderr, r.stderr


def run_json(winnow, *arguments):
    r = winnow("run", MODEL, *arguments, "--json")
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def test_help(winnow):
    for verb in ["chat", "run", "serve", "verify", "bench", "info", "plan", "devices"]:
        r = winnow(verb, "--help")
        assert r.returncode == 0 and f"  winnow {verb}" in r.stdout and r.stderr == "", verb  # an example
        page = ROOT / "docs" / "man" / f"winnow-{verb}.1"
        text = page.read_text().replace("\\-", "-")
        for flag in {w.split("=")[0].rstrip(",") for w in r.stdout.split() if w.startswith("--")} - {"--help"}:
            assert f"Fl {flag[1:]}" in text, f"{page.name} says nothing about {flag}"
    r = winnow("--help")
    assert r.returncode == 0 and "chat" in r.stdout
    assert winnow("--version").stdout.startswith("winnow ")


def test_run(winnow):
    r = winnow("run", MODEL, "-p", "What is 347 + 285?", "--temperature", "0")
    assert r.returncode == 0 and "632" in r.stdout and "think" not in r.stdout
    assert winnow("run", "-p", "What is 347 + 285?", "--temperature", "0").stdout == r.stdout  # the small model is the default


def test_run_json(winnow):
    o = run_json(winnow, "--token-ids", "6110,6112, 1,2,3", "--max-tokens", "5", "--temperature", "0", "--ignore-eos")
    assert o["prompt_tokens"] == 5 and o["prompt_token_ids"] == [6110, 6112, 1, 2, 3]
    assert len(o["tokens"]) == len(o["logprobs"]) == 5 and o["finish_reason"] == "length"
    assert isinstance(o["text"], str) and o["timings"]["prefill_s"] > 0
    chat = run_json(winnow, "-p", "What is 347 + 285?", "--temperature", "0")
    assert chat["finish_reason"] == "stop" and "632" in chat["text"] and chat["reasoning_text"]
    assert chat["tokens"][-1] in (6108, 6115, 6117)


def test_run_raw_is_the_template_by_hand(winnow):
    o = run_json(winnow, "-p", "hi", "--max-tokens", "1")
    raw = run_json(winnow, "--raw", "-p", "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>hi<|assistant|><think>", "--max-tokens", "1")
    assert raw["prompt_token_ids"] == o["prompt_token_ids"]


def test_run_seeds(winnow):
    hot = ["-p", "Tell me a story", "--temperature", "1.5", "--max-tokens", "12", "--ignore-eos"]
    a, b, c = (run_json(winnow, *hot, "--seed", s)["tokens"] for s in "112")
    assert a == b != c
    o = run_json(winnow, *hot)
    assert run_json(winnow, *hot, "--seed", str(o["seed"]))["tokens"] == o["tokens"]


def test_run_stop(winnow):
    content = run_json(winnow, "-p", "Repeat this: red green blue", "--temperature", "0")["text"]
    o = run_json(winnow, "-p", "Repeat this: red green blue", "--temperature", "0", "--stop", "green")
    assert o["text"] == content[:content.index("green")] and o["finish_reason"] == "stop"


def test_run_logits(winnow, tmp_path):
    file = tmp_path / "l.safetensors"
    o = run_json(winnow, "--token-ids", "6110,6112,5", "--max-tokens", "4", "--temperature", "0", "--ignore-eos", "--logits", str(file))
    data = file.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    info = json.loads(data[8:8 + n])["logits"]
    assert info["dtype"] == "F32" and info["shape"] == [4, 6144]
    rows = struct.unpack(f"<{4 * 6144}f", data[8 + n:])
    for i, token in enumerate(o["tokens"]):
        row = rows[i * 6144:(i + 1) * 6144]
        assert row[token] == max(row)


def test_profiles_threads_and_kernels_agree(winnow):
    ask = ["-p", "What is 347 + 285?", "--temperature", "0"]
    want = run_json(winnow, *ask, "--profile", "exact")["tokens"]
    for more in (["--threads", "1"], ["--threads", "2"], ["--kernel", "isa=avx2"], ["--max-context", "300"]):
        assert run_json(winnow, *ask, "--profile", "exact", *more)["tokens"] == want, more
    assert run_json(winnow, *ask, "--profile", "fast", "--index-keys", "fp8")["text"] == run_json(winnow, *ask)["text"]


def test_mapped_weights_give_the_same_bits(winnow, tmp_path):
    shifted = tmp_path / "shifted"  # whose tensors begin four bytes after a multiple of eight: f32 allows no less
    shutil.copytree(MODEL, shifted)
    for shard in shifted.glob("*-of-00003.safetensors"):
        data = shard.read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        shard.write_bytes(struct.pack("<Q", n + 4) + data[8:8 + n] + b"    " + data[8 + n:])
    for model in (MODEL, shifted, ROOT / "tests" / "golden" / "tiny-fp8"):
        for profile in ("fast", "exact"):
            logits = []
            for weights in ("copy", "map"):
                file = tmp_path / weights
                r = winnow("run", str(model), "--token-ids", ",".join(str(i) for i in range(1, 40)), "--max-tokens", "8", "--temperature", "0",
                           "--ignore-eos", "--profile", profile, "--weights", weights, "--logits", str(file), "--log-level", "info")
                assert r.returncode == 0, r.stderr
                assert ("weights, mapped" in r.stderr) == (weights == "map")
                logits.append(file.read_bytes())
            assert logits[0] == logits[1], (model, profile)


def test_a_mapped_file_that_shrinks_ends_the_program_with_the_reason(own_server, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    s = own_server(str(model), "--weights", "map")
    os.truncate(model / "model-00002-of-00003.safetensors", 4096)
    try:
        urllib.request.urlopen(urllib.request.Request(
            s.url + "/v1/completions", json.dumps({"prompt": "hello", "max_tokens": 4}).encode(), {"Content-Type": "application/json"}), timeout=60)
    except OSError:
        pass  # the connection went with the program
    assert s.process.wait(60) == 1
    s.reader.join(60)
    assert s.errors[-1].startswith("winnow: "), s.errors
    assert "became shorter" in s.errors[-1] and "--weights copy" in s.errors[-1]


@pytest.mark.parametrize("arguments, code, words", [
    (["frobnicate"], 2, ["frobnicate", "serve"]),
    (["sevre"], 2, ["did you mean serve?"]),
    (["frobnicate", "--help"], 2, ["frobnicate", "serve"]),
    (["--nonsense"], 2, ["--nonsense"]),
    (["run", "--tempreature", "0"], 2, ["--tempreature", "did you mean --temperature?"]),
    (["run", MODEL], 2, ["-p"]),
    (["run", MODEL, "-p", "x", "--token-ids", "1"], 2, ["--token-ids"]),
    (["run", MODEL, "extra", "-p", "x"], 2, ["extra"]),
    (["run", MODEL, "-p"], 2, ["-p"]),
    (["run", MODEL, "--token-ids", "1,x"], 2, ["--token-ids", "x"]),
    (["run", MODEL, "--token-ids", "1,,2"], 2, ["--token-ids"]),
    (["run", MODEL, "--token-ids", "6144"], 2, ["--token-ids", "6144"]),
    (["run", MODEL, "--token-ids", "-1"], 2, ["--token-ids"]),
    (["run", MODEL, "--raw", "-p", ""], 2, ["-p"]),
    (["run", MODEL, "-p", "x", "--temperature", "3"], 2, ["--temperature"]),
    (["run", MODEL, "-p", "x", "--temperature", "hot"], 2, ["--temperature"]),
    (["run", MODEL, "-p", "x", "--top-p", "0"], 2, ["--top-p"]),
    (["run", MODEL, "-p", "x", "--seed", "-1"], 2, ["--seed", "-1"]),
    (["run", MODEL, "-p", "x", "--seed", "18446744073709551616"], 2, ["--seed"]),
    (["run", MODEL, "-p", "x", "--max-tokens", "0"], 2, ["--max-tokens"]),
    (["run", MODEL, "-p", "x", "--max-tokens", "100000"], 2, ["max_tokens"]),
    (["run", MODEL, "-p", "x", "--profile", "slow"], 2, ["--profile", "slow"]),
    (["run", MODEL, "-p", "x", "--index-keys", "int4"], 2, ["--index-keys", "int4"]),
    (["run", MODEL, "-p", "x", "--profile", "exact", "--index-keys", "fp8"], 2, ["--index-keys"]),
    (["run", MODEL, "-p", "x", "--index-layout", "tiled"], 2, ["--index-layout", "tiled", "plain, shuffled"]),
    (["run", MODEL, "-p", "x", "--index-layout", "shuffled"], 3, ["index layout", "shuffled", "cpu"]),
    (["run", MODEL, "-p", "x", "--page-size", "96"], 2, ["--page-size", "96"]),
    (["run", MODEL, "-p", "x", "--backend", "tpu"], 2, ["--backend", "tpu"]),
    (["run", MODEL, "-p", "x", "--backend", "cuda"], 3, ["--backend", "cuda"]),
    (["run", MODEL, "-p", "x", "--kernel", "linear"], 2, ["--kernel", "linear"]),
    (["run", MODEL, "-p", "x", "--kernel", "liner=x"], 2, ["--kernel", "did you mean linear?"]),
    (["run", MODEL, "-p", "x", "--kernel", "linear=x"], 2, ["--kernel", "linear."]),
    (["run", MODEL, "-p", "x", "--kernel", "isa=mmx"], 2, ["--kernel", "mmx"]),
    (["run", MODEL, "-p", "x", "--threads", "-1"], 2, ["--threads"]),
    (["run", MODEL, "-p", "x", "--max-context", "99999999999"], 2, ["--max-context"]),
    (["run", MODEL, "-p", "x", "--max-context", "40000"], 2, ["--max-context", "32768"]),
    (["run", MODEL, "-p", "x", "--weights", "borrow"], 2, ["--weights", "borrow", "copy, map"]),
    (["bench", "--shape", "glm-5.3-flash", "--weights", "map"], 2, ["--weights", "--shape"]),
    (["run", MODEL, "-p", "x", "--log-level", "loud"], 2, ["--log-level"]),
    (["run", MODEL, "-p", "x", "--logits", "/nonexistent/l"], 2, ["--logits", "/nonexistent/l"]),
    (["run", "/nonexistent", "-p", "x"], 3, ["/nonexistent"]),
    (["run", "/etc/passwd", "-p", "x"], 3, ["/etc/passwd"]),
    (["run", "/etc", "-p", "x"], 3, ["/etc", "config.json"]),
    (["info", "/nonexistent"], 3, ["/nonexistent"]),
    (["serve", MODEL, "--port", "70000"], 2, ["--port"]),
    (["serve", MODEL, "--host", "256.0.0.1"], 3, ["--host"]),
])
def test_mistakes_are_named(winnow, arguments, code, words):
    failed(winnow(*arguments), code, *words)


def test_context_is_held(winnow):
    failed(winnow("run", MODEL, "-p", "word " * 300, "--max-context", "256"), 2, "context")


def test_a_checkpoint_without_tokenizer(winnow, tmp_path):
    for f in pathlib.Path(MODEL).iterdir():
        if f.name not in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            (tmp_path / f.name).symlink_to(f)
    r = winnow("run", str(tmp_path), "--token-ids", "1,2,3", "--max-tokens", "3", "--temperature", "0", "--json")
    assert r.returncode == 0 and len(json.loads(r.stdout)["tokens"]) == 3
    failed(winnow("run", str(tmp_path), "-p", "x"), 3, "tokenizer.json")
    failed(winnow("chat", str(tmp_path)), 3, "tokenizer.json")
    failed(winnow("serve", str(tmp_path), "--port", "0", "--log-level", "warn"), 3, "tokenizer.json")
    r = winnow("serve", str(tmp_path), "--port", "0", "--log-level", "info")
    assert r.returncode == 3 and "memory:" not in r.stderr, r.stderr  # found out before the weights are loaded
    (tmp_path / "tokenizer.json").symlink_to(os.path.join(MODEL, "tokenizer.json"))
    failed(winnow("run", str(tmp_path), "-p", "x"), 3, "chat_template.jinja")
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    failed(winnow("run", str(tmp_path), "-p", "x"), 3, "chat_template.jinja")
    (tmp_path / "chat_template.jinja").write_text("")
    failed(winnow("run", str(tmp_path), "-p", "x"), 3, "chat_template.jinja: the chat template is empty")
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles\\nmust\\x1b alternate') }}")
    failed(winnow("run", str(tmp_path), "-p", "x"), 1, "the chat template refuses the messages: roles must")


def test_output_that_is_lost_is_a_failure():
    for arguments in (["--help"], ["info"], ["devices"], ["run", "-p", "Hello", "--max-tokens", "2"], ["chat", "--temperature", "0"]):
        with open("/dev/full", "w") as full:
            r = subprocess.run([WINNOW, *arguments], input="Hello\n", stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
        assert r.returncode == 1, (arguments, r.stderr)
        assert r.stderr.splitlines()[-1].startswith("winnow: stdout"), (arguments, r.stderr)  # a slow load puts its progress before it


def test_chat_through_a_pipe(winnow):
    r = winnow("chat", "--temperature", "0", stdin="My name is Ada.\nWhat is my name?\n/reset\n/nonsense\n\nWhat is 347 + 285?")
    lines = r.stdout.splitlines()
    assert r.returncode == 0 and r.stderr == ""
    assert "\x1b" not in r.stdout and "think" not in r.stdout
    assert "Ada" in lines[1] and "anew" in lines[2] and "/help" in lines[3] and "632" in lines[-1]
    shown = winnow("chat", "--temperature", "0", "--reasoning", "show", stdin="What is 347 + 285?\n").stdout
    assert len(shown) > len(lines[-1]) + 5 and "632" in shown


def test_interrupt_stops_the_answer_then_the_chat():
    p = subprocess.Popen([WINNOW, "chat", "--temperature", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    p.stdin.write("Repeat this: " + " ".join(["one two three four five six seven"] * 60) + "\n")
    p.stdin.flush()
    time.sleep(2)
    p.send_signal(signal.SIGINT)
    time.sleep(1)
    if p.poll() is None:
        p.send_signal(signal.SIGINT)
    assert p.wait(20) == 0, p.stderr.read()


def test_reader_that_leaves_is_no_crash():
    p = subprocess.Popen([WINNOW, "run", MODEL, "-p", "Hello", "--temperature", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    p.stdout.close()
    assert p.wait(60) in (0, 1)
    assert p.stderr.read().count("\n") <= 1


def test_devices(winnow):
    r = winnow("devices")
    assert r.returncode == 0, r.stdout
    for word in ("processor", "memory", "linear.", "kda.", "index_top_k."):
        assert word in r.stdout, r.stdout
    o = json.loads(winnow("devices", "--json", "--kernel", "isa=avx2").stdout)
    assert o["isa"] == "avx2" and all(op["kernel"] for op in o["ops"])
    for op in o["ops"]:
        assert "avx512" not in op["kernel"]
    ref = json.loads(winnow("devices", "--json", "--backend", "ref").stdout)
    assert all(op["kernel"].endswith("ref") for op in ref["ops"])


def test_info(winnow):
    r = winnow("info")
    assert r.returncode == 0 and "glm5_next" in r.stdout
    assert winnow("info", MODEL).stdout == r.stdout


REFERENCE = ROOT / "tests" / "golden" / "random-kda-only"


def read_tensors(path):
    """name -> [dtype, shape, bytes]"""
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    return {name: [t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]] for name, t in header.items() if name != "__metadata__"}


def write_tensors(path, tensors):
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def put(name, *, dtype=None, shape=None, value=None, form="<i"):
    """Spoils a tensor; `value` goes to its first element."""
    def spoil(tensors):
        t = tensors[name]
        if shape is not None:
            t[1] = shape
        if dtype is not None:
            t[0] = dtype
        if value is not None:
            t[2] = struct.pack(form, value) + t[2][4:]
    return spoil


def add(name, of):
    return lambda tensors: tensors.update({name: list(tensors[of])})


def drop(name):
    return lambda tensors: tensors.pop(name)


SPOILED = [
    (drop("p2.logits_last"), "p2.logits_last is missing"),
    (drop("p0.input_ids"), "no tensor p0.input_ids"),
    (drop("p3.input_ids"), "p3.", "belongs to no prompt"),
    (put("p1.input_ids", value=-1), "p1.input_ids has -1", "0 to 30"),
    (put("p1.greedy", value=31), "p1.greedy has 31"),
    (put("p1.greedy", value=-5), "p1.greedy has -5"),
    (put("p1.input_ids", dtype="F32"), "p1.input_ids", "i32"),
    (put("p1.input_ids", shape=[1, 2]), "p1.input_ids", "1 dimension"),
    (put("p2.logits_last", value=float("nan"), form="<f"), "p2.logits_last", "not finite"),
    (put("p2.logits_last", shape=[31, 4]), "p2.logits_last", "vocab_size"),
    (put("p2.logits_last", dtype="I32"), "p2.logits_last", "f32"),
    (put("p2.greedy_margin", value=float("nan"), form="<f"), "p2.greedy_margin", "not finite"),
    (put("p2.greedy_margin", shape=[1, 3]), "p2.greedy_margin", "1 dimension"),
    (put("p1.hidden.1", dtype="I32"), "p1.hidden.1", "f32"),
    (put("p1.hidden.1", shape=[2, 72]), "p1.hidden.1", "3 dimensions"),
    (put("p1.hidden.1", shape=[2, 36, 2]), "p1.hidden.1", "hidden_size"),
    (add("p1.hidden.9", "p1.hidden.1"), "p1.hidden.9", "belongs to no"),
    (add("p1.topk.0", "p1.input_ids"), "p1.topk.0", "belongs to no"),  # a KDA layer selects nothing
]


@pytest.mark.parametrize("spoil, words", [(s, w) for s, *w in SPOILED], ids=[w[0].split()[0] + f"-{i}" for i, (_, *w) in enumerate(SPOILED)])
def test_verify_refuses_a_spoiled_reference(winnow, tmp_path, spoil, words):
    for name in ["config.json", "model.safetensors"]:
        (tmp_path / name).symlink_to(REFERENCE / name)
    tensors = read_tensors(REFERENCE / "golden.safetensors")
    spoil(tensors)
    write_tensors(tmp_path / "golden.safetensors", tensors)
    failed(winnow("verify", str(tmp_path), "--threads", "1"), 3, str(tmp_path / "golden.safetensors"), *words)


@pytest.mark.parametrize("name", ["logits_last", "greedy", "hidden.1"])
@pytest.mark.parametrize("profile", ["exact", "fast"])
def test_verify_sees_a_wrong_reference(winnow, tmp_path, name, profile):
    for file in ["config.json", "model.safetensors"]:
        (tmp_path / file).symlink_to(REFERENCE / file)
    tensors = read_tensors(REFERENCE / "golden.safetensors")
    t = tensors["p1." + name]
    if name == "greedy":
        t[2] = b"".join(struct.pack("<i", (i + 1) % 31) for i, in struct.iter_unpack("<i", t[2]))
        tensors["p1.greedy_margin"][2] = struct.pack("<f", 9.0) * (len(t[2]) // 4)
    else:
        t[2] = bytes(len(t[2]))  # zeros: what is relative to them must not pass for equal
    write_tensors(tmp_path / "golden.safetensors", tensors)
    r = winnow("verify", str(tmp_path), "--threads", "1", "--profile", profile)
    assert r.returncode == 1 and "1 of 6 prompts differ" in r.stdout, r.stdout


def test_flags_with_one_value_leave_the_model_alone(winnow):
    for flag in (["--stop", "END"], ["--kernel", "isa=avx2"]):
        failed(winnow("run", *flag, "/nonexistent", "-p", "x"), 3, "MODEL /nonexistent")
    failed(winnow("run", "--stop", "a", "--stop", "b", MODEL, "extra", "-p", "x"), 2, "'extra'")


@pytest.mark.parametrize("arguments, words", [
    (["serve", "--host", ""], ["--host", "empty"]),
    (["info", ""], ["MODEL", "empty"]),
    (["run", "--token-ids", "", "-p", "x"], ["--token-ids", "empty"]),
    (["verify", MODEL, "--max-context", "64"], ["--max-context"]),
    (["bench", "--max-batch", "2"], ["--max-batch"]),
    (["run", "--token-ids", "1", "--system", "x"], ["--token-ids", "--system"]),
    (["run", "-p", "x", "--raw", "--reasoning-effort", "low"], ["--reasoning-effort", "--raw"]),
    (["run", "-p", "x", "--kernel", "isa=avx2", "--kernel", "isa=avx2"], ["--kernel", "twice"]),
    (["serve", "--reuse", "some"], ["--reuse", "prefilled"]),
])
def test_no_flag_is_without_effect(winnow, arguments, words):
    failed(winnow(*arguments), 2, *words)


def test_logits_replace_files_only(winnow, tmp_path):
    pipe, folder, link, target = tmp_path / "pipe", tmp_path / "folder", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    folder.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    arguments = ["run", "--token-ids", "1", "--max-tokens", "1", "--json", "--logits"]
    for there in (pipe, folder, tmp_path / ("x" * 300), tmp_path / "none" / "x"):
        failed(winnow(*arguments, str(there)), 2, str(there))
    assert pipe.is_fifo()
    r = winnow(*arguments, str(link))
    assert r.returncode == 0 and link.is_symlink() and target.stat().st_size > 6144 * 4, r.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "link", "pipe", "target"]


def test_stderr_that_is_gone_ends_nothing():
    for shell in (f"{WINNOW} frobnicate 2>&-", f"{WINNOW} frobnicate 2>/dev/full", f"{WINNOW} frobnicate 0<&- 1>&- 2>&-"):
        assert subprocess.run(["bash", "-c", shell], timeout=60).returncode == 2, shell
    r = subprocess.run(["bash", "-c", f"{WINNOW} run -p Hello --max-tokens 2 0<&- 2>&-"], timeout=120, capture_output=True)
    assert r.returncode == 0 and r.stdout


def test_text_files_that_are_none(winnow, tmp_path):
    for f in pathlib.Path(MODEL).iterdir():
        if f.name not in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            (tmp_path / f.name).symlink_to(f)
    for name in ("tokenizer.json", "chat_template.jinja", "tokenizer_config.json"):
        (tmp_path / "tokenizer.json").unlink(missing_ok=True)
        if name != "tokenizer.json":
            (tmp_path / "tokenizer.json").symlink_to(os.path.join(MODEL, "tokenizer.json"))
        bad = tmp_path / name
        for make in (lambda: os.mkfifo(bad), bad.mkdir, lambda: bad.symlink_to(bad)):
            make()
            for verb in (["run", "-p", "x"], ["info"]):
                r = winnow(verb[0], str(tmp_path), *verb[1:], timeout=30)
                assert r.returncode == 3 and name in r.stderr and r.stderr.count("\n") == 1, (name, r.stderr)
            bad.rmdir() if bad.is_dir() and not bad.is_symlink() else bad.unlink()


def test_run_ends_with_its_reader():
    p = subprocess.Popen([WINNOW, "run", "-p", "Hello", "--ignore-eos", "--max-tokens", "30000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(1)
    p.stdout.close()
    assert p.wait(30) == 1 and b"stdout" in p.stderr.read()
