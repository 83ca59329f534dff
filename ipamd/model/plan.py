"""Decide what to request from EC2 so that the warm pool reaches its target. Pure.

Targets have the names and the meaning of amazon-vpc-cni-k8s (pkg/ipamd/ipamd.go, datastoreTargetState; docs/eni-and-ip-target.md and
docs/prefix-and-ip-target.md there). Different on purpose: cooling addresses are not free (I8); waiting ADDs count as demand; the
pool never grows beyond maxPods; existing ENIs are filled before a new one is created, in a fixed order. Nothing in excess is
released yet: `excess_count` only reports it. Overview: docs/architecture.md, The pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ipamd.model.eni import ADDRESSES_PER_PREFIX, EniState, InstanceLimits
from ipamd.model.errors import SettingsError
from ipamd.model.ids import EniId
from ipamd.model.stock import PoolCounts as PoolCounts
from ipamd.model.words import counted

MAX_ENI_CREATION_ADDRESSES = 49
"""Most addresses of one CreateNetworkInterface: the largest types have 50 per ENI, one of them the primary address."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Targets in addresses, ENIs or /28 prefixes; 0 means not defined, as in amazon-vpc-cni-k8s.

    `max_eni` caps ENIs per network card below the instance's limit; 0: no cap. `max_pods` caps the pool; 0: no cap.
    """

    warm_eni_target: int = 1
    warm_ip_target: int = 0
    minimum_ip_target: int = 0
    warm_prefix_target: int = 0
    max_eni: int = 0
    max_pods: int = 0
    prefix_delegation: bool = False

    def __post_init__(self) -> None:
        for name in ("warm_eni_target", "warm_ip_target", "minimum_ip_target", "warm_prefix_target", "max_eni", "max_pods"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} is {getattr(self, name)}", details="targets and caps must not be negative")

    @property
    def ip_targets_defined(self) -> bool:
        """Whether WARM_IP_TARGET or MINIMUM_IP_TARGET is set; they replace WARM_ENI_TARGET and WARM_PREFIX_TARGET."""
        return self.warm_ip_target > 0 or self.minimum_ip_target > 0


@dataclass(frozen=True, slots=True)
class EniCapacity:
    """One managed ENI for the planner. `used_slot_count` counts addresses and prefixes on it, the primary address not included."""

    eni_id: EniId
    device_index: int
    state: EniState
    used_slot_count: int


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """One consistent snapshot of one network card's pool.

    `unmanaged_eni_count`: attached ENIs that take a place on this card and give us nothing; `unmanaged_device_indexes`: where on
    it they are. `unready_free_count`: free addresses on ENIs whose host routing is not in place, so that no ADD can have them;
    those that are held back are not in it, because `counts.held` has them.
    `waiting_count`: ADDs that wait for an address now. `retry_at`/`blocked_reason`: EC2 refused growth (subnet empty, limit, IAM)
    and is asked again then (aware UTC).
    """

    enis: tuple[EniCapacity, ...]
    counts: PoolCounts
    limits: InstanceLimits
    free_prefix_count: int = 0
    total_prefix_count: int = 0
    unready_free_count: int = 0
    unmanaged_eni_count: int = 0
    unmanaged_device_indexes: frozenset[int] = frozenset()
    waiting_count: int = 0
    retry_at: datetime | None = None
    blocked_reason: str = ""
    prefixes_available: bool = True

    @property
    def supply_count(self) -> int:
        """Free addresses that an ADD can have now."""
        return self.counts.free - self.counts.held - self.unready_free_count


@dataclass(frozen=True, slots=True)
class AllocateAddresses:
    """Ask EC2 for more secondary addresses on an attached ENI."""

    eni_id: EniId
    count: int

    def __str__(self) -> str:
        return f"allocate {counted(self.count, 'address')} on {self.eni_id}"


@dataclass(frozen=True, slots=True)
class AllocatePrefixes:
    """Ask EC2 for more /28 prefixes on an attached ENI."""

    eni_id: EniId
    count: int

    def __str__(self) -> str:
        return f"allocate {counted(self.count, 'prefix')} on {self.eni_id}"


@dataclass(frozen=True, slots=True)
class CreateEni:
    """Create and attach an ENI that comes with `address_count` addresses or `prefix_count` prefixes."""

    device_index: int
    address_count: int = 0
    prefix_count: int = 0

    def __str__(self) -> str:
        what = counted(self.address_count, "address") if self.address_count else counted(self.prefix_count, "prefix")
        return f"create an ENI with {what} as device {self.device_index}"


Action = AllocateAddresses | AllocatePrefixes | CreateEni


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in order, and one sentence with the reason. `blocked_by`: why the pool cannot grow now, empty if it can."""

    actions: tuple[Action, ...]
    sentence: str
    deficit_count: int = 0
    excess_count: int = 0
    blocked_by: str = ""


