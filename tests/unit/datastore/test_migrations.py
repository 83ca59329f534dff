"""Files of earlier and later levels: taken forward in steps, left alone where later, refused where too old, taken back by command."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import ipamd
from ipamd import __version__
from ipamd.datastore import command, migrations
from ipamd.datastore.migrations import LEVEL, OLDEST_LEVEL, STEPS, Step, schema_version
from ipamd.datastore.open import OpenOutcome
from ipamd.datastore.schema import SCHEMA_VERSION, TABLES
from ipamd.model.address import AddressState
from ipamd.model.errors import SchemaVersionError
from ipamd.model.failures import FailureCode
from ipamd.model.ids import EniId
from ipamd.model.intent import DETACHED, Delete, DeleteReason
from tests.errors import failed
from tests.unit.datastore.support import COOLDOWN, FakeClock, a_key, attach, fill, ip, open_at, raw

LEVEL_8 = Path(__file__).with_name("level_8.sql").read_text()
OF_LATER = Step(
    LEVEL + 1,
    "what a later release adds",
    forward=(
        "CREATE TABLE colour (address TEXT PRIMARY KEY REFERENCES address (address) ON DELETE CASCADE, name TEXT NOT NULL)",
        "ALTER TABLE eni ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'",
        "INSERT INTO colour SELECT address, 'red' FROM address",
    ),
    backward=("DROP TABLE colour", "ALTER TABLE eni DROP COLUMN colour"),
)


@pytest.fixture
def old(path: Path) -> Path:
    """A file of level 8, as the commit before the first step wrote it."""
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript(LEVEL_8)
    connection.close()
    return path


def shape(path: Path) -> dict[str, object]:
    """Columns, keys, indexes and triggers of every table, with `user_version`, whatever way they were made."""
    connection = sqlite3.connect(path)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
    found: dict[str, object] = {
        f"{table} {pragma}": sorted(connection.execute(f"PRAGMA {pragma}({table})").fetchall())
        for table in tables
        for pragma in ("table_info", "foreign_key_list", "index_list")
    }
    found["triggers"] = sorted(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"))
    found["strict"] = sorted(connection.execute("SELECT name, wr, strict FROM pragma_table_list WHERE schema = 'main'"))
    found["version"] = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return found


def rows(path: Path, statement: str) -> list[tuple[object, ...]]:
    """What a closed file answers."""
    connection = sqlite3.connect(path)
    found = connection.execute(statement).fetchall()
    connection.close()
    return found


def level(path: Path) -> list[tuple[object, ...]]:
    """The row that says how far the steps have gone."""
    return rows(path, "SELECT value FROM meta WHERE name = 'schema_level'")


def row_counts(path: Path) -> dict[str, object]:
    """How many rows each table of a closed file has, without `meta`, where the level is."""
    return {table.name: rows(path, f"SELECT count(*) FROM {table.name}") for table in TABLES if table.name != "meta"}


def set_level(path: Path, value: str) -> None:
    """Write another level into a closed file."""
    raw(path, f"UPDATE meta SET value = '{value}' WHERE name = 'schema_level'")


def test_steps_are_a_chain() -> None:
    """Levels follow each other from the oldest, each step has a way back, and the version says how many are not additive."""
    assert [step.level for step in STEPS] == list(range(OLDEST_LEVEL + 1, LEVEL + 1))
    assert all(step.forward and step.backward and step.purpose for step in STEPS)
    assert schema_version(LEVEL) == SCHEMA_VERSION
    assert schema_version(OLDEST_LEVEL) == 1


ENI = EniId("eni-new")
DELETIONS = {
    "creation undone": Delete(ENI, DeleteReason.UNATTACHED, deletion_state="asked"),
    "useless": Delete(ENI, DeleteReason.USELESS, deletion_state="asked"),
    "useless and detached": Delete(EniId("eni-a"), DeleteReason.USELESS, deletion_state=DETACHED),
    "unattached": Delete(EniId("eni-b"), DeleteReason.UNATTACHED),
    "release": Delete(EniId("eni-c"), DeleteReason.RELEASED),
    "release, detached": Delete(EniId("eni-d"), DeleteReason.RELEASED, deletion_state=DETACHED),
    "leaked": Delete(EniId("eni-e"), DeleteReason.LEAKED),
}
"""The deletions in the file of level 8, without the creation that one undoes."""


def test_forward(old: Path, tmp_path: Path) -> None:
    """A file of level 8 keeps every row, and is from then on as one that was made new.

    `tests/upgrade/test_level_8.py` compares each value.
    """
    before = row_counts(old)
    assert all(count != [(0,)] for count in before.values()), "every table has rows"
    opened = open_at(old)
    assert opened.report.is_intact, opened.report
    assert opened.datastore.audit() == []
    opened.datastore.close()
    assert row_counts(old) == before
    fresh = tmp_path / "fresh" / "state.db"
    open_at(fresh).datastore.close()
    assert shape(old) == shape(fresh)
    assert level(old) == level(fresh) == [(str(LEVEL),)]


def test_open_operations_are_respelled(old: Path) -> None:
    """Why an ENI is deleted is read from a file of level 8, and an ENI that is to be detached is not taken into use (I7)."""
    store = open_at(old).datastore
    intents = {intent.intent_id: intent for intent in store.open_intents()}
    store.close()
    operations = {name: intent.operation for name, intent in intents.items()}
    found = {name: replace(op, creation=None) for name, op in operations.items() if isinstance(op, Delete)}
    assert found == DELETIONS
    undone = operations["creation undone"]
    assert isinstance(undone, Delete)
    assert undone.creation is not None
    assert {name for name, intent in intents.items() if intent.is_leaving} == {
        "release",
        "release, detached",
        "useless and detached",
    }


def test_back(old: Path) -> None:
    """Taken back to level 8 a file has its old shape and the same payloads, and is taken forward again."""
    before, intents = shape(old), rows(old, "SELECT intent_id, kind, payload FROM intent")
    open_at(old).datastore.close()
    assert command.main(["datastore", "--file", str(old), "downgrade", "--to", str(OLDEST_LEVEL)]) == 0
    found = shape(old)
    assert found.keys() == before.keys()
    assert {name: (found[name], value) for name, value in before.items() if name != "triggers" and found[name] != value} == {}
    triggers = [{name: " ".join(str(text).split()) for name, text in shape["triggers"]} for shape in (found, before)]  # type: ignore[attr-defined]
    assert triggers[0] == triggers[1]
    assert level(old) == [(str(OLDEST_LEVEL),)]
    kinds = {key: (kind, json.loads(payload)) for key, kind, payload in rows(old, "SELECT intent_id, kind, payload FROM intent")}  # type: ignore[arg-type]
    assert kinds == {key: (kind, json.loads(payload)) for key, kind, payload in intents}  # type: ignore[arg-type]
    again = open_at(old)
    assert again.report.is_intact
    assert again.datastore.audit() == []
    again.datastore.close()


@pytest.mark.parametrize("lower", [str(OLDEST_LEVEL - 1), "1", None], ids=["7", "1", "no level"])
def test_a_lower_level_is_refused(old: Path, lower: str | None) -> None:
    """The start is refused, what wrote the file is named by its level, and nothing of the file changes (I1)."""
    if lower is None:
        raw(old, "DELETE FROM meta WHERE name = 'schema_level'")
    else:
        set_level(old, lower)
    content = old.read_bytes()
    with pytest.raises(SchemaVersionError) as refusal:
        open_at(old)
    assert f"level {lower or 0}" in refusal.value.message
    assert "drain" in refusal.value.details
    assert old.read_bytes() == content
    assert sorted(path.name for path in old.parent.iterdir() if not path.name.endswith(("-wal", "-shm"))) == [old.name]


def test_a_lower_level_goes_with_its_boot(old: Path) -> None:
    """After the reboot that the refusal advises the file is set aside, and the daemon starts."""
    set_level(old, str(OLDEST_LEVEL - 1))
    opened = open_at(old, boot_id="22222222-2222-3333-4444-555555555555")
    assert opened.report.outcome is OpenOutcome.OTHER_BOOT
    assert opened.report.former_file is not None
    opened.datastore.close()


def test_a_later_release_and_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a later, additive level is used and left as it is: rows come and go in it; the later release takes it up again."""
    open_at(path).datastore.close()
    monkeypatch.setattr(migrations, "STEPS", (*STEPS, OF_LATER))
    store = open_at(path).datastore
    fill(store, enis=2)
    attach(store, a_key(1))
    store.close()
    raw(path, "INSERT OR IGNORE INTO colour SELECT address, 'red' FROM address")
    monkeypatch.undo()

    opened = open_at(path)
    assert opened.report.is_sound
    store = opened.datastore
    attach(store, a_key(2))
    with store.transaction() as unit:
        unit.remove_addresses([ip("10.0.1.100")], reason="test")
    assert store.audit() == []
    store.close()
    assert level(path) == [(str(LEVEL + 1),)]
    assert len(rows(path, "SELECT * FROM colour")) == 7
    assert command.main(["datastore", "--file", str(path), "downgrade", "--to", str(LEVEL)]) == command.EXIT_REFUSED

    monkeypatch.setattr(migrations, "STEPS", (*STEPS, OF_LATER))
    monkeypatch.setattr(migrations, "LEVEL", LEVEL + 1)
    again = open_at(path)
    assert again.report.is_sound
    assert len(again.datastore.attachments()) == 2
    again.datastore.close()
    assert command.main(["datastore", "--file", str(path), "downgrade", "--to", str(LEVEL)]) == 0
    assert rows(path, "SELECT name FROM sqlite_schema WHERE name = 'colour'") == []


