"""What is silence, and what is none: the daemon's own call over its socket, and the pages that read its outcome."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from ipamd.core.health import Health
from ipamd.grpc_client import Peer
from ipamd.http.health_pages import HealthPages
from ipamd.rpc import watch
from ipamd.rpc.unix_server import UnixServer
from ipamd.rpc.watch import CALL_S, CONDITION, INTERVAL_S, RETRY_S, SILENCE_S, THREADS, UNWATCHED_S, ServiceWatch
from tests.fakes.clock import FakeClock
from tests.patience import PATIENCE_S


class CallError(grpc.RpcError):
    """A call that ended with this status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__()
        self._code = code

    def code(self) -> grpc.StatusCode:
        """As a call has it."""
        return self._code

    def details(self) -> str:
        """As a call has it."""
        return "played"


class Played:
    """A watch whose calls are played on a monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.path = Path("/nowhere/s")
        self.ended_count = 0
        self.is_short = False
        self.ended: list[str] = []
        self.health = Health(self.clock, ())
        self.overdue_turns = 0
        self.watch = ServiceWatch(
            self, health=self.health, clock=self.clock, end=self.ended.append, end_overdue=self._end_overdue
        )

    def lacks_threads(self) -> bool:
        """As a server answers."""
        return self.is_short

    def _end_overdue(self) -> tuple[str, ...]:
        self.overdue_turns += 1
        return ("/run/flooding.sock",)

    def turn(self, answer: Exception | None, *, took_s: float = 0.0) -> float:
        """One call with this outcome, and the pause after it."""

        def call(_: bytes, timeout: float) -> bytes:
            assert timeout == CALL_S
            self.clock.advance(took_s)
            if answer is not None:
                raise answer
            return b""

        self.watch._peer = Peer(str(self.path), lambda _: call)
        pause_s = self.watch.turn()
        self.clock.advance(pause_s)
        return pause_s

    def is_said(self) -> bool:
        """Whether silence is a condition."""
        return CONDITION in self.health.conditions_by_subject()


@pytest.fixture
def played() -> Played:
    """A watch that has made no call yet."""
    return Played()


LATE = CallError(grpc.StatusCode.DEADLINE_EXCEEDED)
AWAY = CallError(grpc.StatusCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("answer", "took_s"), [(LATE, CALL_S), (AWAY, 0.0), (RuntimeError("no thread"), 0.0), (MemoryError(), 0.0)]
)
def test_a_minute_without_an_answer_ends_the_daemon(played: Played, answer: Exception, took_s: float) -> None:
    """Not earlier; a condition says it before, and `/healthz` fails with it."""
    began_s = played.clock.monotonic()
    while not played.ended:
        assert played.watch.is_alive()
        played.turn(answer, took_s=took_s)
        assert played.clock.monotonic() < began_s + SILENCE_S + CALL_S + 2 * RETRY_S
    assert played.clock.monotonic() >= began_s + SILENCE_S
    assert played.is_said()
    assert not played.watch.is_alive()


@pytest.mark.parametrize(
    "answer", [None, CallError(grpc.StatusCode.RESOURCE_EXHAUSTED), CallError(grpc.StatusCode.UNIMPLEMENTED)], ids=str
)
def test_any_answer_ends_silence(played: Played, answer: Exception | None) -> None:
    """A refusal for want of room too: the service is busy, not silent."""
    for _ in range(3):
        for _ in range(4):
            played.turn(LATE, took_s=CALL_S)
        assert played.is_said()
        played.turn(answer)
        assert not played.is_said()
        assert played.watch.is_alive()
    assert played.ended == []


def test_each_turn_ends_overdue_calls(played: Played) -> None:
    """Whether our own service answers or not: a program that floods us must not hold a thread for ever."""
    for answer in (None, LATE):
        played.turn(answer)
    assert played.overdue_turns == 2


def test_a_request_of_others_that_ends_is_an_answer(played: Played) -> None:
    """Where a single thread is left, our call waits behind an ADD of a minute."""
    for _ in range(20):
        played.ended_count += 1
        played.turn(LATE, took_s=CALL_S)
    assert played.ended == []
    assert played.watch.is_alive()


@pytest.mark.parametrize("pause_s", [50.0, 3600.0])
@pytest.mark.parametrize("is_in_a_call", [True, False])
def test_a_pause_of_the_process_is_no_silence(played: Played, pause_s: float, is_in_a_call: bool) -> None:
    """What a page is asked first after it, and the call that was under way, which has missed its deadline."""
    played.turn(None)
    assert played.watch.is_alive()
    if is_in_a_call:
        played.turn(LATE, took_s=pause_s)
    else:
        played.clock.advance(pause_s)
    assert played.watch.is_alive()
    assert not played.is_said()
    played.turn(None)
    assert played.watch.is_alive()
    assert played.ended == []


def test_many_pauses_are_no_silence(played: Played) -> None:
    """A process that runs for a moment between two pauses, each time long enough for one call."""
    for _ in range(50):
        played.turn(LATE, took_s=120.0)
        played.turn(None)
    assert played.ended == []


def test_a_loop_that_is_stuck_is_noticed_by_the_pages(played: Played) -> None:
    """They count the time between their own questions, so that kubelet ends a daemon that cannot end itself."""
    played.turn(None)
    assert played.watch.is_alive()
    asked_count = 0
    while played.watch.is_alive():
        played.clock.advance(UNWATCHED_S)
        asked_count += 1
        assert asked_count < 10
    assert asked_count * UNWATCHED_S >= SILENCE_S
    played.turn(None)
    assert played.watch.is_alive()


def test_a_loop_that_is_stuck_ends_the_daemon_without_a_probe(played: Played) -> None:
    """Its own call may never return. The main thread notices, whether or not anybody asks for a page."""
    played.turn(None)
    began_s = played.clock.monotonic()
    while not played.ended:
        played.clock.advance(INTERVAL_S)
        played.watch.check()
        assert played.clock.monotonic() <= began_s + SILENCE_S + CALL_S + 2 * INTERVAL_S
    assert played.clock.monotonic() >= began_s + SILENCE_S


def test_the_check_of_the_main_thread_counts_no_pause_of_the_process(played: Played) -> None:
    """The first check after it comes before the loop's next turn."""
    for _ in range(20):
        played.turn(None)
        played.clock.advance(3600.0)
        played.watch.check()
    assert played.ended == []