def plan(snapshot: PoolSnapshot, *, settings: PoolSettings, now: datetime) -> Plan:
    """Decide what to request from EC2 so that the warm pool reaches its target.

    Args:
        snapshot: one consistent read; counts in addresses.
        settings: targets.
        now: aware UTC.
    Returns: zero or more actions in order, ENIs by device index (same input, same output).
    Raises: nothing for lack of capacity; `blocked_by` reports it.
    Concurrency: pure. Guards: I7, I8, I13.
    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, isDatastorePoolTooLow and increaseDatastorePool, with the differences above.
    """
    deficit = deficit_count(snapshot, settings)
    excess = excess_count(snapshot, settings)
    blocked = growth_blocker(snapshot, settings, now)
    if deficit == 0:
        return Plan((), "at target: nothing to do", excess_count=excess, blocked_by=blocked)
    short = f"short of {counted(deficit, 'address')}"
    if blocked:
        sentence = _fullness(snapshot) if _is_full(snapshot, settings) else f"{short}, and cannot grow: {blocked}"
        return Plan((), sentence, deficit, excess, blocked)
    actions = _growth(snapshot, settings, deficit)
    sentence = f"{short}: " + "; ".join(str(action) for action in actions)
    return Plan(actions, sentence, deficit, excess)


def deficit_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Count the addresses that the pool is short of, waiting ADDs included.

    With IP targets: max(W - free, M - total, 0), where free excludes cooling (I8). Without: what makes the free count reach
    WARM_ENI_TARGET whole ENIs (in prefix mode WARM_PREFIX_TARGET prefixes), and at least one free address.
    """
    counts = snapshot.counts
    waiting = max(snapshot.waiting_count - (counts.free - snapshot.unready_free_count), 0)
    if settings.max_pods and counts.total >= settings.max_pods:
        return 0
    if settings.ip_targets_defined:
        short = max(settings.warm_ip_target - counts.free, settings.minimum_ip_target - counts.total, 0)
    else:
        unit, target = _warm_unit(snapshot, settings)
        short = max(unit * target - counts.free, 1 if target == 0 and counts.free == 0 else 0, 0)
    short = max(short, waiting)
    return min(short, settings.max_pods - counts.total) if settings.max_pods else short


def excess_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
    """Count the free addresses above the IP targets; 0 if none is defined (then whole ENIs are kept, not addresses)."""
    if not settings.ip_targets_defined:
        return 0
    counts = snapshot.counts
    return max(min(counts.free - settings.warm_ip_target, counts.total - settings.minimum_ip_target), 0)


def growth_blocker(snapshot: PoolSnapshot, settings: PoolSettings, now: datetime) -> str:
    """Return one sentence why the pool cannot grow now; an empty string if it can."""
    if settings.max_pods and snapshot.counts.total >= settings.max_pods:
        return f"the pool has reached maxPods ({settings.max_pods})"
    if snapshot.retry_at is not None and now < snapshot.retry_at:
        return f"{snapshot.blocked_reason} (next try in {(snapshot.retry_at - now).total_seconds():.0f} s)"
    if not _is_full(snapshot, settings):
        return ""
    limits, foreign = snapshot.limits, snapshot.unmanaged_eni_count
    count = f"{len(snapshot.enis) + foreign}" + (f" (with {foreign} that are not ours to use)" if foreign else "")
    return (
        f"all {count} of {eni_limit(limits, settings)} ENIs that {limits.instance_type} may have are attached "
        f"and their {limits.slots_per_eni} slots each are taken"
    )


def _is_full(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether there is no vacant slot, no ENI on its way that has some, and no room for another ENI."""
    has_slot = any(_has_slot(eni, snapshot.limits) or eni.state is EniState.ATTACHING for eni in snapshot.enis)
    return not has_slot and not room_for_eni(snapshot, settings)


