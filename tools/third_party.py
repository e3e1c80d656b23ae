#!/usr/bin/env python3
"""Fetches the sources that Debian does not package: each line of third_party/sources.txt names a source archive of the
Python package index and its SHA-256. They are unpacked beside it, once; nothing of them is committed or changed.

usage: tools/third_party.py
"""
import hashlib
import html.parser
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "third_party"


def index_url():
    """The index that pip would ask: of its environment or its files, else its own default."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        if key.endswith(".index-url"):
            return value.strip("'\"")
    from pip._internal.models.index import PyPI

    return PyPI.simple_url


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if tag == "a" and name == "href" and value]


def download(package, archive):
    page = index_url().rstrip("/") + f"/{package}/"
    with urllib.request.urlopen(page, timeout=120) as answer:
        links = Links()
        links.feed(answer.read().decode())
    for link in links.found:
        url = urllib.parse.urljoin(page, link)
        if pathlib.PurePosixPath(urllib.parse.urlparse(url).path).name == archive:
            with urllib.request.urlopen(url, timeout=300) as answer:
                return answer.read()
    raise SystemExit(f"third_party: the package index has no {archive}")


def main():
    for line in (FOLDER / "sources.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        package, version, sha256 = line.split()
        name = f"{package}-{version}"
        if (FOLDER / name).is_dir():
            continue
        print(f"fetching {name}")
        data = download(package, name + ".tar.gz")
        if hashlib.sha256(data).hexdigest() != sha256:
            raise SystemExit(f"third_party: {name}.tar.gz is not the archive that sources.txt names (another SHA-256)")
        with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:  # whole or absent
            packed = pathlib.Path(scratch) / "archive"
            packed.write_bytes(data)
            with tarfile.open(packed) as tar:
                tar.extractall(scratch)
            shutil.move(pathlib.Path(scratch) / name, FOLDER / name)


if __name__ == "__main__":
    main()
