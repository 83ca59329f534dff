"""Drive Chromium over its DevTools protocol: screens of any width, emulated preferences, and scripts that a page's policy forbids.

Chromium's command line can do none of these: its windows are at least 500 pixels wide. The messages go over a pair of pipes, so no
port is open. Source: https://chromedevtools.github.io/devtools-protocol/.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ANSWER_S = 60.0
"""The longest wait for one answer, or for a page to become as it is expected. Both take less than 2 s on an idle machine, so the rest
is for a machine with two cores that runs the other heavy tests."""

FLAGS = (
    "headless no-sandbox disable-gpu disable-dev-shm-usage no-first-run disable-extensions disable-background-networking "
    "disable-sync disable-component-update remote-debugging-pipe"
)


class DevToolsError(Exception):
    """Chromium refused a command, a script raised, or no answer came in time."""


class DevTools:
    """One process of Chromium; `with` ends it."""

    def __init__(self, chromium: str, profile: Path) -> None:
        """Start Chromium. Args: profile: folder of its profile, which is made."""
        child_reads, self._to_child = os.pipe()
        self._from_child, child_writes = os.pipe()
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        connected = ["/bin/bash", "-c", f'exec 3<&{child_reads} 4>&{child_writes}; exec "$@"', "bash", chromium]
        self._process = subprocess.Popen(
            [*connected, *(f"--{flag}" for flag in FLAGS.split()), f"--user-data-dir={profile}"],
            pass_fds=(child_reads, child_writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(child_reads)
        os.close(child_writes)
        self._numbers = itertools.count(1)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(ANSWER_S)
        os.close(self._to_child)
        os.close(self._from_child)

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Run a command of the protocol and return its result. Raises: DevToolsError."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        self._send(json.dumps(message).encode() + b"\0")
        end = time.monotonic() + ANSWER_S
        while True:
            answer = self._receive(end, method)
            if answer.get("id") != number:
                continue  # an event
            if "error" in answer:
                raise DevToolsError(f"{method}: {answer['error']}")
            return dict(answer["result"])

    def _send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._to_child, data) :]

    def _receive(self, end: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._received:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._from_child], [], [], left)[0]:
                raise DevToolsError(f"{method}: no answer within {ANSWER_S:.0f} s")
            part = os.read(self._from_child, 1 << 20)
            if not part:
                raise DevToolsError(f"{method}: Chromium ended with {self._process.wait(ANSWER_S)}")
            self._received += part
        first, _, self._received = self._received.partition(b"\0")
        return dict(json.loads(first))

    @contextmanager
    def tab(self, url: str, *, width: int, height: int = 900, is_dark: bool = False) -> Iterator[Tab]:
        """Open a page in a tab of that size while the block runs."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        tab = Tab(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        tab.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.call("Page.navigate", url=url)
        try:
            yield tab
        finally:
            self.call("Target.closeTarget", targetId=target)


class Tab:
    """One page."""

    def __init__(self, browser: DevTools, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run a command of the protocol for this page. Raises: DevToolsError."""
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """Run JavaScript and return its value; that of a promise when it is kept. Raises: DevToolsError."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise DevToolsError(str(result["exceptionDetails"].get("exception", result["exceptionDetails"])))
        return result["result"].get("value")

    def wait_until(self, condition: str) -> None:
        """Wait until an expression is true. Raises: DevToolsError."""
        end = time.monotonic() + ANSWER_S
        while not self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise DevToolsError(f"not true within {ANSWER_S:.0f} s: {condition}")
            time.sleep(0.05)
