"""The chat page in headless Chromium, with the real server and the small model behind it."""
import contextlib, json, shutil, time

import httpx
import pytest

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@contextlib.contextmanager
def chromium(width=1100, height=800):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def started():
    assert CHROMIUM and DRIVER, "chromium and chromium-driver are missing: ./dev setup"
    with chromium() as driver:
        yield driver


@pytest.fixture
def browser(started, server):
    """The page, as somebody sees it for the first time."""
    started.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    started.get(server.url + "/")
    started.execute_script("document.getElementById('new-chat').click(); localStorage.clear()")
    started.refresh()
    until(started, lambda d: text(d, "#model") == server.name)
    for log in ("performance", "browser"):
        started.get_log(log)
    return started


def until(driver, condition, seconds=60):
    return WebDriverWait(driver, seconds, poll_frequency=0.05, ignored_exceptions=[StaleElementReferenceException]).until(condition)


def find(driver, css):
    return driver.find_elements(By.CSS_SELECTOR, css)


def text(driver, css):
    return driver.execute_script("return document.querySelector(arguments[0])?.textContent ?? null", css)


def click(driver, css):
    find(driver, css)[-1].click()


def ask(driver, words):
    find(driver, "#prompt")[0].send_keys(words, Keys.ENTER)


def idle(driver):
    return text(driver, "#send") == "Send"


def answer(driver):
    until(driver, idle)
    return find(driver, ".assistant .text")[-1].text


def set_field(driver, name, value):
    driver.execute_script("""
        const field = document.querySelector(`#settings [name=${arguments[0]}]`);
        field.value = arguments[1];
        field.dispatchEvent(new Event('input', {bubbles: true}))""", name, value)


# What the server would send, piece by piece; the page itself is the real one.
FAKE = """
    const [events, pause, status, body] = arguments;
    window.asked = [];
    window.fetch = async (path, options = {}) => {
      window.asked.push({path, body: options.body && JSON.parse(options.body), headers: options.headers});
      if (status !== 200) return new Response(body, {status, headers: {'Content-Type': 'application/json', 'Retry-After': '7'}});
      const stream = new ReadableStream({async start(controller) {
        options.signal.addEventListener('abort', () => controller.error(options.signal.reason));
        for (const e of events) {
          if (options.signal.aborted) return;
          controller.enqueue(new TextEncoder().encode(e));
          await new Promise((done) => setTimeout(done, pause));
        }
        controller.close();
      }});
      return new Response(stream, {headers: {'Content-Type': 'text/event-stream'}});
    }"""


def event(delta=None, finish=None, **more):
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}) + "\n\n"


def fake(driver, *deltas, finish="stop", pause=1, status=200, body=""):
    events = [event(d) for d in deltas] + [event(finish=finish), "data: [DONE]\n\n"]
    driver.execute_script(FAKE, events, pause, status, body)


