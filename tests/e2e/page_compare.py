#!/usr/bin/env python3
"""The page of gptrun serve in headless Chromium, by the DevTools protocol over a pipe.

  page_compare.py URL MESSAGE    talks to the model, and continues a text: the page shows what the interface answers, each
                                 token with its probabilities; all comes from URL, and nothing is logged as an error

Exit status: 0 right, 1 not, 77 Chromium is missing.
"""
import json
import sys
import tempfile
import urllib.request

sys.dont_write_bytecode = True
from chromium import Page  # noqa: E402: leaves nothing in the source tree

url, message = sys.argv[1:]


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