def _fullness(snapshot: PoolSnapshot) -> str:
    used = sum(eni.used_slot_count for eni in snapshot.enis)
    return f"full: {used} of {counted(len(snapshot.enis) * snapshot.limits.slots_per_eni, 'slot')} are in use"


def eni_limit(limits: InstanceLimits, settings: PoolSettings) -> int:
    """Return the ENIs that this node may have: the instance's limit, or MAX_ENI if lower.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, getMaxENI.
    """
    return min(limits.eni_count, settings.max_eni) if settings.max_eni >= 1 else limits.eni_count


def room_for_eni(snapshot: PoolSnapshot, settings: PoolSettings) -> bool:
    """Whether another ENI may be attached. Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, hasRoomForEni."""
    return len(snapshot.enis) < eni_limit(snapshot.limits, settings) - snapshot.unmanaged_eni_count


def addresses_per_eni(limits: InstanceLimits, settings: PoolSettings) -> int:
    """Return the addresses of a full ENI. Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, GetIPv4Limit."""
    return limits.slots_per_eni * (ADDRESSES_PER_PREFIX if settings.prefix_delegation else 1)


def _warm_unit(snapshot: PoolSnapshot, settings: PoolSettings) -> tuple[int, int]:
    if settings.prefix_delegation:
        return ADDRESSES_PER_PREFIX, settings.warm_prefix_target
    return addresses_per_eni(snapshot.limits, settings), settings.warm_eni_target


def _has_slot(eni: EniCapacity, limits: InstanceLimits) -> bool:
    return eni.state is EniState.ATTACHED and eni.used_slot_count < limits.slots_per_eni


def _growth(snapshot: PoolSnapshot, settings: PoolSettings, deficit: int) -> tuple[Action, ...]:
    by_prefix = settings.prefix_delegation and snapshot.prefixes_available and snapshot.limits.supports_prefixes
    if settings.max_pods and settings.max_pods - snapshot.counts.total < ADDRESSES_PER_PREFIX:
        by_prefix = False  # no whole /28 fits under maxPods any more: single addresses reach it
    unit = ADDRESSES_PER_PREFIX if by_prefix else 1
    slots = snapshot.limits.slots_per_eni
    want = -(-deficit // unit)
    # Without IP targets amazon-vpc-cni-k8s fills an ENI at once (tryAssignIPs), and so do we: fewer, larger calls. Prefixes are
    # requested as needed.
    whole = not settings.ip_targets_defined and not by_prefix
    room = (settings.max_pods - snapshot.counts.total) // unit if settings.max_pods else slots * snapshot.limits.eni_count
    actions: list[Action] = []
    # Existing ENIs first: an allocation is one call, a new ENI four and some seconds.
    for eni in sorted(snapshot.enis, key=lambda eni: (eni.device_index, eni.eni_id)):
        if want <= 0 or room <= 0:
            break
        if _has_slot(eni, snapshot.limits):
            vacant = slots - eni.used_slot_count
            count = min(vacant if whole else want, vacant, room)
            actions.append(AllocatePrefixes(eni.eni_id, count) if by_prefix else AllocateAddresses(eni.eni_id, count))
            want, room = want - count, room - count
    # ENIs that are being attached will bring addresses: count them, or a burst would create one ENI too many.
    pending = sum(eni.state is EniState.ATTACHING for eni in snapshot.enis)
    want -= pending * slots
    # Device 0 is never free, even if no ENI shows it: on some nodes the primary ENI is device 1 (amazon-vpc-cni-k8s #3753).
    taken = {0} | {eni.device_index for eni in snapshot.enis} | snapshot.unmanaged_device_indexes
    places = eni_limit(snapshot.limits, settings) - snapshot.unmanaged_eni_count - len(snapshot.enis)
    for device_index in (index for index in range(100) if index not in taken):
        if want <= 0 or room <= 0 or places <= 0:
            break
        count = min(slots if whole else want, slots, room, MAX_ENI_CREATION_ADDRESSES)
        actions.append(CreateEni(device_index, prefix_count=count) if by_prefix else CreateEni(device_index, address_count=count))
        want, room, places = want - count, room - count, places - 1
    return tuple(actions)
