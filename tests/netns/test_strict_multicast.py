"""In strict mode a sandbox's packets to the node pass the branch ENI's groups. What is for a group or for everybody on the link the
kernel would hand to the node's sockets without a look at any rule.
"""

from __future__ import annotations

import contextlib
from ipaddress import IPv4Network

import pytest

from ipamd.model.family import IPV4, IPV6
from tests.netns import packets
from tests.netns.branched import Node

pytestmark = pytest.mark.privileged

EXTRA = (IPv4Network("10.0.0.0/8"),)

FOR_ALL = {
    4: ("224.0.0.1", "224.0.0.251", "239.1.2.3", "255.255.255.255", "10.0.0.255"),
    6: ("ff02::1", "ff02::2", "ff01::1", "ff05::2", "ff0e::1", "fe80::1234"),
}
"""All hosts, all routers, a group of somebody's, everybody on the link, everybody in the node's subnet, and the link's own address."""


@pytest.mark.parametrize(
    ("family", "extra_sources"), [(IPV4, ()), (IPV4, EXTRA), (IPV6, ())], ids=["ipv4", "ipv4-extra-sources", "ipv6"]
)
def test_nothing_for_all_reaches_the_nodes_sockets(make_world, family, extra_sources):
    """Neither by a group that the node is in, nor by a broadcast, nor by an address of the link; and the packets are counted.

    Without extra sources the strict rp_filter of the host veth would drop it in IPv4.
    """
    node = Node(make_world(pod_eni=True, early_demux_disabled=True, extra_source_cidrs=extra_sources))
    pod, spec = node.add()
    targets = FOR_ALL[spec.address.version]
    node.host.sh(f"ip link set {spec.host_veth} addrgenmode none; ip -6 addr add fe80::1234/64 dev {spec.host_veth} nodad; true")
    udp, kind = (packets.udp6, packets.ETH_P_IPV6) if family is IPV6 else (packets.udp, packets.ETH_P_IP)
    with contextlib.ExitStack() as stack:
        ear = packets.Ear(stack, ports=[node.host])
        packets.send(pod, "eth0", [udp(str(spec.address), to, f"to {to}".encode()) for to in targets], kind=kind)
        assert ear.heard(b"to ") == []
    assert node.world.hostnet.confine_sandboxes() == []
    assert node.world.hostnet.dropped_packets()["multicast"] >= len(targets) - 1
