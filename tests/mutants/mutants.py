"""Plants one fault at a time and requires that the same-tokens harness finds it.

  python3 tests/mutants/mutants.py          builds a copy of the tree with each fault and runs the harness (some minutes)
  python3 tests/mutants/mutants.py --check  that every fault can still be planted: its text stands in its file exactly once
  python3 tests/mutants/mutants.py NAME...  only these
"""
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "mutant"
ENGINE, CACHE, OPS = "src/engine/", "src/cache/", "src/ops/"

# name: (file, text as it is, text with the fault, and so on by pairs)
MUTANTS = {
    # What a step leaves behind.
    "convolution ring one short": (OPS + "conv/conv_cpu.cpp", "ring + p % ring_rows * s.channels, from + p % ring_rows", "ring + p % ring_rows * s.channels, from + (p + 1) % ring_rows"),
    "bias of the pool counted from the step's first row": (OPS + "index/index_write_cpu.cpp", "load(ape + i * dim + c, dim - c)", "load(ape + (window.in_ring > 0 ? (i + window.in_ring) % kpool : i) * dim + c, dim - c)"),
    "KDA state not carried over": (OPS + "kda/kda_cpu.cpp", "if (moved() && !written_ && h_.folded > 0)", "if (moved() && !written_ && h_.folded > 64)"),
    # The prefix index.
    "snapshot one page off": (CACHE + "prefix_index.cpp", "  const int32_t node = find(tokens, salt, cursor);\n  if (node <= 0) return false;", "  int32_t node = find(tokens, salt, cursor);\n  if (node > 0 && at(node).parent > 0) node = at(node).parent;\n  if (node <= 0) return false;"),
    "salt ignored": (CACHE + "prefix_index.cpp", "  if (parent == 0) before.low ^= salt;\n", "  (void)salt;\n", "n.parent == parent && n.salt == salt &&", "n.parent == parent &&"),
    "tokens not compared": (CACHE + "prefix_index.cpp", "XXH3_128bits_withSeed(tokens.data(), tokens.size_bytes(),", "XXH3_128bits_withSeed(tokens.data(), 4,", " && std::ranges::equal(n.tokens, tokens)", ""),
    "hit of the whole prompt": (CACHE + "prefix_index.cpp", "(static_cast<int64_t>(tokens.size()) - 1) / page_tokens_;  // pages", "static_cast<int64_t>(tokens.size()) / page_tokens_;  // pages"),
    "decoded pages kept as prefilled ones": (ENGINE + "reuse.cpp", "options_.what == Reuse::prefilled ? std::min(s.num_computed_tokens, s.prompt_tokens) : s.num_computed_tokens", "s.num_computed_tokens"),
    "snapshot without the rows that wait for their fold": (ENGINE + "reuse.cpp", "  s.folded = m.folded;\n", "  s.folded = TokenPos(m.tokens);\n"),
    "a sequence goes on writing what it handed over": (ENGINE + "reuse.cpp", "  s.source = s.state;  // its reference goes along\n  s.state = taken_.front();\n", "  s.source = s.state;\n  states_.share(s.state);\n  states_.release(taken_.front());\n"),
    "state of an answer's last page kept a page early": (ENGINE + "reuse.cpp", "first(static_cast<size_t>(s.page_end_tokens))", "first(static_cast<size_t>(s.page_end_tokens - options_.page_tokens))"),
    "pages of a request that ended are not given back": (ENGINE + "reuse.cpp", "  pages_.release(s.pages);\n  s.pages.clear();\n  s.held_pages = s.indexed", "  s.pages.clear();\n  s.held_pages = s.indexed"),
    # Preemption.
    "state of a preempted sequence not brought back": (ENGINE + "swap.cpp", "if (mover_.write_state) mover_.write_state(", "if (false) mover_.write_state("),
    "fold of a preempted sequence one late": (ENGINE + "swap.cpp", "  s.state = state[0];\n", "  s.state = state[0];\n  if (s.folded.value >= kKdaGroup) s.folded = s.folded - kKdaGroup;\n"),
    "pages of a preempted sequence one off": (ENGINE + "swap.cpp", "mover_.write_page(s.pages[static_cast<size_t>(s.held_pages) + i], host_->at(s.swapped_pages[i]))", "mover_.write_page(s.pages[static_cast<size_t>(s.held_pages) + i], host_->at(s.swapped_pages[i ? i - 1 : 0]))"),
    "the wrong record is swapped out": (ENGINE + "swap.cpp", "s.source.value >= 0 ? s.source : s.state, host_", "s.state, host_"),
    "a place on the host is not given back": (ENGINE + "swap.cpp", "  host_->states.release(s.swapped_state);\n", ""),
    # Tiers.
    "another page is read from disk": (ENGINE + "reuse.cpp", "index_.read(part.node, part.kind)", "index_.read(r.nodes.front(), part.kind)"),
    "rings of a state left out": (CACHE + "kv_store.cpp", "&views_.ring_u, &views_.ring_g,", "&views_.ring_u, &views_.ring_u,"),
    "open pool of a state left out": (CACHE + "kv_store.cpp", "&views_.pool_ring, ", ""),
    "restored page not written": (ENGINE + "reuse.cpp", "if (mover.write_page) mover.write_page(part.page, bytes);", "if (mover.write_page && part.page.value % 3) mover.write_page(part.page, bytes);"),
    "run before the prefix is there": (ENGINE + "scheduler.cpp", "if (s->prefilling() && !s->restoring)", "if (s->prefilling())"),
    # What the one before left in a record.
    "stale state after a cancel": (OPS + "kda/kda_cpu.cpp", "from_(h.folded > 0 ? h.from_state : nullptr)", "from_(h.from_state)"),
    "stale convolution rows after a cancel": (OPS + "conv/conv_cpu.cpp", "p >= 0 ? from + p % ring_rows * s.channels : nullptr", "from + (p + ring_rows) % ring_rows * s.channels"),
}


