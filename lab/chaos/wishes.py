"""What pods ask for by their annotations in a run with moves or pools, and what each of them must get. Pure.

A pod's name says what it is: `keep-2` and `take-0` ask for an address that stays (docs/adr/0083), `cards-1` and `batch-1` for a pool
(docs/adr/0084); any other pod asks for nothing. So a plan needs to name pods only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, ip_address

from ipamd.model.pod_annotations import ADDRESS, ADDRESS_KEPT, POOL

KEEPING, TAKING = "keep", "take"
"""Namespaces, and how the names of their pods begin. A pod of the second may take its address from a node that is not proven gone."""

RANGES: Mapping[str, IPv4Network] = {KEEPING: IPv4Network("10.0.3.224/28"), TAKING: IPv4Network("10.0.3.240/28")}
"""By namespace: the end of the nodes' subnet (lab/lab.py)."""

KEPT_S: Mapping[str, int] = {KEEPING: 20, TAKING: 0}
"""How long an address is kept for a pod whose number is odd, on the node that it left. Ours: less than most pods live."""

KEPT_MAX_S = 60

POOLS: Mapping[str, IPv4Network] = {"cards": IPv4Network("10.0.48.0/24"), "batch": IPv4Network("10.0.64.0/24")}
"""Subnets of the pools. The pods of the first have a group that names one host."""

GUARDED = "cards"
OWN = "own"
"""How the names of pods begin that ask for nothing, on nodes with pools."""

DEFAULT_NAMESPACE = "default"
OF_KUBELET = {"kubernetes.io/config.source": "api"}
"""Of every pod, as kubelet writes them. Source: kubernetes pkg/kubelet/types/pod_update.go."""


@dataclass(frozen=True)
class Wish:
    """What one pod asks for. `address`: "" for any; `subnet`: None for any; `pool`: "" for the node's own."""

    namespace: str = DEFAULT_NAMESPACE
    annotations: Mapping[str, str] = field(default_factory=lambda: OF_KUBELET)
    address: str = ""
    subnet: IPv4Network | None = None
    pool: str = ""

    def problem(self, address: str, *, are_ranges_reserved: bool = True) -> str:
        """Say what is wrong about the address that the pod was given; "" if nothing is.

        `are_ranges_reserved`: whether the run has ranges of addresses for pods that name theirs. Without them any pod may get these.
        """
        if self.address and address != self.address:
            return f"it asks for {self.address}"
        if self.subnet is not None and ip_address(address) not in self.subnet:
            return f"it asks for pool {self.pool}, whose subnet is {self.subnet}"
        if not self.pool and any(ip_address(address) in subnet for subnet in POOLS.values()):
            return "it asks for no pool"
        if are_ranges_reserved and not self.address and any(ip_address(address) in cidr for cidr in RANGES.values()):
            return "it asks for no address, and was given one of a range"
        return ""


def wish_of(pod: str) -> Wish:
    """Return what a pod of that name asks for."""
    kind, _, number = pod.partition("-")
    if kind in RANGES:
        address = str(RANGES[kind][int(number) + 1])
        kept_s = KEPT_S[kind] if int(number) % 2 else 0
        return Wish(kind, {**OF_KUBELET, ADDRESS: address, ADDRESS_KEPT: str(kept_s)}, address=address)
    if kind in POOLS:
        return Wish(annotations={**OF_KUBELET, POOL: kind}, subnet=POOLS[kind], pool=kind)
    return Wish()
