"""Sandboxes that are gone without a DEL are reaped, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.conditions import ConditionCode
from ipamd.model.errors import KernelDumpError
from ipamd.model.evidence import LEAK_AGE_S
from ipamd.model.history import LedgerEvent
from ipamd.model.ids import parse_key
from ipamd.sandbox.judge import LIST_INTERVAL_S
from tests.conditions import codes
from tests.fakes.node import FakeNode


def vanish(node: FakeNode, name: str) -> None:
    """A sandbox dies without a DEL: its namespace goes, and its veth with it."""
    made = node.datastore.attachment(node.key(name))
    assert made is not None
    del node.wiring.netns[made.netns]
    node.wiring.wired.pop(made.host_veth, None)


def look_often(node: FakeNode, times: int = 4) -> int:
    """Look `times` times, one list interval apart; returns how many were reaped."""
    reaped = 0
    for _ in range(times):
        reaped += len(node.runtime_reconciler.reconcile_once())
        node.clock.advance(LIST_INTERVAL_S)
    return reaped


def test_a_dead_sandbox_is_reaped_within_six_minutes(node: FakeNode) -> None:
    """Absent twice, old enough, namespace and veth gone: freed without a DEL, also where the host's mounts do not appear."""
    node.wiring.are_mounts_seen = False
    node.add("a")
    vanish(node, "a")
    spent = 0.0
    while node.datastore.attachment(node.key("a")) is not None:
        node.runtime_reconciler.reconcile_once()
        node.clock.advance(LIST_INTERVAL_S)
        spent += LIST_INTERVAL_S
        assert spent <= 360, "6 minutes are the bound"
    assert spent > 300, "and 5 minutes are the least age"
    node.cool()
    node.assert_sound()


def test_a_reap_is_in_the_ledger_as_a_reap(node: FakeNode) -> None:
    """The row that frees a reaped address says `reaped`, with sandbox, ENI and the verdict's reasons; a DEL's says `unassigned`."""
    for name in ("a", "b"):
        node.add(name)
    made = node.datastore.attachment(node.key("a"))
    assert made is not None
    node.runtime.run("b")
    vanish(node, "a")
    node.clock.advance(100_000)
    assert look_often(node) == 1
    history = node.datastore.history(str(made.address), limit=10)
    assert [entry.event for entry in history] == [LedgerEvent.ADDED, LedgerEvent.ASSIGNED, LedgerEvent.REAPED]
    row = history[-1]
    assert (row.container_id, row.ifname, row.eni_id) == (made.key.container_id, made.key.ifname, made.eni_id)
    assert "network namespace is gone" in row.detail
    assert [entry.event for entry in node.datastore.history("a", limit=10)][-2:] == [LedgerEvent.REAPED, LedgerEvent.TOMBSTONED]
    node.delete("b")
    assert LedgerEvent.UNASSIGNED in {entry.event for entry in node.datastore.history("b", limit=10)}


def test_a_listed_sandbox_is_never_reaped(node: FakeNode) -> None:
    """What the runtime lists, READY or not, is kept for ever (I2)."""
    node.add("a")
    node.runtime.run("a")
    vanish(node, "a")
    node.clock.advance(100_000)
    assert look_often(node) == 0


def test_a_silent_runtime_frees_nothing(node: FakeNode) -> None:
    """CRI unreachable: no reaping at all, and it says so (I11)."""
    node.add("a")
    vanish(node, "a")
    node.runtime.is_down = True
    node.clock.advance(100_000)
    assert look_often(node) == 0
    assert ConditionCode.RUNTIME_NOT_BELIEVED in codes(node.health)


def test_an_interrupted_dump_frees_nothing(node: FakeNode) -> None:
    """An incomplete survey of the kernel is no evidence (I11)."""
    node.add("a")
    vanish(node, "a")
    node.clock.advance(100_000)
    node.wiring.fail["survey"] = [KernelDumpError("interrupted") for _ in range(4)]
    assert look_often(node) == 0
    assert look_often(node) == 1


def test_a_living_namespace_is_kept_for_an_hour(node: FakeNode) -> None:
    """A namespace that nobody lists any more is a leak after an hour: the veth goes, then the address."""
    node.add("a")
    node.clock.advance(3000)
    assert look_often(node) == 0
    node.clock.advance(3600)
    assert look_often(node) == 1
    assert not node.wiring.wired


