"""CIDR reservations of subnets: what EC2 chooses beside them, how a list shows them, and the blocks that are free."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from random import Random
from typing import Any

import pytest

from lab.errors import LabError
from lab.vpc import space
from lab.vpc.faults import FaultSpecError
from lab.vpc.model import ReservationKind


def test_a_subnet_shows_its_reservations(cloud: Any, refused: Any) -> None:
    """Of one subnet, which must be named; each with its kind, also by filter."""
    assert cloud.ec2.get_subnet_cidr_reservations(SubnetId=cloud.subnet.subnet_id)["SubnetIpv4CidrReservations"] == []
    cloud.vpc.reserve_cidr(cloud.subnet.subnet_id, "10.0.1.128/25", ReservationKind.PREFIX)
    cloud.vpc.reserve_cidr(cloud.subnet.subnet_id, "10.0.1.64/28", ReservationKind.EXPLICIT)
    answer = cloud.ec2.get_subnet_cidr_reservations(SubnetId=cloud.subnet.subnet_id)
    shown = [(entry["Cidr"], entry["ReservationType"]) for entry in answer["SubnetIpv4CidrReservations"]]
    assert shown == [("10.0.1.128/25", "prefix"), ("10.0.1.64/28", "explicit")]
    assert {entry["SubnetId"] for entry in answer["SubnetIpv4CidrReservations"]} == {cloud.subnet.subnet_id}
    filters = [{"Name": "reservationType", "Values": ["explicit"]}]
    answer = cloud.ec2.get_subnet_cidr_reservations(SubnetId=cloud.subnet.subnet_id, Filters=filters)
    assert [entry["Cidr"] for entry in answer["SubnetIpv4CidrReservations"]] == ["10.0.1.64/28"]
    with refused("InvalidSubnetID.NotFound"):
        cloud.ec2.get_subnet_cidr_reservations(SubnetId="subnet-0aa")


def test_reservations_come_in_pages(cloud: Any) -> None:
    """In order of creation, each once."""
    made = [f"10.0.1.{number * 16}/28" for number in range(1, 13)]
    for cidr in made:
        cloud.vpc.reserve_cidr(cloud.subnet.subnet_id, cidr, ReservationKind.PREFIX)
    shown: list[str] = []
    token: dict[str, str] = {}
    for _ in range(3):
        answer = cloud.ec2.get_subnet_cidr_reservations(SubnetId=cloud.subnet.subnet_id, MaxResults=5, **token)
        shown += [entry["Cidr"] for entry in answer["SubnetIpv4CidrReservations"]]
        token = {"NextToken": answer.get("NextToken", "")}
    assert shown == made
    assert token == {"NextToken": ""}


@pytest.mark.parametrize("cidr", ["10.0.2.0/28", "10.0.0.0/16", "10.0.1.72/29"])
def test_a_wrong_reservation_is_refused(cloud: Any, cidr: str) -> None:
    """One outside the subnet, and one that overlaps another."""
    cloud.vpc.reserve_cidr(cloud.subnet.subnet_id, "10.0.1.64/28", ReservationKind.EXPLICIT)
    with pytest.raises(LabError):
        cloud.vpc.reserve_cidr(cloud.subnet.subnet_id, cidr, ReservationKind.PREFIX)


def test_a_small_explicit_reservation_keeps_its_whole_block() -> None:
    """EC2 cannot choose a /28 of which a part is reserved from all choosing."""
    subnet = space.SubnetSpace(IPv4Network("10.0.1.0/26"), rng=Random(1))
    subnet.reserve(IPv4Network("10.0.1.40/30"), ReservationKind.EXPLICIT)
    assert subnet.free_prefixes() == [IPv4Network("10.0.1.16/28")]
    subnet.reserve(IPv4Network("10.0.1.16/28"), ReservationKind.PREFIX)
    assert subnet.free_prefixes() == [IPv4Network("10.0.1.16/28")]
    assert IPv4Address("10.0.1.20") not in subnet.pick_addresses(15)


def test_an_address_is_shown_on_a_second_eni(cloud: Any) -> None:
    """Until the lie is taken back; a malformed address is refused."""
    eni_id = cloud.create()
    cloud.vpc.faults.apply({"describe": {"also": {eni_id: ["10.0.1.200", "10.0.1.208/28"]}}})
    shown = cloud.show(eni_id)
    assert [entry["PrivateIpAddress"] for entry in shown["PrivateIpAddresses"]][1:] == ["10.0.1.200"]
    assert [entry["Ipv4Prefix"] for entry in shown["Ipv4Prefixes"]] == ["10.0.1.208/28"]
    with pytest.raises(FaultSpecError):
        cloud.vpc.faults.apply({"describe": {"also": {eni_id: ["10.0.1.300"]}}})
    cloud.vpc.faults.clear()
    assert len(cloud.show(eni_id)["PrivateIpAddresses"]) == 1
