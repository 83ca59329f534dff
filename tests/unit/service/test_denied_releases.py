"""IAM denies what the pool releases: nothing is held for ever, little is asked, and it is said (I7, I9, I13, I14).

The pool's thread is woken when it asks to be, on a fake clock, for a day in which nothing else happens.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from ipamd.eni.pinned import SUBJECT
from ipamd.model.conditions import ConditionCode
from ipamd.model.errors import CloudDeniedError, CloudQuotaError, EniLimitError, ThrottledError
from ipamd.model.ids import EniId
from ipamd.model.intent import IntentKind
from ipamd.model.pinned_address import PinnedRange
from ipamd.model.pool_settings import RELEASE_HOLD_S, PoolSettings
from ipamd.settings import NetworkConfig
from tests.conditions import codes
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode
from tests.unit.service.test_leaked_enis import leak
from tests.unit.service.test_release import SMALL, fill_and_empty

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
HOURLY_MAX = 6
"""Calls of any kind in an hour in which nothing happens but that IAM still denies."""

IDLE_MAX = 2 + 24 * 3
"""The same in a day, with the first tries."""


class DenyingEc2(FakeEc2):
    """IAM denies the methods that `denied` names, for all ENIs but those that `allowed` names."""

    def __init__(self) -> None:
        super().__init__()
        self.denied: set[str] = set()
        self.allowed: set[EniId] = set()

    def delete_eni(self, eni_id: EniId) -> None:
        """See the port."""
        if eni_id in self.allowed:
            self.enis.pop(eni_id, None)
            return
        super().delete_eni(eni_id)

    def _call(self, method: str) -> None:
        if method in self.denied and not self.fail.get(method):
            self.fail[method] = [
                CloudDeniedError(f"EC2 {method} failed", details="UnauthorizedOperation; allow it to the node's role")
            ]
        super()._call(method)


class Killed(BaseException):
    """The process is gone."""


def kill_at(node: FakeNode, wanted: str) -> None:
    """Kill the process when it comes to a failpoint."""

    def reached(name: str) -> None:
        if name == wanted:
            raise Killed

    node.failpoint = reached


def pass_time(node: FakeNode, seconds: float) -> None:
    """Wake the pool when it asks to be woken, and at no other moment."""
    ends_s = node.clock.monotonic() + seconds
    for _ in range(100_000):
        pause_s = 0.0 if node.was_triggered() else node.pool._pause_s()
        if pause_s is None or node.clock.monotonic() + pause_s > ends_s:
            node.clock.advance(ends_s - node.clock.monotonic())
            return
        node.clock.advance(pause_s + 0.001)
        node.pool.run_once()
    raise AssertionError("the pool's thread spins")


def calls_of(node: FakeNode, act: Callable[[], None]) -> int:
    """EC2 calls while something is done."""
    before = node.ec2.calls.total()
    act()
    return node.ec2.calls.total() - before


def assert_quiet(node: FakeNode) -> None:
    """A day passes: few calls in it, and at most a handful in each of its hours after the first."""
    hours = [calls_of(node, lambda: pass_time(node, HOUR_S)) for _ in range(24)]
    assert max(hours[1:]) <= HOURLY_MAX, hours
    assert sum(hours) <= IDLE_MAX, hours


@pytest.fixture
def ec2() -> DenyingEc2:
    """EC2."""
    return DenyingEc2()


@pytest.fixture
def node(tmp_path: Path, ec2: DenyingEc2) -> FakeNode:
    """22 sandboxes came and went: three ENIs, of which the targets want two. What is due after a start is over."""
    made = FakeNode(tmp_path, settings=SMALL, ec2=ec2)
    made.bring_up()
    pass_time(made, 600)
    fill_and_empty(made, 22)
    pass_time(made, 1)
    assert len(ec2.enis) == 3
    return made


def begin(node: FakeNode) -> None:
    """Let the pool begin to release."""
    pass_time(node, RELEASE_HOLD_S + 60)


def detached(node: FakeNode) -> set[EniId]:
    """ENIs that EC2 has and that are attached to nothing."""
    return {eni.eni_id for eni in node.ec2.enis.values() if not eni.instance_id}


@pytest.mark.parametrize(
    ("method", "kept"),
    [
        ("unassign", "excess addresses stay assignable"),
        ("describe_eni", "excess addresses stay assignable"),
        ("detach_eni", "excess addresses stay assignable"),
        ("delete_eni", "releases that were begun are retried"),
    ],
)
def test_a_denied_release_is_asked_for_a_few_times_an_hour(node: FakeNode, ec2: DenyingEc2, method: str, kept: str) -> None:
    """It was 2,880 calls a day, two each minute (I13). People are told what is kept; what was not begun is no open intent."""
    ec2.denied = {method}
    begin(node)
    assert_quiet(node)
    (said,) = (sentence for sentence in node.health.conditions() if sentence.startswith("release"))
    assert kept in said
    assert "UnauthorizedOperation" in said
    assert any(not one.is_settled for one in node.datastore.open_intents()) is (method == "delete_eni")


def test_an_eni_that_is_detached_and_may_not_be_deleted_stays_covered(node: FakeNode, ec2: DenyingEc2) -> None:
    """Detach is allowed, Delete is denied: its intent stays open and names it (I9), one at a time; IAM is mended, and it goes."""
    ec2.denied = {"delete_eni"}
    begin(node)
    pass_time(node, 24 * HOUR_S)
    (left,) = detached(node)
    (intent,) = [one for one in node.datastore.open_intents() if not one.is_settled]
    assert intent.payload["eni_id"] == left
    assert any("delete_eni" in sentence and "allow it" in sentence for sentence in node.health.conditions())
    for number in range(27):
        node.add(f"later-{number}", deadline_s=1.0)
        node.pool.cycle()
    assert len(ec2.attached()) == 3, "it takes no place on the instance any more"
    node.assert_sound()
    ec2.denied = set()
    pass_time(node, HOUR_S + 60)
    assert left not in ec2.enis
    assert node.health.conditions() == []
    assert not [one for one in node.datastore.open_intents() if not one.is_settled]
    node.assert_sound()


@pytest.mark.parametrize("count", [1, 12])
def test_leaked_enis_that_may_not_be_deleted_share_a_try(node: FakeNode, ec2: DenyingEc2, count: int) -> None:
    """However many were found at start: each hour one of them is tried, and all go once IAM allows it (I9, I13)."""
    leaked = {leak(node, token=f"forgotten-{number}") for number in range(count)}
    ec2.denied = {"delete_eni"}
    node.crash()
    node.bring_up()
    pass_time(node, 180)
    assert {one.payload["eni_id"] for one in node.datastore.open_intents()} >= leaked
    assert_quiet(node)
    assert any("delete_eni" in sentence and "allow it" in sentence for sentence in node.health.conditions())
    ec2.denied = set()
    pass_time(node, HOUR_S + 60)
    assert not leaked & set(ec2.enis)
    assert node.health.conditions() == []


def test_one_that_is_denied_for_itself_keeps_no_other(node: FakeNode, ec2: DenyingEc2) -> None:
    """The role's condition on tags lets one ENI go and not the other: each comes to its turn."""
    leaked = [leak(node, token=f"forgotten-{number}") for number in range(3)]
    ec2.denied = {"delete_eni"}
    node.crash()
    node.bring_up()
    pass_time(node, 180)
    ec2.allowed = set(leaked[1:])
    pass_time(node, 6 * HOUR_S)
    assert set(leaked) & set(ec2.enis) == {leaked[0]}


