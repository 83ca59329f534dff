"""Release free single addresses so that /28s can use their slots, when single addresses fill every ENI. Pure.

After a switch to prefix mode, or after a time without a free /28, ENIs may be full of single addresses. Then the pool can grow only by
another ENI, and at the instance's limit not at all, although a /28 in each slot would have 16 addresses (docs/adr/0029).
"""

from __future__ import annotations

from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.placement import asks_for_prefixes, vacant_count
from ipamd.model.pool_actions import ReleaseAddresses
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot


def needs_slot(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether a /28 would be requested if it had a slot, and a release of single addresses can free a slot.

    The caller lists free addresses only if this is true, because the list costs time. The time of this function grows only with the
    number of ENIs.
    """
    if not asks_for_prefixes(snapshot, settings) or _is_release_barred(snapshot):
        return False
    has_single = any(eni.counts.free and eni.used_slot_count > eni.prefix_count for eni in snapshot.enis)
    return has_single and not vacant_count(snapshot)


def exchange(snapshot: PoolSnapshot, settings: PoolSettings, count: int) -> ReleaseAddresses | None:
    """Choose free single addresses of one ENI whose slots are needed for /28s with `count` addresses.

    Returns: one address for each missing /28, all on the ENI with the lowest device index that has free single addresses; None if
        there is nothing to exchange.
    Guards: I2, I8 (only free addresses that are not withheld).
    """
    if count <= 0 or not needs_slot(snapshot, settings):
        return None
    wanted_count = -(-count // ADDRESSES_PER_PREFIX)
    if snapshot.growth.prefix_cap is not None:
        wanted_count = min(wanted_count, snapshot.growth.prefix_cap)
    for eni in sorted(snapshot.enis, key=lambda eni: (eni.device_index, eni.eni_id)):
        if eni.is_excluded or eni.eni_id in snapshot.growth.slot_caps:
            continue  # an ENI that takes no more addresses would not take the /28 either
        free = snapshot.hold.releasable.get(eni.eni_id)
        if free is not None and free.addresses:
            return ReleaseAddresses(eni.eni_id, free.addresses[:wanted_count])
    return None


def _is_release_barred(snapshot: PoolSnapshot) -> bool:
    """Whether the exchange must not be made now: a release or an allocation is barred, an ADD waits, or growth is under way, which may
    make the exchange unnecessary.
    """
    growth = snapshot.growth
    if snapshot.frozen or snapshot.fault is not None or snapshot.hold.refusal is not None:
        return True
    if snapshot.waiting_count or growth.allocation is not None:
        return True
    return bool(growth.pending_address_count or growth.pending_enis)
