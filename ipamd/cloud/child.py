"""EC2's client in a process of its own, which is there while EC2 is asked: botocore is a sixth of the daemon's memory.

Both sides: `Ec2Child` is the daemon's, `main` the process. Budget, retries, intents, failpoints and what an error means stay in
the daemon. Each call has a socket of its own, which the caller's thread waits on. A process that is lost after it said that it is
sending is silence (I11); before, nothing was sent, and another one is started. It ends when the daemon lets go of it or is gone: its
standard input ends. Nothing forks: it is started by posix_spawn(3). docs/adr/0045.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ipamd import logs
from ipamd.cloud import errors
from ipamd.cloud.client import Ec2Client
from ipamd.model.record import asdict, dataclass

if TYPE_CHECKING:
    from ipamd.settings import CloudConfig

IDLE_S = 20.0
"""After the last call the process ends. Ours: calls come in groups; imports cost 0.2 s of CPU, memory a third of the daemon's."""

START_S = 20.0
"""From a request until the process says that it is sending: its start, and the search for credentials, whose requests have bounds of
their own (metadata 5 s at most). Ours."""

MARGIN_S = 15.0
"""What a call may take beyond its answer: its connection, and credentials that are renewed on the way. Ours."""

TRIES = 2
"""Processes for one attempt. Ours: one that was killed while it was idle is noticed only by the next request."""

THREADS = 16
"""Calls at once. Ours: more than the daemon has threads that ask EC2."""

ROOT = Path(__file__).parents[2]
"""Where this package is, for the process's own imports."""

SENDING, END = b"!", b"\n"
"""What comes back: SENDING just before the HTTP request, then a line of JSON, in which there is no other END."""


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Process:
    """A process that was started. What is sent over `control` are sockets, one for each call."""

    pid: int
    control: socket.socket

    def end(self) -> str:
        """Kill it, if it has not ended by itself, and reap it. Returns: how it ended; a signal's number is negative."""
        self.control.close()
        os.kill(self.pid, signal.SIGKILL)
        return f"ended with {os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])}"


def start(config: CloudConfig) -> Process:
    """Start a process, which prepares itself for the first call. Raises: OSError."""
    arguments = [sys.executable, "-S", "-P", "-m", __name__, json.dumps(asdict(config))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([f"{ROOT}", *sys.path])}
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


class Ec2Child(Ec2Client):
    """Makes the calls by a process, which is started at the first one. From any thread; the lock is held across no wait (I10)."""

    def __init__(
        self,
        config: CloudConfig,
        *,
        region: Callable[[], str],
        process: Process | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`process`: one that was started already. `report`: is told what is wrong with the process, "" when it works."""
        super().__init__(config, region=region)
        self._process = process
        self._report = report
        self._open_count = 0
        self._used_monotonic_s = time.monotonic()

    def call(self, api: str, subject: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the base class."""
        request = json.dumps({"api": api, "params": params, "region": self.region()}).encode()
        for _ in range(TRIES):
            came, problem = self._ask(request)
            if came:
                break
        self._report(problem and f"ec2 process: {problem}; the next call starts another one")
        if problem:
            names = ["ConnectionClosedError" if came else "EndpointConnectionError"]
            failure = errors.Failure(names, f"the process that asks EC2 {problem}", "EC2, and the daemon's log")
            raise errors.failed(api, subject, failure)
        document = json.loads(came.removeprefix(SENDING))
        if "failure" in document:
            raise errors.failed(api, subject, errors.Failure(**document["failure"]))
        return dict(document["answer"])

    def rest(self, *, is_wanted: bool) -> None:
        """See the base class. A start that fails is told by the call that needs it."""
        with self._lock:
            if is_wanted and self._process is None:
                with suppress(OSError):
                    self._process = start(self._config)
            if is_wanted or self._open_count or time.monotonic() - self._used_monotonic_s < IDLE_S:
                return
            process, self._process = self._process, None
        if process is not None:
            process.end()

    def _ask(self, request: bytes) -> tuple[bytes, str]:
        """Have the process make one call. Returns: what came back, and why no more came, "" if it is whole."""
        try:
            process, answers = self._handed_over()
        except OSError as error:
            return b"", f"cannot be started: {error}"
        try:
            with answers:
                came, problem = self._exchange(answers, request)
        finally:
            with self._lock:
                self._open_count -= 1
                self._used_monotonic_s = time.monotonic()
        if came.endswith(END):
            return came, ""
        with self._lock:
            known, self._process = self._process, None if self._process is process else self._process
        ended = process.end() if known is process else "ended"  # else another thread has noticed it
        log.warning("the process that asks EC2 is lost how=%s", problem or ended)
        return came, problem or ended

    def _handed_over(self) -> tuple[Process, socket.socket]:
        """The process, started if there is none, and our end of a socket whose other end it has. Raises: OSError."""
        with self._lock:
            self._process = process = self._process or start(self._config)
            ours, theirs = socket.socketpair()
            self._open_count += 1
            with theirs, suppress(OSError):  # it has ended, or does not listen: our end will tell
                socket.send_fds(process.control, [SENDING], [theirs.fileno()])
        return process, ours

    def _exchange(self, answers: socket.socket, request: bytes) -> tuple[bytes, str]:
        came, wait_s = b"", START_S
        try:
            answers.settimeout(wait_s)
            answers.sendall(request)
            answers.shutdown(socket.SHUT_WR)
            if came := answers.recv(1):
                answers.settimeout(wait_s := self._config.http_timeout_s + MARGIN_S)
                with answers.makefile("rb") as file:
                    came += file.read()
        except TimeoutError:
            return came, f"gave no answer within {wait_s:g} s"
        except OSError:
            pass  # it has ended
        return came, ""

    def __del__(self) -> None:
        if self._process is not None:
            self._process.end()


def main() -> None:
    """Make the calls that come over standard input, until it ends."""
    gc.disable()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # sent to a whole group: the daemon says when this ends
        signal.signal(number, signal.SIG_IGN)
    logs.set_up("warning")
    import botocore.session  # noqa: F401  # before the first call comes

    gc.enable()
    client = Ec2Client(SimpleNamespace(**json.loads(sys.argv[1])), region=str)  # type: ignore[arg-type]  # what it uses of it
    threads, control = ThreadPoolExecutor(THREADS), socket.socket(fileno=0)
    while descriptors := socket.recv_fds(control, 1, 1)[1]:
        threads.submit(_serve, socket.socket(fileno=descriptors[0]), client)
    os._exit(0)  # whatever is under way: nobody waits for it


def _serve(answers: socket.socket, client: Ec2Client) -> None:
    """Make one call."""
    with answers, answers.makefile("rb") as file:
        request = json.load(file)
        client.region = lambda: request["region"]
        try:
            client.built()
            answers.sendall(SENDING)
            document = {"answer": client.undigested(request["api"], request["params"])}
        except Exception as exc:  # noqa: BLE001  # top of a call
            document = {"failure": asdict(client.failure(exc))}
        answers.sendall(json.dumps(document, default=str).encode() + END)


if __name__ == "__main__":
    main()
