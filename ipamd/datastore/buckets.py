"""Free addresses by ENI and prefix, in the order in which they are given: densest first, longest free first.

Densest first keeps the other ENIs and prefixes empty, which is what releasing one needs; longest free first keeps an address out
of use for as long as possible (I8).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Network

from ipamd.model.address import Address, AddressState
from ipamd.model.eni import Eni, EniState


@dataclass(slots=True)
class Bucket:
    """The addresses of one prefix, or those of an ENI outside any; `free` by (since, address as a number)."""

    free: list[tuple[datetime, int]] = field(default_factory=list)
    in_use_count: int = 0
    total_count: int = 0

    def put_free(self, address: Address) -> None:
        """Insert in order; once only."""
        entry = (address.since, int(address.address))
        place = bisect_left(self.free, entry)
        if place == len(self.free) or self.free[place] != entry:
            insort(self.free, entry)

    def drop_free(self, address: Address) -> None:
        """Take out; absent is fine."""
        entry = (address.since, int(address.address))
        place = bisect_left(self.free, entry)
        if place < len(self.free) and self.free[place] == entry:
            del self.free[place]


@dataclass(slots=True)
class EniSlot:
    """One ENI with its buckets."""

    eni: Eni
    counts: dict[AddressState, int] = field(default_factory=lambda: dict.fromkeys(AddressState, 0))
    buckets: dict[IPv4Network | None, Bucket] = field(default_factory=dict)

    @property
    def is_assignable(self) -> bool:
        """Whether this ENI may give an address (I7) and has a free one."""
        eni = self.eni
        if not (eni.state is EniState.ATTACHED and eni.host_ready and eni.managed):
            return False
        return any(bucket.free for bucket in self.buckets.values())

    def preference(self) -> tuple[int, int, int, str]:
        """Sort key: densest first, then the lower place on the instance."""
        in_use = self.counts[AddressState.ASSIGNED] + self.counts[AddressState.RESERVED]
        return -in_use, self.eni.network_card, self.eni.device_index, self.eni.eni_id

    def densest_bucket(self) -> Bucket:
        """Find the bucket with most addresses in use among those with a free one; `is_assignable` says that there is one."""
        order = {prefix: -1 if prefix is None else int(prefix.network_address) for prefix in self.buckets}
        with_free = [prefix for prefix, bucket in self.buckets.items() if bucket.free]
        return self.buckets[min(with_free, key=lambda prefix: (-self.buckets[prefix].in_use_count, order[prefix]))]

    def bucket(self, prefix: IPv4Network | None) -> Bucket:
        """Find or make the bucket of a prefix."""
        found = self.buckets.get(prefix)
        if found is None:
            found = self.buckets[prefix] = Bucket()
        return found

    def forget_empty(self, prefix: IPv4Network | None) -> None:
        """Drop a bucket without addresses."""
        if self.buckets[prefix].total_count == 0:
            del self.buckets[prefix]
