"""The addresses of a node of the reference, in the node's own data (amazon-vpc-cni-k8s pkg/ipamd/datastore/data_store.go)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.fleet.ec2 import ModelEni
from bench.fleet.reference_rules import EniStats


@dataclass(slots=True)
class Cidr:
    """A single address or a /28. `used`: assigned addresses. `released_s`: address -> time at which its pod left."""

    first: int
    size: int
    used: set[int] = field(default_factory=set)
    released_s: dict[int, float] = field(default_factory=dict)

    def take(self, now_s: float, cooldown_s: float) -> int | None:
        """Assign the lowest address that is neither used nor cooling. Returns: None if there is none."""
        for address in range(self.first, self.first + self.size):
            if address not in self.used and now_s - self.released_s.get(address, -math.inf) > cooldown_s:
                self.released_s.pop(address, None)
                self.used.add(address)
                return address
        return None


@dataclass(slots=True)
class KnownEni:
    """One ENI in the node's data. `total`, `assigned`: numbers of addresses. `cidrs`: by first address."""

    model: ModelEni
    is_primary: bool
    made_s: float
    cidrs: dict[int, Cidr] = field(default_factory=dict)
    total: int = 0
    assigned: int = 0

    def learn(self, hot: Mapping[int, float], now_s: float) -> None:
        """Add the addresses and prefixes that EC2 has on the ENI. `hot`: recently released ones -> time until which they are left
        out."""
        known = self.cidrs
        for firsts, size in ((self.model.addresses, 1), (self.model.prefixes, 16)):
            for first in sorted(firsts - known.keys()):
                if now_s >= hot.get(first, -math.inf):
                    known[first] = Cidr(first, size)
                    self.total += size

    def stats(self, *, now_s: float, cooldown_s: float) -> EniStats:
        """Return the facts that the rules need."""
        free = sum(not cidr.used for cidr in self.cidrs.values())
        cooling = any(now_s - at <= cooldown_s for cidr in self.cidrs.values() for at in cidr.released_s.values())
        age_s = now_s - self.made_s
        return EniStats(self.model.eni_id, self.total, self.assigned, self.is_primary, age_s, cooling, free)
