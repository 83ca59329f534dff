"""The wires of a branch: tagged frames on its trunk's, the gateway that answers, the source check, and its security groups."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

import pytest

from lab.fabric import vlan
from lab.fabric.port import interface_name
from lab.lab import Lab
from lab.vpc.model import Eni
from tests.patience import PATIENCE_S

VLAN = 5


class Ground:
    """A node with a trunk and one branch, whose link the test makes as a daemon would, and two hosts."""

    def __init__(self, lab: Lab, trunk: Eni, branch: Eni) -> None:
        self.lab = lab
        self.trunk, self.branch = trunk, branch

    def wire(self) -> None:
        """One network for everything that comes from the branch's address, as standard mode has it."""
        node, trunk = self.lab.node("node-a").netns, interface_name(self.trunk)
        node.ip([f"link set {trunk} up"])
        node.call(lambda: vlan.make(trunk, f"vlan.eth.{VLAN}", VLAN, mac=self.branch.mac))
        gateway = self.branch.subnet_cidr.network_address + 1
        node.ip(
            [
                f"link set vlan.eth.{VLAN} up",
                f"addr add {self.branch.primary_address}/32 dev lo",
                f"route add {gateway}/32 dev vlan.eth.{VLAN} scope link table {100 + VLAN}",
                f"route add default via {gateway} dev vlan.eth.{VLAN} table {100 + VLAN}",
                f"rule add pref 1536 from {self.branch.primary_address} lookup {100 + VLAN}",
            ]
        )

    def reaches(self, host: str, *, expected: bool = True) -> bool:
        """Whether a host has an answer from the branch, that asks for a moment only if no answer is expected."""
        address = self.branch.addresses[0]
        return self.lab.ping(source=host, targets=[address], timeout_s=PATIENCE_S if expected else 0.7)[address]


@pytest.fixture(params=[False, True], ids=["within the VPC", "with gateways"])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """Each test has its own: they pull the trunk out. The router's gateways leave what stays in the VPC untracked."""
    with Lab(nodes=["node-a"], hosts=["host-a", "host-b"], containerd=False) as lab:
        if request.param:
            lab.add_internet()
        trunks, node = lab.vpc.trunks, lab.node("node-a")
        trunk = trunks.create_trunk(node.instance_id, description="trunk", tags={})
        assert trunk is not None
        group = lab.vpc.add_security_group("branches")
        branch = trunks.create_branch(trunk.eni_id, groups=(group,), description="branch", tags={})
        trunks.associate(trunk.eni_id, branch.eni_id, VLAN)
        lab.settle()
        yield Ground(lab, lab.vpc.eni(trunk.eni_id), lab.vpc.eni(branch.eni_id))
        assert lab.fabric.problems == []


def test_the_gateway_answers_a_link_that_has_no_address(ground: Ground) -> None:
    """The node asks with the address of another link, as it has none on a branch's."""
    ground.wire()
    assert ground.reaches("host-a")
    gateway = ground.branch.subnet_cidr.network_address + 1
    known = ground.lab.node("node-a").netns.tool(["ip", "neigh", "show", str(gateway), "dev", f"vlan.eth.{VLAN}"])
    assert "lladdr" in known, known
    assert "PERMANENT" not in known, known


def test_a_branch_speaks_as_itself_alone(ground: Ground) -> None:
    """The source check is per port, and a branch has a port of its own."""
    ground.wire()
    node, host = ground.lab.node("node-a"), ground.lab.primary_address("host-a")
    node.netns.ip([f"rule add pref 100 to {host} lookup {100 + VLAN}"])
    own = ground.lab.primary_address("node-a")
    assert ground.lab.ping(source="node-a", targets=[host], source_address=own, timeout_s=0.5) == {host: False}
    drops = [(drop.eni_id, drop.source) for drop in ground.lab.fabric.drops()]
    assert (ground.branch.eni_id, own) in drops


def test_a_source_that_no_group_names_is_lost(ground: Ground) -> None:
    """And counted; what the branch itself asks for comes back, and so does what an open group lets in."""
    ground.wire()
    (group,) = ground.branch.security_groups
    known, other = (ground.lab.primary_address(host) for host in ("host-a", "host-b"))
    ground.lab.vpc.admit(group, [ip_network(known)])
    ground.lab.settle()
    assert (ground.reaches("host-a"), ground.reaches("host-b", expected=False)) == (True, False)
    assert ground.lab.fabric.refused(ground.branch.eni_id, other) > 0
    assert ground.lab.fabric.refused(ground.branch.eni_id, known) == 0
    asked = ground.lab.ping(source="node-a", targets=[other], source_address=ground.branch.primary_address, timeout_s=PATIENCE_S)
    assert asked == {other: True}
    ground.lab.vpc.admit(group, None)
    ground.lab.settle()
    assert ground.reaches("host-b")


def test_links_on_a_trunk_go_and_come_back_with_it(ground: Ground) -> None:
    """On the node's side they go; the branch is bound still, and serves when the trunk is back and the link made anew."""
    ground.wire()
    node = ground.lab.node("node-a").netns
    ground.lab.vpc.hands.detach(ground.trunk.eni_id, force=True)
    ground.lab.settle()
    assert set(node.interfaces()) == {"eth0"}
    assert not ground.reaches("host-a", expected=False)
    ground.lab.vpc.hands.attach_existing(ground.trunk.eni_id, ground.lab.node("node-a").instance_id)
    ground.lab.settle()
    trunk = interface_name(ground.lab.vpc.eni(ground.trunk.eni_id))
    node.ip([f"link set {trunk} up"])
    node.ip([f"addr del {ground.branch.primary_address}/32 dev lo", f"rule del pref 1536 lookup {100 + VLAN}"])
    ground.trunk = ground.lab.vpc.eni(ground.trunk.eni_id)
    ground.wire()
    assert ground.reaches("host-a")