def test_a_step_that_is_not_additive(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Such a step raises `user_version`: this release refuses the file, names the way back, and the way back works."""
    open_at(path).datastore.close()
    monkeypatch.setattr(migrations, "STEPS", (*STEPS, replace(OF_LATER, is_additive=False)))
    monkeypatch.setattr(migrations, "LEVEL", LEVEL + 1)
    open_at(path).datastore.close()
    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION + 1,)]
    way_back = f"ipamd datastore downgrade --to {LEVEL}"
    with pytest.raises(SchemaVersionError, check=failed(FailureCode.SCHEMA_TOO_NEW, level=LEVEL, command=way_back)):
        open_at(path)
    assert command.main(["datastore", "--file", str(path), "downgrade", "--to", str(LEVEL)]) == 0
    assert f"was of level {LEVEL + 1} and is of level {LEVEL}" in capsys.readouterr().out
    monkeypatch.undo()
    opened = open_at(path)
    assert opened.report.outcome is OpenOutcome.INTACT
    opened.datastore.close()


def test_the_page_has_the_level_of_this_release() -> None:
    """Whoever goes back looks it up before the earlier daemon could name it."""
    page = (Path(__file__).parents[3] / "docs/upgrade.md").read_text()
    assert f"\n| {ipamd.__version__} | {LEVEL} |\n" in page


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE intent ADD COLUMN payload TEXT", "INSERT INTO intent SELECT * FROM intent"], ids=["column", "row"]
)
def test_all_steps_or_none(old: Path, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """A file that refuses a step stays as it was and is kept; the datastore is rebuilt instead of an exit loop."""
    monkeypatch.setattr(migrations, "STEPS", (*STEPS, replace(OF_LATER, forward=(statement,))))
    monkeypatch.setattr("ipamd.datastore.rows.read_snapshot", None)  # nothing is read of a file that was not taken forward
    opened = open_at(old)
    opened.datastore.close()
    assert opened.report.outcome is OpenOutcome.CORRUPT
    assert opened.report.former_file is not None
    assert level(opened.report.former_file) == [(str(OLDEST_LEVEL),)]
    assert len(rows(opened.report.former_file, "SELECT * FROM attachment")) == 4


UNKNOWN = {
    "nullable": "ALTER TABLE address ADD COLUMN extra TEXT",
    "with a default": "ALTER TABLE attachment ADD COLUMN extra TEXT NOT NULL DEFAULT ''",
    "a table": "CREATE TABLE extra (id INTEGER PRIMARY KEY)",
}


@pytest.mark.parametrize("statement", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_unknown_parts_are_ignored(path: Path, statement: str) -> None:
    """A column or table that this release does not know, and need not fill, is no reason to refuse or to lose anything."""
    store = open_at(path).datastore
    fill(store)
    attach(store, a_key(1))
    store.close()
    raw(path, statement)
    opened = open_at(path)
    assert opened.report.is_sound
    attach(opened.datastore, a_key(2))
    assert opened.datastore.audit() == []
    opened.datastore.close()


def _require_a_column(path: Path) -> None:
    (made,) = rows(path, "SELECT sql FROM sqlite_schema WHERE name = 'tombstone'")[0]
    assert isinstance(made, str)
    raw(path, "DROP TABLE tombstone", made.replace("at TEXT NOT NULL", "at TEXT NOT NULL, extra TEXT NOT NULL"))


def _drop_a_column(path: Path) -> None:
    raw(path, "ALTER TABLE intent DROP COLUMN client_token")


def _have_a_step_half(path: Path) -> None:
    set_level(path, str(LEVEL - 1))


def _have_a_level_that_is_none(path: Path) -> None:
    set_level(path, "high")


@pytest.mark.parametrize("change", [_require_a_column, _drop_a_column, _have_a_step_half, _have_a_level_that_is_none])
def test_no_exit_loop(path: Path, change: object) -> None:
    """A file of this version that this release cannot use is set aside and rebuilt, as a damaged one: the daemon starts."""
    store = open_at(path).datastore
    fill(store)
    attach(store, a_key(1))
    store.close()
    change(path)  # type: ignore[operator]
    opened = open_at(path)
    assert opened.report.outcome is OpenOutcome.CORRUPT, opened.report
    assert opened.report.former_file is not None
    fill(opened.datastore)
    with opened.datastore.transaction() as unit:
        unit.put_tombstone(a_key(5))
    assert opened.datastore.audit() == []
    opened.datastore.close()


def test_ages_survive_a_restart(path: Path) -> None:
    """How long a state has lasted is known across a restart on the monotonic clock, whatever the wall clock does."""
    clock = FakeClock()
    store = open_at(path, clock=clock).datastore
    fill(store)
    began_s = clock.monotonic()
    with store.transaction() as unit:
        unit.quarantine(ip("10.0.0.100"), reason="test")
    store.close()
    clock.at += timedelta(days=3)
    clock.ticks += 5
    store = open_at(path, clock=clock).datastore
    found = store.address(ip("10.0.0.100"))
    assert found is not None
    assert (found.state, found.since_monotonic_s) == (AddressState.QUARANTINED, began_s)
    with store.transaction() as unit:
        unit.resolve(ip("10.0.0.100"), cooldown=COOLDOWN, reason="test")
    found = store.address(ip("10.0.0.100"))
    assert found is not None
    assert found.since_monotonic_s == began_s + 5
    store.close()


def test_the_command_refuses(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is done to a file that a daemon holds, that is not there, or to a level that is none."""
    arguments = ["datastore", "--file", str(path), "downgrade", "--to", str(OLDEST_LEVEL)]
    assert command.main(arguments) == command.EXIT_REFUSED
    store = open_at(path).datastore
    fill(store)
    assert command.main(arguments) == command.EXIT_REFUSED
    assert store.audit() == []
    store.close()
    for target in (str(OLDEST_LEVEL - 1), str(LEVEL + 1)):
        assert command.main([*arguments[:-1], target]) == command.EXIT_REFUSED
    assert level(path) == [(str(LEVEL),)]
    told = capsys.readouterr().err.splitlines()
    for part, line in zip(
        ("no datastore", "another ipamd", f"cannot take it to {OLDEST_LEVEL - 1}", f"to {LEVEL + 1}"), told, strict=True
    ):
        assert part in line
    assert command.main(["datastore", "--file", str(path), "level"]) == 0
    assert f"level {LEVEL}; this release knows {OLDEST_LEVEL} to {LEVEL}" in capsys.readouterr().out


def test_the_command_is_the_daemons(path: Path) -> None:
    """`ipamd datastore` works in the daemon's environment, also if some other setting is why the daemon does not start."""
    open_at(path).datastore.close()
    env = os.environ | {"VPC_IPAMD_RUN_DIR": str(path.parent), "WARM_IP_TARGET": "many"}
    argv = [sys.executable, "-m", "ipamd.daemon", "datastore", "downgrade", "--to", str(OLDEST_LEVEL)]
    done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{path} was of level {LEVEL} and is of level {OLDEST_LEVEL}\n"
    assert level(path) == [(str(OLDEST_LEVEL),)]


def test_the_level_is_shown_beside_a_living_daemon(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also what is only in its WAL; taking it back needs the file alone, and says who may have it."""
    opened = open_at(path)
    try:
        assert command.main(["datastore", "--file", str(path), "level"]) == 0
        assert f"{path} is of level {LEVEL}" in capsys.readouterr().out
        assert command.main(["datastore", "--file", str(path), "downgrade", "--to", str(OLDEST_LEVEL)]) == command.EXIT_REFUSED
        assert "is another ipamd running?" in capsys.readouterr().err
    finally:
        opened.datastore.close()


@pytest.mark.parametrize(("word", "status"), [("--help", 0), ("--versions", 2), ("start", 2), ("level", 2)])
def test_the_daemon_takes_no_other_words(word: str, status: int) -> None:
    """Whoever asks for its usage, or thinks that it takes options, starts no daemon."""
    env = os.environ | {"WARM_IP_TARGET": "many"}  # if it is one after all, it ends at once
    argv = [sys.executable, "-m", "ipamd.daemon", word]
    done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == status
    assert (done.stderr or done.stdout).startswith("ipamd: " if status else "usage: ipamd ")


def test_version() -> None:
    """`ipamd --version` is the package's, and starts no daemon either."""
    argv = [sys.executable, "-m", "ipamd.daemon", "--version"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"ipamd {__version__}\n"
