"""The pool freezes for as long as a cause is in force: an operator, a drain hook's file, EC2's notices, the end of the daemon."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ipamd.core.backoffs import Backoffs
from ipamd.core.deadline import SystemClock
from ipamd.core.demand import Demand
from ipamd.core.freeze import CONDITION, NO_REASON, REASON_MAX, Freeze
from ipamd.core.health import Health
from ipamd.host import files as file_follower
from ipamd.host.files import FileFollowers
from ipamd.host.freeze_files import OPERATOR_NAME, DrainHookFile, OperatorFreeze
from ipamd.model.blocked import Blocked
from ipamd.model.errors import CloudError
from ipamd.model.freeze import FreezeCause
from ipamd.model.growth_blocker import THAW
from ipamd.model.pool_settings import PoolSettings
from tests import loops
from tests.fakes.clock import FakeClock
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S

BOOT = "boot-1"


@pytest.fixture
def health() -> Health:
    """The daemon's."""
    return Health(FakeClock(), ())


@pytest.fixture
def freeze(health: Health) -> Freeze:
    """Nothing is in force."""
    return Freeze(clock=FakeClock(), health=health, demand=Demand())


def operator(freeze: Freeze, folder: Path, *, boot_id: str = BOOT) -> OperatorFreeze:
    """The operator's file in a folder, as a daemon of a boot finds it."""
    return OperatorFreeze(freeze, run_dir=folder, boot_id=boot_id, clock=FakeClock())


def test_causes_are_independent(freeze: Freeze, health: Health) -> None:
    """All are shown, each ends alone, and the condition goes with the last."""
    freeze.set(FreezeCause.OPERATOR, "maintenance")
    freeze.follow_notices({FreezeCause.REBALANCE: "soon"})
    assert not freeze.may_grow_for_adds, "the operator's stops more"
    assert freeze.reason == "operator: maintenance; rebalance-recommendation: soon"
    assert health.conditions() == [f"frozen: no new ENI and nothing is released: {freeze.reason}"]
    freeze.clear(FreezeCause.OPERATOR)
    assert freeze.reason == "rebalance-recommendation: soon"
    assert health.conditions() == [f"frozen: no new ENI that no ADD waits for and nothing is released: {freeze.reason}"]
    assert freeze.may_grow_for_adds
    freeze.follow_notices({})
    assert (freeze.reason, freeze.in_force(), health.conditions()) == ("", (), [])


def test_notices_end_no_other_cause(freeze: Freeze) -> None:
    """Metadata without notices says nothing about operators and hooks."""
    for cause in FreezeCause:
        freeze.set(cause, "x")
    freeze.follow_notices({})
    assert {one.cause for one in freeze.in_force()} == set(FreezeCause) - {FreezeCause.SPOT_INTERRUPTION, FreezeCause.REBALANCE}


def test_a_cause_keeps_its_time(health: Health) -> None:
    """Said again, with another reason even, it is in force since it came."""
    clock = FakeClock()
    freeze = Freeze(clock=clock, health=health, demand=Demand())
    freeze.set(FreezeCause.DRAIN_HOOK, "one")
    came_at = clock.now()
    clock.advance(60)
    freeze.set(FreezeCause.DRAIN_HOOK, "two")
    assert [(one.reason, one.since_at) for one in freeze.in_force()] == [("two", came_at)]


@pytest.mark.parametrize(("said", "kept"), [("", NO_REASON), (" \n", NO_REASON), ("a\x1b[31m\nb", "a\\x1b[31m\\nb")])
def test_a_reason_is_one_safe_line(freeze: Freeze, said: str, kept: str) -> None:
    """It goes into logs, status and every ADD's refusal."""
    freeze.set(FreezeCause.OPERATOR, said)
    assert [one.reason for one in freeze.in_force()] == [kept]


def test_a_long_reason_is_cut(freeze: Freeze) -> None:
    """A megabyte of reason does not fill the log."""
    freeze.set(FreezeCause.OPERATOR, "x" * 1_000_000)
    assert len(freeze.reason) < REASON_MAX + 60


