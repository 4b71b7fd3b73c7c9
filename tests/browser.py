"""A headless Chromium for tests, spoken to over its DevTools protocol through a pipe: no driver, no further package.

`chromium` is Debian's package of that name; `.ci/run` installs it. Every request that a page makes, every line of its
console and every error in it is kept.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

#: generous: test machines are shared
PATIENCE = 40.0
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str:
    """Return the path of Chromium. Skip the test where it is not installed."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("NO BROWSER: the status page is not tested; apt-get install chromium")


@dataclass
class Page:
    """One tab.

    Attributes:
        requests: the addresses that it asked for.
        complaints: errors and warnings of its console, of the browser about it, and exceptions.
    """

    browser: Browser
    session: str
    target: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def ask(self, method: str, **parameters: Any) -> Any:
        """A DevTools command; its result."""
        return self.browser.ask(method, self.session, **parameters)

    def open(self, url: str) -> None:
        """Go there and wait until it is loaded."""
        self.ask("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page.

        Raises:
            AssertionError: it throws.
        """
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def awaited(self, script: str) -> Any:
        """The value of a promise in the page.

        Raises:
            AssertionError: it is rejected.
        """
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def choose(self, selector: str, *files: Path) -> None:
        """Choose files in the `<input type=file>` that a selector finds."""
        found = self.ask("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")["result"]
        self.ask("DOM.setFileInputFiles", objectId=found["objectId"], files=[str(file) for file in files])

    def press(self, *keys: str) -> None:
        """Press keys, by their names, where the focus is."""
        for key in keys:
            code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}[key]
            text = {"text": "\r"} if key == "Enter" else {}
            for kind in ("keyDown", "keyUp"):
                self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def wait_for(self, condition: str, limit: float = PATIENCE) -> Any:
        """Until an expression is true; its value."""
        end = time.monotonic() + limit
        while True:
            value = self.evaluate(condition)
            if value:
                return value
            assert time.monotonic() < end, f"{condition} did not become true; the page says: {self.text()}"
            self.browser.listen(0.05)

    def text(self) -> str:
        """Return the visible text."""
        return str(self.evaluate("document.body.innerText"))

    def close(self) -> None:
        """Close the tab."""
        self.browser.ask("Target.closeTarget", targetId=self.target)

    def look_like(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the window and the colours that its user prefers."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def unnamed_controls(self) -> list[str]:
        """Controls that a screen reader cannot name."""
        kinds = {"button", "link", "textbox", "checkbox", "combobox", "slider", "spinbutton", "dialog", "image"}
        nodes = self.ask("Accessibility.getFullAXTree")["nodes"]
        shown = [one for one in nodes if not one["ignored"] and one["role"]["value"] in kinds]
        return [json.dumps(one) for one in shown if not one["name"]["value"]]

    def screenshot(self, path: Path, *, whole: bool = True) -> bytes:
        """The page as PNG, below the edge of the window too."""
        data = base64.b64decode(self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])
        path.write_bytes(data)
        return data


class Browser:
    """A running Chromium."""

    def __init__(self, process: subprocess.Popen[bytes], read_fd: int, write_fd: int) -> None:
        self._process = process
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._rest = b""
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._pages: dict[str, Page] = {}

    def page(self) -> Page:
        """A new tab."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.ask(f"{domain}.enable")
        return page

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """A DevTools command; its result.

        Raises:
            AssertionError: it failed, or the browser did not answer in time.
        """
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE
        while number not in self._answers:
            assert time.monotonic() < end, f"no answer to {method}"
            self.listen(0.5)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def listen(self, seconds: float) -> None:
        """Take in what the browser says, for at most so long."""
        if not select.select([self._read_fd], [], [], seconds)[0]:
            return
        data = os.read(self._read_fd, 1 << 20)
        assert data, "the browser has ended"
        *messages, self._rest = (self._rest + data).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self._answers[message["id"]] = message
            elif message.get("sessionId") in self._pages:
                _note(self._pages[message["sessionId"]], message["method"], message["params"])


def _note(page: Page, method: str, value: dict[str, Any]) -> None:
    if method == "Network.requestWillBeSent":
        page.requests.append(value["request"]["url"])
    elif method == "Runtime.exceptionThrown":
        page.complaints.append(json.dumps(value["exceptionDetails"]))
    elif method == "Runtime.consoleAPICalled" and value["type"] in ("error", "warning", "assert"):
        page.complaints.append(json.dumps(value["args"]))
    elif method == "Log.entryAdded" and value["entry"]["level"] in ("error", "warning"):
        page.complaints.append(f"{value['entry']['text']} {value['entry'].get('url', '')}")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, ended at the end; the test is skipped where there is none."""
    path = find_chromium()
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    def hand_over() -> None:  # the browser reads from descriptor 3 and writes to 4
        ours = os.dup(to_read), os.dup(from_write)
        os.dup2(ours[0], 3)
        os.dup2(ours[1], 4)

    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [path, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=hand_over, close_fds=False, start_new_session=True,
        )  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(process, from_read, to_write)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()
            os.close(from_read)
            os.close(to_write)
