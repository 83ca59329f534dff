"""The table of refusals: what EC2 refused stops what it is about, until then, and no more (I13, I14)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ipamd.core.backoffs import CREDENTIALS, DENIED, EC2, LIMIT, ROOM, Backoffs
from ipamd.core.context import ServiceContext
from ipamd.eni.limits import ALLOCATION, CREATION, SLOTS_CODE, YIELD_S, Ec2Request, Limits
from ipamd.model.blocked import Blocked
from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.errors import (
    CloudCredentialsError,
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    CloudQuotaError,
    EniLimitError,
    PoolEmptyError,
    SubnetChoiceError,
    SubnetExhaustedError,
    ThrottledError,
)
from ipamd.model.growth_state import GrowthState
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.plan import plan
from ipamd.model.pool_actions import Allocate, CreateEni
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import EniCapacity, PoolSnapshot
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import PRIMARY, SUBNET, FakeEc2
from tests.fakes.node import FakeNode
from tests.unit.service.test_idle_calls import DAY_S, calls_by_hour

CREATE, CREATE_ONE = CreateEni(1, address_count=8), CreateEni(1, address_count=1)
CREATE_PREFIXES, CREATE_PREFIX = CreateEni(1, prefix_count=4), CreateEni(1, prefix_count=1)
ADDRESSES = Allocate(EniId("eni-1"), 8)
PREFIX_SET, PREFIX = Allocate(EniId("eni-1"), prefix_count=4), Allocate(EniId("eni-1"), prefix_count=1)
FULL, GONE = SubnetExhaustedError("full"), CloudNotFoundError("gone")
TOO_MANY, NO_SLOT = EniLimitError("limit"), EniLimitError("limit", code=SLOTS_CODE)
DENIAL, QUOTA, CHOICE = CloudDeniedError("denied"), CloudQuotaError("quota"), SubnetChoiceError("excluded")
NO_KEYS, OLD_KEYS = CloudCredentialsError("nobody gave any"), CloudDeniedError("refused", code="ExpiredToken")
OTHER, ODD = CloudError("no answer"), CloudError("odd", code="Odd")
ODD.may_have_happened = False
FIELDS = ("creation", "allocation", "prefixes", "eni_cap", "slot_caps", "room", "prefix_cap", "creation_cap")


class Learner:
    """The limits of a node, and its clock."""

    def __init__(self, *, told: int = 1000, part: float = 0.0, waiting: bool = False) -> None:
        self.clock = FakeClock()
        self.ec2 = FakeEc2(pool_size=told)
        self.backoffs = Backoffs(self.clock, is_urgent=lambda: waiting)
        context = cast("ServiceContext", SimpleNamespace(clock=self.clock, backoffs=self.backoffs))
        self.limits = Limits(context, ec2=self.ec2, draw=lambda: part)
        self.candidates: tuple[SubnetId, ...] = ()

    def state(self, *, is_urgent: bool = True) -> GrowthState:
        """What the planner is told; every subnet but the node's own is unknown."""
        return self.limits.state(home=SUBNET, candidates=self.candidates, is_urgent=is_urgent)

    def stopped(self, *, is_urgent: bool = True) -> dict[str, Any]:
        """What the planner is told to leave, by field; a refusal by how long it lasts."""
        state = self.state(is_urgent=is_urgent)
        found = {name: getattr(state, name) for name in FIELDS}
        return {name: getattr(one, "left_s", one) for name, one in found.items() if one not in (None, {})}


def test_the_room_of_other_subnets_bounds_creations_once_all_are_short() -> None:
    """A candidate that EC2 has not refused takes several ENIs of any size; one that it has refused takes what is left there."""
    other = SubnetId("subnet-other")
    told = Learner()
    limits = InstanceLimits("m5.16xlarge", 15, 50)
    full = EniCapacity(EniId("eni-1"), 0, EniState.ATTACHED, 49)
    burst = PoolSnapshot((full,), PoolCounts(assigned=49), limits, waiting_count=98)
    assert not told.state().has_other_candidate
    told.candidates = (SUBNET, other)
    told.limits.room_refused(SUBNET, CREATE, FULL)
    state = told.state()
    assert (state.has_other_candidate, state.creation_room) == (True, None)
    decided = plan(replace(burst, growth=state), settings=PoolSettings(warm_eni_target=0))
    assert decided.actions == (CreateEni(1, address_count=49), CreateEni(2, address_count=49))
    told.limits.room_refused(other, CREATE, FULL)
    assert told.state().creation_room == 4


