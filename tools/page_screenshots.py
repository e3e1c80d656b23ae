#!/usr/bin/env python3
"""Pictures of the chat page for README and docs: docs/images/chat-{light,dark,phone}.png.

Talks to the small model through `winnow serve` (build/release/winnow) in headless Chromium; the answer with code, a table and
a formula, which the small model cannot write, is put into the conversation that the page keeps. Run it in the environment
of the tests: .venv/bin/python tools/page_screenshots.py
"""
import json, pathlib, sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "clients"))
from conftest import Server
from test_page import answer, ask, chromium, find, text, until

SHOWN = [
    {"role": "user", "content": "How do I sum a list in Python, and what does it cost?"},
    {"role": "assistant", "reasoning": "A loop or the built-in.", "thoughtFor": 0.8, "finish": "stop", "content": """Use the built-in `sum`; a loop does the same by hand:

```python
def total(numbers):
    result = 0
    for n in numbers:  # one addition each
        result += n
    return result
```

| | time | memory |
|---|---|---|
| `sum(numbers)` | O(n) | O(1) |
| `total(numbers)` | O(n) | O(1) |

For 1 to $n$ there is a formula: $$\\sum_{k=1}^{n} k = \\frac{n(n+1)}{2}$$"""},
]


def picture(server, name, width, height, theme):
    with chromium(width, height) as driver:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
        driver.get(server.url)
        keep = "addEventListener('pagehide', () => { localStorage.setItem('winnow.messages', arguments[0]); localStorage.setItem('winnow.settings', arguments[1]) })"
        driver.execute_script(f"const put = (...arguments) => {keep}; put(arguments[0], arguments[1])", json.dumps(SHOWN), json.dumps({"theme": theme}))
        driver.refresh()
        until(driver, lambda d: find(d, "math") and find(d, ".hljs-keyword") and text(d, "#model"))
        ask(driver, "What is 347 + 285?")
        answer(driver)
        until(driver, lambda d: text(d, ".figures"))
        path = ROOT / "docs" / "images" / f"chat-{name}.png"
        driver.save_screenshot(str(path))
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    server = Server()
    try:
        picture(server, "light", 1000, 860, "light")
        picture(server, "dark", 1000, 860, "dark")
        picture(server, "phone", 360, 720, "light")
    finally:
        server.stop()