def requested(driver):
    messages = [json.loads(e["message"])["message"] for e in driver.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


# --- the files ---------------------------------------------------------------------------------------------------------


def test_files_and_headers(server):
    with httpx.Client(base_url=server.url) as http:
        page = http.get("/")
        assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        again = http.get("/", headers={"If-None-Match": page.headers["etag"]})
        assert again.status_code == 304 and again.content == b"" and again.headers["etag"] == page.headers["etag"]
        head = http.head("/")
        assert head.headers["content-length"] == str(len(page.content)) and head.content == b""
        script = http.get("/page/main.js")
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        assert http.get("/page/none.js").status_code == 404 and http.get("/page/../v1").status_code == 404
        assert http.post("/", content="x").status_code == 405
        assert http.get("/v1/models").json()["data"][0]["id"] == server.name  # on the same connection


# --- a conversation with the model -------------------------------------------------------------------------------------


def test_a_conversation(browser):
    ask(browser, "What is 347 + 285?")
    assert "632" in answer(browser)
    assert text(browser, ".user .text") == "What is 347 + 285?"
    assert find(browser, "details.reasoning")[0].get_attribute("open") is None  # folded
    click(browser, "details.reasoning summary")
    until(browser, lambda d: find(d, ".reasoning-text")[0].text)
    figures = text(browser, ".figures")
    assert "tokens/s" in figures and "prompt tokens cached" in figures, figures
    ask(browser, "What is 2 + 3?")
    assert "5" in answer(browser)
    assert len(find(browser, "article.user")) == len(find(browser, "article.assistant")) == 2
    assert len(find(browser, "button[data-action=regenerate]")) == 1  # the last answer's


ENDLESS = """
    const real = window.fetch;
    window.fetch = (path, o) => real(path, o?.body ? {...o, body: JSON.stringify({...JSON.parse(o.body), ignore_eos: true})} : o)"""


def test_it_streams(browser):
    set_field(browser, "max_tokens", "150")
    browser.execute_script(ENDLESS)
    browser.execute_script("""
        window.lengths = new Set();
        new MutationObserver(() => window.lengths.add(document.querySelector('.assistant .text')?.textContent.length))
            .observe(document.getElementById('messages'), {subtree: true, childList: true, characterData: true})""")
    ask(browser, "Repeat this: one two three four five six seven eight nine ten")
    assert answer(browser)
    lengths = browser.execute_script("return [...window.lengths]")
    assert len(lengths) > 4 and 0 in lengths, lengths


def test_stop_and_regenerate(browser, server):
    fake(browser, *[{"content": f"word{i} "} for i in range(400)], pause=20)
    ask(browser, "Go on")
    until(browser, lambda d: "word5" in (text(d, ".assistant .text") or ""))
    click(browser, "#send")  # Stop
    until(browser, idle)
    assert "Stopped" in text(browser, ".assistant .problem")
    seen = text(browser, ".assistant .text")
    time.sleep(0.3)
    assert text(browser, ".assistant .text") == seen and "word399" not in seen
    browser.refresh()  # the real server again
    assert text(browser, ".assistant .text") == seen
    click(browser, "button[data-action=regenerate]")
    until(browser, lambda d: not idle(d) or seen not in text(d, ".assistant .text"))
    until(browser, idle)
    assert seen not in text(browser, ".assistant .text")
    assert len(find(browser, "article.user")) == len(find(browser, "article.assistant")) == 1


def running(server):
    for line in httpx.get(server.url + "/metrics").text.splitlines():
        if line.startswith("winnow:num_requests_running"):
            return float(line.split()[-1])
    raise AssertionError("no metric of running requests")


def test_stop_reaches_the_server(browser, server):
    """Esc closes the connection, and the server gives the request up."""
    browser.execute_script(ENDLESS)
    ask(browser, "Hello")
    until(browser, lambda d: running(server) == 1)
    find(browser, "#prompt")[0].send_keys(Keys.ESCAPE)
    until(browser, idle)
    until(browser, lambda d: running(server) == 0, 10)
    assert "Stopped" in text(browser, ".assistant .problem")


def test_reload_keeps_the_conversation(browser):
    ask(browser, "What is 2 + 3?")
    before = answer(browser)
    browser.refresh()
    assert text(browser, ".user .text") == "What is 2 + 3?" and find(browser, ".assistant .text")[0].text == before
    assert "tokens/s" in text(browser, ".figures")
    ask(browser, "And what is 4 + 5?")
    assert answer(browser)
    body = browser.execute_script("return JSON.parse(localStorage.getItem('winnow.messages'))")
    assert [m["role"] for m in body] == ["user", "assistant"] * 2
    click(browser, "#new-chat")
    browser.refresh()
    assert not find(browser, "article")


def test_reload_while_it_streams(browser):
    fake(browser, *[{"content": f"word{i} "} for i in range(400)], pause=20)
    ask(browser, "Go on")
    until(browser, lambda d: "word5" in (text(d, ".assistant .text") or ""))
    browser.refresh()
    assert "word5" in text(browser, ".assistant .text") and "Stopped" in text(browser, ".assistant .problem")


def test_damaged_storage(browser):
    for damage in ("{", "[1,null,{\"role\":\"x\"},{\"role\":\"assistant\",\"calls\":7,\"content\":{}}]", "\"a\""):
        browser.execute_script("for (const k of ['messages', 'settings']) localStorage.setItem('winnow.' + k, arguments[0]); window.onpagehide = null", damage)
        browser.execute_script("window.addEventListener('pagehide', (e) => { for (const k of ['messages', 'settings']) localStorage.setItem('winnow.' + k, arguments[0]) })", damage)
        browser.refresh()
        until(browser, lambda d: text(d, "#model"))
        assert text(browser, "#problem") == ""


# --- settings ------------------------------------------------------------------------------------------------------------


def test_settings_are_sent_and_kept(browser):
    click(browser, "#open-settings")
    for name, value in dict(system="Be brief.", temperature="0.5", top_p="0.9", max_tokens="40", thinking="low", key="secret", theme="dark").items():
        set_field(browser, name, value)
    find(browser, "#settings button[type=submit]")[0].click()
    browser.refresh()
    fake(browser, {"content": "yes"})
    ask(browser, "Hello")
    assert answer(browser) == "yes"
    sent = browser.execute_script("return window.asked.at(-1)")
    assert sent["body"] == {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}], "stream": True,
                            "stream_options": {"include_usage": True}, "temperature": 0.5, "top_p": 0.9, "max_tokens": 40, "reasoning_effort": "low"}
    assert sent["headers"]["Authorization"] == "Bearer secret" and sent["path"] == "/v1/chat/completions"
    dark = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    click(browser, "#open-settings")
    set_field(browser, "theme", "light")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") != dark
    click(browser, "#reset-settings")
    assert all(v == "" for v in json.loads(browser.execute_script("return localStorage.getItem('winnow.settings')")).values())
    assert browser.execute_script("return sessionStorage.getItem('winnow.key')") == ""


