"""What the planner needs to know of the pool at one moment, and its making from what the datastore counts. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime

from ipamd.model.eni import Eni, EniState, InstanceLimits
from ipamd.model.growth import GrowthState
from ipamd.model.hold import Hold
from ipamd.model.ids import EniId
from ipamd.model.stock import EniStock, PoolCounts, Stock


@dataclass(frozen=True, slots=True)
class EniCapacity:
    """One managed ENI for the planner. `used_slot_count` counts addresses and prefixes on it, the primary address not included;
    `host_ready`: the host's routing for it is in place. `counts`: its addresses by state. `created_by_us`: we may delete it.
    `is_excluded`: new sandboxes get nothing of it."""

    eni_id: EniId
    device_index: int
    state: EniState
    used_slot_count: int
    host_ready: bool = True
    is_primary: bool = False
    created_by_us: bool = False
    counts: PoolCounts = field(default_factory=PoolCounts)
    prefix_count: int = 0
    is_excluded: bool = False


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """One consistent snapshot of one network card's pool.

    `unmanaged_eni_count`: attached ENIs that take a place on this card and give us nothing; `unmanaged_device_indexes`: where on
    it they are. `refused_device_indexes`: where EC2 attached nothing, because an ENI is there that it does not show; each is a place
    less. `unready_free_count`: free addresses on ENIs whose host routing is not in place, so that no ADD can have them;
    those that are held back are not in it, because `counts.held` has them. `taken_free_count`: those of them whose ENI was taken away.
    `leaving_cooling_count`: cooling addresses that nobody will get: of ENIs that are excluded or being detached.
    `waiting_count`: ADDs that wait for an address now. `retry_at`/`blocked_reason`: an error of ours stops all growth until
    then (aware UTC). `growth`: what EC2's refusals taught, and what is under way. `hold`: the surplus over time. `frozen`: why no ENI
    may be made and nothing given back, "" if that is allowed; addresses and prefixes on attached ENIs may be asked for all the same.
    `is_frozen_ahead`: but an ENI for which an ADD waits may be made.
    """

    enis: tuple[EniCapacity, ...]
    counts: PoolCounts
    limits: InstanceLimits
    free_prefix_count: int = 0
    total_prefix_count: int = 0
    unready_free_count: int = 0
    taken_free_count: int = 0
    unmanaged_eni_count: int = 0
    unmanaged_device_indexes: frozenset[int] = frozenset()
    refused_device_indexes: frozenset[int] = frozenset()
    leaving_cooling_count: int = 0
    waiting_count: int = 0
    retry_at: datetime | None = None
    blocked_reason: str = ""
    growth: GrowthState = field(default_factory=GrowthState)
    hold: Hold = field(default_factory=Hold)
    frozen: str = ""
    is_frozen_ahead: bool = False

    @property
    def bars_enis(self) -> bool:
        """Whether the freeze keeps new ENIs from being made now."""
        return bool(self.frozen) and not (self.is_frozen_ahead and self.waiting_count)

    @property
    def prefixes_available(self) -> bool:
        """Whether the subnet has a /28, as far as EC2 has said."""
        return self.growth.prefixes is None

    @property
    def known_eni_count(self) -> int:
        """Attached ENIs that EC2 has shown."""
        return len(self.enis) + self.unmanaged_eni_count

    @property
    def supply_count(self) -> int:
        """Free addresses that an ADD can have now."""
        return self.counts.free - self.counts.held - self.unready_free_count

    @property
    def pool_count(self) -> int:
        """Addresses that count for maxPods and MINIMUM_IP_TARGET: neither those that are held back, nor the free ones of an ENI that
        has been stuck for long. Nobody gets them, and they would keep the pool from growing elsewhere for as long as that lasts."""
        return self.counts.total - self.counts.held - (self.unready_free_count if self.growth.has_stuck_eni else 0)


def pool_snapshot(
    stock: Stock,
    *,
    limits: InstanceLimits,
    waiting_count: int = 0,
    retry_at: datetime | None = None,
    blocked_reason: str = "",
    growth: GrowthState | None = None,
    occupied: Collection[tuple[int, int]] = (),
    refused: Collection[tuple[int, int]] = (),
    taken: Collection[EniId] = (),
    frozen: str = "",
    is_frozen_ahead: bool = False,
) -> PoolSnapshot:
    """Sum up slots, prefixes and addresses for the planner; see `PoolSnapshot` for what each argument means.

    `occupied`: network card and device index of attached ENIs that are not recorded; each takes its place. `refused`: where an ENI
    must be that nobody knows. An ENI that EC2 does not show any more takes none, though sandboxes may still have its addresses. The
    free addresses of an ENI that is being detached are no part of the pool: nobody will get them; nor those of an excluded one.
    `taken`: ENIs that have been without their link for long.
    Returns: ENIs by network card and device index; all counts are of the one moment of `stock`. Pure; costs the number of ENIs.
    """
    managed = [one for one in stock.enis if one.eni.managed and not one.has_left]
    leaving = [one.counts for one in stock.enis if one.eni.managed and _gives_nothing(one.eni)]
    usable = [one for one in managed if not _gives_nothing(one.eni)]
    unmanaged = [one.eni.device_index for one in stock.enis if not one.eni.managed and one.eni.network_card == 0]
    unmanaged += [device_index for card, device_index in occupied if card == 0]
    return PoolSnapshot(
        enis=tuple(_capacity(one) for one in managed),
        counts=replace(
            stock.counts,
            free=stock.counts.free - sum(counts.free for counts in leaving),
            held=stock.counts.held - sum(counts.held for counts in leaving),
        ),
        limits=limits,
        free_prefix_count=sum(one.free_prefix_count for one in managed if not one.eni.excluded),
        total_prefix_count=sum(one.prefix_count for one in managed),
        unready_free_count=sum(one.counts.free - one.counts.held for one in usable if not one.eni.host_ready),
        taken_free_count=sum(one.counts.free - one.counts.held for one in usable if one.eni.eni_id in taken),
        leaving_cooling_count=sum(counts.cooling for counts in leaving),
        unmanaged_eni_count=len(unmanaged),
        unmanaged_device_indexes=frozenset(index for index in unmanaged if index >= 0),
        refused_device_indexes=frozenset(index for card, index in refused if card == 0),
        waiting_count=waiting_count,
        retry_at=retry_at,
        blocked_reason=blocked_reason,
        growth=growth or GrowthState(),
        frozen=frozen,
        is_frozen_ahead=is_frozen_ahead,
    )


def _capacity(one: EniStock) -> EniCapacity:
    return EniCapacity(
        one.eni.eni_id,
        one.eni.device_index,
        one.eni.state,
        one.used_slot_count,
        one.eni.host_ready,
        is_primary=one.eni.is_primary,
        created_by_us=one.eni.created_by_us,
        counts=one.counts,
        prefix_count=one.prefix_count,
        is_excluded=bool(one.eni.excluded),
    )


def _gives_nothing(eni: Eni) -> bool:
    return bool(eni.excluded) or eni.state is EniState.DETACHING
