"""A Chromium without a window, driven through its DevTools protocol over two pipes (--remote-debugging-pipe): no port, no
websocket, no package beside the browser."""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find():
    """Returns the path of a browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    def __init__(self, path):
        self.profile = tempfile.mkdtemp(prefix="fsdp-browser.")
        ours_in, theirs_out = self._pipe()
        theirs_in, ours_out = self._pipe()
        command = [path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                   "--force-color-profile=srgb", f"--user-data-dir={self.profile}", "--remote-debugging-pipe", "about:blank"]
        # The browser reads from descriptor 3 and writes to 4.
        self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", *command],
                                        pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = ours_in, ours_out
        self.numbers, self.rest, self.events, self.session = itertools.count(1), b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    @staticmethod
    def _pipe():
        """Returns the ends of a pipe, both above the descriptors that a shell can redirect."""
        ends = []
        for end in os.pipe():
            ends.append(fcntl.fcntl(end, fcntl.F_DUPFD, 10))
            os.close(end)
        return ends

    def close(self):
        os.close(self.output)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.input)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self, seconds):
        """Returns the next message, or None after that time."""
        end = time.monotonic() + seconds
        while b"\0" not in self.rest:
            if not select.select([self.input], [], [], max(0, end - time.monotonic()))[0]:
                return None
            piece = os.read(self.input, 1 << 20)
            assert piece, f"the browser has ended: {self.process.wait()}"
            self.rest += piece
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def call(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read(60)
            assert answer is not None, f"{method}: no answer"
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer}"
                return answer["result"]
            self.events.append(answer)

    def open(self, path, width=1280, height=900, dark=False):
        """Opens a file as a page of that size. Forgets earlier events."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url="about:blank")
        self.evaluate("0")
        self.events.clear()
        self.call("Page.navigate", url=f"file://{path}")
        end = time.monotonic() + 30
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            event = self._read(1)
            assert time.monotonic() < end, f"{path} does not load"
            if event:
                self.events.append(event)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def requests(self):
        """Returns the addresses that the page has asked for."""
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]

    def complaints(self):
        """Returns errors of the page's script and of its rules."""
        return [event for event in self.events if event.get("method") == "Runtime.exceptionThrown"
                or (event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error")]

    def screenshot(self, file, whole=True):
        area = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            area = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}, "captureBeyondViewport": True}
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **area)["data"]))

    def box(self, selector):
        """Scrolls an element into view; returns its left, top, width and height."""
        return self.evaluate(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
                             " const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **{"button": "left", "clickCount": 1, **more})

    def click(self, selector):
        left, top, width, height = self.box(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, left + width / 2, top + height / 2)

    def key(self, key, **more):
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode={"Tab": 9, "Enter": 13}.get(key, 0), **text, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, **more)
