"""What the planner knows besides the datastore: actions, what EC2's refusals taught, and what EC2 may have done already. Pure values.

A refusal is kept for what it says and no more: one that concerns a single ENI, one kind of call or one subnet leaves the rest of
the pool free to grow. What has an unknown outcome counts as if it had happened, so that it is not asked for twice (I9, I13).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network

from ipamd.model.errors import (
    CloudDeniedError,
    CloudQuotaError,
    EniLimitError,
    SubnetChoiceError,
    SubnetExhaustedError,
    ThrottledError,
)
from ipamd.model.ids import EniId
from ipamd.model.words import counted

# Why there is no address, as one word of a closed list: the label of a metric. The sentence for people is `Refusal`'s. Pure.


class Blocked(StrEnum):
    """What keeps the pool from growing. GROWING: nothing, but the address would come after the caller's deadline."""

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


# What the pool has seen of demand, as one value: the inputs of `WARM_TARGET=auto` (`ipamd/model/auto_target.py`). Pure.
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
    `held_count`: the highest reserve that was computed within the hold time, so that the target does not fall at once.
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
    held_count: int = 0


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
    """Create and attach an ENI that comes with `address_count` addresses or `prefix_count` prefixes.

    `other_place_count`: places beside this one that another ENI could have, as far as is known: of use if this one is taken.
    """

    device_index: int
    address_count: int = 0
    prefix_count: int = 0
    other_place_count: int = field(default=0, compare=False)

    def __str__(self) -> str:
        what = counted(self.address_count, "address") if self.address_count else counted(self.prefix_count, "prefix")
        return f"create an ENI with {what} as device {self.device_index}"


Growth = AllocateAddresses | AllocatePrefixes | CreateEni


@dataclass(frozen=True, slots=True)
class ReleaseAddresses:
    """Give free addresses and whole free /28 prefixes of one ENI back to EC2, in one call."""

    eni_id: EniId
    addresses: tuple[IPv4Address, ...] = ()
    prefixes: tuple[IPv4Network, ...] = ()

    def __str__(self) -> str:
        parts = [counted(len(self.addresses), "address")] if self.addresses else []
        parts += [counted(len(self.prefixes), "prefix")] if self.prefixes else []
        return f"give back {' and '.join(parts)} of {self.eni_id}"


@dataclass(frozen=True, slots=True)
class ReleaseEni:
    """Detach and delete an ENI that nothing uses, with all that is on it."""

    eni_id: EniId

    def __str__(self) -> str:
        return f"give back ENI {self.eni_id}"


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
    `pending_address_count`. `pending`: why it is not known. `host`: why the host's routing of an attached ENI is not in place;
    `has_stuck_eni`: it has failed for so long that its addresses are no supply.

    `ramp_count`: addresses that ADDs will take in the next seconds if they go on as they did. `is_settling`: an ADD took an
    address a moment ago; `is_spare_eni_settling`: too lately for a spare ENI. `demand`: what was measured of it, for WARM_TARGET=auto.
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
    host: Refusal | None = None
    has_stuck_eni: bool = False
    ramp_count: int = 0
    is_settling: bool = False
    is_spare_eni_settling: bool = False
    demand: SeenDemand = field(default_factory=SeenDemand)
