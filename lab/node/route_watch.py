"""Watch whether routes and rules of a node are lost, by the kernel's own notifications, and for how long."""

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
"""Each takes a process of some milliseconds. Ours: far more than a monitor needs to start."""


@dataclass(frozen=True)
class Loss:
    """A route or rule, in `ip`'s words, that was away for so many seconds; None: it is away still."""

    text: str
    seconds: float | None


class RouteWatch:
    """The IPv4 routes and rules of a node from its start to its end. Use it as a context; one thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._file = os.fdopen(os.memfd_create("routes"), "w+b")
        self._monitor: NodeProcess | None = None

    def __enter__(self) -> RouteWatch:
        """Begin to listen; return when the first notification has come. Raises: NodeError."""
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
        """List each time that one of these lines of `routes_and_rules` was deleted, oldest first."""
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
    """List the node's IPv4 routes and rules as the kernel's notifications name them."""
    lines: set[str] = set()
    for argv in (["ip", "-4", "rule", "show"], ["ip", "-4", "route", "show", "table", "all"]):
        lines |= {_spaced(line) for line in node.netns.tool(argv).splitlines()}
    return lines


def _spaced(line: str) -> str:
    return " ".join(line.split())
