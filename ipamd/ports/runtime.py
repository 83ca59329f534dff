"""What services may ask of the container runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from ipamd.model.sandbox import RuntimeInfo, Sandbox, SandboxEvent


class Runtime(Protocol):
    """The container runtime over CRI, read side only."""

    def info(self) -> RuntimeInfo:
        """Find the socket and ask who answers. RuntimeUnreachableError otherwise."""
        ...

    def sandboxes(self) -> tuple[Sandbox, ...]:
        """Every sandbox in any state: a complete answer, or RuntimeUnreachableError (I11)."""
        ...

    def events(self) -> Iterator[SandboxEvent]:
        """Follow the event stream. Its first event, SUBSCRIBED, means that the stream is open. It ends only with an error.

        Raises: EventsUnsupportedError if the runtime has no events; RuntimeUnreachableError when the stream broke.
        """
        ...

    def cancel_events(self) -> None:
        """End a running `events` iterator from another thread."""
        ...
