"""The port `Runtime`: the container runtime, which lists the node's sandboxes and announces their changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from ipamd.model.sandbox import RuntimeInfo, Sandbox, SandboxEvent


class Runtime(Protocol):
    """The container runtime, read over CRI. Nothing is changed in it."""

    def info(self) -> RuntimeInfo:
        """Find the runtime's socket, and return socket, name and version. Raises: RuntimeUnreachableError if it does not answer."""

    def sandboxes(self) -> tuple[Sandbox, ...]:
        """Return all sandboxes, in any state. Raises: RuntimeUnreachableError if the answer is not complete (I11)."""

    def plugin_directories(self) -> tuple[Path, ...]:
        """Return the runtime's directories of CNI plugins; () if it does not report them.

        To answer, the runtime may call our plugin (STATUS). Raises: RuntimeUnreachableError.
        """

    def events(self) -> Iterator[SandboxEvent]:
        """Follow the event stream. The first event, SUBSCRIBED, means that the stream is open. The iterator ends only with an error.

        Raises: EventsUnsupportedError if the runtime has no event stream; RuntimeUnreachableError when the stream broke.
        """

    def cancel_events(self) -> None:
        """End a running `events` iterator, from another thread. The iterator raises RuntimeUnreachableError then."""