@pytest.mark.parametrize(
    ("asked", "error", "stops", "schedule"),
    [
        (Ec2Request(ADDRESSES, home=SUBNET), FULL, {"room": 4}, ROOM),
        (Ec2Request(Allocate(EniId("eni-1"), 1), home=SUBNET), FULL, {"room": 0, "creation": 0, "allocation": 0}, ROOM),
        (Ec2Request(ADDRESSES, home=SUBNET, is_other_subnet=True, used_slot_count=3), FULL, {"slot_caps": {"eni-1": 3}}, ROOM),
        (Ec2Request(PREFIX_SET), FULL, {"prefix_cap": 2}, ROOM),
        (Ec2Request(CREATE_PREFIXES), FULL, {"prefix_cap": 2}, ROOM),
        (Ec2Request(PREFIX), FULL, {"prefixes": 0}, ROOM),
        (Ec2Request(CREATE_PREFIX), FULL, {"prefixes": 0}, ROOM),
        (Ec2Request(CREATE, home=SUBNET), FULL, {}, None),  # of each subnet, as `Subnets` tries them
        (Ec2Request(CREATE, attached_count=3), NO_SLOT, {"creation_cap": 4}, LIMIT),
        (Ec2Request(CREATE_PREFIXES, attached_count=3), NO_SLOT, {"creation_cap": 2}, LIMIT),
        (Ec2Request(CREATE_ONE, attached_count=3), NO_SLOT, {"eni_cap": 3}, LIMIT),
        (Ec2Request(CREATE, attached_count=3), TOO_MANY, {"eni_cap": 3}, LIMIT),
        (Ec2Request(ADDRESSES, used_slot_count=3), NO_SLOT, {"slot_caps": {"eni-1": 3}}, LIMIT),
        (Ec2Request(ADDRESSES, used_slot_count=3), GONE, {"slot_caps": {"eni-1": 3}}, ROOM),
        (Ec2Request(CREATE), GONE, {"creation": 0}, EC2),
        (Ec2Request(CREATE), DENIAL, {"creation": 0}, DENIED),
        (Ec2Request(ADDRESSES), DENIAL, {"allocation": 0}, DENIED),
        (Ec2Request(PREFIX), DENIAL, {"allocation": 0}, DENIED),
        (Ec2Request(CREATE), NO_KEYS, {"creation": 0}, CREDENTIALS),
        (Ec2Request(ADDRESSES), NO_KEYS, {"allocation": 0}, CREDENTIALS),
        (Ec2Request(PREFIX), NO_KEYS, {"allocation": 0}, CREDENTIALS),
        (Ec2Request(CREATE), OLD_KEYS, {"creation": 0}, EC2),
        (Ec2Request(ADDRESSES), OLD_KEYS, {"allocation": 0}, EC2),
        (Ec2Request(CREATE), QUOTA, {"creation": 0}, DENIED),
        (Ec2Request(CREATE), CHOICE, {"creation": 0}, DENIED),
        (Ec2Request(PREFIX), ODD, {"prefixes": 0}, ROOM),
        (Ec2Request(ADDRESSES), ODD, {"allocation": 0}, EC2),
        (Ec2Request(CREATE), OTHER, {"creation": 0}, EC2),
        (Ec2Request(PREFIX), OTHER, {"allocation": 0}, EC2),
        (Ec2Request(CREATE), ThrottledError("slow"), {"creation": 0}, EC2),
        (Ec2Request(CREATE, is_urgent=False), ThrottledError("slow"), {}, ROOM),  # it yields, and stops nothing else
        (Ec2Request(CREATE), OSError("ours"), {"creation": 0}, EC2),
    ],
)
def test_a_refusal_stops_what_it_is_about(asked: Ec2Request, error: Exception, stops: dict[str, Any], schedule: Any) -> None:
    """It is in force for its schedule's first pause, twice that when it comes again, and one success ends it; a 0 is a pause. The wall
    clock, which is set forward and back, changes nothing."""
    learner = Learner()
    for count in (1, 2):
        learner.limits.learn(asked, error)
        learner.clock.step_wall(3600 if count == 1 else -7200)
        left_s = 0.0 if schedule is None else schedule.pause_s(count)
        expected = {
            name: value or (left_s if name in ("creation", "allocation", "prefixes") else 0) for name, value in stops.items()
        }
        if count == 1 or "room" not in stops:  # what was refused again is halved again
            assert learner.stopped() == expected
        assert learner.limits.next_retry_s() == (left_s or None)
        learner.clock.advance(left_s - 0.5)
        assert bool(learner.stopped()) == bool(stops)
        learner.clock.advance(1.0)
        assert learner.stopped() == {}
    learner.limits.learn(asked, error)
    learner.limits.succeeded(asked)
    disproved = {"creation", "allocation", "prefixes", "eni_cap", "slot_caps"}
    assert not disproved & set(learner.stopped()) or "room" in stops