@pytest.mark.parametrize("where", ["overdue calls", "new channel"])
def test_silence_is_counted_whatever_else_fails(played: Played, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Without a file descriptor neither a connection can be ended nor a channel be made."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    if where == "overdue calls":
        monkeypatch.setattr(played.watch, "_end_overdue", refuse)
    else:
        monkeypatch.setattr(Peer, "call_failed", refuse)
    for _ in range(int(SILENCE_S / RETRY_S)):
        played.turn(AWAY)
    assert played.ended


def test_a_lack_of_threads_is_a_condition_while_it_lasts(played: Played) -> None:
    """The service goes on answering."""
    played.is_short = True
    played.turn(None)
    assert THREADS in played.health.conditions_by_subject()
    played.is_short = False
    played.turn(None)
    assert THREADS not in played.health.conditions_by_subject()


@pytest.fixture
def pages(tmp_path: Path) -> Callable[[bool], bytes]:
    """`/healthz` of a daemon that listens, by whether it answers."""
    server = UnixServer(tmp_path / "s", max_rpcs=2, max_connections=4, max_request_bytes=100, advice="", add=lambda _: None)
    server.start()

    def ask(is_answered: bool) -> bytes:
        made = HealthPages(cni_socket=tmp_path / "s", is_ready=lambda: True, is_answered=lambda: is_answered)
        return made("/healthz")[0].split()[1]

    return ask


def test_a_service_that_answers_nothing_is_not_alive(pages: Callable[[bool], bytes]) -> None:
    """Though the kernel still takes connections to its socket."""
    assert [pages(True), pages(False)] == [b"200", b"503"]


def test_the_call_goes_over_the_socket(tmp_path: Path) -> None:
    """A real server: its method is served; after the server was replaced the new one is called; without one there is no answer."""
    server = UnixServer(
        tmp_path / "s",
        max_rpcs=1,
        max_connections=4,
        max_request_bytes=100,
        advice="",
        add=lambda made: made.add_generic_rpc_handlers((watch.handler(),)),
    )
    server.start()
    health = Health(FakeClock(), ())
    made = ServiceWatch(server, health=health, clock=FakeClock(), end=print)
    assert made._problem() == ""
    (tmp_path / "s").unlink()
    assert server.keep()
    bound = time.monotonic() + PATIENCE_S
    while made._problem():
        assert time.monotonic() < bound
    server.stop(0.0)
    assert "UNAVAILABLE" in made._problem()
    made.close()
