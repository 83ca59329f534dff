"""A packet passes only if EC2 says that its source address is on the ENI it comes from."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from lab.fabric.port import gateway
from lab.lab import Lab
from lab.vpc.addresses import AddressRequest
from tests.lab.fabric.conftest import assign, attach, primary, speak_as

pytestmark = pytest.mark.privileged
SILENT_S = 0.3


def test_nodes_hosts_and_router_reach_each_other(net: Lab) -> None:
    """Primary addresses work in both directions, within a subnet and across, and the router answers."""
    everyone = [primary(net, name).primary_address for name in ("node-a", "node-b", "host-a")]
    routers = [gateway(subnet.cidr) for subnet in net.vpc.subnets()]
    for source in ("node-a", "node-b", "host-a"):
        answers = net.ping(source=source, targets=[*everyone, *routers])
        assert all(answers.values()), (source, answers)


def test_secondary_address_is_reachable_once_ec2_assigned_it(net: Lab) -> None:
    """A new secondary address is carried both ways at once, without the node announcing it."""
    node = net.node("node-a")
    (address,) = assign(net, primary(net, "node-a"))
    speak_as(node, address)
    assert net.ping(source="host-a", targets=[address])[address]
    target = primary(net, "host-a").primary_address
    assert net.ping(source=node, targets=[target], source_address=address)[target]


def test_unassigned_source_is_dropped_and_counted(net: Lab) -> None:
    """A source address that EC2 put on no ENI gets no answer, and the drop names ENI and address."""
    node, stranger = net.node("node-a"), IPv4Address("10.0.3.200")
    assert net.vpc.owner_of(stranger) is None
    speak_as(node, stranger)
    target = primary(net, "host-a").primary_address
    assert not net.ping(source=node, targets=[target], timeout_s=SILENT_S, source_address=stranger)[target]
    drops = [drop for drop in net.fabric.drops() if drop.source == stranger]
    assert [drop.eni_id for drop in drops] == [primary(net, "node-a").eni_id]
    assert drops[0].packet_count >= 1
    assert net.fabric.dropped(stranger) == drops[0].packet_count


def test_released_address_is_dropped_again(net: Lab) -> None:
    """An address that EC2 took back is neither carried from the ENI nor to it."""
    node, eni = net.node("node-a"), primary(net, "node-a")
    (address,) = assign(net, eni)
    speak_as(node, address)
    assert net.ping(source="host-a", targets=[address])[address]
    net.vpc.interfaces.unassign(eni.eni_id, addresses=(address,), prefixes=())
    net.settle()
    assert not net.ping(source="host-a", targets=[address], timeout_s=SILENT_S)[address]
    target = primary(net, "host-a").primary_address
    assert not net.ping(source=node, targets=[target], timeout_s=SILENT_S, source_address=address)[target]
    assert net.fabric.dropped(address) >= 1


def test_address_of_the_other_eni_is_dropped(net: Lab) -> None:
    """An address of the node's second ENI that leaves by the first is lost, and passes by the second."""
    node = net.node("node-b")
    second = attach(net, node, device_index=1)
    address = second.primary_address
    speak_as(node, address)
    target = primary(net, "host-a").primary_address
    assert not net.ping(source=node, targets=[target], timeout_s=SILENT_S, source_address=address)[target]
    drops = [drop.eni_id for drop in net.fabric.drops() if drop.source == address]
    assert drops == [primary(net, "node-b").eni_id]
    node.netns.sysctl({"ipv4/conf/all/rp_filter": "0"})
    node.netns.ip(
        [
            "link set eth1 up",
            f"route add default via {gateway(second.subnet_cidr)} dev eth1 onlink table 2",
            f"rule add from {address} lookup 2 priority 1536",
        ]
    )
    assert net.ping(source=node, targets=[target], source_address=address)[target]


def test_prefix_is_carried_whole(net: Lab) -> None:
    """Every address of a delegated /28 passes, and the one after it does not."""
    node, eni = net.node("node-a"), primary(net, "node-a")
    _, (prefix,) = net.vpc.interfaces.assign(eni.eni_id, AddressRequest(prefix_count=1))
    net.settle()
    after = prefix.broadcast_address + 1
    for address in (*prefix, after):
        speak_as(node, address)
    assert all(net.ping(source="host-a", targets=prefix).values())
    assert not net.ping(source="host-a", targets=[after], timeout_s=SILENT_S)[after]
    net.vpc.interfaces.unassign(eni.eni_id, addresses=(), prefixes=(prefix,))
    net.settle()
    assert not any(net.ping(source="host-a", targets=prefix, timeout_s=SILENT_S).values())


def test_one_address_in_two_sandboxes_loses_traffic(net: Lab) -> None:
    """Of two nodes whose pods have one address, only the pod behind the ENI that EC2 named is heard."""
    (address,) = assign(net, primary(net, "node-a"))
    for node in (net.node("node-a"), net.node("node-b")):
        speak_as(node, address)
    target = primary(net, "host-a").primary_address
    heard = {
        name: net.ping(source=name, targets=[target], timeout_s=SILENT_S, source_address=address)[target]
        for name in ("node-a", "node-b")
    }
    assert heard == {"node-a": True, "node-b": False}


def test_address_that_moves_is_heard_from_its_new_eni_only(net: Lab) -> None:
    """After a reassignment the old ENI is silenced and the new one heard, with no moment of two owners."""
    old, new = primary(net, "node-a"), primary(net, "node-b")
    (address,) = assign(net, old)
    for name in ("node-a", "node-b"):
        speak_as(net.node(name), address)
    net.vpc.interfaces.assign(new.eni_id, AddressRequest(addresses=(address,)), allow_reassignment=True)
    net.settle()
    target = primary(net, "host-a").primary_address
    heard = {
        name: net.ping(source=name, targets=[target], timeout_s=SILENT_S, source_address=address)[target]
        for name in ("node-a", "node-b")
    }
    assert heard == {"node-a": False, "node-b": True}
    assert net.fabric.problems == []


def test_metadata_address_never_enters_the_fabric(net: Lab) -> None:
    """A host without a metadata server of its own gets no answer from anybody's."""
    metadata = IPv4Address("169.254.169.254")
    assert not net.ping(source="host-a", targets=[metadata], timeout_s=SILENT_S)[metadata]
    assert net.ping(source="node-a", targets=[metadata])[metadata]
    assert metadata in IPv4Network("169.254.0.0/16")
