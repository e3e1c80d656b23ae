"""The files that others start the server with."""
import re
import shutil
import subprocess

import pytest
from conftest import ROOT, WINNOW

UNIT = ROOT / "packaging" / "winnow.service"
CONTAINER = ROOT / "packaging" / "Containerfile"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_the_unit_is_right_and_hardened(tmp_path):
    unit = tmp_path / "winnow.service"
    unit.write_text(UNIT.read_text().replace("/usr/bin/winnow", WINNOW).replace("Documentation=man:winnow-serve(1)\n", ""))
    r = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0 and "winnow.service" not in r.stderr, r.stderr
    r = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)], capture_output=True, text=True, timeout=60)
    assert r.returncode == 0, r.stdout[-500:]  # an exposure of 2.0 of 10


def test_the_unit_gives_the_drain_its_time(winnow):
    stop = int(re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.M)[1])
    drain = int(re.search(r"^drain-timeout = (\d+)$", winnow("serve", "--print-config").stdout, re.M)[1])
    assert stop >= drain + 30 + 5  # writing --cache-dir takes half a minute at most
    command = re.search(r"^ExecStart=\S+ serve (.*)$", UNIT.read_text(), re.M)[1]
    help_text = winnow("serve", "--help").stdout
    assert all(flag in help_text for flag in re.findall(r"--[a-z-]+", command))


def test_the_container_has_the_packages_of_the_build_and_of_the_program():
    build, run = CONTAINER.read_text().split("FROM debian:bookworm-slim\n")
    setup = (ROOT / "dev").read_text().split("DEBIAN=(")[1].split(")")[0].split()
    wanted = [p for p in setup if p.startswith("lib") and p.endswith("-dev") and not re.search("gtest|gmock|rapidcheck|clang", p)]
    missing = [p for p in wanted + ["prometheus-cpp-dev"] if f" {p} " not in build.replace("\n", " ")]
    assert not missing
    assert "USER 65532:65532" in run and "STOPSIGNAL SIGTERM" in run
    base = {"libc6", "libstdc++6", "libgcc-s1"}
    paths = dict(re.findall(r"(\S+) => (/\S+)", subprocess.run(["ldd", WINNOW], capture_output=True, text=True, check=True).stdout))
    needed = re.findall(r"NEEDED\s+(\S+)", subprocess.run(["objdump", "-p", WINNOW], capture_output=True, text=True, check=True).stdout)
    assert len(needed) > 5
    for library in (paths[n] for n in needed):
        owner = subprocess.run(["dpkg-query", "-S", library, library.removeprefix("/usr"), "/usr" + library], capture_output=True, text=True).stdout
        names = {line.split(":")[0] for line in owner.splitlines()}
        assert names & base or any(f" {n} " in run.replace("\n", " ") for n in names), (library, names)
