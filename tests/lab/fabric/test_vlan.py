"""The stand-in of 802.1Q links: frames are tagged, one link of an ID stands on a trunk, and none outlives it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from lab.fabric import ping, vlan
from lab.fabric.netns import Netns
from tests.patience import PATIENCE_S

MAC = "02:00:00:00:00:05"
TAGS = """
table netdev tags {
  chain seen {
    type filter hook ingress device port priority -500;
    vlan id 5 counter
    vlan id 6 counter
  }
}
"""


@pytest.fixture
def ends() -> Iterator[tuple[Netns, Netns]]:
    """A node's namespace with the trunk's link, and a router's with the port."""
    node, router = Netns.new("node"), Netns.new("router")
    try:
        node.ip([f"link add trunk mtu 9001 type veth peer name port mtu 9001 netns {router.path}", "link set trunk up"])
        router.ip(["link set port up"])
        yield node, router
    finally:
        node.close()
        router.close()


def _link(netns: Netns, trunk: str, name: str, number: int, *addresses: str, mac: str = "") -> None:
    netns.call(lambda: vlan.make(trunk, name, number, mac=mac))
    netns.ip([f"link set {name} up", *(f"addr add {address} dev {name}{' nodad' * (':' in address)}" for address in addresses)])


@pytest.mark.parametrize("far", ["10.9.0.2", "2001:db8:5::2"])
def test_packets_pass_by_the_id_that_both_sides_have(ends: tuple[Netns, Netns], far: str) -> None:
    """Both families; and the node's end has the MAC that it is given."""
    node, router = ends
    _link(node, "trunk", "vlan.eth.5", 5, "10.9.0.1/24", "2001:db8:5::1/64", mac=MAC)
    _link(router, "port", "branch", 5, "10.9.0.2/24", "2001:db8:5::2/64")
    assert node.interfaces()["vlan.eth.5"] == MAC
    assert ping.ping(node.path, targets=[far], timeout_s=PATIENCE_S) == {ip_address(far): True}


def test_an_id_that_the_other_side_has_not_is_heard_by_nobody(ends: tuple[Netns, Netns]) -> None:
    """The frames come out of the trunk with their ID on them."""
    node, router = ends
    router.tool(["nft", "-f", "-"], script=TAGS)
    _link(node, "trunk", "vlan.eth.5", 5, "10.9.0.1/24")
    _link(router, "port", "branch", 6, "10.9.0.2/24")
    assert ping.ping(node.path, targets=["10.9.0.2"], timeout_s=0.5) == {ip_address("10.9.0.2"): False}
    counted = router.tool(["nft", "list", "table", "netdev", "tags"])
    assert "vlan id 6 counter packets 0" in counted, counted
    assert "vlan id 5 counter packets 0" not in counted, counted


def test_a_second_link_of_an_id_is_refused_whatever_its_name(ends: tuple[Netns, Netns]) -> None:
    """As by the kernel: "RTNETLINK answers: File exists"; of another ID there may be one."""
    node, _ = ends
    _link(node, "trunk", "vlan.eth.5", 5)
    for name, number in (("other", 5), ("vlan.eth.5", 6)):
        with pytest.raises(FileExistsError):
            _link(node, "trunk", name, number)
    _link(node, "trunk", "other", 6)


def test_links_go_with_the_trunk_and_can_be_made_again(ends: tuple[Netns, Netns]) -> None:
    """A link that was deleted leaves nothing that is in the way of the next of its ID."""
    node, router = ends
    _link(router, "port", "branch", 5, "10.9.0.2/24")
    for number in (5, 6):
        _link(node, "trunk", f"vlan.eth.{number}", number)
    node.call(lambda: vlan.lose_all(socket.if_nametoindex("trunk")))
    assert list(node.interfaces()) == ["trunk"]
    for _ in range(2):
        _link(node, "trunk", "vlan.eth.5", 5, "10.9.0.1/24", mac=MAC)
        assert ping.ping(node.path, targets=["10.9.0.2"], timeout_s=PATIENCE_S) == {ip_address("10.9.0.2"): True}
        node.ip(["link del vlan.eth.5"])