def test_leaked_enis_that_may_not_be_looked_for_are_asked_for_rarely(tmp_path: Path, ec2: DenyingEc2) -> None:
    """Describe is denied: the look after the start does not go on each five minutes."""
    node = FakeNode(tmp_path, settings=SMALL, ec2=ec2)
    node.bring_up()
    ec2.denied = {"find_detached"}
    pass_time(node, HOUR_S)
    assert_quiet(node)


def test_a_creation_that_is_given_up_and_may_not_be_deleted(tmp_path: Path, ec2: DenyingEc2) -> None:
    """The instance takes no further ENI, and what was made for it may not be deleted: few calls, covered by its intent (I9)."""
    node = FakeNode(tmp_path, settings=PoolSettings(), ec2=ec2)
    node.bring_up()
    pass_time(node, 600)
    ec2.attached_count_max = 1
    ec2.denied = {"delete_eni"}
    node.add("s")
    pass_time(node, 60)
    assert_quiet(node)
    covered = {one.payload.get("eni_id") for one in node.datastore.open_intents()}
    assert detached(node)
    assert detached(node) <= covered
    ec2.denied = set()
    pass_time(node, HOUR_S + 60)
    assert not detached(node) & covered


def begun(tmp_path: Path, ec2: DenyingEc2, *, by_eni: bool, killed_at: str) -> FakeNode:
    """A release of a whole ENI, or of addresses, was begun, and the daemon was killed. It is not restarted yet."""
    node = FakeNode(tmp_path, settings=SMALL, ec2=ec2)
    node.bring_up()
    pass_time(node, 600)
    fill_and_empty(node, 22 if by_eni else 9)
    pass_time(node, 1)
    kill_at(node, killed_at)
    with pytest.raises(Killed):
        begin(node)
    return node


