"""What EC2's refusals teach the pool: how often it asks again, and for how much (I13), and what it tells ADDs (I14)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.model.errors import CloudDeniedError, CloudQuotaError, EniLimitError, PoolEmptyError, SubnetExhaustedError
from ipamd.model.pool import PoolSettings
from tests.fakes.cloud import PRIMARY, SUBNET, FakeEc2
from tests.fakes.node import FakeNode
from tests.unit.service.test_idle_calls import DAY_S, calls_by_hour


def a_day(node: FakeNode) -> int:
    """Let the pool loop wake as often as it wants for a day; returns the EC2 calls that it made."""
    return sum(calls_by_hour(node))


def test_a_full_instance_costs_a_handful_of_calls_a_day(node: FakeNode) -> None:
    """EC2 attaches fewer ENIs than the type may have, because volumes have their places: 6 tries a day, not 144 (row 9)."""
    node.pool.set_limits(replace(node.ec2.limits, eni_count=8), settings=node.settings)
    for number in range(20):
        node.add(f"s{number}")
        node.pool.cycle()
    assert len(node.datastore.enis()) == 3
    calls = a_day(node)
    assert calls <= 6 * 6 + 1, "a try costs six calls, its DescribeSubnets included; one look for leaked ENIs after the start"
    assert node.ec2.calls["create_eni"] <= 2 + 1 + 6
    assert "3 ENIs" in node.demand.status().blocked_by
    node.assert_sound()


def test_a_place_that_comes_free_is_found(node: FakeNode) -> None:
    """A volume was detached: the next try attaches, and the lesson is forgotten."""
    node.ec2.limits = replace(node.ec2.limits, eni_count=2)
    node.pool.set_limits(replace(node.ec2.limits, eni_count=3), settings=node.settings)
    for number in range(12):
        node.add(f"s{number}")
        node.pool.cycle()
    assert len(node.datastore.enis()) == 2
    node.ec2.limits = replace(node.ec2.limits, eni_count=3)
    node.clock.advance(3601)
    node.pool.cycle()
    assert len(node.datastore.enis()) == 3
    assert node.demand.status().blocked_by == "" or "3 of 3" in node.demand.status().blocked_by


def test_an_eni_that_leaves_makes_room_below_the_cap(node: FakeNode) -> None:
    """The cap is a number of ENIs: with one less attached, another is attached at once."""
    node.pool.set_limits(replace(node.ec2.limits, eni_count=8), settings=node.settings)
    for number in range(20):
        node.add(f"s{number}")
        node.pool.cycle()
    snapshot = node.pool.snapshot()
    assert snapshot is not None
    assert snapshot.growth.eni_cap == 3


def test_an_eni_that_is_full_for_ec2_stops_itself_only(tmp_path: Path) -> None:
    """EC2 gives an ENI less than the type may have, and shows nothing that we do not know: growth goes on elsewhere."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=3))
    node.bring_up()
    for number in range(3):
        node.add(f"s{number}")
    node.ec2.fail["assign_addresses"] = [EniLimitError("PrivateIpAddressLimitExceeded")]
    node.pool.cycle()
    assert len(node.datastore.enis()) == 2
    assert node.datastore.counts().free >= 3
    node.assert_sound()


@pytest.mark.parametrize("room", [1, 2, 5, 8])
def test_a_nearly_full_subnet_gives_what_it_has(tmp_path: Path, room: int) -> None:
    """The whole ENI does not fit: what the subnet has is asked for, and got (row 10)."""
    node = FakeNode(tmp_path, ec2=FakeEc2(pool_size=room))
    node.bring_up()
    assert node.datastore.counts().free == room
    assert node.ec2.calls["subnet_free_count"] == 1
    assert node.ec2.calls["assign_addresses"] == 2


def test_a_count_that_is_wrong_is_halved(tmp_path: Path) -> None:
    """DescribeSubnets says that there is enough, and EC2 refuses: half of it, a bounded number of times, and something is got."""
    node = FakeNode(tmp_path, ec2=FakeEc2(pool_size=3))
    node.ec2.told_free_count = 4000
    node.bring_up()
    assert node.datastore.counts().free >= 2
    assert node.ec2.calls["assign_addresses"] <= 6


def test_an_empty_subnet_is_described_before_it_is_asked_again(tmp_path: Path) -> None:
    """While it stays empty each pause ends in one Describe and no refused call; the pauses double; room is used when it comes."""
    node = FakeNode(tmp_path, ec2=FakeEc2(pool_size=0))
    node.bring_up()
    refused = node.ec2.calls["assign_addresses"]
    calls = a_day(node)
    assert node.ec2.calls["assign_addresses"] == refused
    assert calls <= DAY_S / 600 + 5
    node.ec2.left_count = 100
    node.clock.advance(601)
    node.pool.cycle()
    assert node.datastore.counts().free == 9
    assert node.demand.status().blocked_by == ""


