"""The pool as the planner sees it: targets, counts, actions, refusals, the surplus over time, and the snapshot. Pure values.

A refusal is kept for what it says and no more: one that concerns a single ENI, one kind of call or one subnet leaves the rest of
the pool free to grow. What has an unknown outcome counts as if it had happened, so that it is not asked for twice (I9, I13).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from enum import StrEnum

from ipamd.model.eni import Eni, EniState, InstanceLimits
from ipamd.model.errors import (
    CloudDeniedError,
    CloudQuotaError,
    EniLimitError,
    SettingsError,
    SubnetChoiceError,
    SubnetExhaustedError,
    ThrottledError,
)
from ipamd.model.family import IPV4, Family, IpAddress, IpNetwork
from ipamd.model.ids import EniId
from ipamd.model.record import dataclass, field, replace
from ipamd.model.words import counted, pool_size, usable

# The targets of the pool, as the planner takes them; `ipamd/settings/` reads them.


RELEASE_HOLD_S = 3600.0
"""How long addresses and /28s are in excess before they are released. Ours (docs/adr/0028): longer than a rolling update keeps its
surplus, and than most periods of jobs; an hour is the knee of calls against addresses held (docs/fleet.md). amazon-vpc-cni-k8s
waits 30 s (pkg/ipamd/ipamd.go, decreaseIPPoolInterval)."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Targets in addresses, ENIs or /28 prefixes; 0 means not defined, as in amazon-vpc-cni-k8s.

    `max_eni` caps ENIs per network card below the instance's limit; 0: no cap. `max_pods` caps the pool; 0: no cap.
    `warm_target_auto`: `warm_ip_target` follows demand (`ipamd/model/plan.py`).
    `release_hold_s`: what was in excess for so many seconds is released. `spare_eni_delay_s`: after an ADD an ENI that only
    WARM_ENI_TARGET or WARM_PREFIX_TARGET wants is asked for so many seconds later; 0: at once.
    `leaves_trunk_place`: a place on card 0 is left free for the trunk ENI, which the control plane attaches.
    `family`: of the pool; one of IPv6 wants one /80, and no target counts. `meaningless`: settings that were made all the same.
    """

    warm_eni_target: int = 1
    warm_ip_target: int = 0
    minimum_ip_target: int = 0
    warm_prefix_target: int = 0
    max_eni: int = 0
    max_pods: int = 0
    prefix_delegation: bool = False
    warm_target_auto: bool = False
    release_hold_s: float = RELEASE_HOLD_S
    spare_eni_delay_s: float = 0.0
    leaves_trunk_place: bool = False
    family: Family = IPV4
    meaningless: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("warm_eni_target", "warm_ip_target", "minimum_ip_target", "warm_prefix_target", "max_eni", "max_pods"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}", details="targets and caps must not be negative")
        if not 0 < self.release_hold_s < math.inf:
            raise SettingsError(f"release_hold_s is {self.release_hold_s}", details="it takes a number of seconds above 0")
        if not 0 <= self.spare_eni_delay_s < math.inf:
            raise SettingsError(
                f"spare_eni_delay_s is {self.spare_eni_delay_s}", details="it takes a number of seconds, 0 at least"
            )

    @property
    def ip_targets_defined(self) -> bool:
        """Whether WARM_IP_TARGET or MINIMUM_IP_TARGET is set or follows demand; they replace the other targets."""
        return self.warm_ip_target > 0 or self.minimum_ip_target > 0 or self.warm_target_auto


# The pool in numbers: what the datastore counts as it goes, so that nobody has to look at every address to know them.


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Addresses by state, over all managed ENIs.

    `lost` ones, which EC2 does not show any more, are in no other count; `lost_in_use` of them belong to a sandbox. `held` of the
    free ones are given to nobody for now.
    """

    free: int = 0
    reserved: int = 0
    assigned: int = 0
    cooling: int = 0
    quarantined: int = 0
    lost: int = 0
    lost_in_use: int = 0
    held: int = 0

    @property
    def total(self) -> int:
        """All addresses, in any state."""
        return self.free + self.reserved + self.assigned + self.cooling + self.quarantined + self.lost

    @property
    def in_use(self) -> int:
        """Assigned, or about to be."""
        return self.assigned + self.reserved + self.lost_in_use

    def __str__(self) -> str:
        held = f" (of which {usable(self.held)} held back)" if self.held else ""
        lost = f", {self.lost} lost" if self.lost else ""
        return (
            f"{pool_size(self.total)}: {self.assigned} assigned, {self.reserved} reserved, {self.cooling} cooling, "
            f"{self.quarantined} quarantined, {usable(self.free)} free{held}{lost}"
        )


