"""A daemon whose end is watched: a planned end (a kill, a failpoint) is distinguished from an unexpected one.

An end that nobody asked for is a violation, "unexpected end"; the end of the log goes into the history.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable

from lab.chaos.expected_state import Violation
from lab.chaos.history import History
from lab.node.daemon import Daemon
from lab.node.process import NodeProcess

FAILPOINT_ENV = "VPC_IPAMD_FAILPOINT"
UNEXPECTED_END = "unexpected end"
WATCH_S = 0.25
TIMEOUT_S = 20.0
STARTS_KEPT = 60
"""More than there are in a minute."""

STARTING_S = 5.0
"""Ours: a process this young may still be importing and has no handler for SIGTERM yet; then it just ends."""


class WatchedDaemon:
    """Starts and ends one daemon. Concurrency: start, kill and stop from one thread; the rest from any."""

    def __init__(self, daemon: Daemon, *, history: History, on_unasked_end: Callable[[NodeProcess], None]) -> None:
        """`on_unasked_end` is called with the dead process, also after a failpoint; it must not block."""
        self.daemon = daemon
        self._history = history
        self._on_unasked_end = on_unasked_end
        self._failpoint = ""
        self._started_at_s = 0.0
        self._is_end_asked = True
        self._ready_since: float | None = None
        self._lock = threading.RLock()  # around the process, what is expected of it and since when it is ready
        self._started_at: tuple[float, ...] = ()
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name=f"watch-{daemon.node.name}", daemon=True)

    @property
    def ready_since(self) -> float | None:
        """Seconds of the run at which the daemon became ready; None while it is not."""
        with self._lock:
            return self._ready_since

    @property
    def started_at(self) -> tuple[float, ...]:
        """Seconds of the run at which it was started, the last ones."""
        with self._lock:
            return self._started_at

    def open(self) -> None:
        """Start the daemon and the watcher."""
        self.start()
        self._watcher.start()

    def close(self) -> None:
        """Stop the watcher; the daemon keeps running."""
        self._closed.set()
        if self._watcher.is_alive():
            self._watcher.join(TIMEOUT_S)

    def start(self, failpoint: str = "") -> None:
        """Start the daemon, armed with a failpoint or not; returns at once."""
        with self._lock:
            self.daemon.start(env={FAILPOINT_ENV: failpoint} if failpoint else {})
            self._failpoint, self._is_end_asked = failpoint, False
            self._started_at_s = self._history.now()
            self._started_at = (*self._started_at[-STARTS_KEPT:], self._started_at_s)

    def start_after(self, dead: NodeProcess) -> None:
        """Start the daemon again, unless another one has been started since that process died."""
        if not self._closed.is_set() and self.daemon.process is dead:
            self.start()

    def kill(self) -> None:
        """`kill -9`."""
        self._end(signal.SIGKILL, TIMEOUT_S)

    def stop(self, timeout_s: float) -> None:
        """SIGTERM; an exit status other than 0 is a violation, unless the process had just been started."""
        code = self._end(signal.SIGTERM, timeout_s)
        is_starting = code == -signal.SIGTERM and self._history.now() - self._started_at_s < STARTING_S
        if code not in (0, -signal.SIGKILL) and not is_starting:
            self._tell(f"it was asked to end and ended with {code}", log=self.daemon.log_tail(20))

    def await_end(self, timeout_s: float) -> None:
        """Wait until the daemon has ended by itself, at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.daemon.is_running and time.monotonic() < deadline:
            self._closed.wait(WATCH_S)

    def _end(self, number: signal.Signals, timeout_s: float) -> int:
        with self._lock:
            was_asked, process = self._is_end_asked, self.daemon.process
            self._is_end_asked, self._ready_since = True, None
        code = process.poll() if process is not None else None
        if code is not None and not was_asked:
            self._note_end(code)  # the watcher has not seen it yet
        try:
            return self.daemon.end(number, timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            self._tell(f"it does not end within {timeout_s:.0f} s")
            return self.daemon.kill()
        finally:
            with self._lock:
                self._ready_since = None

    def _watch(self) -> None:
        while not self._closed.wait(WATCH_S):
            try:
                self._watch_once()
            except Exception as error:  # noqa: BLE001  # top of a loop
                self._history.note("watcher", node=self.daemon.node.name, error=repr(error))

    def _watch_once(self) -> None:
        with self._lock:
            process = self.daemon.process
            if process is None or self._is_end_asked:
                self._ready_since = None
                return
            code = process.poll()
            if code is not None:
                self._is_end_asked, self._ready_since = True, None
                self._note_end(code)
                self._on_unasked_end(process)
                return
        status = self.daemon.status()  # without the lock: it may take seconds
        is_ready = status is not None and bool(status["ready"])
        with self._lock:
            if self.daemon.process is not process or self._is_end_asked or not is_ready:
                self._ready_since = None
            elif self._ready_since is None:
                self._ready_since = self._history.now()

    def _note_end(self, code: int) -> None:
        node, failpoint = self.daemon.node.name, self._failpoint
        if failpoint and code == -signal.SIGKILL:
            self._history.say(f"died at {failpoint}", node=node, counted=f"kill failpoint {failpoint.partition(':')[0]}")
        else:
            self._tell(f"the daemon ended by itself with {code}", log=self.daemon.log_tail())

    def _tell(self, what: str, *, log: str = "") -> None:
        node = self.daemon.node.name
        self._history.note("log", node=node, log=log.splitlines())
        self._history.violate(Violation(UNEXPECTED_END, self._history.now(), node, what))
