"""Statements are compiled once in a process, however many files it opens: the cache of compiled statements is found again."""

from __future__ import annotations

from pathlib import Path

from ipamd.datastore import disk
from ipamd.datastore.open import open_datastore
from tests.fakes.clock import FakeClock


def open_and_close(path: Path) -> None:
    """As a daemon opens its file at a start, and closes it."""
    open_datastore(path, boot_id="boot", clock=FakeClock()).datastore.close()


def test_a_second_file_compiles_nothing(tmp_path: Path) -> None:
    """Neither a new file, after one that was new, nor one that is read again, after one that was."""
    for _ in range(2):
        open_and_close(tmp_path / "first.db")
    compiled = set(map(id, disk._COMPILED.values()))
    for _ in range(2):
        open_and_close(tmp_path / "second.db")
    assert set(map(id, disk._COMPILED.values())) == compiled