def planted(name):
    file, *edits = MUTANTS[name]
    text = (ROOT / file).read_text()
    for old, new in zip(edits[::2], edits[1::2]):
        if text.count(old) != 1:
            raise SystemExit(f"mutant '{name}': its text stands {text.count(old)} times in {file}; renew it")
        text = text.replace(old, new)
    return file, text


def run(name):
    file, text = planted(name)
    start = time.monotonic()
    (COPY / file).write_text(text)
    try:
        built = subprocess.run(["cmake", "--build", COPY / "build/release", "--target", "property_test"], capture_output=True, text=True)
        if built.returncode:
            return f"does not build:\n{built.stdout[-2000:]}", start
        environment = dict(os.environ, WINNOW_WORKLOADS="3", WINNOW_SHRINK_SECONDS="0")
        command = [COPY / "build/release/property_test", "--gtest_filter=*SameTokens*", "--gtest_brief=1", "--gtest_fail_fast"]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        except subprocess.TimeoutExpired:
            return "hangs, which is found too", start
        # A cache that only hits less often is no difference: the counts at the end do not find a fault.
        found = [line for line in (ran.stdout + ran.stderr).splitlines() if "alone" in line or "check failed" in line]
        if ran.returncode < 0 and not found:
            found = [f"it dies of signal {-ran.returncode}"]
        return (found[0].strip()[:150] if found else None), start
    finally:
        shutil.copy2(ROOT / file, COPY / file)
        os.utime(COPY / file)


def main(words):
    names = [n for n in MUTANTS if not words or words == ["--check"] or n in words]
    for name in names:
        planted(name)
    if words == ["--check"]:
        return
    COPY.mkdir(parents=True, exist_ok=True)
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    for f in filter(None, files):
        to = COPY / f
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists() or to.read_bytes() != (ROOT / f).read_bytes():
            shutil.copy2(ROOT / f, to)
    for fetched in (ROOT / "third_party").iterdir():  # what git does not list (tools/third_party.py)
        if fetched.is_dir() and not (COPY / "third_party" / fetched.name).exists():
            (COPY / "third_party" / fetched.name).symlink_to(fetched)
    if not (COPY / "build/release/build.ninja").exists():
        subprocess.run(["cmake", "--preset", "release"], cwd=COPY, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", COPY / "build/release", "--target", "property_test"], check=True, stdout=subprocess.DEVNULL)
    missed = []
    for name in names:
        found, start = run(name)
        print(f"{'MISSED' if found is None else 'found '} {time.monotonic() - start:5.0f} s  {name}{': ' + found if found else ''}", flush=True)
        if found is None or found.startswith("does not build"):
            missed.append(name)
    print(f"{len(names) - len(missed)} of {len(names)} faults found")
    sys.exit(1 if missed else 0)


main(sys.argv[1:])
