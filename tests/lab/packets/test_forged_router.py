"""A sandbox with default capabilities speaks in the VPC router's name while somebody empties nftables on the node."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.fabric import forge
from lab.fabric.advertise import ALL_ROUTERS, ROUTER, SOLICITATION
from lab.fabric.netns import run_inside
from lab.lab import IPV6_CIDR, Lab
from lab.vpc.family import IPV4, IPV6, Family
from lab.vpc.state import Vpc
from tests.netns import packets
from tests.rig import Rig, wait_until

pytestmark = pytest.mark.privileged

ROUNDS, FRAMES_MAX = 6, 200
ALL_NODES = str(forge.ALL_NODES)


def frames() -> list[bytes]:
    """A router that advertises itself, and then says that it is none."""
    mac = b"\2\0\0\0\x66\x66"
    advertised = struct.pack("!BBHII", 64, 0, 1800, 0, 0) + b"\1\1" + mac
    withdrawn = struct.pack("!I", forge.OVERRIDE) + ROUTER.packed + b"\2\1" + mac
    messages = ((forge.ROUTER_ADVERTISEMENT, advertised), (forge.NEIGHBOUR_ADVERTISEMENT, withdrawn))
    head = forge.ALL_NODES_MAC + mac + struct.pack("!H", forge.ETH_P_IPV6)
    return [head + packets.icmpv6(str(ROUTER), ALL_NODES, kind, body) for kind, body in messages]


def packet_socket(link: str) -> socket.socket:
    """For frames of one's own making, by a link of the thread's namespace."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC)
    sock.bind((link, forge.ETH_P_IPV6))
    return sock


def solicit() -> None:
    """Ask the router for an advertisement, which it otherwise sends every five seconds."""
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_ICMPV6) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        sock.sendto(struct.pack("!BBHI", SOLICITATION, 0, 0, 0), (ALL_ROUTERS, 0, 0, socket.if_nametoindex("eth0")))


def await_announced(made: Rig) -> None:
    """Wait for the route that the router's advertisements make."""

    def has_route() -> bool:
        run_inside(made.node.netns.path, solicit)
        return "ra" in default_routes(made)

    wait_until(has_route, what="the announced route")


def default_routes(made: Rig) -> list[str]:
    """By what made them."""
    listed = json.loads(made.node.netns.tool(["ip", "-6", "-j", "route", "show", "default"]))
    return [route["protocol"] for route in listed]


def attack(made: Rig, sock: socket.socket) -> bool:
    """Empty nftables and send until the kernel has dropped the announced route, or the daemon's tables are back.

    Returns: whether it dropped it. In between the node never lacks a way out.
    """
    made.node.netns.tool(["nft", "flush", "ruleset"])
    for _ in range(FRAMES_MAX):
        for frame in frames():
            sock.send(frame)
        protocols = default_routes(made)
        assert protocols, "the node has no IPv6 default route"
        if "ra" not in protocols:
            return True
        if "vpc-ipamd-confine" in made.node.netns.tool(["nft", "list", "tables", "ip6"]):
            return False
    raise AssertionError("the tables did not come back")


@contextmanager
def node(family: Family) -> Iterator[Rig]:
    """A node whose sandboxes speak IPv6: by the pool, or with addresses of IPv4 for egress."""
    with Lab(nodes=["node-a"], hosts=["host-a"], containerd=False, vpc=Vpc(ipv6_cidr=IPV6_CIDR)) as lab:
        made = Rig(lab, lab.node("node-a"), env={**family.settings, "ENABLE_V6_EGRESS": "true"})
        made.start()
        yield made


@pytest.mark.parametrize(
    ("family", "link"),
    [(IPV6, "eth0"), pytest.param(IPV4, "v6if0", marks=pytest.mark.heavy), (IPV4, "eth0")],
    ids=["pool", "egress", "beside egress"],
)
def test_forged_router_frames_cost_the_node_no_way_out(family: Family, link: str) -> None:
    """Each time the node's pings go on, and the route that the router announces comes back."""
    with node(family) as made:
        address = made.add("hostile").any_address
        outside = made.lab.own_address("host-a", IPV6)
        with run_inside(made.node.netns_path("/run/netns/hostile"), lambda: packet_socket(link)) as sock:
            outcomes = list[bool]()
            for _ in range(ROUNDS):
                await_announced(made)
                outcomes.append(attack(made, sock))
                assert all(made.lab.ping(source=made.node.name, targets=[outside]).values())
                assert all(made.lab.ping(source="host-a", targets=[address]).values())
            assert any(outcomes), "the frames reach the kernel while the tables are away"
        await_announced(made)
        made.assert_sound(expected=1)
