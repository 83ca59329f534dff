"""Real daemons of Debian packages beside ours on a lab node: pods come and go, packets pass, nothing of ours is lost.

While the neighbour is reloaded and restarted the kernel's notifications are recorded. What cannot run here, and the test that stands
in for it, is in docs/beside.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.node.neighbour import Neighbour
from lab.node.neighbours import BARE_NETWORK_MANAGER, KINDS, Kind
from lab.node.node import Node
from lab.node.route_watch import RouteWatch, routes_and_rules
from tests.heavy.tools import needs
from tests.lab.packets.ground import Ground
from tests.neighbours.beside import NODE, OURS_RULES, beside, come_and_go, is_ours, mend, subjects, two_nodes, wait_for_packets
from tests.rig import Rig, wait_until

pytestmark = [pytest.mark.privileged, needs("neighbours", root=True)]

FILTERS = ("firewalld", "Docker")
"""Neighbours whose filter drops pods' packets until it is mended."""


@pytest.fixture
def made() -> Iterator[Ground]:
    """Two nodes with sandboxes on both ENIs."""
    with two_nodes() as built:
        yield built


@pytest.fixture
def node(made: Ground) -> Node:
    """The node that has a neighbour."""
    return made.rigs[NODE].node


@pytest.mark.parametrize("name", KINDS)
def test_nothing_of_ours_is_lost(made: Ground, node: Node, name: str) -> None:
    """No rule and no route of ours goes while the neighbour is reloaded and restarted, and pods come and go beside it."""
    kind = KINDS[name]
    with beside(made, kind) as neighbour:
        mend(kind, neighbour)
        wait_for_packets(made, f"beside {name}")
        ours = {line for line in routes_and_rules(node) if is_ours(line)}
        assert {line.split()[0] for line in ours} >= set(OURS_RULES)
        with RouteWatch(node) as watch:
            come_and_go(made, "before the reload")
            for command in kind.reload:
                neighbour.run(*command)
                wait_for_packets(made, f"after {' '.join(command)}")
            come_and_go(made, "after the reload")
            neighbour.restart()
            wait_until(lambda: kind.is_ready(neighbour), what=f"{name} is ready again")
            wait_for_packets(made, f"after a restart of {name}")
            come_and_go(made, "after the restart")
            assert watch.losses(ours) == []


@pytest.mark.parametrize(("kind", "takes_veths"), [(KINDS["NetworkManager"], False), (BARE_NETWORK_MANAGER, True)])
def test_our_file_keeps_network_manager_off(made: Ground, kind: Kind, takes_veths: bool) -> None:
    """Without it NetworkManager activates a connection on each host veth; with it neither these nor the second ENI are managed.

    With the connection it removes the routes to the sandboxes, and the daemon adds them again.
    """
    with beside(made, kind) as neighbour:
        if takes_veths:
            wait_until(lambda: {link[:3] for link in managed(neighbour)} >= {"eni"}, what="host veths are taken")
        else:
            come_and_go(made, "beside NetworkManager")
            assert managed(neighbour) <= {"eth0", "lo"}
    wait_until(lambda: has_routes(made.rigs[NODE]), what="every recorded address has its route")


def has_routes(rig: Rig) -> bool:
    """Whether exactly the recorded addresses have a route to a host veth that is up."""
    routed = [address for addresses in rig.kernel_addresses().values() for address in addresses]
    return sorted(routed) == sorted(map(str, rig.attachments().values()))


def managed(neighbour: Neighbour) -> set[str]:
    """The links that NetworkManager manages."""
    lines = neighbour.run("nmcli", "--terse", "--fields", "DEVICE,STATE", "device").splitlines()
    return {link for link, _, state in (line.partition(":") for line in lines) if state != "unmanaged"}


@pytest.mark.parametrize("name", FILTERS)
def test_its_filter_is_named_until_it_is_mended(made: Ground, name: str) -> None:
    """The daemon names the real filter as a condition, and what docs/host.md says to set ends it."""
    kind = KINDS[name]
    with beside(made, kind) as neighbour:
        wait_until(lambda: "other software" in subjects(made), what="the condition")
        mend(kind, neighbour)
        wait_until(lambda: "other software" not in subjects(made), what="its end")
