"""The runtime's first list at a start may be empty or lack a part: that takes nothing from a sandbox that lives (I2, I11)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.evidence import LEAK_AGE_S
from ipamd.model.sandbox import Sandbox
from ipamd.sandbox.judge import LIST_INTERVAL_S
from tests.fakes.node import FakeNode
from tests.unit.service.branches import attach, branch_eni, node_with_trunk


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with a trunk."""
    made = node_with_trunk(tmp_path)
    yield made
    made.datastore.close()


def run_branches(node: FakeNode, count: int) -> dict[str, Sandbox]:
    """Sandboxes with branch ENIs. Returns: what the runtime lists."""
    for vlan in range(1, count + 1):
        node.ec2.enis[branch_eni(vlan).eni_id] = branch_eni(vlan)
        attach(node, vlan)
        node.runtime.run(f"sandbox-{vlan}")
    return dict(node.runtime.listed)


def list_once(node: FakeNode) -> None:
    """One turn of the loop that lists."""
    node.clock.advance(LIST_INTERVAL_S + 1)
    node.runtime_reconciler.begin()
    node.runtime_reconciler.reconcile_once()


def restart(node: FakeNode, listed: dict[str, Sandbox], *, keep_datastore: bool = True) -> None:
    """A new process whose runtime lists these."""
    node.runtime.listed = listed
    node.crash(keep_datastore=keep_datastore)
    node.bring_up()


@pytest.mark.parametrize("count", [1, 3])
def test_an_empty_list_at_every_start_takes_nothing(node: FakeNode, count: int) -> None:
    """The datastore is lost, and three starts find an empty list; the first right one adopts all, and ends the restore."""
    listed = run_branches(node, count)
    restart(node, {}, keep_datastore=False)
    for _ in range(2):
        assert len(node.wiring.wired) == count
        assert not node.datastore.attachments()
        restart(node, {})
    node.runtime.listed = listed
    list_once(node)
    assert len(node.datastore.attachments()) == count
    assert not node.quarantine.unplaced(is_of_pool=False)
    restart(node, listed)
    assert node.opened.report.is_intact
    node.assert_sound()


def test_a_list_that_lacks_a_part_at_every_start_takes_nothing(node: FakeNode) -> None:
    """It is plausible, so the restore ends; who had no row then is not taken for what an ADD left."""
    listed = run_branches(node, 3)
    part = {"sandbox-1": listed["sandbox-1"]}
    restart(node, part, keep_datastore=False)
    for _ in range(3):
        assert len(node.wiring.wired) == 3
        assert len(node.datastore.attachments()) == 1
        restart(node, part)
        assert node.opened.report.is_intact
    restart(node, listed)
    assert len(node.datastore.attachments()) == 3
    node.assert_sound()


def test_a_file_of_the_release_before_protects_them_too(node: FakeNode) -> None:
    """It recorded that rows were lost, and not whose."""
    listed = run_branches(node, 2)
    part = {"sandbox-1": listed["sandbox-1"]}
    restart(node, part, keep_datastore=False)
    node.runtime.listed = part
    node.datastore.close()
    with closing(sqlite3.connect(node.run_dir / "state.db")) as file:
        file.execute("DELETE FROM meta WHERE name = 'unplaced'")
        file.commit()
    node.start()
    node.bring_up()
    assert len(node.wiring.wired) == 2


def test_who_is_dead_is_removed_in_the_end(node: FakeNode) -> None:
    """Absent from the lists for an hour while another sandbox is in them: then the wiring goes."""
    listed = run_branches(node, 2)
    part = {"sandbox-1": listed["sandbox-1"]}
    restart(node, {}, keep_datastore=False)
    node.runtime.listed = part
    for _ in range(2):
        list_once(node)
    assert len(node.wiring.wired) == 2
    node.clock.advance(LEAK_AGE_S)
    list_once(node)
    assert [veth.key for veth in node.wiring.survey().firsts if veth.key and not veth.is_dying] == [node.key("sandbox-1")]


def test_an_empty_list_is_implausible_for_sandboxes_without_a_row_too(node: FakeNode) -> None:
    """Hours of empty lists while several are wired: nothing is unwired."""
    run_branches(node, 2)
    restart(node, {}, keep_datastore=False)
    for _ in range(4):
        list_once(node)
        node.clock.advance(LEAK_AGE_S)
    assert len(node.wiring.wired) == 2
    assert node.health.conditions_by_subject()["cri"].startswith("CRI: implausible")


def test_what_an_add_left_is_removed_at_once_by_a_whole_datastore(node: FakeNode) -> None:
    """It never answered: its branch must be free for the pod's next sandbox. What a lost file may have had does not protect it."""
    listed = run_branches(node, 1)
    attach(node, 2)
    with node.datastore.transaction() as uow:
        uow.unassign(node.key("sandbox-2"), cooldown=node.cooldown.period, reason="of the test")
    node.clock.advance(60)
    with node.datastore.transaction() as uow:
        uow.drop_tombstones(older_than=timedelta(seconds=1))
    restart(node, listed)
    assert [veth.key for veth in node.wiring.survey().firsts if veth.key and not veth.is_dying] == [node.key("sandbox-1")]


def test_an_implausible_first_list_does_not_keep_a_node_from_serving(node: FakeNode) -> None:
    """What is wired is kept, and the next pod gets an address."""
    node.add("a")
    node.runtime.run("a")
    restart(node, {}, keep_datastore=False)
    assert node.add("b")
    node.attacher.attach_sandbox(node.request("c"), deadline=Deadline.after(node.clock, 5.0), steps=StepTimer(node.clock))
    assert len(node.wiring.wired) == 3
