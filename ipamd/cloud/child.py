"""The EC2 client in a process of its own, which runs only while EC2 is called, because botocore takes a sixth of the daemon's memory.

`Ec2Child` is the daemon's side, `ec2_process.py` the process. Budget, retries, intents, failpoints and the meaning of errors stay in
the daemon. Each call has its own socket, on which the caller's thread waits. If the process dies after it reported that it is
sending, the call counts as unanswered (I11); before that nothing was sent, and another process is started. The process ends when its
standard input ends, because the daemon released it or died. It is started by posix_spawn(3), without fork. See docs/adr/0045.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipamd.cloud import ec2_process, errors
from ipamd.cloud.attempt_failure import AttemptFailure
from ipamd.cloud.client import Ec2Client
from ipamd.cloud.ec2_process import END, SENDING
from ipamd.model.record import asdict, dataclass

if TYPE_CHECKING:
    from ipamd.settings import CloudConfig

IDLE_S = 20.0
"""The process ends this long after the last call. Ours: calls come in groups, and one process serves a group, because each start costs
0.2 s of CPU for imports. Then the process ends, because a process that waits costs memory, a third of the daemon's."""

START_S = 20.0
"""Longest time from a request until the process reports that it is sending. Ours: this is enough for its start and for its search for
credentials, because the requests for these have their own bounds (metadata 5 s at most)."""

MARGIN_S = 15.0
"""Seconds that a call may take in addition to HTTP_TIMEOUT, the timeout of its answer, after the process has reported that it is
sending. Ours: this is ample, because connecting takes 3 s at most, and credentials are fetched before that report."""

TRIES = 2
"""The largest number of processes that are tried for one attempt. Ours: the death of an idle process is noticed only by the next
request, which a new process then makes."""

EARLY_S = 5.0
"""For this long the answer to an early question may be used. Ours: a start takes a second, and an answer that lags is as old."""

ROOT = Path(__file__).parents[2]
"""The directory that contains the package `ipamd`, for the process's imports."""

MALLOC_SETTINGS = {"MALLOC_ARENA_MAX": "1"}
"""Environment variables of the process. All its threads share one of malloc's arenas, because an arena for each thread costs memory.
Other C libraries than glibc ignore the variable. Source: the manual of glibc, Memory Allocation Tunables."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Process:
    """A started process. It receives sockets over `control`, one for each call."""

    pid: int
    control: socket.socket

    def end(self) -> str:
        """Kill it, if it has not ended by itself, and reap it. Returns: how it ended; a signal's number is negative."""
        self.control.close()
        os.kill(self.pid, signal.SIGKILL)
        return f"ended with {os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])}"


def start(config: CloudConfig) -> Process:
    """Start a process, which imports botocore before the first call comes. Raises: OSError."""
    arguments = [sys.executable, "-S", "-P", "-m", ec2_process.__name__, json.dumps(asdict(config))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([f"{ROOT}", *sys.path])} | MALLOC_SETTINGS
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
            pid = os.posix_spawn(sys.executable, arguments, environment, file_actions=actions)
        except OSError:
            ours.close()
            raise
    ours.setblocking(False)
    return Process(pid, ours)


@dataclass(frozen=True)
class EarlyQuestion:
    """A call that was begun before the daemon needs its answer.

    `request`: the bytes that the process got.
    `deadline`: until this time (monotonic) the answer may be used.
    `reply`: what `_ask` returns.
    """

    request: bytes
    deadline: float
    reply: Future[tuple[bytes, str]]


