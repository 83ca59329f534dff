"""The container runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ipamd.model.sandbox import RuntimeInfo, Sandbox, SandboxEvent


class Runtime(Protocol):
    """The container runtime over CRI, read side only."""

    def info(self) -> RuntimeInfo:
        """Find the socket, and return the runtime's name and version. RuntimeUnreachableError if it does not answer."""

    def sandboxes(self) -> tuple[Sandbox, ...]:
        """Every sandbox in any state: a complete answer, or RuntimeUnreachableError (I11)."""

    def plugin_directories(self) -> tuple[Path, ...]:
        """The runtime's directories of CNI plugins; () if it does not report them. It may call our plugin (STATUS).

        Raises: RuntimeUnreachableError.
        """

    def events(self) -> Iterator[SandboxEvent]:
        """Follow the event stream. Its first event, SUBSCRIBED, means that the stream is open. It ends only with an error.

        Raises: EventsUnsupportedError if the runtime has no events; RuntimeUnreachableError when the stream broke.
        """

    def cancel_events(self) -> None:
        """End a running `events` iterator from another thread."""
