"""Service rules on one node, as kube-proxy makes them: ClusterIP and NodePort, externalTrafficPolicy Cluster and Local.

This is a stand-in, with one nftables table for each family that is replaced as a whole. It makes those objects of kube-proxy (in its
modes nftables and iptables) that act on the same packets as the daemon's SNAT and marks:

- DNAT at prerouting and output, at priority dstnat (-100);
- masquerading at postrouting, at srcnat (100), of packets with the mark bit 0x4000;
- that mark bit on every packet to a NodePort under policy Cluster, on packets of local senders under policy Local, and on packets of a
  sandbox that reaches itself through a service;
- under policy Local a choice among the endpoints of this node only, and a drop if this node has none.

Source: kubernetes pkg/proxy/nftables/proxier.go and pkg/proxy/iptables/proxier.go. Local traffic is not detected, as on EKS, where
clusterCIDR is empty. Left out: session affinity, load-balancer addresses, source ranges, terminating endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lab.node.node import Node
from lab.vpc.family import FAMILIES, Family, family_of
from lab.vpc.model import Address

MASQUERADE_BIT = 0x4000
"""Source: kubernetes, kube-proxy's --iptables-masquerade-bit, default 14."""

LOOPBACK = {4: "127.0.0.0/8", 6: "::1"}
"""IP version -> the addresses on which no NodePort is served."""

Endpoint = tuple[Address, int]


@dataclass(frozen=True)
class Service:
    """One service port, for UDP and TCP, in the family of its address.

    `node_port`: its NodePort; 0 for none.
    `is_local`: whether its externalTrafficPolicy is Local; otherwise it is Cluster.
    """

    name: str
    cluster_address: Address
    port: int
    endpoints: Sequence[Endpoint]
    node_port: int = 0
    is_local: bool = False


class KubeProxy:
    """The service rules of one node. They vanish with its network namespace."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def sync(self, services: Iterable[Service], *, local: Iterable[Address]) -> None:
        """Replace all rules, in a table for each family.

        Args:
            local: addresses of the sandboxes of this node, the only endpoints that policy Local may choose.
        """
        every, here = list(services), frozenset(local)
        script = [line for family in FAMILIES for line in _ruleset(every, here, family)]
        self._node.netns.tool(["nft", "-f", "-"], script="\n".join(script))

    def stop(self) -> None:
        """Remove all rules; idempotent."""
        self._node.netns.tool(["nft", "-f", "-"], script="\n".join(line for family in FAMILIES for line in _absent(family)))


def _absent(family: Family) -> Iterator[str]:
    yield f"add table {family.nft} kube-proxy\ndelete table {family.nft} kube-proxy"


def _ruleset(every: list[Service], local: frozenset[Address], family: Family) -> Iterator[str]:
    yield from _absent(family)
    services = [service for service in every if family_of(service.cluster_address) is family]
    if not services:
        return
    ip, both = family.nft, "meta l4proto { tcp, udp }"
    yield f"table {ip} kube-proxy {{"
    for service in services:
        yield from _service_chains(service, local, ip)
    yield " chain services {"
    for service in services:
        yield f"  {ip} daddr {service.cluster_address} {both} th dport {service.port} goto cluster-{service.name}"
        if service.node_port:
            here = f"fib daddr type local {ip} daddr != {LOOPBACK[family.version]}"
            yield f"  {here} {both} th dport {service.node_port} goto external-{service.name}"
    yield " }"
    yield " chain in { type nat hook prerouting priority dstnat; jump services; }"
    yield " chain local { type nat hook output priority -100; jump services; }"
    yield " chain out { type nat hook postrouting priority srcnat;"
    yield f"  meta mark & {MASQUERADE_BIT:#x} == 0 return"
    yield f"  meta mark set meta mark ^ {MASQUERADE_BIT:#x}\n  masquerade fully-random\n }}\n}}"


def _service_chains(service: Service, local: frozenset[Address], ip: str) -> Iterator[str]:
    masquerade = f"meta mark set meta mark | {MASQUERADE_BIT:#x}"
    for number, (address, port) in enumerate(service.endpoints):
        target = f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
        yield f" chain to-{service.name}-{number} {{"
        yield f"  {ip} saddr {address} {masquerade}\n  meta l4proto {{ tcp, udp }} dnat to {target}\n }}"
    everywhere = list(range(len(service.endpoints)))
    yield from _choice(f"cluster-{service.name}", service, everywhere)
    here = [number for number in everywhere if service.endpoints[number][0] in local]
    if not service.node_port:
        return
    if not service.is_local:
        yield f" chain external-{service.name} {{\n  {masquerade}\n  goto cluster-{service.name}\n }}"
        return
    yield from _choice(f"here-{service.name}", service, here)
    yield f" chain external-{service.name} {{"
    yield f"  fib saddr type local {masquerade}\n  fib saddr type local goto cluster-{service.name}"
    yield f"  goto here-{service.name}\n }}"


def _choice(chain: str, service: Service, numbers: list[int]) -> Iterator[str]:
    yield f" chain {chain} {{"
    for place, number in enumerate(numbers):
        left = len(numbers) - place
        choice = f"numgen random mod {left} 0 " if left > 1 else ""
        yield f"  {choice}goto to-{service.name}-{number}"
    yield " }" if numbers else "  drop\n }"
