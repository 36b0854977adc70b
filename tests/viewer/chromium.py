"""A headless Chromium, driven through a pipe by its own protocol: what a page shows, says and asks for."""

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_PATIENCE_S = 30.0


class Chromium:
    """One page of a browser with a profile of its own.

    Args:
        profile: an empty directory.

    Attributes:
        complaints: console errors, uncaught exceptions and failed requests.
        requests: every URL that was asked for.
    """

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        to_browser, self._to = os.pipe()
        self._from, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"]
        # The protocol's pipe is file descriptors 3 and 4.
        script = f'exec 3<&{to_browser} 4>&{from_browser}; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, PROGRAM, *flags, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._sent = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = False

    def __enter__(self) -> Self:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        self._process.terminate()
        self._process.wait()
        os.close(self._from)

    def look_like(self, width: int, height: int, *, scheme: str = "light", scale: float = 1) -> None:
        """Becomes a screen of that many pixels, light or dark."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str) -> None:
        """Opens a page and waits until it is there."""
        self._loaded = False
        self._call("Page.navigate", url=url)
        deadline = time.monotonic() + _PATIENCE_S
        while not self._loaded:
            assert time.monotonic() < deadline, f"{url} does not load"
            self._read()

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_until(self, script: str) -> None:
        """Returns once an expression is true."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.run(script):
            assert time.monotonic() < deadline, f"waited in vain for {script}"
            time.sleep(0.02)

    def screenshot(self, path: Path) -> None:
        """Writes the whole page, however long, as PNG."""
        answer = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._sent:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._from, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, found: dict[str, Any]) -> None:
        match event:
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(found["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(found["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if found["type"] in ("error", "warning"):
                self.complaints.append(str(found["args"]))
            case "Log.entryAdded" if found["entry"]["level"] in ("error", "warning"):
                self.complaints.append(found["entry"]["text"])