def test_a_change_wakes_the_pool(health: Health) -> None:
    """The plan is another one, frozen or thawed."""
    demand = Demand()
    freeze = Freeze(clock=FakeClock(), health=health, demand=demand)
    for change in (lambda: freeze.set(FreezeCause.OPERATOR, "x"), lambda: freeze.clear(FreezeCause.OPERATOR)):
        change()
        assert demand.triggered.is_set()
        demand.triggered.clear()
    freeze.clear(FreezeCause.OPERATOR)
    assert not demand.triggered.is_set()


def test_an_operators_freeze_outlives_the_daemon(tmp_path: Path, health: Health) -> None:
    """A restart keeps cause, reason and time; thaw ends it, also for the next daemon."""
    first = Freeze(clock=FakeClock(), health=health, demand=Demand())
    assert operator(first, tmp_path).freeze('a "reason"\n') == ""
    second = Freeze(clock=SystemClock(), health=health, demand=Demand())
    after = operator(second, tmp_path)
    after.restore()
    assert second.in_force() == first.in_force()
    assert after.thaw() == ""
    third = Freeze(clock=FakeClock(), health=health, demand=Demand())
    operator(third, tmp_path).restore()
    assert (second.reason, third.reason) == ("", "")


def test_a_boot_thaws(freeze: Freeze, tmp_path: Path) -> None:
    """The file of an earlier boot counts for nothing, and is removed."""
    operator(freeze, tmp_path).freeze("x")
    freeze.clear(FreezeCause.OPERATOR)
    operator(freeze, tmp_path, boot_id="boot-2").restore()
    assert freeze.reason == ""
    assert list(tmp_path.iterdir()) == []


DAMAGE = [
    "",
    "{",
    "[]",
    "null",
    '{"boot_id": "boot-1"}',
    '{"boot_id": "boot-1", "reason": "x", "since_at": "2026-01-01"}',
    "[" * 4000,
]


@pytest.mark.parametrize("text", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_file_freezes(freeze: Freeze, tmp_path: Path, text: str) -> None:
    """Somebody froze this node: only the words are lost. `thaw` ends it."""
    (tmp_path / OPERATOR_NAME).write_text(text)
    found = operator(freeze, tmp_path)
    found.restore()
    assert [one.cause for one in freeze.in_force()] == [FreezeCause.OPERATOR]
    assert found.thaw() == ""
    assert freeze.reason == ""


def test_a_disk_that_refuses_is_said(freeze: Freeze, tmp_path: Path) -> None:
    """The pool is frozen, and the operator learns that a restart would end it."""
    assert "until the daemon restarts" in operator(freeze, tmp_path / "missing").freeze("x")
    assert freeze.reason == "operator: x"


@pytest.mark.parametrize(("text", "reason"), [("kubectl drain\n", "kubectl drain"), ("", "{path} is there"), ("\xff", "ÿ")])
def test_a_hooks_file_freezes_while_it_is_there(freeze: Freeze, tmp_path: Path, text: str, reason: str) -> None:
    """Its text is the reason."""
    path = tmp_path / "freeze"
    path.write_text(text, encoding="utf-8")
    follower = DrainHookFile(freeze, path=path)
    follower.check()
    assert freeze.reason == f"drain-hook: {reason.format(path=path)}"
    path.unlink()
    follower.check()
    assert freeze.reason == ""


def test_odd_things_at_the_path(freeze: Freeze, tmp_path: Path) -> None:
    """A directory, a FIFO, a loop of links freeze: only "there is none" thaws; none of them blocks."""
    path = tmp_path / "freeze"
    follower = DrainHookFile(freeze, path=path)
    for make, remove in (
        (path.mkdir, path.rmdir),
        (lambda: os.mkfifo(path), path.unlink),
        (lambda: path.symlink_to(path), path.unlink),
    ):
        make()
        follower.check()
        assert "is there and cannot be read" in freeze.reason
        remove()
        follower.check()
        assert freeze.reason == ""


@pytest.fixture
def running(freeze: Freeze, health: Health, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The path of a file that a thread follows, in a directory that is made; its clock never comes, only notifications."""
    monkeypatch.setattr(file_follower, "CHECK_INTERVAL_S", 1e6)
    monkeypatch.setattr(file_follower, "SETTLE_S", 0.001)
    hook = DrainHookFile(freeze, path=tmp_path / "hooks" / "freeze")
    hook.make_directory()
    followers = FileFollowers(health=health, clock=SystemClock(), backoffs=Backoffs(SystemClock()))
    followers.follow(hook)
    with loops.running(followers.loop):
        yield tmp_path / "hooks" / "freeze"


def test_a_hooks_file_is_noticed_at_once(freeze: Freeze, running: Path) -> None:
    """Written and removed, without the clock."""

    def becomes(is_frozen: bool) -> bool:
        until = time.monotonic() + PATIENCE_S
        while bool(freeze.reason) != is_frozen and time.monotonic() < until:
            time.sleep(0.005)
        return bool(freeze.reason) == is_frozen

    for _ in range(3):
        running.write_text("drain")
        assert becomes(True)
        running.unlink()
        assert becomes(False)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node whose primary ENI has two addresses and seven slots left."""
    made = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=2, max_pods=40))
    made.bring_up()
    yield made
    made.datastore.close()


