"""The pool rules of amazon-vpc-cni-k8s v1.23 as pure functions. The reference, with which the fleet is compared, follows them.

Sources: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go (datastoreTargetState, isDatastorePoolTooLow, isDatastorePoolTooHigh,
shouldRemoveExtraENIs) and pkg/ipamd/datastore/data_store.go (getDeletableENI). tests/unit/bench/test_fleet_reference.py compares them
with that project's own tables and tests. As in that project, cooling addresses count as available.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PREFIX_SIZE = 16
ENI_MIN_AGE_S = 60.0


@dataclass(frozen=True, slots=True)
class Targets:
    """The settings of the pool; a target of 0 is not defined. `slot_count`: most addresses or prefixes of one ENI."""

    warm_ip: int
    minimum_ip: int
    warm_eni: int
    warm_prefix: int
    by_prefix: bool
    slot_count: int
    max_pods: int

    @property
    def are_defined(self) -> bool:
        """Whether the targets in addresses apply, instead of those in ENIs or prefixes."""
        return self.warm_ip > 0 or self.minimum_ip > 0

    @property
    def eni_size(self) -> int:
        """Number of addresses of a full ENI."""
        return self.slot_count * (PREFIX_SIZE if self.by_prefix else 1)


@dataclass(frozen=True, slots=True)
class Stats:
    """Numbers of addresses, and of prefixes. With prefix delegation only addresses of prefixes count."""

    total: int
    assigned: int
    total_prefixes: int = 0
    free_prefixes: int = 0

    @property
    def available(self) -> int:
        """Number of addresses that are not assigned, cooling ones included."""
        return self.total - self.assigned


@dataclass(frozen=True, slots=True)
class EniStats:
    """The facts about an ENI that `deletable` needs. `free_prefixes`: number of prefixes without an assigned address."""

    name: str
    total: int
    assigned: int
    is_primary: bool = False
    age_s: float = ENI_MIN_AGE_S
    has_cooling: bool = False
    free_prefixes: int = 0
    is_special: bool = False


def short_and_over(stats: Stats, targets: Targets) -> tuple[int, int]:
    """Return how many addresses, or prefixes, the pool has too few and too many for the targets in addresses; (0, 0) if none is
    defined."""
    if not targets.are_defined:
        return 0, 0
    short = max(targets.warm_ip - stats.available, targets.minimum_ip - stats.total, 0)
    over = max(min(stats.available - targets.warm_ip, stats.total - targets.minimum_ip), 0)
    if not targets.by_prefix:
        return short, over
    used = _prefixes(stats.assigned + targets.warm_ip)
    over = min(stats.free_prefixes, stats.total_prefixes - used, stats.total_prefixes - _prefixes(targets.minimum_ip))
    return _prefixes(short), max(over, 0)


def is_low(stats: Stats, targets: Targets) -> bool:
    """Whether the pool must grow."""
    if stats.total >= targets.max_pods:
        return False
    if targets.are_defined:
        return short_and_over(stats, targets)[0] > 0
    unit, target = (PREFIX_SIZE, targets.warm_prefix) if targets.by_prefix else (targets.eni_size, targets.warm_eni)
    return stats.available < unit * target or (target == 0 and stats.available == 0)


def is_high(stats: Stats, targets: Targets) -> bool:
    """Whether addresses or prefixes must be released."""
    if targets.are_defined:
        return short_and_over(stats, targets)[1] > 0
    return targets.by_prefix and stats.free_prefixes > targets.warm_prefix


def looks_for_extra_eni(stats: Stats, targets: Targets, enis: Iterable[EniStats] = ()) -> bool:
    """Whether the pool searches for an ENI that it can release."""
    if targets.are_defined:
        return True
    target = targets.warm_prefix if targets.by_prefix else targets.warm_eni
    if stats.available >= (target + 1) * targets.eni_size:
        return True
    return targets.by_prefix and any(eni.assigned == 0 and not eni.is_primary and not eni.is_special for eni in enis)


def deletable(enis: Iterable[EniStats], targets: Targets) -> str:
    """Return the name of the first ENI in the given order that may be released; "" if there is none."""
    every = list(enis)
    for eni in every:
        if eni.is_primary or eni.is_special or eni.age_s < ENI_MIN_AGE_S or eni.has_cooling or eni.assigned:
            continue
        others = [other for other in every if other is not eni]
        free, total = sum(other.total - other.assigned for other in others), sum(other.total for other in others)
        if targets.warm_ip and free < _rounded(targets.warm_ip, targets):
            continue
        if targets.minimum_ip and total < _rounded(targets.minimum_ip, targets):
            continue
        if targets.by_prefix and targets.warm_prefix and sum(other.free_prefixes for other in others) < targets.warm_prefix:
            continue
        return eni.name
    return ""


def wanted(stats: Stats, targets: Targets) -> int:
    """Return the number of slots that one increase requests at most."""
    short = short_and_over(stats, targets)[0]
    if not targets.by_prefix:
        return short if targets.are_defined else targets.slot_count
    return max(1, short if targets.are_defined else max(targets.warm_prefix - stats.free_prefixes, 0))


def _prefixes(count: int) -> int:
    return -(-count // PREFIX_SIZE)


def _rounded(count: int, targets: Targets) -> int:
    return _prefixes(count) * PREFIX_SIZE if targets.by_prefix else count
