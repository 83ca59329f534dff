"""The result of a run: the last complete reading of each subnet, the problems of its ENIs, and the gaps of this run.

A run may make only a few EC2 calls, so a large cluster is read in several runs. For a subnet that this run did not read, the report
has the last reading with its time, and `gaps` names the subnet.
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
    """The parts of a run: the lists of ENIs, the reservations, and the second look at ENIs with a problem."""

    ENIS = "enis"
    RESERVATIONS = "reservations"
    SECOND_LOOK = "second-look"


@dataclass(frozen=True, slots=True)
class ReadGap:
    """A part that a run could not read, or left for the next run. `subnet_ids`: the subnets that it concerns, ascending."""

    part: ReadPart
    subnet_ids: tuple[SubnetId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SubnetForecast:
    """When a subnet will be full, in seconds from now (`forecast.exhausted_in_s`): when no address is free, and when no /28 is.
    None if not known; infinity if the count does not fall.
    """

    addresses_s: float | None = None
    prefixes_s: float | None = None


@dataclass(frozen=True, slots=True)
class SubnetReport:
    """The last complete reading of one subnet.

    `ec2_free_count`: number of free addresses in the answer of DescribeSubnets.
    `eni_count`: ENIs in the subnet, hidden ones included.
    `unreadable_count`: ENIs whose addresses could not be read, so that more addresses are taken than the report shows.
    `read_at`: when the ENIs were listed.
    `reservations_read_at`: when the reservations were read. None if they never were; then the map shows no reservations.
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
        """Number of addresses of the subnet, free or not, without the five that AWS keeps."""
        return usable_count(self.cidr)

    @property
    def unseen_count(self) -> int:
        """Addresses that EC2 counts as taken and that no listed ENI has.

        The number differs from 0 for a moment if ENIs change between the list of subnets and the list of ENIs. It stays above 0 in a
        subnet that is shared with other accounts, because EC2 does not list their ENIs.
        """
        return self.capacity.free_count - self.ec2_free_count


@dataclass(frozen=True, slots=True)
class InventoryReport:
    """The report of one run.

    `at`: when the run ended.
    `subnets`: sorted by ID. A subnet that was never read is only in `gaps`.
    `call_count`: HTTP attempts of this run, of at most `calls_max`.
    """

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