def test_a_frozen_pool_makes_no_eni_until_thawed(node: FakeNode) -> None:
    """ADDs get what the attached ENI can have; the next is refused with the cause; after the thaw an ENI is made."""
    node.app.context.freeze.set(FreezeCause.OPERATOR, "maintenance")
    for number in range(9):
        node.pool.cycle()
        node.add(f"s{number}")
    assert node.ec2.calls["create_eni"] == 0
    node.demand.join()  # a tenth ADD waits
    node.pool.cycle()
    status = node.demand.status
    assert status.kind is Blocked.FROZEN
    assert status.step() == THAW
    node.app.context.freeze.clear(FreezeCause.OPERATOR)
    node.pool.cycle()
    assert node.ec2.calls["create_eni"] == 1
    node.demand.leave()
    node.add("late")
    node.assert_sound()


def test_metadata_freezes_and_thaws(node: FakeNode) -> None:
    """A turn takes over what EC2 announces; a turn that fails changes nothing (I11)."""
    freeze, turn = node.app.context.freeze, node.cloud_reconciler.take_turn
    node.metadata.announced = {FreezeCause.SPOT_INTERRUPTION: "EC2 will terminate it"}
    turn()
    assert freeze.reason == "spot-interruption: EC2 will terminate it"
    assert CONDITION in node.health.conditions_by_subject()
    node.metadata.announced = {}
    node.metadata.fail = [CloudError("silent")]
    turn()
    assert freeze.reason
    turn()
    assert freeze.reason == ""


def test_since_is_utc(freeze: Freeze) -> None:
    """An operator's time is taken as it is kept."""
    since_at = datetime(2026, 1, 1, tzinfo=UTC)
    freeze.set(FreezeCause.OPERATOR, "x", since_at=since_at)
    (one,) = freeze.in_force()
    assert one == replace(one, since_at=since_at)


def test_a_notice_that_cannot_be_read_hides_nothing_else(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENIs are listed and read all the same: other hands are noticed as ever."""

    def refuse() -> object:
        raise CloudError("malformed")

    monkeypatch.setattr(node.metadata, "notices", refuse)
    assert node.cloud_reconciler.take_turn() >= 3
    assert node.enis.book.metadata_view() is not None


def test_many_hands_leave_a_true_condition(freeze: Freeze, health: Health) -> None:
    """Set and cleared by several threads at once, the condition says at the end what is in force."""

    def change(cause: FreezeCause) -> None:
        for number in range(200):
            freeze.set(cause, str(number))
            freeze.clear(cause)

    threads = [threading.Thread(target=change, args=(cause,)) for cause in FreezeCause]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert (freeze.in_force(), health.conditions()) == ((), [])
