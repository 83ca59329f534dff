"""Decide what to release to EC2: whole ENIs first, then single addresses and /28s above the target. Pure.

The reference is amazon-vpc-cni-k8s (pkg/ipamd/ipamd.go, decreaseDatastorePool and tryFreeENI; pkg/ipamd/datastore/data_store.go,
getDeletableENI). These differences are intended (docs/pool.md, Release):

- A surplus is released only after it has lasted for a window of time.
- Cooling addresses are not released (I8).
- The remaining addresses always meet the target. With a target of 0 one address stays free.
- The sparsest ENI, which has the fewest addresses in use, is emptied first, not a random one.
- Addresses of the disabled mode (single addresses or /28s) are released before others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from ipamd.model.address import Address
from ipamd.model.eni import ADDRESSES_PER_PREFIX, EniState
from ipamd.model.family import IpAddress, IpNetwork
from ipamd.model.ids import EniId
from ipamd.model.placement import is_prefix_mode
from ipamd.model.pool_actions import Release, ReleaseAddresses, ReleaseEni
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot
from ipamd.model.record import dataclass
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import counted, first_of

ENI_HOLD_S = 60.0
"""With WARM_ENI_TARGET, for how many seconds after a burst the surplus beyond one whole ENI is kept. Any other surplus is kept for
`release_hold_s`. Ours, from the traces of docs/performance.md: as long as ENI_MIN_AGE_S, before which no ENI is released anyway."""

ENI_MIN_AGE_S = 60.0
"""An ENI that we created fewer seconds ago is not released, because EC2 may not show all its addresses yet. Source: amazon-vpc-cni-k8s
pkg/ipamd/datastore/data_store.go."""

NAMED_COUNT = 3
"""How many ENIs a sentence names. Ours: people read the sentence in `ipamctl status`, so it must be short."""


ON_FURTHER_CARD = "is on a further network card"
"""The reason why an ENI on a card above 0 is never released: the next pod with an interface on each card would need the ENI at once.
Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, tryFreeENI."""


@dataclass(frozen=True, slots=True)
class Draining:
    """The addresses that are assigned only if no others are free, so that their ENIs or prefixes become empty.

    `enis`: the sparse ENIs without which the pool still meets its target.
    `prefixes`: whether all addresses of prefixes are assigned last, because prefix mode is off.
    `singles`: whether all single addresses are assigned last, because prefix mode is on.
    """

    enis: frozenset[EniId] = frozenset()
    prefixes: bool = False
    singles: bool = False


def release_actions(snapshot: PoolSnapshot, settings: PoolSettings, *, surplus: int) -> tuple[Release, ...]:
    """Decide what to release now, in order; () if there is an obstacle (`obstacle`).

    Only free addresses are released: at most `surplus`, the present surplus (`plan.surplus_count`), and at most the number that was
    surplus for long enough (`Hold.stable_surplus`). Addresses of excluded ENIs are released regardless of these numbers.

    Guards: I2, I7, I8, I13. Concurrency: pure.
    """
    if obstacle(snapshot):
        return ()
    leaving: list[Release] = list(_excluded(snapshot))
    if snapshot.hold.stable_surplus is None:
        return tuple(leaving)
    budget = min(snapshot.hold.stable_surplus, surplus)
    gone = {action.eni_id for action in leaving}
    for eni in sorted(snapshot.enis, key=lambda eni: (-eni.device_index, eni.eni_id)):
        if eni.eni_id in gone or _why_eni_stays(eni, snapshot, eni_min_age_s(settings)) or eni.counts.total > budget:
            continue
        leaving.append(ReleaseEni(eni.eni_id))
        gone.add(eni.eni_id)
        budget -= eni.counts.total
    return (*leaving, *_addresses(snapshot, settings, budget, gone))


def excluded_actions(snapshot: PoolSnapshot) -> tuple[Release, ...]:
    """Decide what to release although the pool needs addresses and cannot grow: addresses of excluded ENIs, and empty excluded ENIs,
    whose places other ENIs can take.
    """
    if obstacle(snapshot):
        return ()
    return tuple(_excluded(snapshot))


def obstacle(snapshot: PoolSnapshot) -> str:
    """Return why nothing is released now, even if there is a surplus; "" if there is no obstacle."""
    if snapshot.frozen:
        return snapshot.frozen
    if snapshot.waiting_count:
        return "an ADD waits"
    if _is_growing(snapshot):
        return "the pool is growing"
    if snapshot.growth.has_stuck_eni or snapshot.unplugged_free_count:
        return "an ENI's host routing is not in place"
    if snapshot.hold.refusal is not None:
        return snapshot.hold.refusal.reason  # without the countdown, because the sentence is logged whenever it changes
    if snapshot.fault is not None:
        return snapshot.fault.reason
    return ""


def why_kept(snapshot: PoolSnapshot, settings: PoolSettings, *, surplus: int) -> str:
    """Explain why a surplus is not released."""
    reason = obstacle(snapshot)
    if reason:
        return reason
    budget = min(snapshot.hold.stable_surplus or 0, surplus)
    if not budget:
        on_top = "; cooling addresses may come on top" if snapshot.counts.cooling else ""
        return f"an excess is released once it has lasted {settings.release_hold_s:.0f} s{on_top}"
    stays = []
    for eni in sorted(snapshot.enis, key=lambda eni: (-eni.device_index, eni.eni_id)):
        reason = _why_eni_stays(eni, snapshot, eni_min_age_s(settings))
        if not reason:
            more = f"more than the {budget} that have been in excess for {settings.release_hold_s:.0f} s"
            reason = f"has {counted(eni.counts.total, 'address')}, {more}"
        stays.append(f"{eni.eni_id} {reason}")
    return f"no whole ENI{_other_units(snapshot, settings)} can go: {first_of(stays, NAMED_COUNT)}"


def draining(snapshot: PoolSnapshot, settings: PoolSettings, *, surplus: int, before: Collection[EniId] = ()) -> Draining:
    """Choose what is assigned last: the addresses of the sparsest ENIs without which the pool would still meet its target, and the
    addresses of the disabled mode. ENIs that are never released are not chosen.

    `before`: the ENIs of the last choice. They are preferred, so that the choice does not change with every ADD.
    """
    is_prefix = is_prefix_mode(snapshot, settings)
    remaining, chosen = surplus, set()
    for eni in sorted(snapshot.enis, key=lambda eni: (eni.eni_id not in before, *_sparsest_first(eni))):
        if not eni.created_by_us or eni.is_primary or eni.state is not EniState.ATTACHED or snapshot.network_card:
            continue
        needed = eni.counts.total  # the pool loses this many addresses with the ENI
        if needed <= remaining:
            chosen.add(eni.eni_id)
            remaining -= needed
    has_prefixes = any(eni.prefix_count for eni in snapshot.enis)
    return Draining(frozenset(chosen), prefixes=has_prefixes and not is_prefix, singles=is_prefix)


def eni_min_age_s(settings: PoolSettings) -> float:
    """Return the least age in seconds at which an ENI may be released: ENI_MIN_AGE_S, or the hold window if that is shorter."""
    return min(ENI_MIN_AGE_S, settings.release_hold_s)


def releasable(snapshot: Snapshot, *, withheld: frozenset[IpAddress]) -> dict[EniId, ReleaseAddresses]:
    """List the addresses and /28s that may be released now, by ENI of the pool: the addresses are all free and not withheld.

    Args:
        snapshot: one consistent read of the datastore.
        withheld: addresses that are not assigned for now.
    Returns: for each ENI that has any, its single addresses, longest free first, and its /28s, ascending. The time grows with the
        number of addresses.
    """
    singles: dict[EniId, list[Address]] = {}
    free_counts: dict[tuple[EniId, IpNetwork], int] = {}
    in_pool = {eni_id for eni_id, eni in snapshot.enis.items() if eni.is_in_pool}
    for row in snapshot.addresses.values():
        if row.eni_id not in in_pool or not row.is_free or row.address in withheld:
            continue
        if row.prefix is None:
            singles.setdefault(row.eni_id, []).append(row)
        else:
            block = (row.eni_id, row.prefix)
            free_counts[block] = free_counts.get(block, 0) + 1
    prefixes = _whole_prefixes(free_counts)
    actions = {}
    for eni_id in sorted(singles.keys() | prefixes.keys()):
        rows = sorted(singles.get(eni_id, ()), key=_longest_free_first)
        addresses = tuple(row.address for row in rows)
        actions[eni_id] = ReleaseAddresses(eni_id, addresses, tuple(sorted(prefixes.get(eni_id, ()))))
    return actions


def _excluded(snapshot: PoolSnapshot) -> Iterator[Release]:
    """Yield the releases of excluded ENIs and of their free addresses, which no pod gets. They are not kept for the hold window.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, which removes unused addresses of excluded ENIs at its start.
    """
    for eni in sorted((eni for eni in snapshot.enis if eni.is_excluded), key=_sparsest_first):
        free = snapshot.hold.releasable.get(eni.eni_id)
        if not _why_eni_stays(eni, snapshot, 0.0):
            yield ReleaseEni(eni.eni_id)
        elif free is not None:
            yield free


def _addresses(
    snapshot: PoolSnapshot, settings: PoolSettings, budget: int, gone: Collection[EniId]
) -> Iterator[ReleaseAddresses]:
    """Yield one release per ENI, the sparsest ENI first, so that it becomes empty; at most `budget` addresses in all.

    `gone`: the ENIs that are released as a whole.
    """
    named = _named_on_staying_enis(snapshot, gone)
    # Addresses of the disabled mode are released first.
    if is_prefix_mode(snapshot, settings):
        singles, budget = _chosen_singles(named, budget)
        prefixes, budget = _chosen_prefixes(named, budget)
    else:
        prefixes, budget = _chosen_prefixes(named, budget)
        # Without IP targets and without prefix mode only whole ENIs are released, and no single addresses.
        singles, budget = _chosen_singles(named if settings.ip_targets_defined else [], budget)
    for free in named:
        action = ReleaseAddresses(free.eni_id, singles.get(free.eni_id, ()), prefixes.get(free.eni_id, ()))
        if action.addresses or action.prefixes:
            yield action


def _named_on_staying_enis(snapshot: PoolSnapshot, gone: Collection[EniId]) -> list[ReleaseAddresses]:
    """Return the releasable addresses of the ENIs that are not released as a whole, the sparsest ENI first."""
    named = []
    for eni in sorted(snapshot.enis, key=_sparsest_first):
        free = snapshot.hold.releasable.get(eni.eni_id)
        if free is not None and eni.eni_id not in gone and eni.host_ready:
            named.append(free)
    return named


def _chosen_singles(named: Collection[ReleaseAddresses], budget: int) -> tuple[dict[EniId, tuple[IpAddress, ...]], int]:
    """Choose at most `budget` single addresses. Returns: the addresses by ENI, and the number that may still be released."""
    chosen = {}
    for free in named:
        chosen[free.eni_id] = free.addresses[:budget]
        budget -= len(chosen[free.eni_id])
    return chosen, budget


def _chosen_prefixes(named: Collection[ReleaseAddresses], budget: int) -> tuple[dict[EniId, tuple[IpNetwork, ...]], int]:
    """Choose prefixes with at most `budget` addresses. Returns: the prefixes by ENI, and how many addresses may still be released."""
    chosen = {}
    for free in named:
        chosen[free.eni_id] = free.prefixes[: budget // ADDRESSES_PER_PREFIX]
        budget -= len(chosen[free.eni_id]) * ADDRESSES_PER_PREFIX
    return chosen, budget


def _is_growing(snapshot: PoolSnapshot) -> bool:
    """Whether the outcome of a creation or allocation is not known."""
    growth = snapshot.growth
    return bool(growth.pending_enis or growth.pending_address_count)


def _sparsest_first(eni: EniCapacity) -> tuple[bool, int, int, str]:
    """Return the sort key of an ENI: fewest addresses in use first. The primary ENI comes last, because it is never released."""
    return eni.is_primary, eni.counts.in_use, -eni.device_index, eni.eni_id


def why_never_released(*, is_primary: bool, created_by_us: bool) -> str:
    """Return why an ENI is never released, even if it is empty; "" if it may be released (I9)."""
    if is_primary:
        return "is the primary one"
    if not created_by_us:
        return "was not created by us"
    return ""


def _why_eni_stays(eni: EniCapacity, snapshot: PoolSnapshot, min_age_s: float) -> str:
    """Return why an ENI must not be released, even if there is a surplus; "" if it may be released.

    Source: amazon-vpc-cni-k8s pkg/ipamd/datastore/data_store.go, getDeletableENI.
    """
    counts = eni.counts
    if snapshot.network_card:
        return ON_FURTHER_CARD
    reason = why_never_released(is_primary=eni.is_primary, created_by_us=eni.created_by_us)
    if reason:
        return reason
    if eni.state is not EniState.ATTACHED:
        return f"is {eni.state}"
    if not eni.host_ready:
        return "has no host routing"
    for count, state in (
        (counts.in_use, "in use"),
        (counts.cooling, "cooling"),
        (counts.quarantined, "quarantined"),
        (counts.lost, "lost"),
        (counts.withheld, "held back"),
    ):
        if count:
            return f"has {counted(count, 'address')} {state}"
    if snapshot.hold.ages.get(eni.eni_id, min_age_s) < min_age_s:
        return f"is younger than {min_age_s:.0f} s"
    return ""


def _other_units(snapshot: PoolSnapshot, settings: PoolSettings) -> str:
    single = " and no single address" if settings.ip_targets_defined else ""
    if is_prefix_mode(snapshot, settings):
        return " and no whole /28"
    return single


def _whole_prefixes(free_counts: Mapping[tuple[EniId, IpNetwork], int]) -> dict[EniId, list[IpNetwork]]:
    """Return, by ENI, the prefixes of which all addresses are free."""
    prefixes: dict[EniId, list[IpNetwork]] = {}
    for (eni_id, prefix), free_count in free_counts.items():
        if free_count == ADDRESSES_PER_PREFIX:
            prefixes.setdefault(eni_id, []).append(prefix)
    return prefixes


def _longest_free_first(row: Address) -> tuple[float, int]:
    return row.since.timestamp(), int(row.address)