@dataclass(frozen=True, slots=True)
class EniStock:
    """One ENI and what is on it.

    `used_slot_count`: addresses outside any prefix, and prefixes; what EC2 does not show any more (lost) uses no slot.
    `prefix_count`: prefixes with at least one address that is not lost; `free_prefix_count`: those with free ones only, none of
    them held back.
    """

    eni: Eni
    counts: PoolCounts
    used_slot_count: int
    prefix_count: int
    free_prefix_count: int

    @property
    def has_left(self) -> bool:
        """Whether it was found absent: then every address that is left of it is lost. One that is being detached still has others."""
        return self.eni.state is EniState.DETACHING and 0 < self.counts.total == self.counts.lost


@dataclass(frozen=True, slots=True)
class Stock:
    """All ENIs, by network card and device index; `counts` is the sum over the managed ones."""

    enis: tuple[EniStock, ...]
    counts: PoolCounts


# How many addresses can be given now: a pure count, the same for readiness, `ipamctl status` and the metrics.


def assignable_count(stock: Stock) -> int:
    """Count the free addresses that an ADD could have: on attached, managed ENIs with host routing, and not held back (I7)."""
    return sum(each.counts.free - each.counts.held for each in stock.enis if each.eni.gives_addresses)


# What the planner knows besides the datastore: actions, what EC2's refusals taught, and what EC2 may have done already. Pure values.
#
# A refusal is kept for what it says and no more: one that concerns a single ENI, one kind of call or one subnet leaves the rest of
# the pool free to grow. What has an unknown outcome counts as if it had happened, so that it is not asked for twice (I9, I13).


# Why there is no address, as one word of a closed list: the label of a metric. The sentence for people is `Refusal`'s. Pure.


class Blocked(StrEnum):
    """What keeps the pool from growing. GROWING: nothing, but the address would come after the caller's deadline. EGRESS: the pool has
    an address, and the range for egress has none."""

    MAX_PODS = "max-pods"
    NODE_FULL = "node-full"
    SUBNET_FULL = "subnet-full"
    SUBNET_CHOICE = "subnet-choice"
    ENI_LIMIT = "eni-limit"
    QUOTA = "quota"
    DENIED = "denied"
    THROTTLED = "throttled"
    FROZEN = "frozen"
    HOST_ROUTING = "host-routing"
    ERROR = "error"
    EGRESS = "egress"
    GROWING = "growing"


_BY_ERROR: tuple[tuple[type[BaseException], Blocked], ...] = (
    (ThrottledError, Blocked.THROTTLED),
    (SubnetExhaustedError, Blocked.SUBNET_FULL),
    (SubnetChoiceError, Blocked.SUBNET_CHOICE),
    (EniLimitError, Blocked.ENI_LIMIT),
    (CloudQuotaError, Blocked.QUOTA),
    (CloudDeniedError, Blocked.DENIED),
)


def blocked_by(error: BaseException) -> Blocked:
    """The word for an error of EC2 or of our own that stopped growth."""
    return next((word for kind, word in _BY_ERROR if isinstance(error, kind)), Blocked.ERROR)


# What the pool has seen of demand, as one value: the inputs of `WARM_TARGET=auto` (`ipamd/model/plan.py`). Pure.
#
# `ipamd/pool/demand_window.py` measures it.


SHORT_S = 2.0
LONG_S = 10.0
"""Windows in which growth is measured: about one allocation on an ENI that is there, and about one new ENI. Ours: an allocation takes
about half a second; creating, attaching and setting up an ENI up to ten."""


@dataclass(frozen=True, slots=True)
class SeenDemand:
    """Demand as it was measured lately; counts in addresses.

    `minute_rate`, `ten_minute_rate`: ADDs per second, each weighted over its time scale. `peak_count`: most addresses that were in
    use, cooling or waited for at once. `short_growth_count`, `long_growth_count`: most by which that rose above its former peak
    within SHORT_S and LONG_S. `allocation_s`, `creation_s`: how long an allocation on an attached ENI and a new ENI took.
    `start_count`: what a node expects that was just made (`is_filling`: minutes ago), or had free when its daemon started.
    `lasting_count`: addresses that ADDs will take in the next seconds if they go on as they did. `lately_count`: that they took in
    the last seconds. `is_settling`: an ADD took an address a moment ago.
    """

    minute_rate: float = 0.0
    ten_minute_rate: float = 0.0
    peak_count: int = 0
    short_growth_count: int = 0
    long_growth_count: int = 0
    start_count: int = 0
    is_filling: bool = False
    allocation_s: float = 1.0
    creation_s: float = LONG_S
    lasting_count: int = 0
    lately_count: int = 0
    is_settling: bool = False


