"""What the planner needs to know, from what the datastore holds: a pure conversion."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from ipamd.model.address import AddressState
from ipamd.model.eni import InstanceLimits
from ipamd.model.ids import EniId
from ipamd.model.plan import EniCapacity, PoolCounts, PoolSnapshot
from ipamd.model.snapshot import Snapshot, eni_place


def pool_snapshot(
    snapshot: Snapshot,
    *,
    limits: InstanceLimits,
    waiting_count: int = 0,
    retry_at: datetime | None = None,
    blocked_reason: str = "",
    prefixes_available: bool = True,
) -> PoolSnapshot:
    """Count slots, prefixes and addresses for the planner; see `PoolSnapshot` for what each argument means.

    Returns: ENIs by network card and device index; all counts are of the one moment of `snapshot`.
    Concurrency: pure.
    """
    managed = {eni.eni_id: eni for eni in sorted(snapshot.enis.values(), key=eni_place) if eni.managed}
    unmanaged = [eni for eni in snapshot.enis.values() if not eni.managed and eni.network_card == 0]
    used: Counter[EniId] = Counter()
    states: Counter[AddressState] = Counter()
    prefix_is_free: dict[tuple[EniId, object], bool] = {}
    unready_free_count = 0
    for row in snapshot.addresses.values():
        eni, is_free = managed.get(row.eni_id), row.state is AddressState.FREE
        if eni is not None:
            states[row.state] += 1
            unready_free_count += is_free and not eni.host_ready
        # A slot holds one address or one whole prefix, so a prefix counts once, with the first of its addresses.
        prefix = (row.eni_id, row.prefix)
        used[row.eni_id] += row.prefix is None or prefix not in prefix_is_free
        if row.prefix is not None:
            prefix_is_free[prefix] = prefix_is_free.get(prefix, True) and is_free
    return PoolSnapshot(
        enis=tuple(EniCapacity(eni.eni_id, eni.device_index, eni.state, used[eni.eni_id]) for eni in managed.values()),
        counts=PoolCounts(**{state.value: states[state] for state in AddressState}),
        limits=limits,
        free_prefix_count=sum(prefix_is_free.values()),
        total_prefix_count=len(prefix_is_free),
        unready_free_count=unready_free_count,
        unmanaged_eni_count=len(unmanaged),
        unmanaged_device_indexes=frozenset(eni.device_index for eni in unmanaged),
        waiting_count=waiting_count,
        retry_at=retry_at,
        blocked_reason=blocked_reason,
        prefixes_available=prefixes_available,
    )
