"""Service rules on one node, as kube-proxy makes them: ClusterIP and NodePort, externalTrafficPolicy Cluster and Local.

A stand-in, in one nftables table that is replaced as a whole. What it shares with the real one in both of its modes, because it is
what meets the node's own SNAT and marks: DNAT at prerouting and output at dstnat (-100); masquerading at postrouting at srcnat (100)
of what carries bit 0x4000; that bit for every packet to a NodePort under policy Cluster, for local senders under Local, and for a
sandbox that reaches itself; under Local no endpoint of another node, and a drop where there is none. Source: kubernetes
pkg/proxy/nftables/proxier.go and pkg/proxy/iptables/proxier.go; no detection of local traffic, as on EKS, where clusterCIDR is
empty. Left out: session affinity, load-balancer addresses, source ranges, terminating endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from lab.node.node import Node

MASQUERADE_BIT = 0x4000
"""Source: kubernetes, kube-proxy's --iptables-masquerade-bit, default 14."""

TABLE = "ip kube-proxy"
Endpoint = tuple[IPv4Address, int]


@dataclass(frozen=True)
class Service:
    """One service port, of UDP and of TCP. `node_port` 0: none. `is_local`: externalTrafficPolicy Local."""

    name: str
    cluster_address: IPv4Address
    port: int
    endpoints: Sequence[Endpoint]
    node_port: int = 0
    is_local: bool = False


class KubeProxy:
    """The service rules of one node; they go with its namespace."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def sync(self, services: Iterable[Service], *, local: Iterable[IPv4Address]) -> None:
        """Replace all rules.

        Args:
            local: addresses of the sandboxes of this node; of these policy Local may choose.
        """
        self._node.netns.tool(["nft", "-f", "-"], script="\n".join(_ruleset(list(services), frozenset(local))))

    def stop(self) -> None:
        """Remove all rules; idempotent."""
        self._node.netns.tool(["nft", "-f", "-"], script=f"add table {TABLE}\ndelete table {TABLE}\n")


def _ruleset(services: list[Service], local: frozenset[IPv4Address]) -> Iterator[str]:
    yield f"add table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{"
    for service in services:
        yield from _service_chains(service, local)
    yield " chain services {"
    for service in services:
        both = "meta l4proto { tcp, udp }"
        yield f"  ip daddr {service.cluster_address} {both} th dport {service.port} goto cluster-{service.name}"
        if service.node_port:
            yield f"  fib daddr type local ip daddr != 127.0.0.0/8 {both} th dport {service.node_port} goto external-{service.name}"
    yield " }"
    yield " chain in { type nat hook prerouting priority dstnat; jump services; }"
    yield " chain local { type nat hook output priority -100; jump services; }"
    yield " chain out { type nat hook postrouting priority srcnat;"
    yield f"  meta mark & {MASQUERADE_BIT:#x} == 0 return"
    yield f"  meta mark set meta mark ^ {MASQUERADE_BIT:#x}\n  masquerade fully-random\n }}\n}}"


def _service_chains(service: Service, local: frozenset[IPv4Address]) -> Iterator[str]:
    masquerade = f"meta mark set meta mark | {MASQUERADE_BIT:#x}"
    for number, (address, port) in enumerate(service.endpoints):
        yield f" chain to-{service.name}-{number} {{"
        yield f"  ip saddr {address} {masquerade}\n  meta l4proto {{ tcp, udp }} dnat to {address}:{port}\n }}"
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