def test_an_instance_that_takes_no_further_eni_is_described() -> None:
    """How many ENIs it has, and how many of them are not ours; that EC2 shows more of them later ends it (I14)."""
    learner = Learner()
    learner.limits.learn(Ec2Request(CREATE, attached_count=3, foreign_count=1), TOO_MANY)
    assert "which has 3 ENIs, 1 of them not ours to use: limit" in str(learner.state().eni_cap_refusal)
    assert not learner.limits.drop_stale_cap(3)
    assert learner.limits.drop_stale_cap(4)
    assert learner.stopped() == {}


@pytest.mark.parametrize(("told", "room"), [(5, 5), (0, 0), (7, 7), (8, 4), (1000, 4)])
def test_what_a_subnet_has_is_asked_for(told: int, room: int) -> None:
    """What EC2 says is free; half of what it refused where that should have been enough. One Describe, before the next try too."""
    learner = Learner(told=told)
    learner.limits.learn(Ec2Request(ADDRESSES, home=SUBNET), FULL)
    assert learner.state().room == room
    assert learner.ec2.calls["subnet_free_count"] == 1
    assert not learner.limits.recheck_room(SUBNET, ADDRESSES), "the refusal is in force"
    learner.clock.advance(120)
    learner.ec2.left_count = 2
    assert learner.limits.recheck_room(SUBNET, ADDRESSES)
    assert learner.state().room == 2
    learner.clock.advance(240)
    learner.ec2.left_count = 8
    assert not learner.limits.recheck_room(SUBNET, ADDRESSES)
    assert learner.stopped() == {}
    assert learner.ec2.calls["subnet_free_count"] == 3
    learner.limits.succeeded(Ec2Request(ADDRESSES, home=SUBNET))
    learner.limits.learn(Ec2Request(ADDRESSES, home=SUBNET), FULL)
    assert learner.limits.next_retry_s() == 120.0, "a success begins anew"


def test_a_waiting_add_asks_sooner() -> None:
    """A subnet that has been full for long is asked once an hour, and each ten minutes while an ADD waits."""
    for waiting, left_s in ((False, 3600.0), (True, 600.0)):
        learner = Learner(told=0, waiting=waiting)
        for _ in range(9):
            learner.limits.learn(Ec2Request(ADDRESSES, home=SUBNET), FULL)
        assert learner.limits.next_retry_s() == left_s


@pytest.mark.parametrize(
    ("kind", "lasted_s", "left_s"),
    [
        (ALLOCATION, 10.0, 60.0),
        (ALLOCATION, 100.0, 200.0),
        (ALLOCATION, 2000.0, 1800.0),
        (CREATION, 10.0, 900.0),
        (CREATION, 700.0, 1400.0),
        (CREATION, 2000.0, 1800.0),
    ],
)
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_what_nobody_waits_for_yields_while_ec2_throttles(kind: str, lasted_s: float, left_s: float, part: float) -> None:
    """Spare addresses for a minute, a spare ENI for a quarter of an hour, or twice the time that it has lasted; each node for its own
    time, once to twice that, so that they do not come back together. What an ADD waits for is asked for at once (I13)."""
    learner = Learner(part=part)
    now_s = learner.clock.monotonic()
    learner.ec2.throttled = (now_s - lasted_s, now_s)
    assert learner.stopped(is_urgent=True) == {}
    assert learner.stopped(is_urgent=False)[kind] == pytest.approx(left_s * (1 + part))
    learner.clock.advance(left_s * (1 + part) + 0.1)
    assert kind not in learner.stopped(is_urgent=False)
    learner.ec2.throttled = None
    assert learner.stopped(is_urgent=False) == {}


def test_a_node_that_yields_lacks_nothing(tmp_path: Path) -> None:
    """EC2 throttles a spare ENI: the sentence of the pool says what it waits for, and no condition stands for half an hour."""
    node = FakeNode(tmp_path)
    node.bring_up()
    node.add("a")
    node.ec2.fail["create_eni"] = [ThrottledError("slow down")]
    node.pool.run_once()
    node.ec2.throttled = (node.clock.monotonic(), node.clock.monotonic())
    assert node.demand.status.kind is Blocked.THROTTLED
    assert [one for one in node.health.conditions() if one.startswith("EC2")] == []
    node.clock.advance(2 * YIELD_S[CREATION])
    node.pool.run_once()
    assert len(node.datastore.enis()) == 2
    node.datastore.close()