def test_an_eni_needs_two_addresses(tmp_path: Path) -> None:
    """One address is left: an ENI would need another for itself, so none is asked for, and the refusal says why."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=1))
    node.bring_up()
    for number in range(9):
        node.add(f"s{number}")
        node.ec2.left_count = 1 if number == 8 else 1000
        node.clock.advance(5)
        node.pool.cycle()
    made = node.ec2.calls["create_eni"]
    for _ in range(10):
        node.clock.advance(5)
        node.pool.cycle()
    assert node.ec2.calls["create_eni"] == made
    assert "1 address left" in node.demand.status().blocked_by


def test_a_missing_prefix_does_not_fill_the_slots(tmp_path: Path) -> None:
    """One InsufficientCidrBlocks: a few single addresses keep ADDs going, the other slots wait for prefixes (row 11)."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_prefix_target=1, prefix_delegation=True))
    node.ec2.fail["assign_prefixes"] = [SubnetExhaustedError("InsufficientCidrBlocks")]
    node.bring_up()
    assert node.datastore.counts().total == 4
    assert "InsufficientCidrBlocks" in node.demand.status().blocked_by
    node.clock.advance(121)
    node.pool.cycle()
    assert [len(eni.prefixes) for eni in node.ec2.enis.values()] == [1]
    assert node.datastore.counts().free == 20


def test_single_addresses_stand_in_for_prefixes_as_they_are_needed(tmp_path: Path) -> None:
    """No /28 for a long time: ADDs are served all the same, and the subnet is asked for one rarely."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_prefix_target=1, prefix_delegation=True))
    node.ec2.fail["assign_prefixes"] = [SubnetExhaustedError("InsufficientCidrBlocks") for _ in range(1000)]
    node.bring_up()
    for number in range(5):
        node.add(f"s{number}")
        node.pool.cycle()
    assert len(node.datastore.enis()) == 1
    assert node.datastore.counts().free == 4
    a_day(node)
    assert node.ec2.calls["assign_prefixes"] <= 60
    node.assert_sound()


def denied(tmp_path: Path, method: str, error: Exception) -> FakeNode:
    """A node whose every growth needs `method`, which is refused."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=1))
    node.bring_up()
    for number in range(9):
        node.add(f"s{number}")
        node.clock.advance(5)
        node.ec2.fail[method] = [error] if number == 8 else []
        node.pool.cycle()
    return node


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (
            CloudDeniedError("EC2 CreateNetworkInterface failed", said="UnauthorizedOperation", next_step="allow ec2:CreateTags"),
            "allow",
        ),
        (
            CloudQuotaError("EC2 CreateNetworkInterface failed", said="NetworkInterfaceLimitExceeded", next_step="ask for more"),
            "ask",
        ),
    ],
)
def test_what_a_person_must_change_is_named_and_asked_for_slowly(tmp_path: Path, error: Exception, named: str) -> None:
    """The ADD is told what EC2 said and what helps against it, not a list of everything that may help (I14)."""
    node = denied(tmp_path, "create_eni", error)
    node.demand.publish(replace(node.demand.status(), generation=100))
    with pytest.raises(PoolEmptyError) as refused:
        node.add("one-too-many", deadline_s=30)
    text = str(refused.value)
    assert f"next: {named}" in text
    assert "larger instance type" not in text
    assert "EC2 CreateNetworkInterface failed" in text
    node.ec2.fail["create_eni"] = [error for _ in range(1000)]
    made = node.ec2.calls["create_eni"]
    a_day(node)
    assert node.ec2.calls["create_eni"] - made <= 30


def test_a_retry_that_falls_due_during_another_call_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refusal the pool's thread asks EC2 something else for longer than the pause: it wakes at once, not at the next timer."""
    node = denied(
        tmp_path, "create_eni", CloudQuotaError("EC2 CreateNetworkInterface failed", said="NetworkInterfaceLimitExceeded")
    )
    node.ec2.fail["create_eni"] = [CloudQuotaError("EC2 CreateNetworkInterface failed", said="NetworkInterfaceLimitExceeded")]
    left_s = node.pool._pause_s()
    assert left_s, "the refusal is in force"
    node.clock.advance(left_s)
    monkeypatch.setattr(node.enis, "resync_due", lambda: node.clock.advance(10_000))
    assert node.pool.turn() == 0.0


def test_a_denied_allocation_does_not_stop_creations(tmp_path: Path) -> None:
    """IAM forbids AssignPrivateIpAddresses: addresses come with new ENIs."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=3))
    node.ec2.fail["assign_addresses"] = [CloudDeniedError("EC2 AssignPrivateIpAddresses failed")]
    node.bring_up()
    assert len(node.datastore.enis()) == 2
    assert node.datastore.counts().free == 3
    assert PRIMARY in node.ec2.enis


def test_the_subnet_is_named(tmp_path: Path) -> None:
    """An ADD that finds the subnet empty is told which subnet, and how much is left of it (I14)."""
    node = FakeNode(tmp_path, ec2=FakeEc2(pool_size=0))
    node.bring_up()
    status = node.demand.status()
    assert SUBNET in status.blocked_by
    assert "0 addresses left" in status.blocked_by
