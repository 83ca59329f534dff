"""The planner's input: the pool at one moment, made from the datastore's counts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.growth_state import GrowthRefusal, GrowthState
from ipamd.model.ids import EniId
from ipamd.model.pool_counts import EniStock, PoolCounts, Stock
from ipamd.model.record import dataclass, field, replace
from ipamd.model.surplus import Hold


@dataclass(frozen=True, slots=True)
class EniCapacity:
    """One ENI of the pool, with the facts that the planner needs.

    used_slot_count: the number of single addresses and prefixes on it, without the primary address.
    host_ready: whether the host's routing for it is in place.
    created_by_us: whether we created it, so that we may delete it.
    counts: its addresses by state.
    prefix_count: the number of prefixes on it.
    is_excluded: whether new sandboxes get none of its addresses.
    """

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
    """One pool of a node at one moment, with the state of the network card that has its ENIs.

    enis: its ENIs, by device index.
    counts: the sum of their addresses, by state.
    limits: the limits of the instance type for the network card.
    free_prefix_count: the number of /28s whose addresses are all free.
    unready_free_count: the free addresses, without withheld ones, on ENIs without host routing. No ADD can get them.
    unplugged_free_count: how many addresses of `unready_free_count` are on ENIs whose link has been missing for a long time.
    leaving_cooling_count: the cooling addresses that no pod will get, because their ENI is excluded or being detached.
    unmanaged_eni_count, unmanaged_device_indexes: the attached ENIs that take a place on the card but are not for pods of this pool:
        their number, and their device indexes.
    refused_device_indexes: the device indexes that EC2 refused, because an ENI is there that EC2 does not show.
    waiting_count: the ADDs that wait for an address now.
    fault: why the pool neither grows nor releases now: an error of the daemon, which stops both for a moment, or the setting that
        disables provisioning; None if there is neither.
    growth: limits from refusals of EC2, and growth under way.
    hold: for how long addresses have been in surplus, and which of them may be released (`surplus.py`).
    frozen: why the pool is frozen, so that no ENI is created (but see `may_grow_for_adds`) and nothing is released; "" if it is not
        frozen. Addresses and prefixes on attached ENIs are requested even if it is.
    may_grow_for_adds: whether an ENI for which an ADD waits may be created although the pool is frozen.
    has_trunk: whether the control plane has attached the trunk ENI, which is one of the unmanaged ENIs.
    pool: the pool of pods that is planned; "" for the node's own pool.
    other_pool_eni_count: the number of ENIs of other pools, which count as unmanaged.
    place_cap: how many further ENIs the pool's share of the free places allows (`pool_shares.py`); None: no bound.
    share: the reason of `place_cap`, in words.
    network_card: the card that has the pool's ENIs. ENIs of a card above 0 are never released.
    """

    enis: tuple[EniCapacity, ...]
    counts: PoolCounts
    limits: InstanceLimits
    free_prefix_count: int = 0
    unready_free_count: int = 0
    unplugged_free_count: int = 0
    unmanaged_eni_count: int = 0
    unmanaged_device_indexes: frozenset[int] = frozenset()
    refused_device_indexes: frozenset[int] = frozenset()
    leaving_cooling_count: int = 0
    waiting_count: int = 0
    fault: GrowthRefusal | None = None
    growth: GrowthState = field(default_factory=GrowthState)
    hold: Hold = field(default_factory=Hold)
    frozen: str = ""
    may_grow_for_adds: bool = False
    has_trunk: bool = False
    pool: str = ""
    other_pool_eni_count: int = 0
    place_cap: int | None = None
    share: str = ""
    network_card: int = 0

    @property
    def bars_enis(self) -> bool:
        """Whether a freeze of the pool forbids new ENIs now."""
        return bool(self.frozen) and not (self.may_grow_for_adds and self.waiting_count)

    @property
    def prefixes_available(self) -> bool:
        """Whether the subnet may have a free /28: EC2 has not refused one lately."""
        return self.growth.prefixes is None

    @property
    def known_eni_count(self) -> int:
        """The number of ENIs that EC2 has shown attached to the network card."""
        return len(self.enis) + self.unmanaged_eni_count

    @property
    def supply_count(self) -> int:
        """The number of free addresses that an ADD can get now."""
        return self.counts.free - self.counts.withheld - self.unready_free_count

    @property
    def pool_count(self) -> int:
        """The number of addresses that count towards maxPods and MINIMUM_IP_TARGET.

        Withheld addresses do not count, and neither do free addresses of an ENI that has been without host routing for a long time. No
        pod gets these addresses, so they must not prevent growth on other ENIs.
        """
        stuck_count = self.unready_free_count if self.growth.has_stuck_eni else 0
        return self.counts.total - self.counts.withheld - stuck_count


def pool_snapshot(
    stock: Stock,
    *,
    limits: InstanceLimits,
    waiting_count: int = 0,
    fault: GrowthRefusal | None = None,
    growth: GrowthState | None = None,
    occupied: Collection[tuple[int, int]] = (),
    refused: Collection[tuple[int, int]] = (),
    unplugged: Collection[EniId] = (),
    frozen: str = "",
    may_grow_for_adds: bool = False,
    has_trunk: bool = False,
    network_card: int = 0,
) -> PoolSnapshot:
    """Add up slots, prefixes and addresses for the planner; the other arguments are documented in `PoolSnapshot`.

    An ENI that EC2 does not show any more takes no place, even if sandboxes still have its addresses. Free addresses of an ENI that is
    excluded or being detached are not counted, because no pod will get them.

    Args:
        occupied: network card and device index of the attached ENIs without a row.
        refused: network card and device index of the places that EC2 refused, because an ENI is there that EC2 does not show.
        unplugged: the ENIs whose link has been missing for a long time.
    Returns: the snapshot; all counts are of the moment of `stock`. Pure. The time grows with the number of ENIs.
    """
    managed, usable, leaving = _sorted_out(stock)
    unmanaged_indexes = _unmanaged_device_indexes(stock, occupied, network_card)
    return PoolSnapshot(
        enis=tuple(_capacity(eni_stock) for eni_stock in managed),
        counts=_without_leaving(stock.counts, leaving),
        limits=limits,
        free_prefix_count=_free_prefix_count(managed),
        unready_free_count=_free_count(eni_stock for eni_stock in usable if not eni_stock.eni.host_ready),
        unplugged_free_count=_free_count(eni_stock for eni_stock in usable if eni_stock.eni.eni_id in unplugged),
        leaving_cooling_count=sum(counts.cooling for counts in leaving),
        unmanaged_eni_count=len(unmanaged_indexes),
        unmanaged_device_indexes=frozenset(index for index in unmanaged_indexes if index >= 0),
        refused_device_indexes=frozenset(_on_card(refused, network_card)),
        waiting_count=waiting_count,
        fault=fault,
        growth=growth or GrowthState(),
        frozen=frozen,
        may_grow_for_adds=may_grow_for_adds,
        has_trunk=has_trunk,
        network_card=network_card,
    )


def _sorted_out(stock: Stock) -> tuple[list[EniStock], list[EniStock], list[PoolCounts]]:
    """Sort the managed ENIs.

    Returns: the ENIs that take a place on the instance; among these the ENIs whose addresses new pods may get; and the counts of the
        leaving ENIs, which are excluded or being detached.
    """
    managed: list[EniStock] = []
    usable: list[EniStock] = []
    leaving: list[PoolCounts] = []
    for eni_stock in stock.enis:
        if not eni_stock.eni.managed:
            continue
        gives_nothing = bool(eni_stock.eni.excluded) or eni_stock.eni.state is EniState.DETACHING
        if gives_nothing:
            leaving.append(eni_stock.counts)
        if eni_stock.has_left:
            continue
        managed.append(eni_stock)
        if not gives_nothing:
            usable.append(eni_stock)
    return managed, usable, leaving


def _without_leaving(counts: PoolCounts, leaving: Collection[PoolCounts]) -> PoolCounts:
    """Subtract the free addresses of leaving ENIs from the pool's counts."""
    return replace(
        counts,
        free=counts.free - sum(eni_counts.free for eni_counts in leaving),
        withheld=counts.withheld - sum(eni_counts.withheld for eni_counts in leaving),
    )


