"""What every node has for its sandboxes, on an address of its own that is no ENI's: node-local DNS, and Pod Identity's agent.

The CNI has nothing to do for these but the way to the node, which nothing of the confinement may close.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

import pytest

from lab.fabric import talk
from lab.fabric.netns import Netns
from lab.vpc.family import IPV4, IPV6, Family, other
from lab.vpc.model import Address
from tests.lab.packets.ground import Ground
from tests.patience import PATIENCE_S
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

SILENT_S = 1.0
"""Ours: answers of the own node take a millisecond. Only where none is expected; what must be heard has time."""

PODS = ("pod-a", "pod-a-too", "pod-a-eth1")


@dataclass(frozen=True)
class Service:
    """Something that listens on a link of its own in the node, by UDP and TCP."""

    link: str
    port: int
    addresses: dict[Family, Address]


SERVICES = {
    # Of choice: "Using NodeLocal DNSCache in Kubernetes Clusters" names these ranges.
    "dns": Service("nodelocaldns", 53, {IPV4: IPv4Address("169.254.20.10"), IPV6: IPv6Address("fd00:53::10")}),
    # Source: EKS user guide, "Understand how EKS Pod Identity works": the agent's addresses, one of each family, on port 80.
    "identity": Service("pod-id-link0", 80, {IPV4: IPv4Address("169.254.170.23"), IPV6: IPv6Address("fd00:ec2::23")}),
}


@pytest.fixture(scope="module")
def served(made: Ground) -> Ground:
    """The services on node-a, with addresses of both families on their links, as on nodes."""
    netns = made.rigs["node-a"].node.netns
    path = made.paths["node-a"]
    for name, service in SERVICES.items():
        # A dummy link on real nodes; here the kernel may lack those, and only its addresses matter.
        netns.ip([f"link add {service.link} type veth peer name {name}-peer", f"link set {service.link} up"])
        for address in service.addresses.values():
            nodad = " nodad" if address.version == 6 else ""
            netns.ip([f"addr add {address}/{address.max_prefixlen} dev {service.link}{nodad}"])
            made.servers.add(name, path, port=service.port, address=address)
    wait_until(lambda: are_local(netns), what="the kernel delivers to every address")
    return made


def are_local(netns: Netns) -> bool:
    """Whether the node has a local route to each address. The kernel adds that of an IPv6 address a moment after the address.

    A question before that is sent out and translated, and its repetition is delivered with the translated source.
    """
    local = netns.tool(["ip", "-4", "route", "show", "table", "local"]) + netns.tool(
        ["ip", "-6", "route", "show", "table", "local"]
    )
    destinations = {line.split()[1] for line in local.splitlines()}
    return {str(address) for service in SERVICES.values() for address in service.addresses.values()} <= destinations


def heard(served: Ground, pod: str, service: str, family: Family, *, expected: bool = True) -> list[talk.Heard | None]:
    """What a sandbox hears of a service, by UDP and by TCP."""
    timeout_s = PATIENCE_S if expected else SILENT_S
    address, port = SERVICES[service].addresses[family], SERVICES[service].port
    return [served.ask(pod, address, port=port, tcp=tcp, timeout_s=timeout_s) for tcp in (False, True)]


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("pod", PODS)
def test_a_sandbox_reaches_what_its_node_serves(served: Ground, pod: str, service: str) -> None:
    """As itself: the agent of Pod Identity tells by the source whose credentials are asked for."""
    for answer in heard(served, pod, service, served.family):
        assert answer is not None
        assert (answer.by, answer.seen_as) == (service, served.addresses[pod])


@pytest.mark.parametrize("pod", PODS)
def test_the_other_family_s_is_reached_by_egress_alone(served: Ground, pod: str) -> None:
    """An SDK that knows IPv4 alone asks 169.254.170.23 from a sandbox of IPv6, as its own address for egress; else nobody hears."""
    family, egress = other(served.family), served.rigs["node-a"].driver.egress
    answers = [one for service in SERVICES for one in heard(served, pod, service, family, expected=egress is family)]
    seen = {answer.seen_as if answer else None for answer in answers}
    assert len(seen) == 1, seen
    (source,) = seen
    assert (source is not None) == (egress is family)
    assert source is None or source in family.egress


def test_every_sandbox_is_seen_by_an_address_of_its_own(served: Ground) -> None:
    """On its node that is all that tells them apart, for egress too."""
    families = [one for one in (served.family, served.rigs["node-a"].driver.egress) if one is not None]
    for family in families:
        sources = {pod: {answer.seen_as for answer in heard(served, pod, "identity", family) if answer} for pod in PODS}
        assert all(len(one) == 1 for one in sources.values()), sources
        assert len({source for one in sources.values() for source in one}) == len(PODS)
