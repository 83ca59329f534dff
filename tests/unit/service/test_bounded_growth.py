"""What EC2 is asked for is bounded by what is wanted, whatever the plan says (I18): the planner is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudDeniedError, CloudError, EniLimitError, PoolEmptyError
from ipamd.model.ids import EniId
from ipamd.model.plan import Plan
from ipamd.model.pool_actions import Allocate, CreateEni, Growth
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot
from tests.fakes.cloud import PRIMARY, FakeEc2
from tests.fakes.node import FakeNode

HOUR_S = 3600
CALLS = ("assign_addresses", "assign_prefixes", "create_eni")
BROKEN: dict[str, Growth] = {
    "a /28": Allocate(PRIMARY, prefix_count=1),
    "addresses": Allocate(PRIMARY, 1),
    "an ENI": CreateEni(1, address_count=9),
}


def break_planner(monkeypatch: pytest.MonkeyPatch, action: Growth) -> None:
    """Whatever the pool has, the plan asks for the same."""

    def plan(snapshot: PoolSnapshot, **_: object) -> Plan:
        wanted = replace(action, device_index=len(snapshot.enis)) if isinstance(action, CreateEni) else action
        return Plan((wanted,), f"broken: {action}", deficit_count=1)

    monkeypatch.setattr("ipamd.pool.maintainer.plan", plan)
    monkeypatch.setattr("ipamd.pool.maintainer.MAX_ACTIONS_PER_WAKE", 2)  # it never says that it is done


def asked(node: FakeNode) -> int:
    """Calls so far that ask for something."""
    return sum(node.ec2.calls[call] for call in CALLS)


def run(node: FakeNode, seconds: int, *, step: int = 60) -> None:
    """Let the pool loop run, as if something woke it all the time."""
    for _ in range(0, seconds, step):
        node.pool.cycle()
        node.clock.advance(step)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """Places and slots to waste, and a pool that is at its target."""
    made = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=2), ec2=FakeEc2(limits=InstanceLimits("m5.4xlarge", 8, 30)))
    made.bring_up()
    return made


@pytest.mark.parametrize("action", BROKEN.values(), ids=BROKEN)
def test_what_nobody_wants_is_not_asked_for(node: FakeNode, monkeypatch: pytest.MonkeyPatch, action: Growth) -> None:
    """The pool is short of nothing: not one call in three hours, and it is said."""
    break_planner(monkeypatch, action)
    before = asked(node)
    run(node, 3 * HOUR_S)
    assert asked(node) == before
    assert any("more than is wanted" in line for line in node.health.conditions())


@pytest.mark.parametrize("action", BROKEN.values(), ids=BROKEN)
def test_a_success_that_adds_nothing_is_not_repeated(node: FakeNode, monkeypatch: pytest.MonkeyPatch, action: Growth) -> None:
    """EC2 says yes and gives nothing: doubling pauses, and it is said; the first success that adds something ends it."""
    node.add("a")
    node.add("b")
    break_planner(monkeypatch, action)
    monkeypatch.setattr(node.ec2, "assign_addresses", _nothing(node, "assign_addresses"))
    monkeypatch.setattr(node.ec2, "assign_prefixes", _nothing(node, "assign_prefixes"))
    if isinstance(action, CreateEni):
        create = node.ec2.create_eni
        monkeypatch.setattr(node.ec2, "create_eni", lambda request: create(replace(request, address_count=0)))
    before = asked(node)
    run(node, 3 * HOUR_S)
    assert asked(node) - before <= 20, "at most 6 in an idle hour, after the first"
    assert any("recorded" in line or "more than is wanted" in line for line in node.health.conditions())
    hour = asked(node)
    run(node, HOUR_S)
    assert asked(node) - hour <= 6


def _nothing(node: FakeNode, call: str) -> Callable[..., frozenset[IPv4Address | IPv4Network]]:
    def answered(eni_id: EniId, *, count: int) -> frozenset[IPv4Address | IPv4Network]:
        node.ec2.calls[call] += 1
        return frozenset()

    return answered


def test_a_ramp_asks_for_twice_what_is_wanted_at_most(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes is of no use to ADDs, so the pool stays two short, beside the two that ADDs took: it is not asked without end."""
    node.add("a")
    node.add("b")
    break_planner(monkeypatch, Allocate(PRIMARY, 1))
    monkeypatch.setattr("ipamd.pool.maintainer.wanted_count", lambda snapshot, settings: 2)
    before = asked(node)
    run(node, HOUR_S // 2, step=30)
    assert asked(node) - before == 2 * (2 + 2)


def test_a_ramp_of_whole_prefixes_asks_for_one_where_less_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice what is wanted, rounded up to a /28."""
    node = FakeNode(tmp_path, settings=PoolSettings(prefix_delegation=True, warm_prefix_target=1))
    node.bring_up()
    node.add("a")
    break_planner(monkeypatch, Allocate(PRIMARY, prefix_count=1))
    monkeypatch.setattr("ipamd.pool.maintainer.wanted_count", lambda snapshot, settings: 3)
    before = asked(node)
    run(node, HOUR_S // 2, step=30)
    assert asked(node) - before == 1


@pytest.mark.parametrize("warm_eni_target", [0, 1, 2])
@pytest.mark.parametrize(
    "limits", [InstanceLimits("t3.small", 3, 4), InstanceLimits("m5.4xlarge", 8, 30)], ids=lambda one: one.instance_type
)
def test_whole_enis_are_asked_for_where_one_address_is_wanted(
    tmp_path: Path, warm_eni_target: int, limits: InstanceLimits
) -> None:
    """Targets of whole ENIs fill an ENI by one call: the first pod is served at once, and each that follows."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_eni_target=warm_eni_target), ec2=FakeEc2(limits=limits, pool_size=400))
    node.bring_up()
    for number in range(8):
        reserved = node.demand.join()
        node.pool.cycle()
        node.demand.leave()
        assert reserved
        node.add(f"s-{number}", deadline_s=0.1)
        assert not any("more than is wanted" in line for line in node.health.conditions())
        node.clock.advance(3)


def test_pods_that_come_want_more(tmp_path: Path) -> None:
    """What ADDs took counts as wanted: an unbroken plan fills the node, ADD after ADD, and is never held up."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=2))
    node.bring_up()
    for number in range(27):
        node.add(f"s-{number}", deadline_s=1.0)
        node.pool.cycle()
        node.clock.advance(1)
    assert node.datastore.counts().assigned == 27
    assert not any("more than is wanted" in line for line in node.health.conditions())
    with pytest.raises(PoolEmptyError):
        node.add("too-many", deadline_s=0.1)


@pytest.mark.parametrize(
    ("action", "method", "error", "most"),
    [
        ("an ENI", "attach_eni", EniLimitError("instance is full", code="AttachmentLimitExceeded"), 3),
        ("an ENI", "create_eni", CloudDeniedError("create", code="UnauthorizedOperation"), 7),
        ("addresses", "assign_addresses", CloudDeniedError("assign", code="UnauthorizedOperation"), 7),
    ],
    ids=["attachment limit", "denied creation", "denied addresses"],
)
def test_what_is_refused_is_not_repeated(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, action: str, method: str, error: CloudError, most: int
) -> None:
    """A plan that asks for what EC2 refused, for three hours and nothing else in its way: as often as the schedule says."""
    monkeypatch.setattr("ipamd.pool.maintainer.wanted_count", lambda snapshot, settings: 1_000)
    break_planner(monkeypatch, BROKEN[action])
    before = asked(node)
    node.ec2.fail[method] = [error] * 10_000
    run(node, 3 * HOUR_S, step=20)
    assert 1 <= asked(node) - before <= most
