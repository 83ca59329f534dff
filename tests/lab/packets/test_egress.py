"""Sandboxes reach the family that they do not have as their node, and nobody reaches them by it: both families of a pool."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address

import pytest

from lab.fabric import talk
from lab.fabric.netns import run_inside
from lab.fabric.port import MTU
from lab.vpc.family import Family
from lab.vpc.model import Address
from tests.lab.packets.ground import OUTSIDE, Ground, ground

pytestmark = pytest.mark.privileged

PODS = ("pod-a", "pod-a-too", "pod-a-eth1", "pod-b")
SILENT_S = 0.3
HIDDEN_PORT = 7001


@dataclass(frozen=True)
class Stage:
    """A ground whose sandboxes have egress of a family: servers of it on the host and outside, and the sandboxes' own addresses."""

    ground: Ground
    family: Family
    own: dict[str, Address]

    def ask(self, client: str, target: Address, **options: object) -> talk.Heard | None:
        """Ask from a place by the family for egress."""
        return talk.ask(self.ground.paths[client], target, **options)  # type: ignore[arg-type]

    def node_as_seen(self, pod: str, *, outside: bool) -> Address:
        """Whom a server sees when a sandbox asks: its node, translated once more on the way out in IPv4."""
        own = self.ground.lab.own_address(self.ground.node_of(pod), self.family)
        return self.ground.lab.internet.associate(own) if outside and isinstance(own, IPv4Address) else own


@pytest.fixture(scope="module", params=["prefix", "ipv6"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """IPv6 for sandboxes of IPv4, and the other way round; node-b with the same settings."""
    with ground(request.param) as made:
        lab, family = made.lab, made.rigs["node-a"].driver.egress
        assert family is not None
        made.servers.add("host", lab.hosts["host-a"].path, address=lab.own_address("host-a", family))
        made.servers.add("world", lab.internet.outside.path, address=OUTSIDE[family])
        yield Stage(made, family, {pod: _inside(made.paths[pod], family) for pod in PODS})


def _inside(path: str, family: Family) -> Address:
    """The address that a sandbox has for egress."""
    show = ["ip", "-json", family.option, "address", "show", "dev", family.egress_link, "scope", "global"]
    shown = run_inside(path, lambda: subprocess.run(show, capture_output=True, text=True, check=True, timeout=120).stdout)
    ((address,),) = [[each["local"] for each in link["addr_info"]] for link in json.loads(shown)]
    return ip_address(address)


@pytest.mark.parametrize("pod", PODS)
@pytest.mark.parametrize("server", ["host", "world"])
def test_others_see_the_node(stage: Stage, pod: str, server: str) -> None:
    """In the VPC and outside, by UDP and TCP, whatever node and however many sandboxes share the node's address."""
    lab = stage.ground.lab
    target = lab.own_address("host-a", stage.family) if server == "host" else OUTSIDE[stage.family]
    heard = [stage.ask(pod, target, tcp=tcp) for tcp in (False, True)]
    seen_as = stage.node_as_seen(pod, outside=server == "world")
    assert [answer and (answer.by, answer.seen_as) for answer in heard] == [(server, seen_as)] * 2


def test_one_source_port_of_all_sandboxes_is_told_apart(stage: Stage) -> None:
    """They share the node's address, so their ports are changed where they meet."""
    target, (port,) = stage.ground.lab.own_address("host-a", stage.family), stage.ground.unused_ports(1)
    heard = [stage.ask(pod, target, source_port=port) for pod in PODS if stage.ground.node_of(pod) == "node-a"]
    assert all(heard)
    assert len({answer.seen_port for answer in heard if answer}) == len(heard)


def test_a_path_with_a_smaller_mtu_is_learnt(stage: Stage) -> None:
    """What a router says of a packet's size finds its way back through the node's translation."""
    assert talk.path_mtu(stage.ground.paths["pod-a"], OUTSIDE[stage.family], size_bytes=MTU) == 1500


@pytest.mark.parametrize("pod", PODS)
def test_nobody_reaches_a_sandbox_by_it(stage: Stage, pod: str) -> None:
    """Neither another sandbox of its node, whose address is of the same range, nor a host or another node, where it means nothing."""
    stage.ground.servers.add(f"hidden {pod}", stage.ground.paths[pod], address=stage.own[pod], port=HIDDEN_PORT)
    askers = [one for one in (*PODS, "host-a", "node-b") if one not in (pod, stage.ground.node_of(pod))]
    for asker in askers:
        for tcp in (False, True):
            heard = stage.ask(asker, stage.own[pod], port=HIDDEN_PORT, tcp=tcp, timeout_s=SILENT_S)
            assert heard in (None, talk.REFUSED), (asker, heard)


def test_sandboxes_of_one_node_have_addresses_of_their_own(stage: Stage) -> None:
    """Of the range that every node has."""
    on_a = [address for pod, address in stage.own.items() if stage.ground.node_of(pod) == "node-a"]
    assert len(set(on_a)) == len(on_a)
    assert all(address in stage.family.egress for address in stage.own.values())
