"""A memory as after two runs: two subnets, one of each kind of problem, and a gap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network

from ipamd.inventory.capacity import CidrReservation, ReservedFor, measure
from ipamd.inventory.findings import EniFinding, EniProblem
from ipamd.inventory.forecast import CapacitySample
from ipamd.inventory.memory import InventoryMemory
from ipamd.inventory.report import InventoryReport, ReadGap, ReadPart, SubnetForecast, SubnetReport
from ipamd.model.ids import EniId, SubnetId

AT = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
FIRST, SECOND = SubnetId("subnet-0a"), SubnetId("subnet-0b")


def a_subnet(subnet_id: SubnetId, *, cidr: str, forecast: SubnetForecast, problems: tuple[EniProblem, ...] = ()) -> SubnetReport:
    """A subnet with one address taken."""
    network = IPv4Network(cidr)
    findings = tuple(
        EniFinding(
            problem, f"eni-{number}", subnet_id, (EniId(f"eni-{number}"),), ("i-1",), "shown by EC2", is_confirmed=number > 0
        )
        for number, problem in enumerate(problems)
    )
    capacity = measure(network, addresses=[network[20]], prefixes=())
    return SubnetReport(
        subnet_id=subnet_id,
        zone="us-west-2a",
        cidr=network,
        ec2_free_count=capacity.free_count - 2,
        eni_count=1,
        unreadable_count=0,
        capacity=capacity,
        read_at=AT,
        reservations_read_at=AT if subnet_id == FIRST else None,
        findings=findings,
        forecast=forecast,
    )


def a_memory() -> InventoryMemory:
    """Of a cluster with two subnets."""
    falling = SubnetForecast(addresses_s=7200.0, prefixes_s=0.0)
    first = a_subnet(FIRST, cidr="10.0.0.0/25", forecast=falling, problems=tuple(EniProblem))
    second = a_subnet(SECOND, cidr="10.0.1.0/24", forecast=SubnetForecast(addresses_s=float("inf")))
    gap = ReadGap(ReadPart.RESERVATIONS, (SECOND,), "not read yet")
    memory = InventoryMemory(group_size=7)
    memory.report = InventoryReport("blue", "vpc-0a", "us-west-2", AT, (first, second), (gap,), call_count=5, calls_max=20)
    for subnet in memory.report.subnets:
        memory.of(subnet.subnet_id).report = subnet
    own = memory.of(FIRST)
    own.samples = tuple(CapacitySample((AT - timedelta(hours=number)).timestamp(), 120 + number, 5) for number in (2, 1, 0))
    own.reservations = (CidrReservation(IPv4Network("10.0.0.64/28"), ReservedFor.EXPLICIT),)
    own.reservations_read_at, own.attempted_at_s = AT, AT.timestamp()
    return memory
