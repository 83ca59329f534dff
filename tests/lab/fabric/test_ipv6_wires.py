"""The fabric in both families: routes learned from the router, packets by address and by /80, and the source check."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from ipaddress import IPv6Address, IPv6Network

import pytest

from lab.fabric.internet import OUTSIDE_HOST_6
from lab.lab import Lab
from lab.vpc.ipv6 import Ipv6Request
from lab.vpc.state import Vpc
from tests.lab.fabric.conftest import eventually, primary
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.privileged

ROUTE = "default via fe80:ec2::1 dev eth0 proto ra"


@pytest.fixture(scope="module")
def dual() -> Iterator[Lab]:
    """Two nodes and a host in a VPC with both families."""
    vpc = Vpc(ipv6_cidr="2600:1f14:abc:de00::/56")
    name = f"test-{time.monotonic_ns()}"
    with Lab(name=name, nodes=["node-a", "node-b"], hosts=["host-a"], containerd=False, vpc=vpc) as lab:
        yield lab
        assert lab.fabric.problems == []


def own(lab: Lab, name: str) -> IPv6Address:
    """The IPv6 address of a node or host itself."""
    return primary(lab, name).ipv6_addresses[0]


def prefix_on(lab: Lab, name: str) -> IPv6Network:
    """Have EC2 put a /80 on a node's primary ENI, and wait for the wires."""
    _, (prefix,) = lab.vpc.interfaces.assign_ipv6(primary(lab, name).eni_id, Ipv6Request(prefix_count=1))
    lab.settle()
    return prefix


def test_the_default_route_is_the_routers(dual: Lab) -> None:
    """It comes by advertisement, and comes back when it was lost; no prefix is on the wire."""
    netns = dual.node("node-a").netns
    assert eventually(lambda: ROUTE in netns.tool(["ip", "-6", "route"]))
    assert "2600:1f14" not in netns.tool(["ip", "-6", "route", "show", "proto", "kernel"]).replace(str(own(dual, "node-a")), "")
    netns.tool(["ip", "-6", "route", "del", "default"])
    assert eventually(lambda: ROUTE in netns.tool(["ip", "-6", "route"]))


def test_nodes_and_hosts_reach_each_other(dual: Lab) -> None:
    """In both families, within a subnet and across."""
    for name in ("node-a", "node-b"):
        netns = dual.node(name).netns
        assert eventually(lambda netns=netns: ROUTE in netns.tool(["ip", "-6", "route"]))
    sixes = [own(dual, "node-b"), own(dual, "host-a")]
    assert dual.ping(source="node-a", targets=sixes) == dict.fromkeys(sorted(sixes), True)
    fours = [primary(dual, "node-b").addresses[0], primary(dual, "host-a").addresses[0]]
    assert all(dual.ping(source="node-a", targets=fours).values())


def test_a_prefix_is_carried_to_its_eni_and_speaks_from_it_alone(dual: Lab) -> None:
    """Any of a /80's addresses is reached and may speak; on another node it is a stranger's; after Unassign nobody may."""
    prefix = prefix_on(dual, "node-a")
    inside = prefix[1 << 40]
    for name in ("node-a", "node-b"):
        dual.node(name).netns.ip([f"addr replace {inside}/128 dev lo nodad"])
    host = own(dual, "host-a")
    assert eventually(lambda: all(dual.ping(source="node-a", targets=[host], source_address=inside).values()))
    dual.node("node-a").netns.ip([f"addr replace {prefix[7]}/128 dev lo nodad"])
    assert dual.ping(source="host-a", targets=[prefix[7], inside]) == {prefix[7]: True, inside: True}
    before = dual.fabric.dropped(inside)
    assert dual.ping(source="node-b", targets=[host], source_address=inside, timeout_s=0.5) == {host: False}
    (found,) = [drop for drop in dual.fabric.drops() if drop.source == inside]
    assert (found.eni_id, found.packet_count > before) == (primary(dual, "node-b").eni_id, True)
    dual.vpc.interfaces.unassign_ipv6(primary(dual, "node-a").eni_id, addresses=(), prefixes=(prefix,))
    dual.settle()
    assert dual.ping(source="host-a", targets=[inside], timeout_s=0.5) == {inside: False}
    assert dual.ping(source="node-a", targets=[host], source_address=inside, timeout_s=0.5) == {host: False}
    for name in ("node-a", "node-b"):
        dual.node(name).netns.ip([f"addr del {inside}/128 dev lo nodad"])


def test_outside_is_reached_untranslated(dual: Lab) -> None:
    """A node, and an address of a /80, are seen outside as themselves and reached from there; what no ENI has goes nowhere."""
    dual.add_internet()
    prefix, node = prefix_on(dual, "node-b"), own(dual, "node-b")
    dual.node("node-b").netns.ip([f"addr replace {prefix[9]}/128 dev lo nodad"])
    for source in (node, prefix[9]):
        claim = partial(dual.ping, source="node-b", targets=[OUTSIDE_HOST_6], source_address=source)
        assert eventually(lambda claim=claim: all(claim().values()))
    assert dual.ping(source="outside", targets=[node, prefix[9]], timeout_s=PATIENCE_S) == {node: True, prefix[9]: True}
    nobodys = [prefix[10], prefix[-1] + 1]
    assert dual.ping(source="outside", targets=nobodys, timeout_s=1.0) == dict.fromkeys(nobodys, False)
    forged = IPv6Address("2001:db8:51::99")
    dual.node("node-b").netns.ip([f"addr replace {forged}/128 dev lo nodad"])
    assert not any(dual.ping(source="node-b", targets=[OUTSIDE_HOST_6], source_address=forged, timeout_s=0.4).values())
    assert dual.fabric.dropped(forged) > 0


def test_nothing_link_local_is_carried(dual: Lab) -> None:
    """What a node says to all nodes, or to link-local addresses, ends at its port."""
    (target,) = [IPv6Address("fe80::1234")]
    assert dual.ping(source="node-a", targets=[target], timeout_s=0.3) == {target: False}


def test_a_vpc_without_ipv6_has_none() -> None:
    """No advertisement, and no address of IPv6 on any port."""
    with Lab(name=f"test-{time.monotonic_ns()}", nodes=["node-a"], containerd=False) as lab:
        assert "inet6" not in lab.fabric.router.tool(["ip", "-6", "addr", "show"])
        assert primary(lab, "node-a").ipv6_addresses == ()
