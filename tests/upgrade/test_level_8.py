"""A node of schema level 8 is taken over: every row, the spooled DEL and the links' aliases mean what they meant; and it goes back by
command.

The code of level 8 is a commit of this repository, run in processes of its own: neither root nor a lab is needed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from ipamd.datastore import command
from ipamd.datastore.migrations import OLDEST_LEVEL
from ipamd.datastore.spool import SpoolDirectory
from ipamd.datastore.store import SqlDatastore
from ipamd.model.attachment import decode_alias, is_imported_alias
from ipamd.model.ids import EniId
from ipamd.model.intent import Delete
from ipamd.model.legs.branch import BRANCH_TAG
from ipamd.model.legs.branch_alias import decode_link_alias
from ipamd.model.legs.egress import EGRESS_TAG
from tests.unit.datastore.support import BOOT, FakeClock, a_branch, a_key, attach, ip, open_at
from tests.upgrade.release import RUN_TIMEOUT_S, git, lacks_commit

pytestmark = pytest.mark.slow

COMMIT = "0dfac2a631b7207c8418047f86c2cd865da2d35f"
"""The last commit whose files have level 8 and no later step."""

LIFE = Path(__file__).with_name("level_8_life.py")
USE = Path(__file__).with_name("datastore_life.py")


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the code of level 8, with the builders of its tests."""
    missing = lacks_commit(COMMIT)
    if missing:
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("level-8")
    names = ("ipamd", "cni_plugin", "tests/__init__.py", "tests/unit")
    with tarfile.open(fileobj=BytesIO(git("archive", COMMIT, *names).stdout)) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def node(code: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """What a killed daemon of level 8 left in its run directory, and what its code understands of it."""
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o700)
    answer = run(code, LIFE, str(run_dir))
    assert answer["audit"] == []
    return run_dir, answer


def run(code: Path, script: Path, *arguments: str) -> dict[str, Any]:
    """Run a script with the code of level 8, and return its answer."""
    done = start(code, str(script), *arguments)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["folder"] == str(code), "it is the code of level 8"
    return answer


