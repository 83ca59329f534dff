"""Make a slot for a /28 where single addresses fill every ENI: give back a free one, and a prefix of 16 takes its slot. Pure.

After a switch to prefix mode, or after a time without a free /28, ENIs may be full of single addresses. Then nothing can grow but by
another ENI, and at the instance's limit not at all, though each slot could hold sixteen times as much (docs/adr/0029).
"""

from __future__ import annotations

from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.growth import ReleaseAddresses
from ipamd.model.placement import asks_for_prefixes, vacant_slots
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot


def needs_slot(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether a /28 would be asked for if there were a slot for it, and nothing stands in the way of making one.

    For the caller that names free addresses only where they may be needed. Cost: the number of ENIs.
    """
    known = snapshot.growth
    if snapshot.frozen or not asks_for_prefixes(snapshot, settings):
        return False
    if snapshot.retry_at is not None or snapshot.hold.refusal is not None:
        return False
    if snapshot.waiting_count or known.allocation is not None or known.pending_slots or known.pending_enis:
        return False
    has_single = any(eni.counts.free and eni.used_slot_count > eni.prefix_count for eni in snapshot.enis)
    return has_single and not any(vacant_slots(eni, snapshot) for eni in snapshot.enis)


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
        if free is None or not free.addresses or eni.eni_id in snapshot.growth.slot_caps:
            continue  # an ENI that takes no more for EC2 would not take the /28 either
        return ReleaseAddresses(eni.eni_id, free.addresses[:want])
    return None