def test_a_key_is_asked_for_and_goes_with_the_tab(browser, own_server):
    key = "0123456789abcdef-key"
    server = own_server(env={"WINNOW_API_KEY": key})
    browser.get(server.url + "/")
    until(browser, lambda d: "API key" in (text(d, "#problem") or ""))
    click(browser, "#open-settings")
    set_field(browser, "key", key)
    find(browser, "#settings button[type=submit]")[0].click()
    until(browser, lambda d: text(d, "#model") == server.name)
    assert text(browser, "#problem") == "" and key not in browser.execute_script("return JSON.stringify(localStorage)")
    browser.refresh()
    until(browser, lambda d: text(d, "#model") == server.name)
    click(browser, "#open-settings")
    set_field(browser, "max_tokens", "3")
    find(browser, "#settings button[type=submit]")[0].click()
    ask(browser, "Hello")
    answer(browser)
    assert text(browser, ".figures").startswith("3 tokens")
    browser.execute_script("sessionStorage.clear()")  # as a new tab finds it
    browser.refresh()
    until(browser, lambda d: "API key" in (text(d, "#problem") or ""))


def test_wrong_settings_are_not_taken(browser):
    click(browser, "#open-settings")
    set_field(browser, "temperature", "9")
    set_field(browser, "tools", "{not json")
    assert "no JSON" in text(browser, "#tools-problem")
    kept = json.loads(browser.execute_script("return localStorage.getItem('winnow.settings')"))
    assert kept["temperature"] == "" and kept["tools"] == ""


def test_settings_reach_the_server(browser):
    set_field(browser, "max_tokens", "3")
    ask(browser, "What is 347 + 285?")
    answer(browser)
    assert text(browser, ".figures").startswith("3 tokens") and "limit of tokens" in text(browser, ".assistant .problem")


# --- reasoning, tools, errors ------------------------------------------------------------------------------------------