def test_a_netns_path_that_was_used_again_is_not_the_sandbox(node: FakeNode) -> None:
    """The path stands but leads to another namespace: the inode tells."""
    node.add("a")
    made = node.datastore.attachment(node.key("a"))
    assert made is not None
    vanish(node, "a")
    node.wiring.make_netns("/run/netns/filler")
    node.wiring.make_netns(made.netns)
    node.clock.advance(100_000)
    assert look_often(node) == 1


def test_an_implausible_list_is_refused(node: FakeNode) -> None:
    """A list with none of several wired sandboxes is not believed (docs/datastore.md, Sources)."""
    for number in range(3):
        node.add(f"s{number}")
    node.clock.advance(100_000)
    assert look_often(node) == 0
    assert any("implausible" in sentence for sentence in node.health.conditions())


def test_a_list_without_the_only_sandbox_is_believed_whatever_its_interfaces(node: FakeNode) -> None:
    """A meta plugin gave it a second one. Two interfaces of one sandbox are not two sandboxes that the list should have."""
    node.add("a", pod="victim")
    further = replace(node.request("a", pod="victim"), key=parse_key("a", "net1"))
    node.attacher.attach_sandbox(further, deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock))
    node.clock.advance(100_000)
    assert look_often(node) == 0
    assert node.health.conditions() == []
    node.clock.advance(LEAK_AGE_S)
    assert look_often(node) == 2
    assert not node.wiring.wired


def test_an_implausible_list_is_refused_for_quarantined_sandboxes_too(node: FakeNode) -> None:
    """Datastore lost, and a list with none of several wired sandboxes: their wiring stays, whatever the hour (I2, I11)."""
    made = [node.add(f"s{number}") for number in range(3)]
    node.crash(keep_datastore=False)
    node.bring_up()
    for _ in range(100):
        node.runtime_reconciler.reconcile_once()
        node.clock.advance(LIST_INTERVAL_S)
    assert {attachment.host_veth for attachment in made} == set(node.wiring.wired)
    assert any("implausible" in sentence for sentence in node.health.conditions())
    for attachment in made:
        node.runtime.run(attachment.key.container_id)
    node.runtime_reconciler.reconcile_once()
    assert {a.key: a.address for a in node.datastore.attachments()} == {a.key: a.address for a in made}
    assert node.health.conditions() == []


def test_a_sandbox_that_reappears_starts_the_count_anew(node: FakeNode) -> None:
    """Absences must be successive: one list with it in between, and the count begins again."""
    node.add("a")
    node.clock.advance(100_000)
    node.runtime_reconciler.reconcile_once()
    node.runtime.run("a")
    node.clock.advance(LIST_INTERVAL_S)
    node.runtime_reconciler.reconcile_once()
    node.runtime.listed.clear()
    vanish(node, "a")
    node.clock.advance(LIST_INTERVAL_S)
    assert node.runtime_reconciler.reconcile_once() == []


@pytest.mark.parametrize("gap_s", [0.0, LIST_INTERVAL_S - 0.1])
def test_two_lists_in_quick_succession_count_as_one(node: FakeNode, gap_s: float) -> None:
    """Events may cause lists at any time: they count when an interval lies between (docs/datastore.md, Sources)."""
    node.add("a")
    vanish(node, "a")
    node.clock.advance(100_000)
    assert node.runtime_reconciler.reconcile_once() == []
    node.clock.advance(gap_s)
    assert node.runtime_reconciler.reconcile_once() == []


def test_reasons_to_keep_are_in_the_ledger(node: FakeNode) -> None:
    """Why a suspect was kept can be read, once per kind of reason and not at every look."""
    node.add("a")
    look_often(node)
    kept = [entry for entry in node.datastore.history("a", limit=100) if entry.event == "kept"]
    assert 1 <= len(kept) <= 3
    assert "are needed" in kept[0].detail


def test_the_start_hears_of_a_runtime_that_is_back(node: FakeNode) -> None:
    """While the start still waits for others, perhaps for hours, nothing says that the runtime is down."""
    fresh, node.runtime.is_down = node.runtime_reconciler, True
    fresh.first_list = None
    fresh.turn()
    assert "cri" in node.health.conditions_by_subject()
    node.runtime.is_down = False
    fresh.turn()
    assert fresh.first_list is not None
    assert "cri" not in node.health.conditions_by_subject()
