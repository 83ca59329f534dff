"""One observation of one node from outside: its kernel, the inside of its sandboxes, and the daemon's rows by its socket."""

from __future__ import annotations

import fcntl
import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lab.chaos.expected_state import PodRecord
from lab.fabric.errors import FabricError
from lab.fabric.netns import enter_netns
from lab.node.kernel_view import KernelView, read_kernel
from lab.node.node import Node

SIOCGIFADDR = 0x8915  # linux/sockios.h


@dataclass(frozen=True)
class NodeObservation:
    """What one node looked like. `rows`: container ID -> address, None when the daemon did not answer."""

    kernel: KernelView = field(default_factory=KernelView)
    rows: Mapping[str, str] | None = None
    inside: Mapping[str, str] = field(default_factory=dict)


def observe(node: Node, records: Iterable[PodRecord], rows: Mapping[str, str] | None) -> NodeObservation:
    """Look at a node now; `records` are the sandboxes whose inside is looked at.

    Raises: FabricError if the node's namespace cannot be looked at.
    """
    return NodeObservation(kernel=read_kernel(node), rows=rows, inside=_inside(node, records))


def _inside(node: Node, records: Iterable[PodRecord]) -> dict[str, str]:
    """Container ID -> the address that eth0 has in the sandbox's own namespace; left out if that cannot be told.

    One thread per look: a thread that entered a foreign namespace is not used for anything else.
    """
    found: dict[str, str] = {}

    def ask() -> None:
        for record in records:
            try:
                enter_netns(node.root + record.netns_path)
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                    answer = fcntl.ioctl(sock, SIOCGIFADDR, b"eth0".ljust(40, b"\0"))
            except (OSError, FabricError):
                continue  # it is just being removed
            found[record.sandbox_id] = socket.inet_ntoa(answer[20:24])

    thread = threading.Thread(target=ask, name="inside", daemon=True)
    thread.start()
    thread.join(10)
    return dict(found)
