"""Headless Chromium, by the DevTools protocol over a pipe. Without it, importing this ends the program with status 77."""
import json
import os
import shutil
import subprocess
import sys

browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if not browser:
    print("skipped: no Chromium")
    sys.exit(77)


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
