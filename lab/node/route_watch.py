"""Watch by the kernel's notifications which routes and rules of a node are lost, and for how long."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType

from lab.node.errors import NodeError
from lab.node.node import Node
from lab.node.process import NodeProcess

LINE = re.compile(r"\[([0-9T:.-]+)\] (Deleted )?(.*)")


START_TRIES = 1000
"""Attempts to see the first notification. Ours: each attempt runs `ip` for some milliseconds, so that together they last for seconds,
far longer than `ip monitor` needs to start."""


@dataclass(frozen=True)
class Loss:
    """A route or rule that was deleted. `text`: the line that `ip` prints for it. `seconds`: until it was there again; None if it is
    still away."""

    text: str
    seconds: float | None


class RouteWatch:
    """Records the changes of a node's IPv4 routes and rules while its context is entered. Concurrency: one thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._file = os.fdopen(os.memfd_create("routes"), "w+b")
        self._monitor: NodeProcess | None = None

    def __enter__(self) -> RouteWatch:
        """Start `ip monitor`, and return when it has printed a first change, which is made here. Raises: NodeError."""
        self._monitor = self._node.spawn(["ip", "-4", "-tshort", "monitor", "rule", "route"], stdout=self._file)
        for _ in range(START_TRIES):
            self._node.netns.ip(["route add unreachable 192.0.2.255/32", "route del unreachable 192.0.2.255/32"])
            if self._lines():
                return self
        raise NodeError(f"node {self._node.name}: `ip monitor` shows no change")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop listening."""
        if self._monitor is not None:
            self._monitor.kill()
            self._monitor.wait(10.0)
        self._file.close()

    def losses(self, watched: set[str]) -> list[Loss]:
        """List the losses of watched routes and rules: first those that ended, then those that last.

        `watched`: lines of `routes_and_rules`.
        """
        away: dict[str, datetime] = {}
        losses = []
        for at, is_deleted, text in self._lines():
            if text not in watched:
                continue
            if is_deleted:
                away[text] = at
            elif text in away:
                losses.append(Loss(text, (at - away.pop(text)).total_seconds()))
        return losses + [Loss(text, None) for text in away]

    def _lines(self) -> list[tuple[datetime, bool, str]]:
        self._file.seek(0)
        lines = []
        for line in self._file.read().decode(errors="replace").splitlines():
            if match := LINE.fullmatch(line):
                lines.append((datetime.fromisoformat(match[1]), bool(match[2]), _spaced(match[3])))
        return lines


def routes_and_rules(node: Node) -> set[str]:
    """List the node's IPv4 routes and rules now, in the words of `ip monitor`."""
    lines: set[str] = set()
    for argv in (["ip", "-4", "rule", "show"], ["ip", "-4", "route", "show", "table", "all"]):
        lines |= {_spaced(line) for line in node.netns.tool(argv).splitlines()}
    return lines


def _spaced(line: str) -> str:
    return " ".join(line.split())
