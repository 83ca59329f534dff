"""What a pod asks for by its annotations about its address, and what the operator's settings allow (docs/adr/0083). Pure values.

A pinned address is either named by the annotation, or the one that the pod had last on this node.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network

from ipamd.model.family import IpAddress
from ipamd.model.record import dataclass

SAME = "same"
"""Value of the annotation by which a pod asks for the address that it had last on this node."""


@dataclass(frozen=True, slots=True)
class PinnedRange:
    """Addresses that pods of a namespace may name. `cidr`: None if they may only ask for the one that they had last."""

    namespace: str
    cidr: IPv4Network | None = None

    def __str__(self) -> str:
        return self.namespace if self.cidr is None else f"{self.namespace}={self.cidr}"


@dataclass(frozen=True, slots=True)
class PinnedWish:
    """What one ADD asks for.

    pod: `namespace/name` as the runtime gave it (CNI_ARGS); the address is kept for it.
    address: None: the one that the pod had last.
    kept_s: how long the address stays with the pod after the DEL, in seconds; 0: a named address goes back to EC2.
    may_take: whether the address may be taken from a node that is not proven gone.
    """

    pod: str
    address: IpAddress | None
    kept_s: int
    may_take: bool = False


@dataclass(frozen=True, slots=True)
class PinnedClaim:
    """What an ADD reserves for a pod that asks. `address`: None: any, because the pod had none before. Others as in `PinnedWish`."""

    pod: str
    address: IpAddress | None
    kept_s: int


def ranges_of(namespace: str, ranges: Iterable[PinnedRange]) -> tuple[IPv4Network, ...]:
    """Return the CIDRs whose addresses pods of a namespace may name."""
    return tuple(item.cidr for item in ranges if item.namespace == namespace and item.cidr is not None)
