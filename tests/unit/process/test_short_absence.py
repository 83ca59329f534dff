"""How long a start waits for EC2, by the time that no daemon served (docs/adr/0087)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.health import Phase
from ipamd.datastore.open import OpenOutcome
from ipamd.process.lifecycle import CLOUD_PATIENCE_S, SHORT_ABSENCE_S, Lifecycle
from ipamd.process.served_mark import SERVED_NAME, ServedMark
from tests.fakes.node import FakeNode

BOOT = "5d0c8f0e-0000-4000-8000-000000000001"


def mark(node: FakeNode, run_dir: Path, *, boot_id: str = BOOT) -> ServedMark:
    """The mark of a daemon in this run directory."""
    return ServedMark(run_dir, boot_id=boot_id, health=node.health)


def served_ms_ago(run_dir: Path, *, ms: int, boot_id: str = BOOT) -> None:
    """Leave a mark as a daemon did that long ago."""
    now_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    (run_dir / SERVED_NAME).write_text(f"{boot_id}\n{now_ms - ms}\n")


def test_the_mark_says_how_long_nobody_served(tmp_path: Path) -> None:
    """What one daemon writes the next one reads."""
    node = FakeNode(tmp_path)
    assert mark(node, tmp_path).absence_s() == math.inf
    node.health.enter(Phase.SERVING)
    node.health.mark_ready()
    mark(node, tmp_path).leave()
    assert mark(node, tmp_path).absence_s() < 60
    served_ms_ago(tmp_path, ms=90_000)
    assert 90 <= mark(node, tmp_path).absence_s() < 150


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"one\ntwo\nthree\n", b"5d0c8f0e-0000-4000-8000-000000000001\nsoon\n"])
def test_a_mark_that_cannot_be_read_counts_as_none(tmp_path: Path, content: bytes) -> None:
    """Damaged, or of other software."""
    node = FakeNode(tmp_path)
    (tmp_path / SERVED_NAME).write_bytes(content)
    assert mark(node, tmp_path).absence_s() == math.inf


def test_a_mark_of_another_boot_or_of_the_future_counts_as_none(tmp_path: Path) -> None:
    """Its clock is not ours."""
    node = FakeNode(tmp_path)
    served_ms_ago(tmp_path, ms=1000, boot_id="another")
    assert mark(node, tmp_path).absence_s() == math.inf
    served_ms_ago(tmp_path, ms=-60_000)
    assert mark(node, tmp_path).absence_s() == math.inf


def waited_for(life: Lifecycle, monkeypatch: pytest.MonkeyPatch, absence_s: float) -> tuple[str, float]:
    """What a start waits for at most, and how long."""
    waits: list[tuple[str, float]] = []

    def wait(is_done: Callable[[], bool], *, patience_s: float) -> None:
        life._cloud.is_node_set_up, life._cloud.is_answered = True, False
        waits.append(("metadata" if is_done() else "EC2", patience_s))

    monkeypatch.setattr(life, "_await", wait)
    life._await_cloud(absence_s)
    return waits[0]


def test_the_wait_depends_on_absence_and_datastore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2 is not waited for after a short absence, with a limit after a long one, without limit while no address could be given."""
    node = FakeNode(tmp_path)
    life = Lifecycle(node.app, end=print)
    assert waited_for(life, monkeypatch, 1.0) == ("EC2", math.inf)
    node.bring_up()
    opened = node.app.adapters.opened
    report = replace(opened.report, outcome=OpenOutcome.INTACT, problems=(), was_restored=True)
    node.app.adapters.opened = replace(opened, report=report)
    assert waited_for(life, monkeypatch, SHORT_ABSENCE_S) == ("metadata", CLOUD_PATIENCE_S)
    assert waited_for(life, monkeypatch, SHORT_ABSENCE_S + 1) == ("EC2", CLOUD_PATIENCE_S)
    node.app.adapters.opened = replace(opened, report=replace(report, was_restored=False))
    assert waited_for(life, monkeypatch, 1.0) == ("EC2", CLOUD_PATIENCE_S)
