"""Pinned addresses: which address a pod asks for, and which addresses the operator's settings allow (docs/adr/0083). Pure values.

A pinned address is named by the pod's annotation or by the operator's list, or it is the address that the pod had last on this node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import Any

from ipamd.model.family import IpAddress
from ipamd.model.record import dataclass
from ipamd.model.words import printable

SAME = "same"
"""Value of the annotation by which a pod asks for the address that it had last on this node."""


POD = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
"""`namespace/name`. Source: kubernetes apimachinery pkg/util/validation, IsDNS1123Label and IsDNS1123Subdomain."""

LIST_MAX = 10_000
"""The most pods of the operator's list. Ours: this is enough for most of a /18 subnet (16,384 addresses), and small enough to be kept
in memory."""

PinnedList = Mapping[str, IPv4Address]
"""The operator's list: `namespace/name` of a pod -> its address."""


@dataclass(frozen=True, slots=True)
class PinnedRange:
    """The addresses that pods of a namespace may name. `cidr`: None if such a pod may ask only for the address that it had last."""

    namespace: str
    cidr: IPv4Network | None = None

    def __str__(self) -> str:
        return self.namespace if self.cidr is None else f"{self.namespace}={self.cidr}"


@dataclass(frozen=True, slots=True)
class PinnedWish:
    """The pinned address that one ADD asks for.

    pod: `namespace/name` as the runtime gave it (CNI_ARGS); the address is kept for this pod.
    address: the address that the list or the annotation names; None: the address that the pod had last.
    kept_s: for how many seconds after the DEL the address is kept for the pod; 0: a named address is released to EC2 after the DEL.
    may_take: whether the address may be taken from an instance that EC2 does not show stopped or terminated.
    """

    pod: str
    address: IpAddress | None
    kept_s: int
    may_take: bool = False


@dataclass(frozen=True, slots=True)
class PinnedClaim:
    """The reservation that an ADD tries to make for a pod that asks for a pinned address.

    address: the address; None: any address, because the pod had none before.
    pod, kept_s: as in `PinnedWish`.
    """

    pod: str
    address: IpAddress | None
    kept_s: int


def ranges_of(namespace: str, ranges: Iterable[PinnedRange]) -> tuple[IPv4Network, ...]:
    """Return the CIDRs whose addresses pods of a namespace may name."""
    return tuple(item.cidr for item in ranges if item.namespace == namespace and item.cidr is not None)


def is_taken_whole(subnet: IPv4Network, ranges: Iterable[IPv4Network]) -> bool:
    """Whether ranges have every address of a subnet that EC2 may assign.

    EC2 keeps the first four and the last for itself. Source: VPC user guide, subnet CIDR blocks.
    """
    first, last = int(subnet.network_address) + 4, int(subnet.broadcast_address) - 1
    taken_count = 0
    for cidr in collapse_addresses(ranges):
        begin, end = max(int(cidr.network_address), first), min(int(cidr.broadcast_address), last)
        taken_count += max(end - begin + 1, 0)
    return taken_count == last - first + 1


def pinned_list_of(value: Mapping[str, Any], problems: list[str]) -> PinnedList:
    """Read the operator's list from the network file's entry, and add every fault to `problems`.

    Returns: the entries without a fault; {} if there are more than LIST_MAX.
    """
    if len(value) > LIST_MAX:
        problems.append(f"addresses: {len(value)} pods, and {LIST_MAX} are the most")
        return {}
    by_address: dict[IPv4Address, str] = {}
    for pod, text in value.items():
        where = f"addresses: {printable(repr(pod))[:80]}"
        if not POD.fullmatch(pod):
            problems.append(f"{where} is no namespace/name of a pod")
            continue
        try:
            address = IPv4Address(text) if isinstance(text, str) else None
        except ValueError:
            address = None
        if address is None:
            problems.append(f"{where} has {printable(repr(text))[:80]}, which is no IPv4 address")
        elif address in by_address:
            problems.append(f"{where} has {address}, which {by_address[address]} has too")
        else:
            by_address[address] = pod
    return {pod: address for address, pod in by_address.items()}
