#!/usr/bin/env python3
"""The page of gptrun serve in headless Chromium, by the DevTools protocol over a pipe.

  page_compare.py URL MESSAGE    talks to the model, and continues a text: the page shows what the interface answers, each
                                 token with its probabilities; all comes from URL, and nothing is logged as an error

Exit status: 0 right, 1 not, 77 Chromium is missing.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request

browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if not browser:
    print("skipped: no Chromium")
    sys.exit(77)
url, message = sys.argv[1:]


class Page:
    """A tab. Commands go to descriptor 3 of the browser, and answers and events come from 4, each with a zero behind it."""

    def __init__(self, folder):
        to_browser, self.to = os.pipe()
        self.come, from_browser = os.pipe()
        self.rest, self.number, self.requests, self.errors, self.session = b"", 0, [], [], None

        def descriptors():
            os.dup2(os.dup(to_browser), 100)  # neither may be 3 or 4 already
            os.dup2(os.dup(from_browser), 101)
            os.dup2(100, 3)
            os.dup2(101, 4)

        self.process = subprocess.Popen(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--user-data-dir=" + folder, "--remote-debugging-pipe"],
            preexec_fn=descriptors, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Runtime", "Page", "Log"):
            self.call(domain + ".enable")

    def receive(self):
        while b"\0" not in self.rest:
            more = os.read(self.come, 1 << 16)
            assert more, "the browser has ended"
            self.rest += more
        text, self.rest = self.rest.split(b"\0", 1)
        got = json.loads(text)
        kind = got.get("method")
        if kind == "Network.requestWillBeSent":
            self.requests.append(got["params"]["request"]["url"])
        elif kind == "Runtime.exceptionThrown" or (kind == "Log.entryAdded" and got["params"]["entry"]["level"] == "error"):
            self.errors.append(got["params"])
        return got

    def call(self, method, **params):
        self.number += 1
        command = {"id": self.number, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.to, json.dumps(command).encode() + b"\0")
        while True:
            got = self.receive()
            if got.get("id") == self.number:
                assert "error" not in got, (method, got)
                return got["result"]

    def do(self, script):
        """The value of a script, once its promise is kept."""
        got = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def until(self, condition):
        """Waits in the page."""
        self.do("new Promise(r => { const look = () => (%s) ? r() : setTimeout(look, 10); look(); })" % condition)

    def close(self):
        try:
            self.call("Browser.close")
        except (AssertionError, OSError):
            pass
        self.process.wait()


def ask(path, request):
    r = urllib.request.Request(url + path, json.dumps(request).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(r) as answer:
        return json.load(answer)["choices"][0]


with tempfile.TemporaryDirectory() as folder:
    page = Page(folder)
    page.call("Page.navigate", url=url + "/")
    page.until("document.readyState === 'complete' && document.getElementById('status').textContent.includes('context')")
    assert page.do("document.getElementById('chat').checked")
    settings = {"temperature": 1, "top_p": 1, "max_tokens": 12, "seed": 5}
    for name, value in settings.items():
        page.do(f"document.getElementById('{name}').value = {value}")

    def send(text):
        before = page.do("document.querySelectorAll('.turn').length")
        page.do(f"document.getElementById('input').value = {json.dumps(text)}; document.getElementById('form').requestSubmit()")
        page.until(f"document.querySelectorAll('.turn').length > {before} && document.getElementById('stop').hidden")
        last = "[...document.querySelectorAll('.turn')].pop()"
        return (page.do(f"{last}.querySelector('span').textContent"),
                page.do(f"[...{last}.querySelectorAll('.token')].map(t => t.textContent)"))

    # A conversation of two questions: the second knows the first.
    want = ask("/v1/chat/completions", {"messages": [{"role": "user", "content": message}], **settings})
    text, tokens = send(message)
    assert text == want["message"]["content"] == "".join(tokens), (text, tokens, want)
    assert len(tokens) == 12
    messages = [{"role": "user", "content": message}, {"role": "assistant", "content": text},
                {"role": "user", "content": message}]
    want = ask("/v1/chat/completions", {"messages": messages, **settings})
    text, tokens = send(message)
    assert text == want["message"]["content"] == "".join(tokens), (text, tokens, want)

    # The likeliest tokens of a place are shown over it.
    page.do("document.querySelector('.token').dispatchEvent(new MouseEvent('mouseenter', {clientX: 50, clientY: 50}))")
    rows = page.do("[...document.querySelectorAll('#tip tr')].map(r => [...r.cells].map(c => c.textContent))")
    assert 5 <= len(rows) <= 6 and all(p.endswith("%") for _, p in rows), rows

    # A text is continued behind itself.
    page.do("document.getElementById('text').click()")
    want = ask("/v1/completions", {"prompt": message, **settings})
    text, tokens = send(message)
    assert text == message + want["text"] and "".join(tokens) == want["text"], (text, want)

    # What the server refuses is shown.
    page.do("document.getElementById('max_tokens').value = -1; document.getElementById('form').noValidate = true")
    text, tokens = send(message)
    assert "max_tokens" in text and not tokens, text
    assert all(r.startswith(url) for r in page.requests), page.requests
    # Chromium logs the status 400 of that answer, and asks for an icon.
    errors = [e for e in page.errors if "400" not in json.dumps(e) and "favicon" not in json.dumps(e)]
    assert not errors, errors
    page.close()
print("the page shows what the interface answers")