@pytest.fixture(params=["detach", "unassign"])
def killed(request: pytest.FixtureRequest, tmp_path: Path, ec2: DenyingEc2) -> FakeNode:
    """Killed after the intent of a release was written, before EC2 was asked; IAM denies the call from now on."""
    made = begun(tmp_path, ec2, by_eni=request.param == "detach", killed_at="release.intent-opened")
    ec2.denied = {"detach_eni", "unassign"}
    made.crash()
    made.bring_up()
    return made


def test_what_is_undone_is_not_begun_again_each_minute(killed: FakeNode) -> None:
    """The pool still has too much, and waits as after any other denial (I13); IAM is mended, and it goes."""
    assert_quiet(killed)
    assert any(sentence.startswith("release") and "UnauthorizedOperation" in sentence for sentence in killed.health.conditions())
    assert [one for one in killed.datastore.open_intents() if not one.is_settled] == []
    assert isinstance(killed.ec2, DenyingEc2)
    killed.ec2.denied = set()
    pass_time(killed, RELEASE_HOLD_S + HOUR_S)
    assert killed.datastore.counts().total == 10
    assert killed.health.conditions() == []
    killed.assert_sound()


def test_an_attach_that_fails_costs_no_loop_of_deletions(tmp_path: Path, ec2: DenyingEc2) -> None:
    """Attach and Delete are denied: each hour at most one more ENI is made, and never more than the instance has places (I9)."""
    node = FakeNode(tmp_path, settings=PoolSettings(), ec2=ec2)
    node.bring_up()
    pass_time(node, 600)
    ec2.fail["attach_eni"] = [EniLimitError("full") for _ in range(100)]
    ec2.denied = {"delete_eni"}
    node.add("s")
    pass_time(node, 24 * HOUR_S)
    assert len(ec2.enis) <= 3


def pause_of(node: FakeNode) -> float | None:
    """Seconds that the pool's thread sleeps once a few turns have done what is due; 0: it does not."""
    pause_s: float | None = 0.0
    for _ in range(20):
        pause_s = node.pool.turn()
        if pause_s != 0.0:
            break
    return pause_s


