"""The threads of requests: as many as there are requests, one without work, and none that cannot be made holds a request up."""

from __future__ import annotations

import ast
import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import grpc
import pytest

from ipamd import threads as request_threads
from ipamd.rpc.unix_server import UnixServer
from ipamd.threads import RequestThreads
from tests.patience import PATIENCE_S
from tests.rig import wait_until

MOST = 8


@pytest.fixture
def threads() -> Iterator[RequestThreads]:
    """At most MOST, which end at once when they have no work."""
    made = RequestThreads(MOST, "test")
    made.idle_s = 0.01
    yield made
    made.shutdown()


class ThreadLimit:
    """While it is set, the system makes no thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_reached = False
        start = threading.Thread.start

        def refuse_or_start(thread: threading.Thread) -> None:
            if self.is_reached:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refuse_or_start)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> ThreadLimit:
    """Of this process, not reached yet."""
    return ThreadLimit(monkeypatch)


def await_rest(threads: RequestThreads) -> None:
    """Wait until all that end for want of work have ended."""
    wait_until(lambda: threads.thread_count == 1, what="one thread is left")


def hold(threads: RequestThreads) -> Callable[[], None]:
    """Give the thread that always exists a request that runs until the returned function is called."""
    begun, opened = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        opened.wait(PATIENCE_S)

    held = threads.submit(run)
    assert begun.wait(PATIENCE_S)

    def release() -> None:
        opened.set()
        held.result(PATIENCE_S)

    return release


def test_threads_end_without_work_and_come_again(threads: RequestThreads) -> None:
    """A burst makes one for each request; after it one is left; and the next burst is served."""
    for _ in range(3):
        everyone = threading.Barrier(MOST)
        for done in [threads.submit(everyone.wait) for _ in range(MOST)]:
            done.result(PATIENCE_S)
        await_rest(threads)


def test_a_request_beyond_the_most_waits_for_its_turn(threads: RequestThreads) -> None:
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
    await_rest(threads)


def test_no_request_is_left_behind_by_a_thread_that_ends(threads: RequestThreads) -> None:
    """Requests that come just when threads give up: each is served, and the count stays true."""
    threads.idle_s = 0.0
    for number in range(500):
        assert threads.submit(lambda n=number: n).result(PATIENCE_S) == number
    await_rest(threads)
    assert threads.ended_count == 500


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
def test_a_request_that_fails_is_counted_as_ended(threads: RequestThreads, error: BaseException) -> None:
    """Else each failure would keep a thread alive that nobody needs, or end the one that always exists."""

    def fail() -> None:
        raise error

    for _ in range(2 * MOST):
        with pytest.raises(type(error)):
            threads.submit(fail).result(PATIENCE_S)
    await_rest(threads)
    assert threads.submit(int).result(PATIENCE_S) == 0


def test_a_cancelled_request_is_not_run(threads: RequestThreads) -> None:
    """It ends like any other."""
    release = hold(threads)
    threads._most = 1
    ran: list[int] = []
    waiting = threads.submit(ran.append, 1)
    assert waiting.cancel()
    release()
    with pytest.raises(CancelledError):
        waiting.result(PATIENCE_S)
    assert threads.submit(int).result(PATIENCE_S) == 0
    assert ran == []


def test_without_threads_requests_are_served_one_after_the_other(threads: RequestThreads, limit: ThreadLimit) -> None:
    """A limit that is reached from the first request on: each is served by the thread that always exists."""
    limit.is_reached = True
    waiting = [threads.submit(lambda n=number: n) for number in range(2 * MOST)]
    assert [done.result(PATIENCE_S) for done in waiting] == list(range(2 * MOST))
    assert threads.thread_count == 1


@pytest.mark.parametrize("event", ["a request comes", "a request ends"])
def test_a_thread_is_tried_again_when(threads: RequestThreads, limit: ThreadLimit, event: str) -> None:
    """Nobody waits longer than until the next request ends or comes."""
    releases = [hold(threads), hold(threads)]
    limit.is_reached = True
    begun, opened = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        opened.wait(PATIENCE_S)

    waiting = [threads.submit(run), threads.submit(run)]
    assert threads.lacks_threads()
    assert not begun.is_set()
    limit.is_reached = False
    if event == "a request comes":
        last = threads.submit(int)
        assert begun.wait(PATIENCE_S), "it took the request that had waited"
    else:
        last = threads.submit(int)
        releases.pop()()
        wait_until(lambda: threads.thread_count >= 3, what="a further thread")
    opened.set()
    assert last.result(PATIENCE_S) == 0
    for release in releases:
        release()
    for done in waiting:
        done.result(PATIENCE_S)
    assert not threads.lacks_threads()


def test_the_lack_ends_although_no_request_needs_a_thread(threads: RequestThreads, limit: ThreadLimit) -> None:
    """The permanent thread serves whatever comes, one request after the other, so only the question itself can notice."""
    release = hold(threads)
    limit.is_reached = True
    waiting = threads.submit(int)
    release()
    assert waiting.result(PATIENCE_S) == 0
    assert threads.lacks_threads()
    assert threads.thread_count == 1
    limit.is_reached = False
    assert not threads.lacks_threads()
    await_rest(threads)
    assert not threads.lacks_threads(), "the further thread has ended for want of work, not for want of room"


def test_the_bound_is_no_lack(threads: RequestThreads, limit: ThreadLimit) -> None:
    """All permitted threads exist: the question starts no further one."""
    releases = [hold(threads) for _ in range(MOST)]
    limit.is_reached = True
    assert not threads.lacks_threads()
    assert threads.thread_count == MOST
    for release in releases:
        release()


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError(), OSError(11, "again")])
def test_nothing_is_raised_into_the_caller(threads: RequestThreads, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The caller is grpcio's only thread that hands requests out."""
    release = hold(threads)

    def refuse(_: threading.Thread) -> None:
        raise error

    monkeypatch.setattr(threading.Thread, "start", refuse)
    waiting = [threads.submit(int) for _ in range(3)]
    release()
    assert [done.result(PATIENCE_S) for done in waiting] == [0, 0, 0]