@dataclass(frozen=True, slots=True)
class Allocate:
    """Ask EC2 for more secondary addresses on an attached ENI, or for more /28 prefixes."""

    eni_id: EniId
    address_count: int = 0
    prefix_count: int = 0

    def __str__(self) -> str:
        return f"allocate {_what(self)} on {self.eni_id}"


@dataclass(frozen=True, slots=True)
class CreateEni:
    """Create and attach an ENI that comes with `address_count` addresses or `prefix_count` prefixes.

    `other_place_count`: places beside this one that another ENI could have, as far as is known: of use if this one is taken.
    """

    device_index: int
    address_count: int = 0
    prefix_count: int = 0
    other_place_count: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"create an ENI with {_what(self)} as device {self.device_index}"


def _what(action: Growth) -> str:
    return counted(action.prefix_count, "prefix") if action.prefix_count else counted(action.address_count, "address")


Growth = Allocate | CreateEni


@dataclass(frozen=True, slots=True)
class ReleaseAddresses:
    """Give free addresses and whole free /28 prefixes of one ENI back to EC2, in one call."""

    eni_id: EniId
    addresses: tuple[IpAddress, ...] = ()
    prefixes: tuple[IpNetwork, ...] = ()

    def __str__(self) -> str:
        parts = [counted(len(self.addresses), "address")] if self.addresses else []
        parts += [counted(len(self.prefixes), "prefix")] if self.prefixes else []
        return f"release {' and '.join(parts)} of {self.eni_id}"


@dataclass(frozen=True, slots=True)
class ReleaseEni:
    """Detach and delete an ENI that nothing uses, with all that is on it."""

    eni_id: EniId

    def __str__(self) -> str:
        return f"release ENI {self.eni_id}"


