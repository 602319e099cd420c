"""A headless Chromium, driven over the DevTools protocol; nothing but `websockets` is needed."""

import base64
import json
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser process with a profile of its own."""

    def __init__(self, profile: Path) -> None:
        self._process = subprocess.Popen(
            [str(find_chromium()), *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        ports = wait_for(lambda: _lines(profile / "DevToolsActivePort"), seconds=30)
        self._open = ExitStack()
        url = f"ws://127.0.0.1:{ports[0]}{ports[1]}"
        self._socket = self._open.enter_context(connect(url, max_size=None, proxy=None))
        self._number = 0
        self.exceptions: list[str] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        self._socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self._socket.recv(timeout=30))
            if _is_failure(answer):
                self.exceptions.append(json.dumps(answer["params"])[:600])
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def open(
        self, url: str, *, width: int = 1280, height: int = 800, phone: bool = False, beside: "Page | None" = None
    ) -> "Page":
        """A page in a window of its own, or as a tab in front of another page, which is hidden then."""
        if beside is not None:
            self.call("Target.activateTarget", targetId=beside.target)
        target = self.call("Target.createTarget", url="about:blank", newWindow=beside is None)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        page.call("Runtime.enable")
        page.call("Log.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        page.call("Page.navigate", url=url)
        return page

    def close(self) -> None:
        self._open.close()
        self._process.terminate()
        self._process.wait(20)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self.target = browser, session, target

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self.target)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 20) -> Any:
        return wait_for(lambda: self.evaluate(expression), seconds)

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def drag(self, start: tuple[float, float], end: tuple[float, float], moves: int = 5) -> None:
        def mouse(kind: str, x: float, y: float) -> None:
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

        mouse("mousePressed", *start)
        for i in range(1, moves + 1):
            mouse("mouseMoved", *(a + (b - a) * i / moves for a, b in zip(start, end, strict=True)))
        mouse("mouseReleased", *end)

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))


def _is_failure(event: dict[str, Any]) -> bool:
    """An uncaught exception of a page, or an error in its log."""
    method = event.get("method")
    return method == "Runtime.exceptionThrown" or (
        method == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"
    )


def wait_for(condition: Any, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing after {seconds:g} s")
        time.sleep(0.05)
    return value


def _lines(path: Path) -> list[str]:
    lines = path.read_text().splitlines() if path.is_file() else []
    return lines if len(lines) == 2 else []
