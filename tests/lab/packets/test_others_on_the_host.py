"""networkd and amazon-ec2-net-utils work on the node's links while sandboxes run: packets go on after each of their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lab.node.networkd import Networkd
from lab.vpc.model import Eni
from tests.lab.packets.ground import Ground, ground
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

ASK_S = 0.3
PATHS = (
    ("pod-a", "pod-b"),
    ("pod-a-eth1", "pod-b-eth1"),
    ("pod-b", "pod-a-eth1"),
    ("host-a", "pod-a"),
    ("host-a", "pod-a-eth1"),
    ("pod-a-eth1", "outside"),
)
STEPS: dict[str, Callable[[Networkd, Eni, Eni], None]] = {
    "a second link is configured": lambda networkd, _, second: networkd.link_appeared(second),
    "networkd removes what is foreign": lambda networkd, _, __: networkd.restarted(),
    "the first link gets aliases": lambda networkd, first, _: networkd.link_appeared(first),
    "addresses are refreshed": lambda networkd, _, second: networkd.refreshed(second),
    "the second link loses its carrier": lambda networkd, _, second: networkd.carrier_lost(second),
}


@pytest.fixture(scope="module")
def small() -> Iterator[Ground]:
    """Sandboxes on both ENIs."""
    with ground("secondary") as found:
        yield found


def test_packets_go_on_after_each_step_of_networkd(small: Ground) -> None:
    """amazon-vpc-cni-k8s issues 1600 and 3309: there rules and addresses stay lost until a restart of its daemon, or for ever."""
    node = small.rigs["node-a"].node
    first, second = small.lab.vpc.enis_of(node.instance_id)
    networkd = Networkd(node)
    for what, step in STEPS.items():
        step(networkd, first, second)
        wait_until(lambda: all(arrives(small, client, server) for client, server in PATHS), what=f"all paths, after {what}")


def arrives(small: Ground, client: str, server: str) -> bool:
    """Whether the right server answers."""
    heard = small.ask(client, server, timeout_s=ASK_S)
    return heard is not None and heard.by == server
