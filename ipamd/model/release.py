"""Decide what to release to EC2: whole ENIs first, then single addresses and /28s above the target. Pure.

What amazon-vpc-cni-k8s deletes and unassigns is the reference (pkg/ipamd/ipamd.go, decreaseDatastorePool and tryFreeENI;
pkg/ipamd/datastore/data_store.go, getDeletableENI). Different on purpose (docs/adr/0028): a surplus is held for a window first;
cooling addresses are no surplus (I8); what is left always meets the target, also with a target of 0, which keeps one free address;
the sparsest ENI goes first, not one at random; addresses of the mode that is off go as soon as they are surplus.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ipamd.model.eni import ADDRESSES_PER_PREFIX, EniState
from ipamd.model.family import IpAddress, IpNetwork
from ipamd.model.ids import EniId
from ipamd.model.placement import asks_for_prefixes, is_prefix_mode, vacant_count
from ipamd.model.pool import EniCapacity, PoolSettings, PoolSnapshot, Release, ReleaseAddresses, ReleaseEni
from ipamd.model.record import dataclass
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import counted, first_of

ENI_HOLD_S = 60.0
"""Window of what is more than one whole ENI in excess after a burst, where whole ENIs are the unit (WARM_ENI_TARGET); anything else is
held as long as single addresses are. Ours, from the traces of docs/fleet.md: the least age of an ENI."""

ENI_MIN_AGE_S = 60.0
"""A younger ENI is not released: EC2 may not show all of it yet. Source: amazon-vpc-cni-k8s pkg/ipamd/datastore/data_store.go."""

NAMED_COUNT = 3
"""ENIs that a sentence names. Ours: `ipamctl status` is for people."""


@dataclass(frozen=True, slots=True)
class Draining:
    """What gives addresses last, so that it empties: the sparse ENIs that the target can do without, and the kind of address of the
    mode that is off. Nothing of it is lost, and it gives addresses when the others have none."""

    enis: frozenset[EniId] = frozenset()
    prefixes: bool = False
    singles: bool = False


def release_actions(snapshot: PoolSnapshot, settings: PoolSettings, *, surplus: int) -> tuple[Release, ...]:
    """Decide what to release now, in order; () while anything is under way or in the way.

    `surplus`: free addresses without which the pool is short of nothing, now (`plan.surplus_count`). No more than that is released,
    and no more than was surplus during the whole hold window; nothing that is not free.
    Guards: I2, I7, I8, I13. Concurrency: pure.
    """
    if obstacle(snapshot):
        return ()
    leaving = [*_excluded(snapshot)]
    if snapshot.hold.settled_count is None:
        return tuple(leaving)
    budget = min(snapshot.hold.settled_count, surplus)
    gone = {action.eni_id for action in leaving}
    for eni in sorted(snapshot.enis, key=lambda eni: (-eni.device_index, eni.eni_id)):
        if eni.eni_id in gone or _why_eni_stays(eni, snapshot, eni_min_age_s(settings)) or eni.counts.total > budget:
            continue
        leaving.append(ReleaseEni(eni.eni_id))
        gone.add(eni.eni_id)
        budget -= eni.counts.total
    return (*leaving, *_addresses(snapshot, settings, budget, gone))


def excluded_actions(snapshot: PoolSnapshot) -> tuple[Release, ...]:
    """What is released though the pool is short and cannot grow: nobody may have it, and an ENI less is room for another one."""
    return () if obstacle(snapshot) else tuple(_excluded(snapshot))


def obstacle(snapshot: PoolSnapshot) -> str:
    """Say why nothing is released at this moment, whatever there is in excess; "" if nothing stands in the way."""
    known = snapshot.growth
    if snapshot.frozen:
        return snapshot.frozen
    if snapshot.waiting_count:
        return "an ADD waits"
    if known.pending_enis or known.pending_address_count or any(eni.state is EniState.ATTACHING for eni in snapshot.enis):
        return "the pool is growing"
    if known.has_stuck_eni or snapshot.taken_free_count:
        return "an ENI's host routing is not in place"
    if snapshot.hold.refusal is not None:
        return snapshot.hold.refusal.reason  # without its countdown: the sentence is logged when it changes
    return snapshot.fault.reason if snapshot.fault is not None else ""


def why_kept(snapshot: PoolSnapshot, settings: PoolSettings, *, surplus: int) -> str:
    """Say why what is in excess is kept though `release_actions` gives nothing back: for people."""
    reason = obstacle(snapshot)
    if reason:
        return reason
    budget = min(snapshot.hold.settled_count or 0, surplus)
    if not budget:
        return f"it has not been in excess for {settings.release_hold_s:.0f} s"
    stays = []
    for eni in sorted(snapshot.enis, key=lambda eni: (-eni.device_index, eni.eni_id)):
        reason = _why_eni_stays(eni, snapshot, eni_min_age_s(settings))
        if not reason:
            more = f"more than the {budget} that have been in excess for {settings.release_hold_s:.0f} s"
            reason = f"has {counted(eni.counts.total, 'address')}, {more}"
        stays.append(f"{eni.eni_id} {reason}")
    return f"no whole ENI{_other_units(snapshot, settings)} can go: {first_of(stays, NAMED_COUNT)}"


def draining(snapshot: PoolSnapshot, settings: PoolSettings, *, surplus: int, before: Collection[EniId] = ()) -> Draining:
    """Choose what gives addresses last: the sparsest ENIs without which the pool would still meet its target.

    `before`: the ENIs that were chosen last. They stay chosen as long as they fit, so that the choice does not follow every ADD.
    """
    is_prefix = is_prefix_mode(snapshot, settings)
    left, chosen = surplus, set()
    for eni in sorted(snapshot.enis, key=lambda eni: (eni.eni_id not in before, *_sparsest_first(eni))):
        if not eni.created_by_us or eni.is_primary or eni.state is not EniState.ATTACHED:
            continue
        need = eni.counts.total  # its sandboxes will need as many addresses elsewhere
        if need <= left:
            chosen.add(eni.eni_id)
            left -= need
    has_prefixes = any(eni.prefix_count for eni in snapshot.enis)
    return Draining(frozenset(chosen), prefixes=has_prefixes and not is_prefix, singles=is_prefix)


def _excluded(snapshot: PoolSnapshot) -> Iterator[Release]:
    """What nobody gets any more, because the ENI's subnet is excluded: at once, and whatever the surplus is, of which it is no part.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, which removes unused addresses of excluded ENIs at its start.
    """
    for eni in sorted((eni for eni in snapshot.enis if eni.is_excluded), key=_sparsest_first):
        if not _why_eni_stays(eni, snapshot, 0.0):
            yield ReleaseEni(eni.eni_id)
        elif (free := snapshot.hold.releasable.get(eni.eni_id)) is not None:
            yield free


def _addresses(
    snapshot: PoolSnapshot, settings: PoolSettings, budget: int, gone: Collection[EniId]
) -> Iterator[ReleaseAddresses]:
    """Yields: one action per ENI, at most `budget` addresses in all; of the sparsest ENI first, so that it empties."""
    by_prefix = is_prefix_mode(snapshot, settings)
    prefixes: dict[EniId, tuple[IpNetwork, ...]] = {}
    singles: dict[EniId, tuple[IpAddress, ...]] = {}
    enis = [eni for eni in sorted(snapshot.enis, key=_sparsest_first) if eni.eni_id not in gone and eni.host_ready]
    for of_prefixes in (not by_prefix, by_prefix):  # first what the mode that is on does not give
        for eni in enis:
            free = snapshot.hold.releasable.get(eni.eni_id)
            if free is None:
                continue
            if of_prefixes:
                prefixes[eni.eni_id] = free.prefixes[: budget // ADDRESSES_PER_PREFIX]
                budget -= len(prefixes[eni.eni_id]) * ADDRESSES_PER_PREFIX
            elif by_prefix or settings.ip_targets_defined:  # else whole ENIs are the unit of this mode
                singles[eni.eni_id] = free.addresses[:budget]
                budget -= len(singles[eni.eni_id])
    for eni in enis:
        named = ReleaseAddresses(eni.eni_id, singles.get(eni.eni_id, ()), prefixes.get(eni.eni_id, ()))
        if named.addresses or named.prefixes:
            yield named


def _sparsest_first(eni: EniCapacity) -> tuple[bool, int, int, str]:
    """The primary ENI, which never goes, comes last: emptying it frees nothing more."""
    return eni.is_primary, eni.counts.in_use, -eni.device_index, eni.eni_id


def _why_eni_stays(eni: EniCapacity, snapshot: PoolSnapshot, min_age_s: float) -> str:
    """Say why an ENI must not be deleted, whatever there is in excess; "" if it may. Source: as `getDeletableENI`, see above."""
    counts = eni.counts
    if eni.is_primary:
        return "is the primary one"
    if not eni.created_by_us:
        return "is not of our making"
    if eni.state is not EniState.ATTACHED:
        return f"is {eni.state}"
    if not eni.host_ready:
        return "has no host routing"
    for count, what in (
        (counts.in_use, "in use"),
        (counts.cooling, "cooling"),
        (counts.quarantined, "quarantined"),
        (counts.lost, "lost"),
        (counts.held, "held back"),
    ):
        if count:
            return f"has {counted(count, 'address')} {what}"
    if snapshot.hold.ages.get(eni.eni_id, min_age_s) < min_age_s:
        return f"is younger than {min_age_s:.0f} s"
    return ""


def _other_units(snapshot: PoolSnapshot, settings: PoolSettings) -> str:
    single = " and no single address" if settings.ip_targets_defined else ""
    return " and no whole /28" if is_prefix_mode(snapshot, settings) else single


# Make a slot for a /28 where single addresses fill every ENI: release a free one, and a prefix of 16 takes its slot. Pure.
#
# After a switch to prefix mode, or after a time without a free /28, ENIs may be full of single addresses. Then nothing can grow
# but by another ENI, and at the instance's limit not at all, though each slot could hold sixteen times as much (docs/adr/0029).


def needs_slot(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether a /28 would be asked for if there were a slot for it, and nothing stands in the way of making one.

    For the caller that names free addresses only where they may be needed. Cost: the number of ENIs.
    """
    known = snapshot.growth
    if snapshot.frozen or not asks_for_prefixes(snapshot, settings):
        return False
    if snapshot.fault is not None or snapshot.hold.refusal is not None:
        return False
    if snapshot.waiting_count or known.allocation is not None or known.pending_address_count or known.pending_enis:
        return False
    has_single = any(eni.counts.free and eni.used_slot_count > eni.prefix_count for eni in snapshot.enis)
    return has_single and not vacant_count(snapshot)


