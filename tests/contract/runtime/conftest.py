"""The fake and the real runtime adapter, and the servers that send hostile answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from ipamd.model.sandbox import EventKind, SandboxEvent, SandboxState
from ipamd.pb import cri_pb2
from ipamd.ports.runtime import Runtime
from ipamd.runtime.cri import CriRuntime
from tests.contract.runtime.server import FakeCri
from tests.fakes.runtime import FakeRuntime
from tests.patience import PATIENCE_S
from tests.rig import wait_until

KINDS = {
    EventKind.CREATED: cri_pb2.CONTAINER_CREATED_EVENT,
    EventKind.STARTED: cri_pb2.CONTAINER_STARTED_EVENT,
    EventKind.STOPPED: cri_pb2.CONTAINER_STOPPED_EVENT,
    EventKind.DELETED: cri_pb2.CONTAINER_DELETED_EVENT,
}


@dataclass
class Stage:
    """A runtime under test, and the hands that make things happen behind it."""

    runtime: Runtime
    run: Callable[[str, SandboxState], None]
    remove: Callable[[str], object]
    emit: Callable[[str, EventKind], None]
    break_stream: Callable[[], None]
    stop: Callable[[], None]
    start: Callable[[], None]
    forget_events: Callable[[], None]


class Listener:
    """Follows `events` in a thread of its own, and keeps what it heard and how it ended."""

    def __init__(self, runtime: Runtime) -> None:
        self.heard: list[SandboxEvent] = []
        self.error: Exception | None = None
        self._runtime = runtime
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def wait_open(self) -> None:
        """Return when the stream is open."""
        wait_until(lambda: bool(self.heard) or self.error is not None, what="stream open")
        assert self.error is None
        assert self.heard[0].kind is EventKind.SUBSCRIBED

    def wait_heard(self, count: int) -> list[SandboxEvent]:
        """Return the events after SUBSCRIBED, `count` of them."""
        wait_until(lambda: len(self.heard) > count or self.error is not None, what=f"{count} events")
        return self.heard[1:]

    def wait_end(self) -> Exception:
        """Return the error that ended the stream."""
        self.thread.join(PATIENCE_S)
        assert self.error is not None, "the stream did not end"
        return self.error

    def _follow(self) -> None:
        try:
            for event in self._runtime.events():
                self.heard.append(event)
        except Exception as error:  # noqa: BLE001  # whatever ends the stream is for the test to judge
            self.error = error


@pytest.fixture(params=["fake", "cri"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """The fake of the unit tests, and the real adapter over a real socket."""
    if request.param == "fake":
        fake = FakeRuntime(has_events=True)

        def set_down(is_down: bool) -> None:
            fake.is_down = is_down
            if is_down:
                fake.break_stream()

        yield Stage(
            fake,
            lambda name, state: fake.run(name, state=state),
            fake.listed.pop,
            fake.emit,
            fake.break_stream,
            lambda: set_down(True),
            lambda: set_down(False),
            lambda: setattr(fake, "has_events", False),
        )
        return
    with FakeCri(str(tmp_path / "cri.sock")) as server, closing(CriRuntime(socket=server.path)) as runtime:
        yield Stage(
            runtime,
            lambda name, state: server.run(name, is_ready=state is SandboxState.READY),
            server.sandboxes.pop,
            lambda name, kind: server.emit(name, KINDS[kind], sandbox_id="" if kind is EventKind.DELETED else name),
            lambda: server.send(None),
            server.close,
            server.start,
            lambda: setattr(server, "has_events", False),
        )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeCri]:
    """A CRI server on a Unix socket."""
    with FakeCri(str(tmp_path / "cri.sock")) as made:
        yield made


@pytest.fixture
def cri(server: FakeCri) -> Iterator[CriRuntime]:
    """The real adapter at that server."""
    with closing(CriRuntime(socket=server.path)) as made:
        yield made
