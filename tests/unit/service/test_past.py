"""The daemon answers about the past from history, ledger, refusals and the present, each event once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.model.history_answer import HistoryAnswer, HistoryQuestion
from ipamd.model.history_subject import HistorySubject
from ipamd.ports.history import NoHistory
from ipamd.report.past import ask as ask_past
from ipamd.report.past import present_holders
from tests.fakes.node import FakeNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A daemon without a kernel; its history is written when a test says so."""
    made = FakeNode(tmp_path)
    made.bring_up()
    yield made
    made.datastore.close()


def ask(node: FakeNode, subject: str, *, limit: int = 100) -> HistoryAnswer:
    """Ask the daemon."""
    return ask_past(node.app.introspection.sources, HistoryQuestion(subject, limit))


def events(node: FakeNode, subject: str) -> list[str]:
    """The events, oldest first."""
    return [record.event for record in ask(node, subject).records]


def test_each_event_is_told_once_wherever_it_is(node: FakeNode) -> None:
    """Before it is written, after, and when only the ledger or only the history has it."""
    address = node.add("a").address
    expected = ["added", "assigned", "unassigned"]
    node.clock.advance(0.0015)
    node.delete("a")
    told = [event for event in events(node, str(address)) if event != "tombstoned"]
    assert told == expected
    node.history.write()
    assert [event for event in events(node, str(address)) if event != "tombstoned"] == expected
    node.crash(keep_datastore=False)
    assert [event for event in events(node, str(address)) if event != "booted"] == expected


@pytest.mark.parametrize("is_written", [True, False])
def test_a_pod_is_found_after_the_datastore_is_lost_only_if_it_was_written(node: FakeNode, is_written: bool) -> None:
    """The file is what outlives /run."""
    made = node.add("a")
    node.delete("a")
    if is_written:
        node.history.write()
    node.crash(keep_datastore=False)
    found = ask(node, "default/a")
    assert [one.pod for one in found.tenures] == (["default/a"] if is_written else [])
    if is_written:
        assert found.tenures[0].address == str(made.address)
        assert found.tenures[0].ended_by == "unassigned (DEL)"
    else:
        assert found.notes[0].startswith("nothing is recorded about default/a")


def test_without_a_history_the_ledger_finds_a_pod(node: FakeNode) -> None:
    """VPC_IPAMD_HISTORY_DIR=off: by name, by name alone and by container ID, and it says that no more is kept."""
    node.add("a")
    node.delete("a")
    sources = replace(node.app.introspection.sources, history=NoHistory())
    for subject in ("default/a", "a"):
        told = [record.event for record in ask_past(sources, HistoryQuestion(subject, 100)).records]
        assert [event for event in told if event in ("assigned", "unassigned")] == ["assigned", "unassigned"], subject
    assert "VPC_IPAMD_HISTORY_DIR=off" in " ".join(ask_past(sources, HistoryQuestion("default/nobody", 100)).notes)


def test_who_has_it_now_is_told_though_nothing_was_written(node: FakeNode) -> None:
    """A pod that is older than ledger and history."""
    made = node.add("a")
    (present,) = present_holders(node.datastore, node.clock)
    assert HistorySubject("default/a").fits(present)
    assert (present.address, present.since) == (str(made.address), made.created_at)
    assert [one.until for one in ask(node, "default/a").tenures] == [None]


def test_a_rolled_back_change_is_in_no_history(node: FakeNode) -> None:
    """What was not committed did not happen."""
    address = node.datastore.addresses()[0].address

    def fail() -> None:
        with node.datastore.transaction() as unit:
            unit.remove_addresses([address], reason="never")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    node.history.write()
    assert "removed" not in events(node, str(address))
