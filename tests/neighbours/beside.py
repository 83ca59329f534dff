"""A real neighbour on a lab node with sandboxes on both ENIs: what tests with such a neighbour share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lab.node.neighbour import Neighbour
from lab.node.neighbours import Kind
from tests.lab.packets.ground import Ground, ground
from tests.lab.packets.test_others_on_the_host import PATHS, arrives
from tests.rig import wait_until

NODE = "node-a"
OURS_TABLES = ("table 2 ", "table 113213 ")
OURS_RULES = ("513:", "1024:", "1536:", "32765:")
"""Beginnings of the rules that the daemon keeps on a node with a pod on each ENI."""


@contextmanager
def two_nodes() -> Iterator[Ground]:
    """Sandboxes on both ENIs of each; an address of a sandbox that has gone is free again after a second."""
    with ground("secondary", more={"IP_COOLDOWN_PERIOD": "1"}) as made:
        yield made


@contextmanager
def beside(made: Ground, kind: Kind) -> Iterator[Neighbour]:
    """Run it on the node, and give it once it manages the node and our daemon is ready."""
    rig = made.rigs[NODE]
    if kind.starts_first:
        rig.kill()
        rig.node.netns.sysctl({"ipv4/ip_forward": "0"})
    with kind.on(rig.node, made.lab.vpc.enis_of(rig.node.instance_id)[0]) as neighbour:
        wait_until(lambda: kind.is_ready(neighbour), what="the neighbour is ready")
        if kind.starts_first:
            rig.start()
        yield neighbour


def mend(kind: Kind, neighbour: Neighbour) -> None:
    """Set beside it what docs/host.md says."""
    for command in kind.mend:
        neighbour.run(*command)


def come_and_go(made: Ground, what: str) -> None:
    """A sandbox is added, is reached and reaches the outside, and is deleted."""
    rig = made.rigs[NODE]
    label = f"guest-{len(made.paths)}"
    address = rig.add(label).address
    made.paths[label], made.addresses[label] = rig.node.netns_path(f"/run/netns/{label}"), address
    made.servers.add(label, made.paths[label], address=address)
    wait_until(lambda: arrives(made, "pod-b", label) and arrives(made, label, "outside"), what=f"a new pod {what}")
    made.servers.remove(label)
    assert rig.delete(label).ok


def wait_for_packets(made: Ground, what: str) -> None:
    """Wait until every path arrives."""
    wait_until(lambda: all(arrives(made, client, server) for client, server in PATHS), what=f"all paths {what}")


def is_ours(line: str) -> bool:
    """Whether a route or rule, in `ip`'s words, is one that the daemon keeps."""
    return " dev eni" in line or any(table in f"{line} " for table in OURS_TABLES) or line.startswith(OURS_RULES)


def subjects(made: Ground) -> set[str]:
    """The conditions of the node's daemon."""
    status = made.rigs[NODE].status()
    assert status is not None
    return {condition["subject"] for condition in status["conditions"]}
