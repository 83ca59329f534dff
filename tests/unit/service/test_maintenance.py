"""Periodic work: the spool, the datastore's file, old tombstones."""

from __future__ import annotations

from typing import NoReturn

import pytest

from ipamd.core.demand import PoolStatus
from ipamd.host.maintenance import TOMBSTONE_AGE, Maintenance
from ipamd.model.errors import DatastoreError
from ipamd.report.verdict import facts, told, verdict
from tests.fakes.node import FakeNode
from tests.stories.in_process import ask


@pytest.mark.parametrize(("free", "blocked_by", "is_wanted"), [(0, "", True), (0, "the subnet is full", False), (1, "", False)])
def test_what_asks_ec2_is_ready_before_an_add_waits_for_it(node: FakeNode, free: int, blocked_by: str, is_wanted: bool) -> None:
    """Its start is a third of a second: no ADD on an empty pool pays it, and where the pool cannot grow nothing is kept ready."""
    wanted: list[bool] = []
    maintenance = Maintenance(
        node.app.context,
        spool=node.spool,
        leave_mark=lambda: None,
        replay=lambda: None,
        rest=lambda *, is_wanted: wanted.append(is_wanted),
        look=lambda: True,
        keep=lambda: None,
        end=lambda _: None,
    )
    while node.datastore.counts().free > free:
        node.add(f"pod-{node.datastore.counts().free}")
    node.app.context.demand.publish(PoolStatus(blocked_by=blocked_by))
    maintenance.turn()
    assert (node.datastore.counts().free, wanted) == (free, [is_wanted])


def test_a_disk_that_refuses_is_a_condition_until_it_takes_a_change(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says that ADD fails, not how many addresses there are; it ends by itself, also if no pod comes."""
    maintenance = Maintenance(
        node.app.context,
        spool=node.spool,
        leave_mark=lambda: None,
        replay=lambda: None,
        rest=lambda **_: None,
        look=lambda: True,
        keep=lambda: None,
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
        assert "`df -i`" in told(found)[0].next
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
        rest=lambda **_: None,
        look=lambda: True,
        keep=lambda: None,
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
