"""The result of a run: each subnet by its last complete reading, the problems of its ENIs, and what is missing.

A run has few calls, so a large cluster is read in several runs. A subnet that this run did not read shows its last reading with
its time, and `gaps` name it.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Network

from ipamd.inventory.capacity import SubnetCapacity, usable_count
from ipamd.inventory.findings import EniFinding
from ipamd.model.ids import SubnetId
from ipamd.model.record import dataclass


class ReadPart(StrEnum):
    """What a run reads."""

    ENIS = "enis"
    RESERVATIONS = "reservations"
    SECOND_LOOK = "second-look"


@dataclass(frozen=True, slots=True)
class ReadGap:
    """What a run could not read, or left for the next one. `subnet_ids`: ascending."""

    part: ReadPart
    subnet_ids: tuple[SubnetId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SubnetForecast:
    """Seconds until nothing is free, as `forecast.exhausted_in_s` has them: None if not known, infinity if the count does not fall."""

    addresses_s: float | None = None
    prefixes_s: float | None = None


@dataclass(frozen=True, slots=True)
class SubnetReport:
    """One subnet by its last complete reading.

    `ec2_free_count`: free addresses by DescribeSubnets.
    `read_at`: when its ENIs were listed.
    `reservations_read_at`: None if they never were, and then the map shows none.
    `unreadable_count`: ENIs whose addresses could not be read, so that more is taken than is shown.
    """

    subnet_id: SubnetId
    zone: str
    cidr: IPv4Network
    ec2_free_count: int
    eni_count: int
    unreadable_count: int
    capacity: SubnetCapacity
    read_at: datetime
    reservations_read_at: datetime | None
    findings: tuple[EniFinding, ...] = ()
    forecast: SubnetForecast = SubnetForecast()

    @property
    def address_count(self) -> int:
        """Addresses without those that AWS keeps."""
        return usable_count(self.cidr)

    @property
    def unseen_count(self) -> int:
        """Addresses that EC2 counts as taken and that no listed ENI has.

        It is not 0 for a moment while ENIs change between the two lists, and for good in a subnet that is shared with other accounts,
        whose ENIs EC2 does not show.
        """
        return self.capacity.free_count - self.ec2_free_count


@dataclass(frozen=True, slots=True)
class InventoryReport:
    """What a run found. `subnets`: by ID; those that were never read are in `gaps` only. `call_count`: HTTP attempts of this run."""

    cluster_name: str
    vpc_id: str
    region: str
    at: datetime
    subnets: tuple[SubnetReport, ...]
    gaps: tuple[ReadGap, ...]
    call_count: int
    calls_max: int

    @property
    def findings(self) -> tuple[EniFinding, ...]:
        """The problems of all subnets."""
        return tuple(finding for subnet in self.subnets for finding in subnet.findings)
