"""Each assignment and each release is one line of the daemon's log, with the same keys on every path: a fleet can be searched."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.history.writer import Boot, HistoryWriter
from ipamd.logs import JsonFormatter
from ipamd.model.history import HistoryRecord, RecordedHistory
from tests.errors import refused_by_kernel
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import INSTANCE
from tests.fakes.node import FakeNode
from tests.unit.service.test_runtime_reconciler import look_often, vanish

ASSIGNED, RELEASED = "address assigned", "address released"
KEYS = {"event", "node", "address", "other_address", "eni", "pod", "container", "ifname", "from"}


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the daemon says at its usual level."""
    caplog.set_level(logging.INFO)
    return caplog


def told(log: pytest.LogCaptureFixture, *, about: str = "") -> list[dict[str, Any]]:
    """The lines as they are printed, of one container or of all."""
    lines = [json.loads(JsonFormatter().format(record)) for record in log.records]
    return [one for one in lines if one["message"] in (ASSIGNED, RELEASED) and about in ("", one["container"])]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A daemon without a kernel."""
    made = FakeNode(tmp_path)
    made.bring_up()
    yield made
    made.datastore.close()


def _del(node: FakeNode) -> None:
    node.delete("a")
    node.delete("a")  # a runtime repeats it


def _reap(node: FakeNode) -> None:
    node.runtime.run("b")
    vanish(node, "a")
    node.clock.advance(100_000)
    assert look_often(node) == 1


def _gc(node: FakeNode) -> None:
    vanish(node, "a")
    node.runtime.run("b")
    node.clock.advance(100_000)
    keys, deadline = frozenset({node.key("b")}), Deadline.after(node.clock, 10)
    assert node.app.sandbox.gc.collect(keys, network_name="vpc-ipamd", deadline=deadline, steps=StepTimer(node.clock)).freed


@pytest.mark.parametrize(
    ("end", "event", "reason"), [(_del, "unassigned", "DEL"), (_reap, "reaped", "namespace is gone"), (_gc, "unassigned", "GC: ")]
)
def test_each_way_from_a_pod_to_the_next_is_two_lines(
    node: FakeNode, log: pytest.LogCaptureFixture, end: Any, event: str, reason: str
) -> None:
    """ADD and its repetition are one; the end has both times. No other line tells of either but the request's."""
    made = node.add("a")
    node.add("b")
    node.add("a")
    began = node.clock.now()
    node.clock.advance(5)
    end(node)
    node.history.turn()
    node.history.turn()
    assigned, released = told(log, about="a")
    who = {"node": INSTANCE, "address": str(made.address), "eni": made.eni_id, "pod": "default/a", "container": "a"}
    who |= {"ifname": "eth0", "other_address": "", "from": f"{began:%Y-%m-%dT%H:%M:%S}.000Z"}
    assert {key: assigned[key] for key in KEYS} == {"event": "assigned", **who}
    assert {key: released[key] for key in KEYS} == {"event": event, **who}
    assert released["until"] > released["from"]
    assert reason in released["reason"]
    assert "until" not in assigned


def test_an_adoption_is_an_assignment(node: FakeNode, log: pytest.LogCaptureFixture) -> None:
    """The datastore was lost, and the sandbox found again."""
    made = node.add("a")
    node.runtime.run("a")
    node.crash(keep_datastore=False)
    node.bring_up()
    log.clear()
    node.history.turn()
    found = [one for one in told(log, about="a") if one["event"] == "adopted"]
    assert [one["address"] for one in found] == [str(made.address)]


RECORD = HistoryRecord(FakeClock().now(), "assigned", "10.0.0.5", "c1", "eth0", "eni-1", pod="default/a", other_address="fd00::5")


def writer(
    directory: Path | None, *, boot: str = "one", node: str = "i-1", held: tuple[HistoryRecord, ...] = ()
) -> HistoryWriter:
    """A daemon's."""
    clock = FakeClock()
    at = Boot(boot, clock.now())
    return HistoryWriter(
        directory,
        days=7,
        bytes_max=1 << 20,
        boot=at,
        clock=clock,
        current_tenures=lambda: held,
        node=lambda: node,
        ledger=lambda _: RecordedHistory(),
    )


def test_a_disk_that_refuses_costs_no_line_and_doubles_none(
    tmp_path: Path, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is not the disk's; what waits for the disk was logged already."""
    made = writer(tmp_path / "history")
    with monkeypatch.context() as patched:

        def refuse(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(os, "write", refuse)
        made.enqueue([RECORD])
        for _ in range(3):
            with pytest.raises(OSError, check=refused_by_kernel(errno.ENOSPC)):
                made.write()
    made.write()
    made.close()
    assert [one["other_address"] for one in told(log)] == ["fd00::5"]


def test_without_a_history_they_are_logged_all_the_same(log: pytest.LogCaptureFixture) -> None:
    """VPC_IPAMD_HISTORY_DIR=off."""
    made = writer(None)
    made.enqueue([RECORD])
    made.turn()
    assert len(told(log)) == 1
    assert "no history is kept" in made.read("10.0.0.5").problem
    made.close()


def test_a_line_waits_until_the_node_is_known_and_is_not_lost_if_it_ends_before(log: pytest.LogCaptureFixture) -> None:
    """Without its node a line is no use to a fleet."""
    made = writer(None, node="")
    made.enqueue([RECORD])
    assert made.turn() <= 10
    assert told(log) == []
    made.close()
    assert [one["address"] for one in told(log)] == ["10.0.0.5"]


def test_a_boot_releases_what_the_boot_before_left(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """Once: nobody sends a DEL for a sandbox of the boot before."""
    held = replace(RECORD, event="held", address="10.0.0.6", since=RECORD.at)
    before = writer(tmp_path, held=(held,))
    ended = replace(RECORD, address="10.0.0.7")
    before.enqueue([RECORD, ended, replace(ended, event="unassigned", since=ended.at)])
    before.close()
    log.clear()
    for boot in ("two", "two"):
        after = writer(tmp_path, boot=boot)
        after.turn()
        after.close()
    assert sorted((one["event"], one["address"]) for one in told(log)) == [("booted", "10.0.0.5"), ("booted", "10.0.0.6")]
    assert all(one["until"] >= one["from"] and one["container"] == "c1" for one in told(log))


def test_what_a_killed_daemon_committed_is_logged_by_the_next_one(node: FakeNode, log: pytest.LogCaptureFixture) -> None:
    """kill -9 before the line: the ledger has it, with its beginning; what was logged is not logged again."""
    node.add("a")
    node.add("b")
    node.history.turn()
    node.clock.advance(5)
    node.delete("a")
    node.add("c")
    node.clock.advance(1)
    node.crash()
    node.delete("b")
    node.history.turn()
    node.crash()
    node.history.turn()
    found = [(one["event"], one["container"], one["pod"]) for one in told(log)]
    assert sorted(found) == sorted(
        [("assigned", name, f"default/{name}") for name in "abc"] + [("unassigned", name, f"default/{name}") for name in "ab"]
    )
    (late,) = [one for one in told(log, about="a") if one["message"] == RELEASED]
    assert late["from"] < late["until"]
    assert all(one["eni"] for one in told(log))
