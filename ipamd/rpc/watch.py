"""Check by real calls over our own socket that requests are answered, so that a hanging daemon is replaced.

A listening socket proves nothing: the kernel accepts connections even if gRPC in the process has stopped serving them. So a loop makes
calls over the socket, on a connection that it keeps, and a thread of the server is reserved for these calls. If the daemon has
answered no request for SILENCE_S, it exits, because only a new process repairs that. A busy or overloaded daemon must not exit. So a
refusal because of too many requests (RESOURCE_EXHAUSTED) counts as an answer, and so does every request of another program that has
ended. While such requests end, the loop makes no call of its own.

Only time in which this process ran counts as silence. When a process is stopped and continued (SIGSTOP, a freezer cgroup), its clocks
jump. So each call and each pause counts for at most its planned length.

The loop's own call may never return: if gRPC could not create a thread of its own while the process started, it ends no call, not even
at the call's deadline (grpcio 1.85). So the main thread calls `check`, which exits if the loop makes no turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import grpc

from ipamd.core.health import Health
from ipamd.core.loop import Loop
from ipamd.grpc_client import Peer, status
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import log_text
from ipamd.overdue_calls import CALLS
from ipamd.ports.process import Clock

log = logging.getLogger(__name__)

SERVICE = "vpc_ipamd.v1.Watch"
METHOD = "Answer"

SILENCE_S = 60.0
"""After this many seconds without an answer the daemon exits. Ours: the longest deadline of a plugin, so that even a slow request that
came before the silence had the time to end."""

INTERVAL_S = 5.0
"""Pause in seconds after a turn without a problem. Ours: the turn also ends overdue calls to other programs, so these end within this
time.
"""

PROVEN_S = 15.0
"""After this many seconds without an answer the loop makes a call of its own. Ours: a quarter of SILENCE_S, which leaves time for
calls that fail. Shorter would cost more: a call takes 1 ms of CPU time at both ends together, and wakes grpcio's threads fifteen times
(measured)."""

RETRY_S = 1.0
"""Pause in seconds after a call without an answer. Ours: short, so that a daemon that answers again is noticed soon."""

CALL_S = 10.0
"""Timeout of a call in seconds. Ours: more than the 4.5 s for which the plugin waits for STATUS. After six calls without an answer,
more than SILENCE_S has passed."""

REPORT_S = 15.0
"""Seconds of silence after which the condition is reported. Ours: one call may be lost after a pause of the process, and that must not
be reported."""

UNWATCHED_S = 20.0
"""`is_alive` adds up the time in which the loop made no turn. Each call of `is_alive` adds at most this many seconds. Ours: the period
of kubelet's probe, so that nothing is left out while kubelet probes regularly."""

NOT_ANSWERED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
"""Status codes that gRPC's client makes by itself. Any other status code was sent by the server, so it is an answer."""

CONDITION = "requests"
THREADS = "request threads"


class Watched(Protocol):
    """The parts of a server (`ipamd/rpc/unix_server.py`) that the watch uses."""

    path: Path

    @property
    def ended_count(self) -> int:
        """The number of requests that the server has ended. It begins at 0 again with each new gRPC server."""
        ...

    def lacks_threads(self) -> bool:
        """Whether a further thread for requests cannot be started."""
        ...


def handler() -> grpc.GenericRpcHandler[Any, Any]:
    """Return the handler of the method that the watch calls."""
    answer = grpc.unary_unary_rpc_method_handler(_answer, request_deserializer=bytes, response_serializer=bytes)
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: answer})


def _stub(channel: grpc.Channel) -> Any:
    return channel.unary_unary(f"/{SERVICE}/{METHOD}", request_serializer=bytes, response_deserializer=bytes)


def _answer(_request: bytes, _context: grpc.ServicerContext) -> bytes:
    return b""