def start(code: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the code of level 8 on its path."""
    env = os.environ | {"PYTHONPATH": str(code)}
    argv = [sys.executable, *arguments]
    return subprocess.run(argv, cwd=code, env=env, check=False, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)


def as_text(value: object) -> str:
    """Return what a value holds, without the names of its classes; as `level_8_life.py` prints it."""
    if dataclasses.is_dataclass(value):
        names = FORMER_NAMES_OF_DELETE if isinstance(value, Delete) else {}
        return str(
            {names.get(field.name, field.name): as_text(getattr(value, field.name)) for field in dataclasses.fields(value)}
        )
    if isinstance(value, dict):
        return str(sorted((str(key), as_text(part)) for key, part in value.items()))
    if isinstance(value, frozenset | set | tuple | list):
        return str(sorted(map(as_text, value)))
    return str(value)


FORMER_NAMES = {"uplink": "branch"}
"""Fields of rows that the former code names otherwise."""

LATER_FIELDS = {"snat", "kept_s", "kept_for", "kept_until_s", "pool"}
"""Fields of rows that the former code does not have; they are empty in what it left."""

FORMER_NAMES_OF_DELETE = {"reason": "why", "deletion_state": "asked"}
"""The same, of an operation."""


def rows_by(rows: Any, key: str) -> dict[str, dict[str, str]]:
    """Map each row's key to its fields, all as text."""
    return {
        str(getattr(row, key)): {
            FORMER_NAMES.get(field.name, field.name): as_text(getattr(row, field.name))
            for field in dataclasses.fields(row)
            if field.name not in LATER_FIELDS
        }
        for row in rows
    }


def understood(store: SqlDatastore) -> dict[str, Any]:
    """Everything that this code reads from the file, in the words of `level_8_life.py`."""
    snapshot = store.snapshot()
    return {
        "enis": rows_by(store.enis(), "eni_id"),
        "addresses": rows_by(store.addresses(), "address"),
        "attachments": rows_by(store.attachments(), "key"),
        "intents": {intent.intent_id: [str(intent.kind), as_text(intent.operation)] for intent in store.open_intents()},
        "owed": sorted(map(as_text, store.policy_pods())),
        "doubts": as_text(snapshot.doubts),
        "identity": as_text(snapshot.identity),
    }


def test_every_row_is_understood(node: tuple[Path, dict[str, Any]]) -> None:
    """ENIs, addresses, sandboxes, operations, doubts, owed names and the node's identity are read as the former code read them."""
    run_dir, told = node
    opened = open_at(run_dir / "state.db")
    assert opened.report.is_intact, opened.report
    store = opened.datastore
    found = understood(store)
    for kind, rows in told["rows"].items():
        assert found[kind] == rows, kind
    assert all(store.is_tombstoned(a_key(number)) for number in (2, 9))
    assert [str(key) for key in store.snapshot().tombstones] == told["tombstones"]
    assert (store.snapshot().was_lost, store.snapshot().are_pods_marked) == (True, True)
    attach(store, a_key(7))
    assert store.audit() == []
    store.close()


def test_the_spool_is_understood(node: tuple[Path, dict[str, Any]]) -> None:
    """The DEL that the former plugin kept is of the sandbox that it was for (I3)."""
    spool = SpoolDirectory(node[0], clock=FakeClock())
    assert (spool.pending_count(), spool.pending_keys()) == (1, {a_key(4)})
    with spool.replay() as entries:
        assert [entry.key for entry in entries] == [a_key(4)]


def test_every_alias_is_understood(node: tuple[Path, dict[str, Any]]) -> None:
    """Aliases of links that the former code made name their sandbox and address: a lost datastore is rebuilt from them."""
    aliases = node[1]["aliases"]
    pool = (a_key(1), ip("10.0.0.100"))
    assert decode_alias(aliases["pool"]) == decode_alias(aliases["imported"]) == pool
    assert (is_imported_alias(aliases["pool"]), is_imported_alias(aliases["imported"])) == (False, True)
    assert decode_alias(aliases["egress"], EGRESS_TAG) == (a_key(1), ip("169.254.172.5"))
    of_branch = a_branch(3)
    assert of_branch.uplink is not None
    assert decode_alias(aliases["branch"], BRANCH_TAG) == (of_branch.key, of_branch.address)
    decoded = decode_link_alias(aliases["vlan"], name="vlan.eth.3", mac=of_branch.uplink.mac)
    assert decoded == (of_branch.address, EniId("eni-0123456789abcdef0"), of_branch.uplink)


OPEN = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from ipamd.datastore.open import open_datastore
from ipamd.model.errors import SchemaVersionError

clock = SimpleNamespace(now=lambda: datetime.now(UTC), monotonic=lambda: 9000.0)
try:
    open_datastore(Path(sys.argv[1]), boot_id=sys.argv[2], clock=clock, lock_wait_s=0.0)
except SchemaVersionError:
    print("refused")
"""
"""What the former code does with a file when it starts."""


def test_it_goes_back_by_command(code: Path, node: tuple[Path, dict[str, Any]]) -> None:
    """The former code refuses a file of this level and leaves it as it is. Taken back it goes on in it, and this code after it."""
    path = node[0] / "state.db"
    store = open_at(path).datastore
    attach(store, a_key(7))
    before = understood(store)
    store.close()
    content = path.read_bytes()
    assert start(code, "-c", OPEN, str(path), BOOT).stdout == "refused\n"
    assert path.read_bytes() == content
    assert command.main(["datastore", "--file", str(path), "downgrade", "--to", str(OLDEST_LEVEL)]) == 0
    used = run(code, USE, str(path), "8")
    assert (used["outcome"], used["audit"]) == ("intact", [])
    again = open_at(path)
    assert again.report.is_intact
    assert again.datastore.is_tombstoned(a_key(8)), "what the former code did meanwhile"
    found = understood(again.datastore)
    assert found["intents"] == before["intents"]
    assert found["attachments"] == before["attachments"]
    again.datastore.close()
