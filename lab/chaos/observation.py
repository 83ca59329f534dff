"""One observation of one node from outside: its kernel, the inside of its sandboxes, and the daemon's rows by its socket."""

from __future__ import annotations

import fcntl
import socket
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from lab.chaos.agent import ChaosAgent
from lab.chaos.expected_state import PodRecord
from lab.fabric.errors import FabricError
from lab.fabric.netns import enter_netns
from lab.node.kernel_view import KernelView, read_kernel
from lab.node.node import Node
from lab.node.policy_agent import PolicyView
from lab.vpc.family import IPV6, Family, family_of, other

SIOCGIFADDR = 0x8915  # linux/sockios.h
GLOBAL_SCOPE = "00"  # in /proc/net/if_inet6; link-local is 20


@dataclass(frozen=True)
class NodeObservation:
    """What one node looked like. `rows`: container ID -> address, None when the daemon did not answer. `inside`, `inside_egress`:
    container ID -> the address that the sandbox itself has on eth0, and on its second link ("" for none). `policy` None: the node has
    no policy agent."""

    kernel: KernelView = field(default_factory=KernelView)
    rows: Mapping[str, str] | None = None
    inside: Mapping[str, str] = field(default_factory=dict)
    inside_egress: Mapping[str, str] = field(default_factory=dict)
    policy: PolicyView | None = None


def observe(
    node: Node, records: Iterable[PodRecord], rows: Mapping[str, str] | None, *, agent: ChaosAgent | None = None
) -> NodeObservation:
    """Look at a node now; `records` are the sandboxes whose inside is looked at.

    Raises: FabricError if the node's namespace cannot be looked at.
    """
    places = {record.sandbox_id: (record.netns_path, family_of(ip_address(record.address))) for record in records}
    inside = look_inside(node, places)
    return NodeObservation(
        kernel=read_kernel(node),
        rows=rows,
        inside={key: own for key, (own, _) in inside.items()},
        inside_egress={key: egress for key, (_, egress) in inside.items()},
        policy=agent.view() if agent is not None else None,
    )


def look_inside(node: Node, places: Mapping[str, tuple[str, Family]]) -> dict[str, tuple[str, str]]:
    """Read the addresses of sandboxes in their own namespaces.

    One thread per look: a thread that entered a foreign namespace is not used for anything else.

    Args:
        places: container ID -> path of the namespace as the node sees it, and family of its pool.
    Returns: container ID -> address of eth0, and of the link for egress ("" for none); left out if it cannot be told.
    """
    found: dict[str, tuple[str, str]] = {}

    def ask() -> None:
        for key, (path, family) in places.items():
            egress = other(family)
            try:
                enter_netns(node.root + path)
                found[key] = (_own(family, "eth0"), _own(egress, egress.egress_link))
            except (OSError, FabricError):
                continue  # it is just being removed

    thread = threading.Thread(target=ask, name="inside", daemon=True)
    thread.start()
    thread.join(10)
    return dict(found)


def _own(family: Family, link: str) -> str:
    """The first global address of a link in this thread's namespace; "" if there is none."""
    if family is IPV6:
        lines = (line.split() for line in Path("/proc/thread-self/net/if_inet6").read_text(encoding="ascii").splitlines())
        found = (str(IPv6Address(bytes.fromhex(words[0]))) for words in lines if words[3] == GLOBAL_SCOPE and words[5] == link)
        return next(found, "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            answer = fcntl.ioctl(sock, SIOCGIFADDR, link.encode().ljust(40, b"\0"))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])