def test_tool_calls_and_their_results(browser):
    fake(browser, {"reasoning_content": "The tool knows."}, {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}]},
         {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": "<b>'}}]}, {"tool_calls": [{"index": 0, "function": {"arguments": 'Paris"}'}}]},
         {"tool_calls": [{"index": 1, "id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}}]}, finish="tool_calls")
    ask(browser, "Weather?")
    until(browser, lambda d: find(d, "form.results"))
    assert [e.text for e in find(browser, ".call-name code")] == ["get_weather", "now"]
    assert json.loads(find(browser, ".call pre")[0].text) == {"city": "<b>Paris"} and not find(browser, ".call b")
    fake(browser, {"content": "It is 21 degrees."})
    fields = find(browser, "form.results textarea")
    fields[0].send_keys("21")
    fields[1].send_keys("noon")
    click(browser, "form.results button")
    until(browser, lambda d: "21 degrees" in find(d, ".assistant .text")[-1].text)
    sent = browser.execute_script("return window.asked.at(-1).body.messages")
    call = lambda i, name, arguments: {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
    assert sent[1] == {"role": "assistant", "content": "", "reasoning_content": "The tool knows.",
                       "tool_calls": [call("call_1", "get_weather", '{"city": "<b>Paris"}'), call("call_2", "now", "{}")]}
    assert sent[2:] == [{"role": "tool", "tool_call_id": "call_1", "content": "21"}, {"role": "tool", "tool_call_id": "call_2", "content": "noon"}]


def test_the_models_own_call(browser):
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
              "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
    click(browser, "#open-settings")
    set_field(browser, "tools", json.dumps(tools))
    set_field(browser, "temperature", "0")
    find(browser, "#settings button[type=submit]")[0].click()
    ask(browser, "What is the weather in Paris?")
    until(browser, lambda d: find(d, "form.results"))
    assert text(browser, ".call-name code") == "get_weather" and json.loads(text(browser, ".call pre")) == {"city": "Paris"}
    browser.refresh()
    find(browser, "form.results textarea")[0].send_keys('{"temperature": 21, "sky": "clear"}')
    click(browser, "form.results button")
    until(browser, lambda d: len(find(d, "article.assistant")) == 2 and idle(d))
    assert "21" in answer(browser)


@pytest.mark.parametrize("status, said", [(401, "API key"), (429, "try again in 7 s"), (503, "cannot answer now"), (500, "failed"), (400, "refused")])
def test_errors_in_words(browser, status, said):
    fake(browser, status=status, body='{"error": {"message": "<i>why</i>"}}')
    ask(browser, "Hello")
    until(browser, idle)
    problem = text(browser, ".assistant .problem")
    assert said in problem and "<i>why</i>" in problem
    assert text(browser, "button[data-action=regenerate]") == "Try again"


def test_errors_within_a_stream(browser):
    browser.execute_script(FAKE, [event({"content": "part"}), 'data: {"error": {"message": "the engine stopped", "code": null}}\n\n'], 1, 200, "")
    ask(browser, "Hello")
    assert answer(browser) == "part" and "the engine stopped" in text(browser, ".assistant .problem")
    browser.execute_script(FAKE, [event({"content": "part"})], 1, 200, "")
    click(browser, "button[data-action=regenerate]")
    until(browser, lambda d: "before the answer was whole" in (text(d, ".assistant .problem") or ""))


def test_the_servers_own_refusal(browser):
    ask(browser, "Hello")
    answer(browser)
    browser.execute_script("localStorage.setItem('winnow.settings', JSON.stringify({temperature: '7'}))")
    browser.refresh()
    click(browser, "button[data-action=regenerate]")
    until(browser, lambda d: "temperature" in (text(d, ".assistant .problem") or ""))


# --- hostile text --------------------------------------------------------------------------------------------------------

HOSTILE = """
<script>window.hit = 1</script> <img src="http://outside.invalid/a.png" onerror="window.hit = 2"> <svg onload="window.hit = 3"><a xlink:href="javascript:window.hit = 4">x</a></svg>

[one](javascript:window.hit=5) [two](JaVaScRiPt:window.hit=6) [three](&#106;avascript:window.hit=7) [four](data:text/html,<script>window.hit=8</script>)
[five](vbscript:x) <javascript:window.hit=9> [six](/v1/models) [seven](//outside.invalid/) [good](https://example.com/a?b=c&d "title") [eight](java\tscript:window.hit=10)

![picture](http://outside.invalid/b.png) ![x](javascript:window.hit=11 "y\\" onerror=\\"window.hit=12")

```html
<script>window.hit = 13</script><img src=x onerror="window.hit = 14">
```

```js"><img src=x onerror="window.hit=15">
let a = "</code><img src=x onerror='window.hit=16'>";
```

`<img src=x onerror="window.hit = 17">` | <iframe srcdoc="<script>parent.hit = 18</script>"></iframe> <style>body { display: none }</style>

| <b onclick="window.hit=19">a</b> | b |
|---|---|
| <img src=x onerror=window.hit=20> | [z](javascript:window.hit=21) |

$\\href{javascript:window.hit=22}{x}$ $\\htmlData{onclick=window.hit=23}{y}$ $$\\includegraphics{http://outside.invalid/c.png}$$

<form action="http://outside.invalid/"><button>send</button></form> <base href="http://outside.invalid/"> <meta http-equiv="refresh" content="0;url=http://outside.invalid/">
"""


def test_hostile_text_does_nothing(browser, server):
    fake(browser, {"reasoning_content": HOSTILE}, *[{"content": HOSTILE[i:i + 40]} for i in range(0, len(HOSTILE), 40)])
    ask(browser, HOSTILE.replace("\n", " ").replace("\t", " "))
    until(browser, lambda d: text(d, ".figures") is not None or find(d, "button[data-action=copy]"))
    click(browser, "details.reasoning summary")
    until(browser, lambda d: find(d, ".katex, .math") and find(d, ".reasoning-text .code"))
    time.sleep(0.5)
    for link in browser.execute_script("return [...document.querySelectorAll('#messages a')].map((a) => a.getAttribute('href'))"):
        assert link.startswith(("http://outside.invalid/", "https://example.com/")), link
    assert browser.execute_script("return [...document.querySelectorAll('#messages *')].flatMap((e) => [...e.attributes].map((a) => a.name)).filter((n) => n.startsWith('on') || n === 'src' || n === 'srcdoc')") == []
    assert not find(browser, "#messages :is(script, img, svg, iframe, style, base, meta, form, object, embed)")
    browser.execute_script("document.querySelectorAll('#messages :is(span, b, code, td)').forEach((e) => e.click())")
    assert browser.execute_script("return window.hit ?? null") is None
    assert "<script>window.hit = 1</script>" in text(browser, ".assistant .text")  # shown as what it is
    browser.refresh()
    time.sleep(0.3)
    assert browser.execute_script("return window.hit ?? null") is None
    assert [u for u in requested(browser) if not u.startswith(server.url)] == []


def test_the_policy_stops_what_markup_would_do(browser):
    """Were there a hole in the rendering, the browser would still run and load nothing."""
    held = browser.execute_async_script("""
        const done = arguments[0];
        const held = [];
        document.addEventListener('securitypolicyviolation', (e) => held.push(e.effectiveDirective));
        try { document.body.insertAdjacentHTML('beforeend', '<b>x</b>'); } catch { held.push('html'); }
        const image = document.createElement('img');
        image.src = 'http://outside.invalid/x.png';
        const script = document.createElement('script');
        document.body.append(image, script);
        try { script.textContent = 'window.hit = 1'; } catch { held.push('script'); }
        fetch('http://outside.invalid/').catch(() => {});
        setTimeout(() => done(held), 300)""")
    assert {"html", "script", "img-src", "connect-src"} <= set(held), held
    assert browser.execute_script("return window.hit ?? null") is None


def test_no_request_leaves(browser, server):
    browser.refresh()
    ask(browser, "What is 2 + 3?")
    answer(browser)
    urls = requested(browser)
    assert len(urls) > 10 and all(u.startswith(server.url + "/") for u in urls), urls
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


# --- markdown, in the browser -------------------------------------------------------------------------------------------

RENDER = """
    const done = arguments[arguments.length - 1];
    import('/page/markdown.js').then(({render}) => {
      const into = document.createElement('div');
      for (const text of arguments[0]) render(into, text);
      setTimeout(() => done(into.innerHTML), arguments[1]);
    })"""


def markdown(driver, *texts, wait=0):
    return driver.execute_async_script(RENDER, texts, wait)


@pytest.mark.parametrize("source, made", [
    ("a **b** *c* ~~d~~ `e<f`", "<p>a <strong>b</strong> <em>c</em> <del>d</del> <code>e&lt;f</code></p>"),
    ("# a\n\n### b", "<h3>a</h3><h5>b</h5>"),
    ("1 < 2 && \"x\" &amp; &copy; &#65; &bogus;", "<p>1 &lt; 2 &amp;&amp; \"x\" &amp; © A &amp;bogus;</p>"),
    ("- a\n- b\n  - c", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>"),
    ("3. a\n4. b", "<ol start=\"3\"><li>a</li><li>b</li></ol>"),
    ("- [x] a", "<ul><li><input type=\"checkbox\" disabled=\"\" aria-label=\"done\"> a</li></ul>"),
    ("> a\n> b", "<blockquote><p>a\nb</p></blockquote>"),
    ("a  \nb", "<p>a<br>b</p>"),
    ("---", "<hr>"),
    ("| a | b |\n|--:|---|\n| 1 | **2** |", "<div class=\"table\" tabindex=\"0\"><table><thead><tr><th class=\"align-right\">a</th><th>b</th></tr></thead>"
     "<tbody><tr><td class=\"align-right\">1</td><td><strong>2</strong></td></tr></tbody></table></div>"),
    ("<b>x</b>", "<p>&lt;b&gt;x&lt;/b&gt;</p>"),
    ("<div>\nx\n</div>", "<p class=\"verbatim\">&lt;div&gt;\nx\n&lt;/div&gt;</p>"),
    ("[x](javascript:alert(1))", "<p><span>x</span></p>"),
    ("[x](relative)", "<p><span>x</span></p>"),
    ("\\*a\\*", "<p>*a*</p>"),
    ("it costs $5 and $6, or $7-$10", "<p>it costs $5 and $6, or $7-$10</p>"),
    ("", ""),
    ("émoji 👩‍👩‍👧 日本", "<p>émoji 👩‍👩‍👧 日本</p>"),
])
def test_markdown(browser, source, made):
    assert markdown(browser, source) == made


def test_markdown_links(browser):
    made = markdown(browser, "[x](https://a.example/?b=1&c=2 \"t\") https://b.example me@c.example ![i](https://d.example/e.png)")
    for part in ('href="https://a.example/?b=1&amp;c=2"', 'href="https://b.example/"', 'href="mailto:me@c.example"', ">image: i</a>", 'rel="noopener noreferrer nofollow"'):
        assert part in made, (part, made)
    assert "<img" not in made


def test_markdown_grows_as_it_streams(browser):
    source = "# T\n\nsome *text* with `code`\n\n```py\ndef f():\n    return 1\n```\n\n- a\n- b\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nend"
    steps = [source[:i] for i in range(1, len(source) + 1)]
    assert markdown(browser, *steps, wait=500) == markdown(browser, source, wait=500)
    kept = browser.execute_async_script("""
        const done = arguments[0];
        import('/page/markdown.js').then(({render}) => {
          const into = document.createElement('div');
          render(into, 'one\\n\\ntwo');
          const first = into.firstChild;
          render(into, 'one\\n\\ntwo and more');
          done(into.firstChild === first && into.lastChild.textContent === 'two and more');
        })""")
    assert kept


def test_code_is_coloured(browser):
    made = markdown(browser, "```python\ndef f(x):\n    return '<b>' # why\n```", wait=1000)
    assert '<span class="hljs-keyword">def</span>' in made and "&lt;b&gt;" in made and "<b>" not in made
    assert "<span class=\"hljs" not in markdown(browser, "```nolanguage\ndef\n```", wait=300)


def test_formulas(browser):
    made = markdown(browser, "so $x^2$ and \\(y\\) then\n\n$$\\frac{1}{2}$$\n\n\\[ z \\]", wait=1000)
    assert made.count("<math") == 4 and "<mfrac>" in made
    assert "<math" not in markdown(browser, "$\\nonsense{$", wait=300)


def test_event_streams(browser):
    """Split anywhere, even within a character and between CR and LF."""
    got = browser.execute_async_script("""
        const done = arguments[0];
        const bytes = new TextEncoder().encode(': ping\\n\\ndata: é1\\r\\n\\r\\ndata:2\\r\\ndata: 3\\n\\nevent: x\\r\\rdata: 👍4\\r\\rid: 1\\n\\ndata: lost');
        import('/page/api.js').then(async ({events}) => {
          const results = new Set();
          for (let size = 1; size <= bytes.length; ++size) {
            const stream = new ReadableStream({start(c) {
              for (let i = 0; i < bytes.length; i += size) c.enqueue(bytes.slice(i, i + size));
              c.close();
            }});
            const all = [];
            for await (const e of events(stream)) all.push(e);
            results.add(JSON.stringify(all));
          }
          done([...results]);
        })""")
    assert [json.loads(r) for r in got] == [["é1", "2\n3", "👍4"]]


# --- widths, keys, labels ------------------------------------------------------------------------------------------------

WIDE = "A line `" + "x" * 200 + "` and " + "y" * 200 + "\n\n```\n" + "z" * 300 + "\n```\n\n| " + " | ".join("column%d" % i for i in range(12)) + " |\n" + "|---" * 12 + "|\n\n$$" + "+".join(["abc"] * 40) + "$$"


@pytest.mark.parametrize("width", [360, 1100])
def test_no_horizontal_scroll(browser, width):
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 640, "deviceScaleFactor": 2, "mobile": width < 500})
    fake(browser, {"reasoning_content": WIDE}, {"content": WIDE}, {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "n" * 90, "arguments": '{"a": "' + "b" * 200 + '"}'}}]})
    ask(browser, "w" * 300)
    until(browser, idle)
    click(browser, "details.reasoning summary")
    time.sleep(0.5)
    fits = "return [document.documentElement, document.getElementById('scroller'), document.getElementById('settings')].map((e) => e.scrollWidth <= e.clientWidth)"
    assert browser.execute_script(fits) == [True] * 3
    click(browser, "#open-settings")
    assert browser.execute_script(fits) == [True] * 3
    # What is touched is inside the screen and no smaller than 24 px (WCAG 2.2, 2.5.8).
    for e in find(browser, "header button, #composer button, #settings :is(input, select, textarea, button)"):
        if e.is_displayed():
            assert e.rect["x"] >= 0 and e.rect["x"] + e.rect["width"] <= width and e.rect["height"] >= 24, e.get_attribute("outerHTML")


def test_everything_has_a_name(browser):
    fake(browser, {"reasoning_content": "r"}, {"content": "```\ncode\n```"}, {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "f", "arguments": "{}"}}]})
    ask(browser, "Hello")
    until(browser, idle)
    click(browser, "#open-settings")
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    wanted = {"button", "textbox", "spinbutton", "combobox", "dialog", "link"}
    found = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in tree if not n["ignored"] and n["role"]["value"] in wanted]
    assert len(found) >= 10 and all(name.strip() for _, name in found), found
    assert find(browser, "[aria-live=polite][role=status]") and find(browser, "html[lang]")


