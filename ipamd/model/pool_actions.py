"""The actions of the planner on EC2: allocate to an ENI, create an ENI, release addresses, release an ENI. Pure values."""

from __future__ import annotations

from ipamd.model.family import IpAddress, IpNetwork
from ipamd.model.ids import EniId
from ipamd.model.record import dataclass, field
from ipamd.model.words import counted


@dataclass(frozen=True, slots=True)
class Allocate:
    """Allocate more secondary addresses on an attached ENI, or more /28 prefixes; one of the two counts is 0."""

    eni_id: EniId
    address_count: int = 0
    prefix_count: int = 0

    def __str__(self) -> str:
        return f"allocate {_size(self)} on {self.eni_id}"


@dataclass(frozen=True, slots=True)
class CreateEni:
    """Create and attach an ENI that comes with `address_count` addresses or `prefix_count` prefixes.

    `device_index`: the place at which it is attached.
    `other_place_count`: how many other places could be tried if EC2 reports that this place is taken.
    `pool`: the pool of pods that gets the ENI; "" for the node's own pool.
    """

    device_index: int
    address_count: int = 0
    prefix_count: int = 0
    other_place_count: int = field(default=0, compare=False)
    pool: str = ""

    def __str__(self) -> str:
        of_pool = f" for pool {self.pool}" if self.pool else ""
        return f"create an ENI{of_pool} with {_size(self)} as device {self.device_index}"


def _size(action: Growth) -> str:
    if action.prefix_count:
        return counted(action.prefix_count, "prefix")
    return counted(action.address_count, "address")


Growth = Allocate | CreateEni


@dataclass(frozen=True, slots=True)
class ReleaseAddresses:
    """Release free addresses and free /28 prefixes of one ENI to EC2, in one call."""

    eni_id: EniId
    addresses: tuple[IpAddress, ...] = ()
    prefixes: tuple[IpNetwork, ...] = ()

    def __str__(self) -> str:
        parts = []
        if self.addresses:
            parts.append(counted(len(self.addresses), "address"))
        if self.prefixes:
            parts.append(counted(len(self.prefixes), "prefix"))
        return f"release {' and '.join(parts)} of {self.eni_id}"


@dataclass(frozen=True, slots=True)
class ReleaseEni:
    """Detach and delete an ENI that nothing uses, with all its addresses."""

    eni_id: EniId

    def __str__(self) -> str:
        return f"release ENI {self.eni_id}"


Release = ReleaseAddresses | ReleaseEni

Action = Growth | Release
