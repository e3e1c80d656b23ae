"""lm-eval and guidellm, as installed from the package index, against `winnow serve`; without a network."""
import json
import lzma
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "clients"))
from conftest import Server  # noqa: E402

HERE, BIN, MODEL = pathlib.Path(__file__).parent, pathlib.Path(sys.executable).parent, ROOT / "models" / "winnow-tiny"
MOST = int(os.environ.get("WINNOW_TOOL_PROMPTS", "60"))  # of a task


def without_stop(text):
    return text.removesuffix("<|user|>")


def load(name):
    return json.load(lzma.open(ROOT / "tests" / "skills" / name, "rt", encoding="utf-8"))


def one_turn():
    for asked, answer in zip(load("prompts.json.xz"), load("answers.json.xz")):
        if len(asked["messages"]) == 1 and not asked["tools"]:
            yield asked, without_stop(answer["text"]), answer["correct"]


def facts(rows):
    """the sentence of the reference among three with another capital in the same place"""
    asked = [(q, text) for q, text, _ in rows if q["skill"] == "facts" and text.split("</think>")[1].startswith("The capital of")]
    cities = sorted({q["answer_key"] for q, _ in asked})
    for i, (q, text) in enumerate(asked):
        thought, sentence = text.split("</think>")
        at = cities.index(q["answer_key"])
        names = [cities[(at + k) % len(cities)] for k in (1, 5, 9)]
        names.insert(i % 4, q["answer_key"])
        assert len(set(names)) == 4
        yield {"prompt": q["text"] + thought + "</think>", "choices": [sentence.replace(q["answer_key"], n) for n in names], "right": i % 4}


@pytest.fixture(scope="module")
def server():
    s = Server("--profile", "exact")
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """the tasks and their data"""
    at = tmp_path_factory.mktemp("tools")
    rows = list(one_turn())
    common = lambda q: {"skill": q["skill"], "how": q["how"], "key": json.dumps(q["answer_key"])}
    high = [r for r in rows if r[0]["reasoning_effort"] == "high"][:MOST]
    of = {
        "chat": [{"question": q["messages"][0]["content"], "reference": text.split("</think>")[1], "correct": ok, **common(q)} for q, text, ok in high],
        "text": [{"prompt": q["text"], "reference": text, "correct": ok, **common(q)} for q, text, ok in rows[:: len(rows) // MOST]],
        "facts": list(facts(rows))[:MOST],
    }
    for name, docs in of.items():
        (at / f"{name}.jsonl").write_text("".join(json.dumps(d) + "\n" for d in docs))
    return at


def run(folder, program, *arguments):
    offline = dict(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HOME=str(folder / "hf"), WINNOW_SOURCE=str(ROOT),
                   PYTHONPATH=str(HERE / "stand_in") if program == "guidellm" else "", OPENAI_API_KEY="none")
    done = subprocess.run([BIN / program, *map(str, arguments)], cwd=folder, env=os.environ | offline, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def evaluate(folder, server, model, path, task, *more, **fields):
    arguments = dict(model=server.name, base_url=server.url + path, num_concurrent=4, max_retries=1, max_length=8192, **fields)
    run(folder, "lm_eval", "run", "--model", model, "--model_args", ",".join(f"{k}={v}" for k, v in arguments.items()), "--include_path", HERE / "tasks",
        "--tasks", task, "--output_path", folder / f"{task}.json", *more)
    written = max(folder.glob(f"{task}_*.json"), key=os.path.getmtime)
    return json.loads(written.read_text())["results"][task]


def expected(folder, name):
    docs = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return sum(d["correct"] for d in docs) / len(docs)


def test_lm_eval_chat(server, folder):
    r = evaluate(folder, server, "local-chat-completions", "/v1/chat/completions", "winnow_chat", "--apply_chat_template")
    assert r["same,none"] == 1 and r["correct,none"] == pytest.approx(expected(folder, "chat"))


@pytest.mark.parametrize("tokens", [True, False])
def test_lm_eval_completions(server, folder, tokens):
    r = evaluate(folder, server, "local-completions", "/v1/completions", "winnow_text", tokenizer=MODEL, tokenizer_backend="huggingface", tokenized_requests=tokens)
    assert r["same,none"] == 1 and r["correct,none"] == pytest.approx(expected(folder, "text"))


@pytest.mark.parametrize("tokens,batch", [(True, 1), (False, 1), (True, 8)])
def test_lm_eval_likelihoods(server, folder, tokens, batch):
    r = evaluate(folder, server, "local-completions", "/v1/completions", "winnow_facts", "--batch_size", batch, tokenizer=MODEL,
                 tokenizer_backend="huggingface", tokenized_requests=tokens)
    assert r["acc,none"] == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_guidellm_sweep(server, folder, path):
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": q["messages"][0]["content"], "output_tokens_count": 16}) + "\n" for q, _, _ in one_turn()))
    report = folder / "guidellm.json"
    run(folder, "guidellm", "run", "--backend", f"kind=openai_http,target={server.url},request_format={path}", "--profile", "kind=sweep,sweep_size=3",
        "--constraint", "kind=max_requests,count=12", "--constraint", "kind=max_duration,seconds=20", "--tokenizer", f"kind=huggingface_auto,model={MODEL}",
        "--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={report}", "--disable-console")
    runs = json.loads(report.read_text())["benchmarks"]
    assert len(runs) == 3
    for r in runs:
        requests = r["requests"]
        assert len(requests["successful"]) >= 8 and not requests["errored"], requests["errored"][:1]
        for one in requests["successful"]:
            assert one["output_tokens"] == 16 and one["prompt_tokens"] > 0
