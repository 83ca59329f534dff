"""What the planner needs to know, from what the datastore holds: a pure conversion."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from ipaddress import IPv4Network

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
    unready = {eni_id for eni_id, eni in managed.items() if not eni.host_ready}
    # Hundreds of rows, and the pool thread does this after every ADD: counting is left to Counter, which does it in C.
    rows = snapshot.addresses.values()
    states = Counter(row.state for row in rows if row.eni_id in managed)
    unready_free_count = sum(row.eni_id in unready and row.state is AddressState.FREE for row in rows)
    used = Counter(row.eni_id for row in rows if row.prefix is None)
    prefix_is_free: dict[tuple[EniId, IPv4Network], bool] = {}
    for row in rows:
        if row.prefix is not None:
            prefix = (row.eni_id, row.prefix)
            prefix_is_free[prefix] = prefix_is_free.get(prefix, True) and row.state is AddressState.FREE
    used.update(eni_id for eni_id, _ in prefix_is_free)  # a slot holds one address or one whole prefix
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
