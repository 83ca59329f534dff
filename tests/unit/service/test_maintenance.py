"""Periodic work: the spool, the datastore's file, old tombstones."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn

import pytest

from ipamd.core.deadline import Deadline
from ipamd.core.demand import PoolStatus
from ipamd.host.maintenance import TOMBSTONE_AGE, Maintenance
from ipamd.model.errors import BusyError, DatastoreError
from ipamd.model.growth_state import GrowthRefusal, growth_refusal
from ipamd.model.ids import AttachmentKey
from ipamd.pb import cni_pb2
from ipamd.process.lifecycle import REPLAY_WHILE_SERVING_S, Lifecycle
from ipamd.report.verdict import condition_reports, facts, verdict
from tests.fakes.node import FakeNode
from tests.stories.in_process import ask


@pytest.mark.parametrize(
    ("free", "blocked", "is_needed_soon"), [(0, None, True), (0, growth_refusal("full"), False), (1, None, False)]
)
def test_what_asks_ec2_is_ready_before_an_add_waits_for_it(
    node: FakeNode, free: int, blocked: GrowthRefusal | None, is_needed_soon: bool
) -> None:
    """Its start is a third of a second: no ADD on an empty pool pays it, and where the pool cannot grow nothing is kept ready."""
    wanted: list[bool] = []
    maintenance = Maintenance(
        node.app.context,
        spool=node.spool,
        leave_mark=lambda: None,
        replay=lambda: None,
        release_idle=lambda *, is_needed_soon: wanted.append(is_needed_soon),
        find_other_daemon=lambda: True,
        keep_sockets=lambda: None,
        end=lambda _: None,
    )
    while node.datastore.counts().free > free:
        node.add(f"pod-{node.datastore.counts().free}")
    node.app.context.demand.publish(PoolStatus(blocked=blocked))
    maintenance.turn()
    assert (node.datastore.counts().free, wanted) == (free, [is_needed_soon])


def test_a_disk_that_refuses_is_a_condition_until_it_takes_a_change(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says that ADD fails, not how many addresses there are; it ends by itself, also if no pod comes."""
    maintenance = Maintenance(
        node.app.context,
        spool=node.spool,
        leave_mark=lambda: None,
        replay=lambda: None,
        release_idle=lambda **_: None,
        find_other_daemon=lambda: True,
        keep_sockets=lambda: None,
        end=lambda _: None,
    )
    node.health.mark_ready()
    real = node.datastore.transaction

    def full() -> NoReturn:
        raise DatastoreError("committing: disk is full", details="free space there")

    monkeypatch.setattr(node.datastore, "transaction", full)
    assert ask(node, "DEL", "pod").error.code == DatastoreError.cni_code
    for _ in range(2):
        found = facts(node.app.introspection.sources)
        line = "ready, with 1 condition: datastore: ADD and DEL fail: committing: disk is full: free space there"
        assert verdict(found) == line
        assert "`df -i`" in condition_reports(found)[0].next
        maintenance.turn()
    monkeypatch.setattr(node.datastore, "transaction", real)
    maintenance.turn()
    assert node.health.conditions() == []
    assert verdict(facts(node.app.introspection.sources)).startswith("ready: ")


def test_old_tombstones_go_and_young_ones_stay(node: FakeNode) -> None:
    """A late ADD is refused for an hour after its DEL; after that the row goes, so that a node's years fit on its disk (I4)."""
    ended: list[str] = []
    maintenance = Maintenance(
        node.app.context,
        spool=node.spool,
        leave_mark=lambda: ended.append("marked"),
        replay=lambda: ended.append("replayed"),
        release_idle=lambda **_: None,
        find_other_daemon=lambda: True,
        keep_sockets=lambda: None,
        end=ended.append,
    )
    node.delete("old")
    node.clock.step_wall(10 * TOMBSTONE_AGE.total_seconds())
    node.clock.advance(1000)
    maintenance.turn()
    assert node.datastore.is_tombstoned(node.key("old")), "a clock that is set is no hour"
    node.clock.step_wall(-20 * TOMBSTONE_AGE.total_seconds())
    node.clock.advance(TOMBSTONE_AGE.total_seconds() - 999)
    node.delete("young")
    maintenance.turn()
    assert not node.datastore.is_tombstoned(node.key("old"))
    assert node.datastore.is_tombstoned(node.key("young"))
    (node.run_dir / "spool").mkdir(exist_ok=True)
    (node.run_dir / "spool" / "del-1").write_bytes(b"x")
    maintenance.turn()
    assert ended == ["marked", "marked", "marked", "replayed"], "what is spooled while we serve is carried out (I3)"
    (node.run_dir / "state.db").unlink()
    maintenance.turn()
    assert "removed or replaced" in ended[-1]


def spool_del(node: FakeNode, name: str, number: int) -> None:
    """A plugin that got no answer left a DEL."""
    directory = node.run_dir / "spool"
    directory.mkdir(exist_ok=True)
    request = cni_pb2.ExecRequest(verb="DEL", container_id=name, ifname="eth0")
    (directory / f"del-{name}-{1000000 + number}").write_bytes(request.SerializeToString())


def test_a_sandbox_in_work_delays_neither_other_spooled_dels_nor_the_rest(node: FakeNode) -> None:
    """All sandboxes in work together are waited for at most a second, and the start's stage stays as it was."""
    waits_s = []
    real = node.detacher.detach_sandbox

    def detach(key: AttachmentKey, *, deadline: Deadline, **options: Any) -> bool:
        waits_s.append(deadline.remaining_s())
        with suppress(BusyError):
            return real(key, deadline=Deadline.after(node.clock, 0.0), **options)
        node.clock.advance(deadline.remaining_s())  # it waited in vain
        raise BusyError("another operation holds it")

    node.detacher.detach_sandbox = detach  # type: ignore[method-assign,assignment]
    names = ["busy-1", "busy-2", "free"]
    for number, name in enumerate(names):
        node.add(name)
        spool_del(node, name, number)
    maintenance = Lifecycle(node.app, end=lambda _: None)._maintenance
    stages = node.health.stages()
    deadline = Deadline.after(node.clock, 0.0)
    with node.locks.hold(node.key("busy-1"), "ADD", deadline), node.locks.hold(node.key("busy-2"), "ADD", deadline):
        maintenance.turn()
    assert waits_s == [REPLAY_WHILE_SERVING_S, 0.0, 0.0]
    assert {attachment.key.container_id for attachment in node.datastore.attachments()} == {"busy-1", "busy-2"}
    assert node.spool.pending_count() == 2
    assert node.health.stages() == stages
    maintenance.turn()
    assert node.spool.pending_count() == 0


def test_a_spool_that_refuses_delays_nothing_else(node: FakeNode) -> None:
    """What the policy agent is owed is settled, and old tombstones go."""
    settled: list[str] = []

    def refuse() -> None:
        raise DatastoreError("spool: the disk refuses")

    maintenance = Maintenance(
        node.app.context,
        spool=node.spool,
        leave_mark=lambda: None,
        replay=refuse,
        release_idle=lambda **_: None,
        find_other_daemon=lambda: True,
        keep_sockets=lambda: None,
        end=lambda _: None,
        clean_up_policy=lambda: settled.append("settled"),
    )
    node.add("a")
    node.delete("a")
    node.clock.advance(TOMBSTONE_AGE.total_seconds() + 1)
    spool_del(node, "b", 0)
    with pytest.raises(DatastoreError):
        maintenance.turn()
    assert settled
    assert not node.datastore.is_tombstoned(node.key("a"))
