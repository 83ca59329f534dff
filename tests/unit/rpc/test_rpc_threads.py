"""The threads of requests: as many as there are requests at once, none after a while without work, and no request waits for one."""

from __future__ import annotations

import threading

import pytest

from ipamd.rpc.server import RpcThreads
from tests.patience import PATIENCE_S

MOST = 8


@pytest.fixture
def threads() -> RpcThreads:
    """At most MOST, which end at once when they have no work."""
    made = RpcThreads(MOST, "test")
    made.idle_s = 0.01
    return made


def left(threads: RpcThreads) -> int:
    """How many there are once those that end have ended."""
    for thread in threading.enumerate():
        if thread.name == "test":
            thread.join(PATIENCE_S)
    return threads.thread_count


def test_threads_end_without_work_and_come_again(threads: RpcThreads) -> None:
    """A burst makes one for each request; after it there is none; and the next request is served."""
    for _ in range(3):
        everyone = threading.Barrier(MOST)
        for done in [threads.submit(everyone.wait) for _ in range(MOST)]:
            done.result(PATIENCE_S)
        assert left(threads) == 0


def test_a_request_beyond_the_most_waits_for_its_turn(threads: RpcThreads) -> None:
    """Twice as many as there may be threads: all are served, by no more than the most."""
    served: list[int] = []
    opened = threading.Event()

    def serve(number: int) -> None:
        opened.wait(PATIENCE_S)
        served.append(number)

    waiting = [threads.submit(serve, number) for number in range(2 * MOST)]
    assert threads.thread_count == MOST
    opened.set()
    for done in waiting:
        done.result(PATIENCE_S)
    assert sorted(served) == list(range(2 * MOST))
    assert left(threads) == 0


def test_no_request_is_left_behind_by_a_thread_that_ends(threads: RpcThreads) -> None:
    """Requests that come just when threads give up: each is served, and the count stays true."""
    threads.idle_s = 0.0
    for number in range(500):
        assert threads.submit(lambda n=number: n).result(PATIENCE_S) == number
    assert left(threads) == 0


def test_a_request_that_fails_is_counted_as_ended(threads: RpcThreads) -> None:
    """Else each failure would keep a thread alive that nobody needs."""

    def fail() -> None:
        raise ValueError("no")

    for _ in range(2 * MOST):
        with pytest.raises(ValueError, match="no"):
            threads.submit(fail).result(PATIENCE_S)
    assert left(threads) == 0