class Ec2Child(Ec2Client):
    """Makes the calls in a process, which is started at the first call. From any thread; no wait happens under the lock (I10)."""

    def __init__(
        self,
        config: CloudConfig,
        *,
        region: Callable[[], str] = str,
        process: Process | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`process`: a process that was started already. `report`: called after each call, with the process's problem or ""."""
        super().__init__(config, region=region)
        self._process = process
        self.report = report
        self._early: EarlyQuestion | None = None
        self._has_called = False
        self._open_count = 0
        self._used_monotonic_s = time.monotonic()

    def call(self, api: str, subject: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Ec2Client.call`."""
        request = _encoded(api, params, self.region())
        received, problem = self._early_reply(request)
        if problem:
            for _ in range(TRIES):
                received, problem = self._ask(request)
                if received:
                    break
        self.report(problem)
        if problem:
            names = ["ConnectionClosedError" if received else "EndpointConnectionError"]
            failure = AttemptFailure(names, f"the process that asks EC2 {problem}", "EC2, and the daemon's log")
            raise errors.failed(api, subject, failure)
        document = json.loads(received.removeprefix(SENDING))
        if "failure" in document:
            raise errors.failed(api, subject, AttemptFailure(**document["failure"]))
        return dict(document["answer"])

    def ask_early(self, api: str, params: Mapping[str, Any], *, region: str) -> None:
        """Make a call that changes nothing, and keep its answer for the first `call`, unless there was one. If that is the same call,
        and comes within EARLY_S, it gets the answer. `call` waits for it, so this attempt is counted like any other.
        """
        question = EarlyQuestion(_encoded(api, params, region), time.monotonic() + EARLY_S, Future())
        with self._lock:
            if self._has_called:
                return
            self._early = question
        reply = b"", "was not asked"
        try:
            reply = self._ask(question.request)
        finally:
            question.reply.set_result(reply)

    def _early_reply(self, request: bytes) -> tuple[bytes, str]:
        """Return the reply to the early question, if it was this request and may be used, as `_ask` returns it."""
        with self._lock:
            question, self._early, self._has_called = self._early, None, True
        if question is None or question.request != request or question.deadline < time.monotonic():
            return b"", "was not asked"
        return question.reply.result()

    def release_idle(self, *, is_needed_soon: bool) -> None:
        """See `Ec2Client.release_idle`. If `is_needed_soon`, the process is started unless it runs. If the start fails, the next call
        tries it again and reports a failure.
        """
        with self._lock:
            if is_needed_soon and self._process is None:
                with suppress(OSError):
                    self._process = start(self._config)
            if is_needed_soon or self._open_count or time.monotonic() - self._used_monotonic_s < IDLE_S:
                return
            process, self._process = self._process, None
        if process is not None:
            process.end()

    def _ask(self, request: bytes) -> tuple[bytes, str]:
        """Make one call in the process. Returns: the received bytes, and why they are incomplete ("" if they are complete)."""
        try:
            process, answers = self._handed_over()
        except OSError as error:
            return b"", f"cannot be started: {error}"
        try:
            with answers:
                received, problem = self._exchange(answers, request)
        finally:
            with self._lock:
                self._open_count -= 1
                self._used_monotonic_s = time.monotonic()
        if received.endswith(END):
            return received, ""
        with self._lock:
            is_current = self._process is process
            if is_current:
                self._process = None
        ended = process.end() if is_current else "ended"  # if it is not current, another thread has reaped it
        log.warning("EC2 client process lost how=%s", problem or ended)
        return received, problem or ended

    def _handed_over(self) -> tuple[Process, socket.socket]:
        """Start the process if there is none, and send it one end of a new pair of sockets. Returns: the process, and our end.

        Raises: OSError.
        """
        with self._lock:
            self._process = process = self._process or start(self._config)
            ours, theirs = socket.socketpair()
            self._open_count += 1
            with theirs, suppress(OSError):  # if the process has ended, reading our end shows it
                socket.send_fds(process.control, [SENDING], [theirs.fileno()])
        return process, ours

    def _exchange(self, answers: socket.socket, request: bytes) -> tuple[bytes, str]:
        """Send a request and read its answer. Returns: the received bytes, and "gave no answer within N s" after a timeout, or ""."""
        received, wait_s = b"", START_S
        try:
            answers.settimeout(wait_s)
            answers.sendall(request)
            answers.shutdown(socket.SHUT_WR)
            received = answers.recv(1)
            if received:
                wait_s = self._config.http_timeout_s + MARGIN_S
                answers.settimeout(wait_s)
                with answers.makefile("rb") as file:
                    received += file.read()
        except TimeoutError:
            return received, f"gave no answer within {wait_s:g} s"
        except OSError:
            pass  # the process has ended
        return received, ""

    def __del__(self) -> None:
        if self._process is not None:
            self._process.end()


def _encoded(api: str, params: Mapping[str, Any], region: str) -> bytes:
    """Return a call in the form in which the process gets it."""
    return json.dumps({"api": api, "params": params, "region": region}).encode()