def test_a_shut_pool_ends_its_threads_and_still_serves(threads: RequestThreads) -> None:
    """A replaced server keeps no thread, and what grpcio had accepted before is not lost."""
    threads.shutdown()
    assert threads.thread_count == 0
    assert threads.submit(int).result(PATIENCE_S) == 0
    threads.shutdown()
    assert threads.thread_count == 0


@pytest.mark.parametrize("idle_s", [0.0, 0.001, PATIENCE_S])
def test_every_thread_ends_with_a_shut_pool(idle_s: float) -> None:
    """Threads that wait for work, with and without a bound, and such that have just ended theirs: none takes the others' wake-up."""
    for _ in range(50):
        made = RequestThreads(MOST, "test")
        made.idle_s = idle_s
        everyone = threading.Barrier(MOST)
        for _ in range(MOST):
            made.submit(everyone.wait)
        made.shutdown(wait=False)
        wait_until(lambda made=made: made.thread_count == 0, what="all have ended")


def test_what_waits_can_be_cancelled(threads: RequestThreads) -> None:
    """`Executor.shutdown` of the standard library promises it."""
    threads._most = 1
    release = hold(threads)
    waiting = [threads.submit(int) for _ in range(3)]
    threads.shutdown(wait=False, cancel_futures=True)
    release()
    for done in waiting:
        with pytest.raises(CancelledError):
            done.result(PATIENCE_S)
    threads.shutdown()


def test_the_last_thread_that_ends_reports_rest() -> None:
    """Once after many requests at once, and not for a pool that is shut."""
    rests: list[int] = []
    made = RequestThreads(MOST, "test", on_rest=lambda: rests.append(made.thread_count))
    for count in (1, 2):
        made.idle_s = 0.05
        everyone = threading.Barrier(MOST)
        for _ in range(MOST):
            made.submit(everyone.wait)
        wait_until(lambda count=count: len(rests) == count, what="at rest")
    made.submit(int).result(PATIENCE_S)
    made.shutdown()
    assert rests == [1, 1]


def test_a_pool_that_has_no_first_thread_is_an_error(limit: ThreadLimit) -> None:
    """Nobody would serve its requests: who makes it hears of that."""
    limit.is_reached = True
    with pytest.raises(RuntimeError):
        RequestThreads(MOST, "test")


def make_server(path: Path) -> UnixServer:
    """A server with one method, `/s/m`."""
    handler = grpc.method_handlers_generic_handler(
        "s", {"m": grpc.unary_unary_rpc_method_handler(lambda data, _: data, bytes, bytes)}
    )
    bounds = {"max_rpcs": 4, "max_connections": 8, "max_request_bytes": 100}
    return UnixServer(path, advice="", add=lambda made: made.add_generic_rpc_handlers((handler,)), **bounds)  # type: ignore[arg-type]


def ask(path: Path) -> bytes:
    """Call it."""
    with grpc.insecure_channel(f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        return bytes(channel.unary_unary("/s/m")(b"x", timeout=PATIENCE_S))  # type: ignore[call-arg]  # as bytes


def test_a_server_outlives_a_limit_of_threads(tmp_path: Path, limit: ThreadLimit) -> None:
    """As a pids limit does it: grpcio's thread goes on handing requests out."""
    server = make_server(tmp_path / "s")
    server.start()
    limit.is_reached = True
    assert [ask(tmp_path / "s") for _ in range(3)] == [b"x"] * 3
    limit.is_reached = False
    assert ask(tmp_path / "s") == b"x"
    server.stop(0.0)


@pytest.mark.parametrize(("allowed", "problem"), [(0, "it was removed"), (1, "it was not served")])
def test_a_server_that_cannot_be_replaced_now_is_replaced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int, problem: str
) -> None:
    """Neither for want of its requests' thread, nor of grpcio's own: nothing is left at the path that takes connections unserved."""
    path = tmp_path / "s"
    server = make_server(path)
    server.start()
    path.unlink()
    started = threading.Thread.start

    def start_some(thread: threading.Thread) -> None:
        nonlocal allowed
        if allowed == 0:
            raise RuntimeError("can't start new thread")
        allowed -= 1
        started(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_some)
        with pytest.raises(RuntimeError):
            server.keep()
    assert not path.exists()
    assert server.keep() == problem
    assert ask(path) == b"x"
    server.stop(0.0)


def test_a_server_is_stopped_without_a_thread(tmp_path: Path, limit: ThreadLimit) -> None:
    """The end of the process does not fail for it."""
    server = make_server(tmp_path / "s")
    server.start()
    limit.is_reached = True
    server.stop(0.0)
    assert not (tmp_path / "s").exists()


def test_only_what_is_public_is_used_of_the_standard_library() -> None:
    """A private class of `concurrent.futures` changed in Python 3.14, and the first request hung."""
    tree = ast.parse(Path(request_threads.__file__).read_text())
    own = {name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef) for name in [node.name]}
    own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    slots = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")}
    assert used <= own | slots
    assert RequestThreads.__mro__[1:-1] == (concurrent.futures.Executor,)
    inherited = {name for name in vars(concurrent.futures.Executor) if name.startswith("_") and not name.startswith("__")}
    assert not inherited & own
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imported for alias in node.names]
    assert not [name for name in names if name.startswith("_")]