Release = ReleaseAddresses | ReleaseEni
Action = Growth | Release


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a kind of growth is not asked for now, and what helps (I14).

    `left_s`: seconds until it is asked again; None: not by itself. `is_lasting`: no short disturbance, so another way is taken.
    `kind`: the reason in one word, for metrics.
    """

    reason: str
    next_step: str = ""
    left_s: float | None = None
    is_lasting: bool = False
    kind: Blocked = field(default=Blocked.ERROR, compare=False)

    def __str__(self) -> str:
        return self.reason if self.left_s is None else f"{self.reason} (next try in {self.left_s:.0f} s)"


@dataclass(frozen=True, slots=True)
class PendingEni:
    """An ENI that EC2 may have made for us: it takes a place, and `address_count` addresses may come with it."""

    device_index: int
    address_count: int = 0


@dataclass(frozen=True, slots=True)
class GrowthState:
    """What stands in the way of growth and what is under way, at one moment.

    `creation`, `allocation`, `prefixes`: why new ENIs, more on an attached ENI, or /28s are not asked for now. `eni_cap`: ENIs
    beyond which EC2 refused to attach, and `cap`: why. `slot_caps`: ENIs that take no more than so many. `room`: free addresses
    of the subnet, None unless EC2 has refused for want of them. `creation_room`: the same of the roomiest subnet that a new ENI may go
    to; None: that is the same subnet. `prefix_cap`: /28s to ask for at once, None unless EC2 has refused more; `creation_cap`:
    addresses or /28s that a new ENI may come with, likewise.

    `pending_enis`, `pending_slots`: creations and allocations whose outcome is not known; the latter may bring
    `pending_address_count`, and slots that are filled with what is recorded elsewhere count too. `pending`: why it is not known,
    `pending_kind`: in one word. `host`: why the host's routing of an attached ENI is not in place;
    `has_stuck_eni`: it has failed for so long that its addresses are no supply.

    `demand`: what was measured of it. `is_spare_eni_settling`: an ADD took an address too lately for a spare ENI.
    """

    creation: Refusal | None = None
    allocation: Refusal | None = None
    prefixes: Refusal | None = None
    eni_cap: int | None = None
    cap: Refusal | None = None
    slot_caps: Mapping[EniId, int] = field(default_factory=dict)
    room: int | None = None
    prefix_cap: int | None = None
    creation_cap: int | None = None
    creation_room: int | None = None
    pending_enis: tuple[PendingEni, ...] = ()
    pending_slots: Mapping[EniId, int] = field(default_factory=dict)
    pending_address_count: int = 0
    pending: str = ""
    pending_kind: Blocked = Blocked.GROWING
    host: Refusal | None = None
    has_stuck_eni: bool = False
    is_spare_eni_settling: bool = False
    demand: SeenDemand = field(default_factory=SeenDemand)


# What the planner knows of the surplus over time, and which addresses may be named in a release. Pure values.
#
# The surplus of one moment proves nothing: the next ADD may need it. What was surplus during a whole window was needed by nobody in
# it, so a load that repeats within the window makes no call (`ipamd/pool/demand_window.py` measures; docs/adr/0028).


@dataclass(frozen=True, slots=True)
class Hold:
    """The surplus over the hold window, in addresses.

    `settled_count`: was surplus during the whole window, and may go; None before the window has been seen in full. `ages`: of the ENIs
    that we made lately, in seconds. `releasable`: what may be named, by ENI; nothing unless something may go. `refusal`: why EC2 or an
    unfinished release stands in the way.
    """

    settled_count: int | None = None
    ages: Mapping[EniId, float] = field(default_factory=dict)
    releasable: Mapping[EniId, ReleaseAddresses] = field(default_factory=dict)
    refusal: Refusal | None = None


# What the planner needs to know of the pool at one moment, and its making from what the datastore counts. Pure.


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
    `waiting_count`: ADDs that wait for an address now. `fault`: an error of ours stops everything for a
    moment. `growth`: what EC2's refusals taught, and what is under way. `hold`: the surplus over time. `frozen`: why no ENI
    may be made and nothing released, "" if that is allowed; addresses and prefixes on attached ENIs may be asked for all the same.
    `is_frozen_ahead`: but an ENI for which an ADD waits may be made. `has_trunk`: the control plane has attached its trunk ENI, which
    is one of the unmanaged ones.
    """

    enis: tuple[EniCapacity, ...]
    counts: PoolCounts
    limits: InstanceLimits
    free_prefix_count: int = 0
    unready_free_count: int = 0
    taken_free_count: int = 0
    unmanaged_eni_count: int = 0
    unmanaged_device_indexes: frozenset[int] = frozenset()
    refused_device_indexes: frozenset[int] = frozenset()
    leaving_cooling_count: int = 0
    waiting_count: int = 0
    fault: Refusal | None = None
    growth: GrowthState = field(default_factory=GrowthState)
    hold: Hold = field(default_factory=Hold)
    frozen: str = ""
    is_frozen_ahead: bool = False
    has_trunk: bool = False

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
    fault: Refusal | None = None,
    growth: GrowthState | None = None,
    occupied: Collection[tuple[int, int]] = (),
    refused: Collection[tuple[int, int]] = (),
    taken: Collection[EniId] = (),
    frozen: str = "",
    is_frozen_ahead: bool = False,
    has_trunk: bool = False,
) -> PoolSnapshot:
    """Sum up slots, prefixes and addresses for the planner; see `PoolSnapshot` for what each argument means.

    `occupied`: network card and device index of attached ENIs that are not recorded; each takes its place. `refused`: where an ENI
    must be that nobody knows. An ENI that EC2 does not show any more takes none, though sandboxes may still have its addresses. The
    free addresses of an ENI that is being detached are no part of the pool: nobody will get them; nor those of an excluded one.
    `taken`: ENIs that have been without their link for long.
    Returns: ENIs by network card and device index; all counts are of the one moment of `stock`. Pure; costs the number of ENIs.
    """
    ours = [one for one in stock.enis if one.eni.managed]
    managed = [one for one in ours if not one.has_left]
    leaving = [one.counts for one in ours if _gives_nothing(one.eni)]
    usable = [one for one in managed if not _gives_nothing(one.eni)] if leaving else managed
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
        unready_free_count=sum(one.counts.free - one.counts.held for one in usable if not one.eni.host_ready),
        taken_free_count=sum(one.counts.free - one.counts.held for one in usable if one.eni.eni_id in taken),
        leaving_cooling_count=sum(counts.cooling for counts in leaving),
        unmanaged_eni_count=len(unmanaged),
        unmanaged_device_indexes=frozenset(index for index in unmanaged if index >= 0),
        refused_device_indexes=frozenset(index for card, index in refused if card == 0),
        waiting_count=waiting_count,
        fault=fault,
        growth=growth or GrowthState(),
        frozen=frozen,
        is_frozen_ahead=is_frozen_ahead,
        has_trunk=has_trunk,
    )


def _capacity(one: EniStock) -> EniCapacity:
    eni = one.eni
    return EniCapacity(
        eni.eni_id,
        eni.device_index,
        eni.state,
        one.used_slot_count,
        eni.host_ready,
        eni.is_primary,
        eni.created_by_us,
        one.counts,
        one.prefix_count,
        bool(eni.excluded),
    )


def _gives_nothing(eni: Eni) -> bool:
    return bool(eni.excluded) or eni.state is EniState.DETACHING
