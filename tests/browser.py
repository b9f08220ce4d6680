"""A headless Chromium for the tests of the report's page, over WebDriver's plain HTTP (https://www.w3.org/TR/webdriver2/).

Needs Debian's packages chromium and chromium-driver, and nothing from Python; tests are skipped where they are missing.
"""

import base64
import json
import shutil
import subprocess
import urllib.request
from contextlib import contextmanager

_FLAGS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run "
_FLAGS += "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars"


def installed():
    """Whether both programs are there."""
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


class Browser:
    """One window. Its methods are WebDriver's commands, and Chromium's own where WebDriver has none."""

    def __init__(self, address):
        options = {"binary": shutil.which("chromium"), "args": _FLAGS.split()}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._address = address
        reply = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._address += f"/session/{reply['sessionId']}"

    def _call(self, method, path, content=None):
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._address + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["value"]

    def open(self, path, *, width=1280, dark=False):
        """Show a file at this width in CSS pixels, in the light or the dark scheme."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.chromium("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.chromium("Emulation.setEmulatedMedia", features=[scheme])
        self._call("POST", "/url", {"url": path.absolute().as_uri()})

    def run(self, script, *arguments):
        """The value that a script (a function's body) returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, keys):
        """Press and release each key in turn; WebDriver's codes: \\ue004 is Tab, \\ue007 Enter."""
        presses = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": presses}]})

    def console(self):
        """What the page and the browser complained of since the last call."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def chromium(self, command, **parameters):
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def screenshot(self, path):
        """The whole page as a PNG."""
        picture = self.chromium("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def pdf(self, path):
        path.write_bytes(base64.b64decode(self.chromium("Page.printToPDF", printBackground=False)["data"]))

    def close(self):
        self._call("DELETE", "")


@contextmanager
def browser():
    """A Browser, with its driver, while the context lasts."""
    with subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        try:
            line = next(line for line in driver.stdout if "started successfully on port" in line)
            window = Browser(f"http://localhost:{line.rsplit(' ', 1)[1].strip().rstrip('.')}")
            try:
                yield window
            finally:
                window.close()
        finally:
            driver.terminate()
