"""Files of earlier and later releases: taken forward in steps, left alone where later, taken back by command."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ipamd.datastore import command, migrations
from ipamd.datastore.migrations import LEVEL, STEPS, Step, schema_version
from ipamd.datastore.open import OpenOutcome
from ipamd.datastore.schema import SCHEMA_VERSION
from ipamd.model.address import AddressState
from ipamd.model.errors import SchemaVersionError
from tests.unit.datastore.support import COOLDOWN, FakeClock, a_key, attach, fill, ip, open_at, raw

LEVEL_1 = Path(__file__).with_name("level_1.sql").read_text()
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
    """A file of level 1."""
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript(LEVEL_1)
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


def test_steps_are_a_chain() -> None:
    """Levels follow each other from 2, each step has a way back, and the version says how many are not additive."""
    assert [step.level for step in STEPS] == list(range(2, LEVEL + 1))
    assert all(step.forward and step.backward and step.purpose for step in STEPS)
    assert schema_version(LEVEL) == SCHEMA_VERSION
    assert schema_version(1) == 1


def test_forward(old: Path, tmp_path: Path) -> None:
    """A file of level 1 keeps every row, and is from then on as one that was made new."""
    opened = open_at(old)
    assert opened.report.is_intact, opened.report
    store = opened.datastore
    assert (len(store.attachments()), len(store.addresses()), len(store.enis())) == (2, 24, 2)
    assert store.is_tombstoned(a_key(3))
    assert [intent.intent_id for intent in store.open_intents()] == ["i"]
    attach(store, a_key(7))
    assert store.audit() == []
    store.close()
    fresh = tmp_path / "fresh" / "state.db"
    open_at(fresh).datastore.close()
    assert shape(old) == shape(fresh)
    assert level(old) == level(fresh) == [(str(LEVEL),)]


def test_back(old: Path) -> None:
    """Taken back to level 1 a file has its old shape; lost addresses that no sandbox has are gone (I7), the ledger can be read."""
    before = shape(old)
    store = open_at(old).datastore
    with store.transaction() as unit:
        for address in ("10.0.0.100", "10.0.0.102"):  # assigned, cooling
            unit.lose(ip(address), reason="not shown")
    store.close()
    assert command.main(["datastore", "--file", str(old), "downgrade", "--to", "1"]) == 0
    assert shape(old) == before
    assert level(old) == [("1",)]
    assert rows(old, "SELECT address, state FROM address WHERE address IN ('10.0.0.100', '10.0.0.102')") == [
        ("10.0.0.100", "assigned")
    ]
    assert rows(old, "SELECT detail FROM ledger WHERE event = 'kept'") == [("lost: not shown",)] * 2
    assert rows(old, "PRAGMA foreign_key_check") == []
    again = open_at(old)
    assert again.report.is_intact
    assert again.datastore.audit() == []
    again.datastore.close()


def test_a_later_release_and_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a later, additive level is used and left as it is: rows come and go in it; the later release takes it up again."""
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
    assert command.main(["datastore", "--file", str(path), "downgrade", "--to", "1"]) == command.EXIT_REFUSED

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
    monkeypatch.setattr(migrations, "STEPS", (*STEPS, replace(OF_LATER, is_additive=False)))
    monkeypatch.setattr(migrations, "LEVEL", LEVEL + 1)
    open_at(path).datastore.close()
    assert rows(path, "PRAGMA user_version") == [(SCHEMA_VERSION + 1,)]
    with pytest.raises(SchemaVersionError, match="newer release") as refusal:
        open_at(path)
    assert "ipamd datastore downgrade --to" in refusal.value.details
    assert command.main(["datastore", "--file", str(path), "downgrade", "--to", str(LEVEL)]) == 0
    assert f"was of level {LEVEL + 1} and is of level {LEVEL}" in capsys.readouterr().out
    monkeypatch.undo()
    opened = open_at(path)
    assert opened.report.outcome is OpenOutcome.INTACT
    opened.datastore.close()


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE intent ADD COLUMN payload TEXT", "INSERT INTO intent SELECT * FROM intent"], ids=["column", "row"]
)
def test_all_steps_or_none(old: Path, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """A file that refuses a step stays as it was and is kept; the datastore is rebuilt instead of an exit loop."""
    monkeypatch.setattr(migrations, "STEPS", (*STEPS, replace(OF_LATER, forward=(statement,))))
    monkeypatch.setattr("ipamd.datastore.open.take_all", lambda _: None)  # the new file has no such step
    monkeypatch.setattr("ipamd.datastore.rows.read_snapshot", None)  # nothing is read of a file that was not taken forward
    opened = open_at(old)
    opened.datastore.close()
    assert opened.report.outcome is OpenOutcome.CORRUPT
    assert opened.report.kept is not None
    assert level(opened.report.kept) == []
    assert len(rows(opened.report.kept, "SELECT * FROM attachment")) == 2


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
    raw(path, "UPDATE meta SET value = '1' WHERE name = 'schema_level'")


def _have_a_level_that_is_none(path: Path) -> None:
    raw(path, "UPDATE meta SET value = 'high' WHERE name = 'schema_level'")


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
    assert opened.report.kept is not None
    fill(opened.datastore)
    with opened.datastore.transaction() as unit:
        unit.put_tombstone(a_key(5))
    assert opened.datastore.audit() == []
    opened.datastore.close()


def test_ages_that_the_release_before_left(old: Path) -> None:
    """What the release before wrote has no known age, and one that it changed does not keep an age that is not its own."""
    clock = FakeClock()
    store = open_at(old, clock=clock).datastore
    hour = timedelta(hours=1)
    with store.transaction() as unit:
        assert unit.drop_tombstones(older_than=hour) == 0, "dated now"
        unit.put_tombstone(a_key(4))
        unit.quarantine(ip("10.0.0.103"), reason="test")
    clock.pause(60)
    store.close()
    raw(
        old,
        "UPDATE tombstone SET at = '2026-03-04T06:00:00.000000+00:00' WHERE container_id LIKE '%4'",
        "UPDATE address SET state = 'free', since = '2026-03-04T06:00:00.000000+00:00' WHERE address = '10.0.0.103'",
        "UPDATE address SET reason = 'x' WHERE address = '10.0.1.17'",
    )
    store = open_at(old, clock=clock).datastore
    by_the_release_before = store.address(ip("10.0.0.103"))
    never_dated = store.address(ip("10.0.1.17"))
    assert by_the_release_before is not None
    assert never_dated is not None
    assert (by_the_release_before.since_monotonic_s, never_dated.since_monotonic_s) == (None, None)
    clock.pause(3600 - 60 + 1)
    with store.transaction() as unit:
        assert unit.drop_tombstones(older_than=hour) == 1, "the one that was dated an hour ago"
    assert store.is_tombstoned(a_key(4)), "dated by the call before this one"
    clock.pause(3601)
    with store.transaction() as unit:
        assert unit.drop_tombstones(older_than=hour) == 1
    store.close()


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
    arguments = ["datastore", "--file", str(path), "downgrade", "--to", "1"]
    assert command.main(arguments) == command.EXIT_REFUSED
    store = open_at(path).datastore
    fill(store)
    assert command.main(arguments) == command.EXIT_REFUSED
    assert store.audit() == []
    store.close()
    for target in ("0", str(LEVEL + 1)):
        assert command.main([*arguments[:-1], target]) == command.EXIT_REFUSED
    assert level(path) == [(str(LEVEL),)]
    told = capsys.readouterr().err.splitlines()
    for part, line in zip(("no datastore", "another ipamd", "cannot take it to 0", f"to {LEVEL + 1}"), told, strict=True):
        assert part in line
    assert command.main(["datastore", "--file", str(path), "level"]) == 0
    assert f"level {LEVEL}; this release knows 1 to {LEVEL}" in capsys.readouterr().out


def test_the_command_is_the_daemons(path: Path) -> None:
    """`ipamd datastore` works in the daemon's environment, also if some other setting is why the daemon does not start."""
    open_at(path).datastore.close()
    env = os.environ | {"VPC_IPAMD_RUN_DIR": str(path.parent), "WARM_IP_TARGET": "many"}
    argv = [sys.executable, "-m", "ipamd.daemon", "datastore", "downgrade", "--to", "2"]
    done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{path} was of level {LEVEL} and is of level 2\n"
    assert level(path) == [("2",)]


def test_the_level_is_shown_beside_a_living_daemon(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also what is only in its WAL; taking it back needs the file alone, and says who may have it."""
    opened = open_at(path)
    try:
        assert command.main(["datastore", "--file", str(path), "level"]) == 0
        assert f"{path} is of level {LEVEL}" in capsys.readouterr().out
        assert command.main(["datastore", "--file", str(path), "downgrade", "--to", "1"]) == command.EXIT_REFUSED
        assert "is another ipamd running?" in capsys.readouterr().err
    finally:
        opened.datastore.close()


@pytest.mark.parametrize(("word", "status"), [("--help", 0), ("--version", 2), ("start", 2), ("level", 2)])
def test_the_daemon_takes_no_other_words(word: str, status: int) -> None:
    """Whoever asks for its usage, or thinks that it takes options, starts no daemon."""
    env = os.environ | {"WARM_IP_TARGET": "many"}  # if it is one after all, it ends at once
    argv = [sys.executable, "-m", "ipamd.daemon", word]
    done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == status
    assert (done.stderr or done.stdout).startswith("usage: ipamd ")