def test_by_keyboard_alone(browser):
    assert browser.switch_to.active_element.get_attribute("id") == "prompt"
    fake(browser, {"content": "yes"})
    box = browser.switch_to.active_element
    box.send_keys("one", Keys.SHIFT + Keys.ENTER + Keys.NULL, "two")
    assert not find(browser, "article") and box.get_attribute("rows") == "2"
    box.send_keys(Keys.ENTER)
    assert answer(browser) == "yes" and text(browser, ".user .text") == "one\ntwo"
    until(browser, lambda d: "complete" in text(d, "#status"))
    assert browser.switch_to.active_element.get_attribute("id") == "prompt"
    seen = set()
    for _ in range(12):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        seen.add(browser.execute_script("return document.activeElement.id || document.activeElement.dataset.action"))
    assert {"new-chat", "open-settings", "copy", "regenerate", "attach", "send"} <= seen, seen


def test_images_are_not_taken_yet(browser):
    attach = find(browser, "#attach")[0]
    assert attach.get_attribute("aria-disabled") == "true" and "no images" in attach.get_attribute("title")
    attach.click()
    assert "no images" in text(browser, "#status")


def test_copy(browser):
    browser.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    fake(browser, {"content": "**a**\n\n```\nx < y\n```"})
    ask(browser, "Hello")
    answer(browser)
    clipboard = "navigator.clipboard.readText().then(arguments[0])"
    click(browser, "button[data-action=copy]")
    until(browser, lambda d: text(d, "#status") == "Copied.")
    assert browser.execute_async_script(clipboard) == "**a**\n\n```\nx < y\n```"
    click(browser, ".copy-code")
    until(browser, lambda d: d.execute_async_script(clipboard) == "x < y")


def test_colours_have_contrast(browser):
    """WCAG AA: 4.5 for the text colours on both grounds, light and dark."""
    for theme in ("light", "dark"):
        ratios = browser.execute_script("""
            document.documentElement.dataset.theme = arguments[0];
            const style = getComputedStyle(document.documentElement);
            const light = (name) => {
              const [r, g, b] = style.getPropertyValue(name).trim().match(/\\w\\w/g).map((h) => parseInt(h, 16) / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
              return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
            const all = {};
            for (const ink of ['--ink', '--quiet', '--accent', '--problem', '--word', '--string', '--number'])
              for (const ground of ['--ground', '--raised']) all[ink + ground] = ratio(ink, ground);
            all.button = ratio('--on-accent', '--accent');
            all.stop = ratio('--ground', '--problem');
            return all""", theme)
        assert min(ratios.values()) >= 4.5, ratios
