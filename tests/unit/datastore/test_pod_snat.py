"""The column of what was chosen for a sandbox's SNAT: written, read again, and removed by the way back to level 8."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.datastore import command
from ipamd.datastore.migrations import OLDEST_LEVEL
from ipamd.datastore.open import OpenOutcome
from ipamd.model.pod_snat import PodSnat
from tests.unit.datastore.support import a_key, an_attachment, attach, fill, open_at


@pytest.mark.parametrize("choice", [*PodSnat, None])
def test_a_choice_is_kept(path: Path, choice: PodSnat | None) -> None:
    """The next process reads what was confirmed."""
    store = open_at(path).datastore
    fill(store)
    attachment = replace(an_attachment(store.reserve(a_key()), a_key()), snat=choice)
    with store.transaction() as unit:
        unit.confirm(attachment)
    store.close()
    again = open_at(path).datastore
    assert again.attachment(a_key()) == attachment
    again.close()


def test_the_way_back_drops_the_choice_and_no_row(path: Path) -> None:
    """A file of level 8 has no such column; taken forward again, its sandboxes are translated as the node's settings say."""
    store = open_at(path).datastore
    fill(store)
    attachment = attach(store, a_key())
    with store.transaction() as unit:
        unit.confirm(replace(an_attachment(store.reserve(a_key(2)), a_key(2)), snat=PodSnat.NONE))
    store.close()
    assert command.main(["datastore", "--file", str(path), "downgrade", "--to", str(OLDEST_LEVEL)]) == 0
    connection = sqlite3.connect(path)
    names = [row[1] for row in connection.execute("PRAGMA table_info(attachment)")]
    connection.close()
    assert "snat" not in names
    again = open_at(path)
    assert again.report.outcome is OpenOutcome.INTACT
    assert again.datastore.attachment(a_key()) == attachment
    returned = again.datastore.attachment(a_key(2))
    assert returned is not None
    assert returned.snat is None
    again.datastore.close()
