"""The state file: what is written is read back, and what is not ours is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.inventory import state_file
from ipamd.inventory.document import read_report, report_document
from ipamd.inventory.memory import InventoryMemory
from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from tests.errors import failed
from tests.unit.inventory.reports import a_memory


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """Samples, reservations, turns and the whole report, infinity too."""
    path = tmp_path / "state.json"
    state_file.save(path, a_memory())
    assert state_file.load(path) == a_memory()
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_is_a_json_document_and_back() -> None:
    """What `-o json` prints can be read again."""
    report = a_memory().report
    assert report is not None
    assert read_report(json.loads(json.dumps(report_document(report), allow_nan=False))) == report


def test_no_file_is_an_empty_memory(tmp_path: Path) -> None:
    """The first run."""
    assert state_file.load(tmp_path / "none.json") == InventoryMemory()


def written(tmp_path: Path, text: str) -> Path:
    """A file with this text."""
    path = tmp_path / "state.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"format": 2}', '{"format": 1}', "[" * 100_000])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    """With its path and the cause."""
    path = written(tmp_path, text)
    with pytest.raises(SettingsError, check=failed(FailureCode.INVENTORY_STATE_UNREADABLE, path=path)):
        state_file.load(path)


def test_a_file_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read to its end."""
    monkeypatch.setattr(state_file, "BYTES_MAX", 100)
    with pytest.raises(SettingsError, check=failed(FailureCode.INVENTORY_STATE_UNREADABLE)):
        state_file.load(written(tmp_path, " " * 101))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)


@given(value=JUNK, place=st.sampled_from(["group_size", "report", "subnets", "report.subnets", "report.at", "report.gaps"]))
def test_a_damaged_field_is_refused_or_harmless(tmp_path_factory: pytest.TempPathFactory, value: Any, place: str) -> None:
    """Never another error."""
    path = tmp_path_factory.mktemp("state") / "state.json"
    state_file.save(path, a_memory())
    document = json.loads(path.read_text())
    outer, _, inner = place.partition(".")
    if inner:
        document[outer][inner] = value
    else:
        document[outer] = value
    path.write_text(json.dumps(document))
    with suppress(SettingsError):
        assert 1 <= state_file.load(path).group_size <= 200