def exchange(snapshot: PoolSnapshot, settings: PoolSettings, count: int) -> ReleaseAddresses | None:
    """Choose free single addresses of one ENI whose slots are needed for /28s with `count` addresses.

    Returns: as many as /28s are missing, of the ENI with the lowest device index that has any; None if there is nothing to
    exchange. Guards: I2, I8 (only what is free and not held is named).
    """
    if count <= 0 or not needs_slot(snapshot, settings):
        return None
    cap = snapshot.growth.prefix_cap
    want = -(-count // ADDRESSES_PER_PREFIX)
    want = want if cap is None else min(want, cap)
    for eni in sorted(snapshot.enis, key=lambda eni: (eni.device_index, eni.eni_id)):
        free = snapshot.hold.releasable.get(eni.eni_id)
        if free is None or not free.addresses or eni.is_excluded or eni.eni_id in snapshot.growth.slot_caps:
            continue  # an ENI that takes no more, for EC2 or for us, would not take the /28 either
        return ReleaseAddresses(eni.eni_id, free.addresses[:want])
    return None


def eni_min_age_s(settings: PoolSettings) -> float:
    """Seconds for which an ENI must have been known before it is released; an operator's shorter hold shortens it too."""
    return min(ENI_MIN_AGE_S, settings.release_hold_s)


def releasable(snapshot: Snapshot, *, held: frozenset[IpAddress]) -> dict[EniId, ReleaseAddresses]:
    """Name what may be released now on each ENI in the pool: free, given to nobody, not held; single addresses longest free first,
    whole /28s ascending.

    Args:
        snapshot: one consistent read of the datastore.
        held: addresses that are given to nobody for now.
    Returns: only ENIs that have something to name. Cost: the number of addresses, so ask only when something may go.
    """
    singles: dict[EniId, list[tuple[float, int, IpAddress]]] = {}
    blocks: dict[tuple[EniId, IpNetwork], int] = {}
    for row in snapshot.addresses.values():
        eni = snapshot.enis.get(row.eni_id)
        if eni is None or not eni.managed or eni.state is not EniState.ATTACHED or not row.is_free or row.address in held:
            continue
        if row.prefix is None:
            singles.setdefault(row.eni_id, []).append((row.since.timestamp(), int(row.address), row.address))
        else:
            blocks[row.eni_id, row.prefix] = blocks.get((row.eni_id, row.prefix), 0) + 1
    whole: dict[EniId, list[IpNetwork]] = {}
    for (eni_id, prefix), count in blocks.items():
        if count == ADDRESSES_PER_PREFIX:
            whole.setdefault(eni_id, []).append(prefix)
    return {
        eni_id: ReleaseAddresses(
            eni_id, tuple(address for _, _, address in sorted(singles.get(eni_id, ()))), tuple(sorted(whole.get(eni_id, ())))
        )
        for eni_id in sorted(singles.keys() | whole.keys())
    }
