"""A container runtime that lists what tests put in."""

from __future__ import annotations

from collections.abc import Iterator

from ipamd.model.errors import EventsUnsupportedError, RuntimeUnreachableError
from ipamd.model.ids import ContainerId
from ipamd.model.sandbox import RuntimeInfo, Sandbox, SandboxEvent, SandboxState


class FakeRuntime:
    """Implements `Runtime`; `is_down` makes every call fail."""

    def __init__(self) -> None:
        self.listed: dict[str, Sandbox] = {}
        self.is_down = False

    def run(self, container_id: str, *, state: SandboxState = SandboxState.READY) -> None:
        """A sandbox is listed from now on."""
        self.listed[container_id] = Sandbox(ContainerId(container_id), state, "default", f"pod-{container_id}", "uid")

    def info(self) -> RuntimeInfo:
        """See the port."""
        self._check()
        return RuntimeInfo("fake", "0", "/run/fake.sock")

    def sandboxes(self) -> tuple[Sandbox, ...]:
        """See the port."""
        self._check()
        return tuple(self.listed.values())

    def events(self) -> Iterator[SandboxEvent]:
        """See the port."""
        raise EventsUnsupportedError("no events here")

    def cancel_events(self) -> None:
        """See the port."""

    def _check(self) -> None:
        if self.is_down:
            raise RuntimeUnreachableError("the runtime is down")