class ServiceWatch:
    """Checks that the daemon answers requests: its loop `answers` makes calls over the daemon's own socket. The threads of the
    health pages may call `is_alive`.
    """

    def __init__(
        self,
        server: Watched,
        *,
        health: Health,
        clock: Clock,
        end: Callable[[str], None],
        end_overdue: Callable[[], tuple[str, ...]] = CALLS.end_overdue,
    ) -> None:
        """Keep the collaborators of a turn.

        Args:
            server: the server that is watched.
            end: exits the process for the given reason.
            end_overdue: ends the daemon's own calls to other programs that grpcio left open past their deadlines. Returns the sockets
                of these programs.
        """
        self._server = server
        self._health = health
        self._clock = clock
        self._end = end
        self._end_overdue = end_overdue
        self._peer = Peer(str(server.path), _stub)
        self._ended_count = 0
        self._answered_monotonic_s: float | None = None
        self._silent_s = 0.0
        self._turn_count = 0
        self._asked = (0, self._clock.monotonic(), 0.0)
        self.loop = Loop("answers", self.turn, health=health, clock=clock)

    def turn(self) -> float:
        """End the connections of overdue calls, and make a call if no request was answered lately.

        Returns: seconds until the next turn.
        """
        self._turn_count += 1
        self._end_overdue_calls()
        began = self._clock.monotonic()
        cause = ""
        if not self._is_proven(began):
            cause = self._problem()
            if not cause:
                self._answered_monotonic_s = self._clock.monotonic()
                self._ended_count = self._server.ended_count
        took_s = min(self._clock.monotonic() - began, CALL_S)
        self._report_threads()
        if not cause or self._has_answered_others():
            self._silent_s = 0.0
            self._health.report(CONDITION, None)
            if cause:
                return RETRY_S
            return INTERVAL_S
        self._silent_s += took_s + RETRY_S
        if self._silent_s >= REPORT_S:
            unanswered = problem(
                ConditionCode.REQUESTS_UNANSWERED, silent_s=f"{REPORT_S:.0f}", cause=cause, end_s=f"{SILENCE_S:.0f}"
            )
            self._health.report(CONDITION, unanswered)
        if self._silent_s >= SILENCE_S:
            self._end(f"no request was answered for {SILENCE_S:.0f} s: {cause}")
        return RETRY_S

    def _end_overdue_calls(self) -> None:
        """Call `end_overdue`. If no file descriptor is left it fails, and the silence must still be counted."""
        try:
            sockets = self._end_overdue()
        except OSError as error:
            log.warning("failed to end the connections of overdue calls error=%s", log_text(error))
            return
        for socket in sockets:
            log.warning("ended the connections to a program that neither answers nor reads socket=%s", socket)

    def _is_proven(self, now_s: float) -> bool:
        """Whether a request was answered within the last PROVEN_S, so that no call is needed."""
        if self._has_answered_others():
            self._answered_monotonic_s = now_s
        return self._answered_monotonic_s is not None and now_s - self._answered_monotonic_s < PROVEN_S

    def _has_answered_others(self) -> bool:
        """Whether the server has ended requests since the later of two moments: the last call of this method, and the last success
        of the watch's own call over the socket.
        """
        ended_count, self._ended_count = self._ended_count, self._server.ended_count
        return ended_count != self._ended_count

    def is_alive(self) -> bool:
        """Whether the daemon has answered a request within SILENCE_S. Also False if the loop has made no turn for SILENCE_S + CALL_S.

        It only reads memory, because any number of pods may call the health pages. The time between two calls counts for at most
        UNWATCHED_S, so that a pause of the whole process does not look like a loop that is stuck.
        """
        turn_count, asked_monotonic_s, unwatched_s = self._asked
        now = self._clock.monotonic()
        if turn_count == self._turn_count:
            unwatched_s += min(now - asked_monotonic_s, UNWATCHED_S)
        else:
            unwatched_s = 0.0
        self._asked = (self._turn_count, now, unwatched_s)
        return self._silent_s < SILENCE_S and unwatched_s < SILENCE_S + CALL_S

    def check(self) -> None:
        """Exit if the loop is stuck. The main thread calls it every INTERVAL_S, because a loop that is stuck cannot exit itself."""
        if not self.is_alive():
            self._end(f"no request was answered for {SILENCE_S:.0f} s, and the check of that does not return")

    def close(self) -> None:
        """End the loop and the running call."""
        self.loop.stop()
        self._peer.close()

    def _problem(self) -> str:
        """Make a call to our own server. Returns: why there was no answer; "" if there was one, also if it was a refusal."""
        try:
            return self._unanswered()
        except (RuntimeError, MemoryError, OSError) as error:  # also if a new channel cannot be made
            return log_text(error)

    def _unanswered(self) -> str:
        """Make the call. Returns: as `_problem`. Raises: RuntimeError, MemoryError, OSError if gRPC cannot make the call."""
        stub = self._peer.stub()
        try:
            stub(b"", timeout=CALL_S)
        except grpc.RpcError as error:
            code, text = status(error)
            self._peer.call_failed(stub, code)
            if code in NOT_ANSWERED:
                return text
        return ""

    def _report_threads(self) -> None:
        thread_problem = None
        if self._server.lacks_threads():
            thread_problem = problem(ConditionCode.NO_REQUEST_THREAD)
        self._health.report(THREADS, thread_problem)
