"""kill -9 in the middle of a stream of transactions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ipamd.model.address import AddressState
from tests.unit.datastore.support import a_key, open_at

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("acknowledged_count", [1, 8, 77, 400])
def test_nothing_acknowledged_is_lost(tmp_path: Path, acknowledged_count: int) -> None:
    """After a real SIGKILL the file opens intact and holds every acknowledged change, and at most the one in flight (I5)."""
    path = tmp_path / "state.db"
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.datastore.crash_child", str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    lines = [child.stdout.readline().split() for _ in range(acknowledged_count)]
    os.kill(child.pid, signal.SIGKILL)
    lines += [line.split() for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()

    opened = open_at(path)
    assert opened.report.is_sound, opened.report
    store = opened.datastore
    real = _state({int(a.key.container_id, 16) for a in store.attachments()}, store)
    alternatives = [_expected(lines), _expected([*lines, _next(lines)])]
    assert real in alternatives
    assert store.audit() == []
    store.close()


Effect = tuple[frozenset[int], frozenset[int], int]
"""Attached keys, tombstoned keys, number of cooling addresses."""


def _expected(lines: list[list[str]]) -> Effect:
    attached: set[int] = set()
    tombstoned: set[int] = set()
    cooling_count = 0
    for verb, number, *_ in lines:
        if verb == "assigned":
            attached.add(int(number))
        elif verb == "unassigned":
            attached.remove(int(number))
            tombstoned.add(int(number))
            cooling_count += 1
        else:
            cooling_count -= 1
    return frozenset(attached), frozenset(tombstoned), cooling_count


def _next(lines: list[list[str]]) -> list[str]:
    verb, number, *_ = lines[-1]
    if verb == "assigned" and int(number) >= 3:
        return ["unassigned", str(int(number) - 3)]
    if verb == "unassigned":
        return ["cooled", number]
    return ["assigned", str(int(number) + (1 if verb == "assigned" else 4))]


def _state(attached: set[int], store: object) -> Effect:
    addresses = store.addresses()  # type: ignore[attr-defined]
    tombstoned = {number for number in range(2000) if store.is_tombstoned(a_key(number))}  # type: ignore[attr-defined]
    cooling_count = sum(address.state is AddressState.COOLING for address in addresses)
    return frozenset(attached), frozenset(tombstoned), cooling_count