def _free_count(enis: Iterable[EniStock]) -> int:
    """Count the free addresses that are not withheld."""
    return sum(eni_stock.counts.free - eni_stock.counts.withheld for eni_stock in enis)


def _free_prefix_count(managed: Iterable[EniStock]) -> int:
    """Count the prefixes whose addresses are all free, on ENIs that are not excluded."""
    return sum(eni_stock.free_prefix_count for eni_stock in managed if not eni_stock.eni.excluded)


def _unmanaged_device_indexes(stock: Stock, occupied: Collection[tuple[int, int]], card: int) -> list[int]:
    """Return the device indexes of a network card that the pool cannot use: those of ENIs that are not for pods, and `occupied`."""
    unmanaged = []
    for eni_stock in stock.enis:
        if not eni_stock.eni.managed and eni_stock.eni.network_card == card:
            unmanaged.append(eni_stock.eni.device_index)
    return unmanaged + _on_card(occupied, card)


def _on_card(places: Collection[tuple[int, int]], card: int) -> list[int]:
    """Return the device indexes of the places on a network card."""
    return [device_index for network_card, device_index in places if network_card == card]


def _capacity(eni_stock: EniStock) -> EniCapacity:
    eni = eni_stock.eni
    return EniCapacity(
        eni.eni_id,
        eni.device_index,
        eni.state,
        eni_stock.used_slot_count,
        eni.host_ready,
        eni.is_primary,
        eni.created_by_us,
        eni_stock.counts,
        eni_stock.prefix_count,
        bool(eni.excluded),
    )
