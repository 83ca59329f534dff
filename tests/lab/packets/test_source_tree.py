"""A node that may have many single addresses: rules from them are in buckets, through ADD, repair, restart and DEL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.fabric import talk
from lab.lab import Lab
from lab.node.kernel_view import read_kernel
from lab.vpc.limits import InstanceLimits
from lab.vpc.state import Vpc
from tests.rig import Rig, wait_until

pytestmark = pytest.mark.privileged

MANY = {"m5.large": InstanceLimits((40,), 4), "t3.nano": InstanceLimits((2,), 2)}
"""Few addresses on each of many ENIs, so that 117 may have a rule; and what a host is."""

JUMPS = 8 + 64 + 63
"""To groups, to blocks, and behind all buckets but the last."""

COUNT = 9
"""Three on the primary ENI and three on each of two others."""


@pytest.fixture
def node() -> Iterator[Rig]:
    """A lab node of such a type, and a host that answers."""
    with Lab(nodes=["node-a"], hosts=["host-a"], containerd=False, vpc=Vpc(limits=MANY)) as lab, talk.Servers() as servers:
        servers.add("host-a", lab.hosts["host-a"].path, address=lab.primary_address("host-a"))
        made = Rig(lab, lab.node("node-a"), env={"WARM_IP_TARGET": "3", "ENABLE_PREFIX_DELEGATION": "false"})
        made.start()
        yield made
        made.assert_sound()


def priorities(rig: Rig, addresses: set[str]) -> dict[str, set[int]]:
    """The priorities of the rules from each of the addresses."""
    found: dict[str, set[int]] = {address: set() for address in addresses}
    for rule in read_kernel(rig.node).rules:
        if rule.source in found:
            found[rule.source].add(rule.priority)
    return found


def are_in_buckets(rig: Rig, addresses: set[str]) -> bool:
    """Whether each of the addresses has one rule, and that is in a bucket."""
    places = priorities(rig, addresses).values()
    return all(len(each) == 1 and min(each) > 1537 for each in places)


def jump_count(rig: Rig) -> int:
    """How many `goto` rules the node has."""
    return rig.node.netns.tool(["ip", "rule"]).count(" goto ")


def heard(rig: Rig, label: str) -> bool:
    """Whether a sandbox reaches the host."""
    reply = talk.ask(rig.node.netns_path(f"/run/netns/{label}"), rig.lab.primary_address("host-a"))
    return reply is not None and reply.by == "host-a"


def test_rules_are_in_buckets_for_life(node: Rig) -> None:
    """After ADD, after others deleted rules, after kill -9, and with DELs, which leave no rule."""
    labels = [f"pod{number}" for number in range(COUNT)]
    addresses = {label: node.add(label).address for label in labels}
    own = node.lab.vpc.enis_of(node.node.instance_id)[0].eni_id
    on_secondary = [label for label in labels if node.eni_of(addresses[label]) != own]
    assert len(on_secondary) >= 3
    ruled = {str(addresses[label]) for label in on_secondary}
    wait_until(lambda: are_in_buckets(node, ruled), what="rules in buckets")
    wait_until(lambda: jump_count(node) == JUMPS, what="the jumps of the one subnet")
    assert all(heard(node, label) for label in labels)
    victim = str(addresses[on_secondary[0]])
    node.node.run(["ip", "rule", "del", "from", victim])
    node.node.run(["ip", "rule", "del", "pref", "1537"])
    wait_until(lambda: are_in_buckets(node, ruled) and jump_count(node) == JUMPS, what="the repair")
    node.node.run(["ip", "rule", "add", "from", victim, "pref", "1536", "lookup", "2"])
    node.restart()
    assert jump_count(node) == JUMPS
    assert all(heard(node, label) for label in labels)
    for label in labels:
        node.delete(label)
    assert not read_kernel(node.node).from_rules
