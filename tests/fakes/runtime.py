"""A container runtime whose list and events tests set."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from ipamd.model.errors import EventsUnsupportedError, RuntimeUnreachableError
from ipamd.model.ids import ContainerId
from ipamd.model.sandbox import EventKind, RuntimeInfo, Sandbox, SandboxEvent, SandboxState


class FakeRuntime:
    """Implements `Runtime`; `is_down` makes every call fail, `has_events` opens the stream, `before_list` runs inside a list."""

    def __init__(self, *, has_events: bool = False) -> None:
        self.listed: dict[str, Sandbox] = {}
        self.is_down = False
        self.has_events = has_events
        self.list_count = 0
        self.subscription_count = 0
        self.before_list: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._stream: queue.Queue[SandboxEvent | None] | None = None

    def run(self, container_id: str, *, state: SandboxState = SandboxState.READY) -> None:
        """A sandbox is listed from now on."""
        self.listed[container_id] = Sandbox(ContainerId(container_id), state, "default", f"pod-{container_id}", "uid")

    def emit(self, container_id: str, kind: EventKind, *, sandbox_id: str | None = None) -> None:
        """Send an event to whoever follows now; by default one of a sandbox, as containerd words it."""
        named = ("" if kind is EventKind.DELETED else container_id) if sandbox_id is None else sandbox_id
        with self._lock:
            if self._stream is not None:
                self._stream.put(SandboxEvent(container_id, named, kind))

    def waiting_count(self) -> int:
        """Events that were sent and that nobody has read yet."""
        with self._lock:
            return self._stream.qsize() if self._stream is not None else 0

    def break_stream(self) -> None:
        """End the stream that is open now."""
        with self._lock:
            if self._stream is not None:
                self._stream.put(None)
                self._stream = None

    def info(self) -> RuntimeInfo:
        """See the port."""
        self._check()
        return RuntimeInfo("fake", "0", "/run/fake.sock")

    def plugin_directories(self) -> tuple[Path, ...]:
        """See the port."""
        self._check()
        return ()

    def sandboxes(self) -> tuple[Sandbox, ...]:
        """See the port."""
        self.before_list()
        self.list_count += 1
        self._check()
        return tuple(self.listed.values())

    def events(self) -> Iterator[SandboxEvent]:
        """See the port."""
        self._check()
        if not self.has_events:
            raise EventsUnsupportedError("no events here")
        stream: queue.Queue[SandboxEvent | None] = queue.Queue()
        with self._lock:
            self._stream = stream
            self.subscription_count += 1
        yield SandboxEvent("", "", EventKind.SUBSCRIBED)
        while (event := stream.get()) is not None:
            yield event
        raise RuntimeUnreachableError("the stream broke")

    def cancel_events(self) -> None:
        """See the port."""
        self.break_stream()

    def _check(self) -> None:
        if self.is_down:
            raise RuntimeUnreachableError("the runtime is down")
