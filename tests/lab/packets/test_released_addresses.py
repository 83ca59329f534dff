"""An address that is given again receives nothing that was meant for the sandbox that had it before."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import pytest

from lab.fabric import talk
from lab.fabric.netns import run_inside
from lab.lab import IPV6_CIDR, Lab
from lab.node.kube_proxy import KubeProxy, Service
from lab.vpc.family import IPV4, Family
from lab.vpc.limits import InstanceLimits
from lab.vpc.model import Address
from lab.vpc.state import Vpc
from tests.families import EACH_FAMILY
from tests.lab.packets.ground import SERVICES
from tests.rig import Rig, wait_until

pytestmark = pytest.mark.privileged

NODE_PORT, CLIENT_PORT, DATAGRAMS = 30001, 5999, 20
ONE_ADDRESS = InstanceLimits((2,), 2)
"""One ENI with one secondary address: whoever comes next gets that."""


@contextmanager
def node_with_one_address(family: Family) -> Iterator[Rig]:
    """A node whose sandboxes follow each other on one address; in IPv6 there are many, and none comes again soon."""
    vpc = Vpc(limits={"small": ONE_ADDRESS, "t3.nano": ONE_ADDRESS}, ipv6_cidr="" if family is IPV4 else IPV6_CIDR)
    with Lab(nodes=["node-a"], hosts=["host-a"], instance_type="small", containerd=False, vpc=vpc) as lab:
        made = Rig(lab, lab.node("node-a"), env={"MAX_ENI": "1", **family.settings})
        made.start()
        yield made
        made.assert_sound()


def tracked(rig: Rig) -> set[Address]:
    """All addresses of the connections that the node's kernel tracks, as it prints them."""
    listed = rig.node.netns.call(lambda: Path("/proc/thread-self/net/nf_conntrack").read_text(encoding="ascii"))
    return {ip_address(text) for text in re.findall(r"(?:src|dst)=(\S+)", listed)}


def connected(family: Family, target: Address, *, tcp: bool = False) -> socket.socket:
    """A client's socket in the thread's namespace, to the NodePort."""
    sock = socket.socket(family.number, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
    try:
        sock.settimeout(talk.TIMEOUT_S)
        sock.bind(("", 0 if tcp else CLIENT_PORT))
        sock.connect((str(target), NODE_PORT))
    except BaseException:
        sock.close()
        raise
    return sock


@EACH_FAMILY
def test_what_was_meant_for_the_predecessor_does_not_reach_the_successor(family: Family) -> None:
    """By a NodePort, of a client that never pauses: 20 of 20 datagrams came before connections were deleted with the cooldown.

    No connection of either protocol names the address when it is given again.
    """
    with node_with_one_address(family) as rig, talk.Servers() as servers:
        lab, node, client = rig.lab, rig.node, rig.lab.hosts["host-a"].path
        first = rig.add("first").any_address
        servers.add("first", node.netns_path("/run/netns/first"), address=first)
        proxy = KubeProxy(node)
        # Policy Local, because the kernel itself forgets what was masqueraded by a link that goes down.
        service = Service("local", SERVICES[family] + 1, 80, ((first, talk.PORT),), node_port=NODE_PORT, is_local=True)
        proxy.sync([service], local=[first])
        target = lab.own_address("node-a", family)
        with (
            run_inside(client, partial(connected, family, target)) as datagrams,
            run_inside(client, partial(connected, family, target, tcp=True)),
        ):
            datagrams.send(b"for the first")
            wait_until(lambda: servers.who_heard(b"for the first") == ["first"], what="the first sandbox to hear")
            assert first in tracked(rig)
            assert rig.cni("DEL", "first").ok
            servers.remove("first")
            node.remove_netns("first")
            proxy.sync([replace(service, endpoints=())], local=[])

            def send(text: bytes = b"while it cools") -> None:
                datagrams.send(text)

            def is_given_again() -> bool:
                send()
                return rig.pool()["cooling_count"] == 0

            wait_until(is_given_again, what="the end of the cooldown")
            assert first not in tracked(rig)
            second = rig.add("second").any_address
            assert second == first or family is not IPV4
            servers.add("second", node.netns_path("/run/netns/second"), address=second)
            for _ in range(DATAGRAMS):
                send(b"for nobody")
                time.sleep(0.005)
            proxy.sync([replace(service, endpoints=((second, talk.PORT),))], local=[second])
            answered = run_inside(client, lambda: talk.ask(client, target, port=NODE_PORT))
            assert answered is not None
            assert answered.by == "second", "and what is meant for it does arrive"
            assert servers.who_heard(b"for nobody") == []
        proxy.stop()