def test_a_condition_of_throttling_ends_with_it(tmp_path: Path) -> None:
    """An ADD waits for what EC2 throttles: a condition, until EC2 has done it; that spare ENIs yield for longer keeps it not."""
    node = FakeNode(tmp_path)
    node.bring_up()
    for number in range(9):
        node.add(f"s{number}")
    node.ec2.throttled = (node.clock.monotonic(), node.clock.monotonic())
    node.ec2.fail["create_eni"] = [ThrottledError("slow down")]
    node.demand.join()
    node.pool.run_once()
    assert [one for one in node.health.conditions() if one.startswith("EC2")]
    node.clock.advance(61)
    node.pool.run_once()
    node.demand.leave()
    assert len(node.datastore.enis()) == 2
    assert [one for one in node.health.conditions() if one.startswith("EC2")] == []
    state = node.pool.snapshot()
    assert state is not None
    assert state.growth.creation is not None, "it yields still"
    node.datastore.close()


def test_a_pause_that_was_long_at_idle_ends_for_an_add(tmp_path: Path) -> None:
    """EC2 has failed for hours and nobody waited; the first ADD asks within a minute, and gets its address."""
    node = FakeNode(tmp_path)
    node.bring_up()
    for number in range(9):
        node.add(f"s{number}")
    node.ec2.limits = replace(node.ec2.limits, ipv4_per_eni=20)
    node.pool.set_limits(node.ec2.limits, settings=node.settings)
    node.ec2.fail["assign_addresses"] = [ODD] * 1000
    for _ in range(200):
        node.pool.cycle()
        node.clock.advance(60)
    tries = node.ec2.calls["assign_addresses"]
    node.ec2.fail["assign_addresses"] = []
    node.pool.cycle()
    assert node.ec2.calls["assign_addresses"] == tries, "nobody waits"
    node.demand.join()
    for _ in range(2):
        node.pool.cycle()
        node.clock.advance(60)
    assert PRIMARY in {row.eni_id for row in node.datastore.addresses()}
    assert node.ec2.calls["assign_addresses"] > tries
    assert node.datastore.counts().free > 0
    node.datastore.close()


# What the pool makes of them: how often it asks again, for how much, and what it tells ADDs


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
    snapshot = node.pool.snapshot()
    assert snapshot is not None
    assert snapshot.growth.eni_cap == 3
    calls = a_day(node)
    assert calls <= 6 * 6 + 1, "a try costs six calls, its DescribeSubnets included; one look for leaked ENIs after the start"
    assert node.ec2.calls["create_eni"] <= 2 + 1 + 6
    assert node.demand.status.kind is Blocked.ENI_LIMIT
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
    assert node.demand.status.blocked is None or node.demand.status.kind is Blocked.NODE_FULL


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
    """While it stays empty ADDs are told which subnet it is (I14), and each pause ends in one Describe and no refused call; the pauses
    double; room is used when it comes."""
    node = FakeNode(tmp_path, ec2=FakeEc2(pool_size=0))
    node.bring_up()
    assert node.demand.status.kind is Blocked.SUBNET_FULL
    refused = node.ec2.calls["assign_addresses"]
    calls = a_day(node)
    assert node.ec2.calls["assign_addresses"] == refused
    assert calls <= DAY_S / 600 + 5
    node.ec2.left_count = 100
    node.clock.advance(601)
    node.pool.cycle()
    assert node.datastore.counts().free == 9
    assert node.demand.status.blocked is None


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
    assert node.demand.status.kind is Blocked.SUBNET_FULL


def test_a_missing_prefix_does_not_fill_the_slots(tmp_path: Path) -> None:
    """One InsufficientCidrBlocks: a few single addresses keep ADDs going, the other slots wait for prefixes (row 11)."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_prefix_target=1, prefix_delegation=True))
    node.ec2.fail["assign_prefixes"] = [SubnetExhaustedError("InsufficientCidrBlocks")]
    node.bring_up()
    assert node.datastore.counts().total == 4
    assert node.demand.status.kind is Blocked.SUBNET_FULL
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
            CloudDeniedError(
                "EC2 CreateNetworkInterface failed", answer="UnauthorizedOperation", next_step="allow ec2:CreateTags"
            ),
            "allow",
        ),
        (
            CloudQuotaError(
                "EC2 CreateNetworkInterface failed", answer="NetworkInterfaceLimitExceeded", next_step="ask for more"
            ),
            "ask",
        ),
    ],
)
def test_what_a_person_must_change_is_named_and_asked_for_slowly(tmp_path: Path, error: Exception, named: str) -> None:
    """The ADD is told what EC2 said and what helps against it, not a list of everything that may help (I14)."""
    node = denied(tmp_path, "create_eni", error)
    node.demand.publish(replace(node.demand.status, generation=100))
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
        tmp_path, "create_eni", CloudQuotaError("EC2 CreateNetworkInterface failed", answer="NetworkInterfaceLimitExceeded")
    )
    node.ec2.fail["create_eni"] = [CloudQuotaError("EC2 CreateNetworkInterface failed", answer="NetworkInterfaceLimitExceeded")]
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