@pytest.mark.parametrize("is_served", [True, False])
def test_the_pools_thread_sleeps_while_a_release_waits_for_an_add(node: FakeNode, ec2: DenyingEc2, is_served: bool) -> None:
    """A release is due and left for later while an ADD waits for want of room; it goes on when the ADD ends, however it does."""
    ec2.fail["delete_eni"] = [ThrottledError("slow down") for _ in range(100)]
    pass_time(node, RELEASE_HOLD_S + 60)
    assert any(one.kind is IntentKind.DELETE_ENI and not one.is_settled for one in node.datastore.open_intents())
    ec2.left_count = 0
    for number in range(node.datastore.counts().free):
        node.add(f"burst-{number}")
    node.demand.join()
    node.clock.advance(61)
    assert pause_of(node) != 0.0
    ec2.fail.pop("delete_eni")
    node.demand.triggered.clear()
    if is_served:
        node.demand.take()
    node.demand.leave()
    assert node.demand.triggered.is_set()
    pass_time(node, 60)
    assert [one for one in node.datastore.open_intents() if not one.is_settled] == []


def test_a_start_that_waits_for_its_first_address_does_not_spin(tmp_path: Path, ec2: DenyingEc2) -> None:
    """Its subnet is full, for hours, and an ENI leaked before may not be deleted."""
    node = FakeNode(tmp_path, settings=SMALL, ec2=ec2)
    leak(node)
    ec2.denied = {"delete_eni"}
    ec2.left_count = 0
    node.bring_up()
    node.demand.join()  # as `FirstAddress.wait`
    for _ in range(20):
        node.clock.advance(15)
        assert pause_of(node) != 0.0


def test_a_condition_ends_with_the_need_for_what_was_refused(tmp_path: Path, ec2: DenyingEc2) -> None:
    """A spare ENI is refused, its pod goes, and the pool is at its target: nothing is lacking once the pause is over."""
    node = FakeNode(tmp_path, ec2=ec2)
    node.bring_up()
    pass_time(node, 600)
    node.add("a")
    ec2.fail["create_eni"] = [CloudQuotaError("EC2 CreateNetworkInterface failed", answer="NetworkInterfaceLimitExceeded")]
    pass_time(node, 1)
    assert "ec2" in node.health.conditions_by_subject()
    node.delete("a")
    node.cool()
    pass_time(node, 60)
    assert "ec2" in node.health.conditions_by_subject(), "it is refused still, though nobody asks"
    pass_time(node, DAY_S)
    assert node.health.conditions() == []


def test_giving_back_is_over_once_nothing_is_in_excess(node: FakeNode, ec2: DenyingEc2) -> None:
    """A release is denied, and the load comes back."""
    ec2.denied = {"unassign", "detach_eni"}
    pass_time(node, RELEASE_HOLD_S + 60)
    assert "release" in node.health.conditions_by_subject()
    ec2.denied = set()
    for number in range(22):
        node.add(f"again-{number}")
        pass_time(node, 6)
    pass_time(node, DAY_S)
    assert node.demand.status.excess_count == 0
    assert node.health.conditions() == []


def test_a_named_address_that_iam_keeps_is_rarely_tried(tmp_path: Path) -> None:
    """An address that a pod asked for, and that no pod has any more, is given back by a service of its own (docs/adr/0083)."""
    ec2 = DenyingEc2()
    network = NetworkConfig(pinned_ranges=(PinnedRange("db", IPv4Network("10.0.12.0/28")),))
    node = FakeNode(tmp_path, ec2=ec2, network=network, settings=PoolSettings(warm_ip_target=2, minimum_ip_target=4))
    node.bring_up()
    eni_id = next(eni.eni_id for eni in node.datastore.enis())
    named = IPv4Address("10.0.12.5")
    ec2.assign_address(eni_id, named)
    node.enis.add_addresses(eni_id, frozenset({named}), frozenset(), asked_count=1)
    ec2.denied.add("unassign")
    pass_time(node, DAY_S)
    assert 2 <= ec2.calls["unassign"] <= IDLE_MAX
    assert codes(node.health, SUBJECT) >= {ConditionCode.PINNED_RELEASE_REFUSED}
    ec2.denied.clear()
    pass_time(node, 2 * HOUR_S)
    assert node.datastore.address(named) is None
    assert ConditionCode.PINNED_RELEASE_REFUSED not in codes(node.health, SUBJECT)
