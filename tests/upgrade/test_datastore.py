"""The datastore's file between versions of the code, both ways: each opens what the others left, uses it and loses nothing.

Only the code of the datastore runs, each version in a process of its own: neither root nor a lab is needed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from io import BytesIO
from ipaddress import IPv6Network
from pathlib import Path
from typing import Any

import pytest

from ipamd.datastore import command
from ipamd.datastore.store import Datastore
from ipamd.model.address import AddressState
from ipamd.model.family import IPV6, members
from ipamd.model.ids import PodName
from tests.unit.datastore.support import (
    BOOT,
    COOLDOWN,
    FakeClock,
    a_branch,
    a_key,
    an_eni,
    attach,
    crashed_copy,
    eni_id,
    fill,
    ip,
    open_at,
    raw,
)
from tests.upgrade.release import RUN_TIMEOUT_S, git, lacks_commit

pytestmark = pytest.mark.slow

BEFORE = {
    "without branch ENIs": "a1bc9526db770c99d5b9e40c57ce5cd8293bf9d7",
    "without what the policy agent is owed": "00f24a7faac614bf7b34255b1c791028df006d03",
    "with intents as dictionaries": "face7a9c9b7c7aaea68e17a472484c406f35470e",
    "with the modules in their old places": "e29f757b27966b64f798296f5dffe5932b015292",
    "before schema steps": "564f88ad1a9d8d1098c2e5e8799272a2b9972b71",
}
ALWAYS = {"without branch ENIs", "before schema steps"}
"""The newest and the oldest; `make test-all` has those between."""

OWED = {PodName("default", "web-0"), PodName("default", "web-1")}
PREFIX = IPv6Network("2001:db8:1:2:abcd::/80")
LIFE = Path(__file__).with_name("datastore_life.py")


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=[] if name in ALWAYS else pytest.mark.heavy, id=name) for name, one in BEFORE.items()],
)
def before(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an earlier version of the code; the older ones know no schema steps."""
    missing = lacks_commit(request.param)
    if missing:
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(git("archive", request.param, "ipamd").stdout)) as archive:
        archive.extractall(folder)
    return folder


def live(folder: Path, path: Path, number: int, *removed: str) -> dict[str, Any]:
    """Have one version use the file as a daemon does; see `datastore_life.py`."""
    outcome = "intact" if path.exists() else "created"
    env = os.environ | {"PYTHONPATH": str(folder)}
    argv = [sys.executable, str(LIFE), str(path), str(number), *removed]
    done = subprocess.run(argv, cwd=folder, env=env, check=False, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["folder"] == str(folder), "it is the code of its own version"
    assert (answer["outcome"], answer["audit"]) == (outcome, [])
    return answer


OPEN = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from ipamd.datastore.open import open_datastore
from ipamd.model.errors import DatastoreError

at = datetime.now(UTC)
clock = SimpleNamespace(now=lambda: at, monotonic=lambda: 9000.0)
try:
    opened = open_datastore(Path(sys.argv[1]), boot_id=sys.argv[2], clock=clock, lock_wait_s=0.0)
except DatastoreError as error:
    print("refused", error)
else:
    print(len(opened.datastore.addresses()), len(opened.datastore.attachments()), opened.report.kept)
"""
"""What any version does with a file when it starts."""


@pytest.mark.parametrize("may_live", [True, False])
def test_an_earlier_release_meets_a_file_of_ipv6(before: Path, tmp_path: Path, *, may_live: bool) -> None:
    """It takes no address of it. Since files name their family it refuses to start while a sandbox of it lives, and the file stays as
    it is; else, and before that always, the file is set aside and kept.
    """
    path, netns = tmp_path / "run" / "state.db", tmp_path / "netns"
    store = open_at(path, family=IPV6).datastore
    with store.transaction() as unit:
        unit.put_eni(an_eni())
        unit.add_addresses(eni_id(0), members(PREFIX), prefix=PREFIX)
    attach(store, a_key())
    store.close()
    netns.touch()
    found = netns.stat()
    raw(path, f"UPDATE attachment SET netns = '{netns}', netns_device = {found.st_dev}, netns_inode = {found.st_ino}")
    if not may_live:
        netns.unlink()
    content = path.read_bytes()
    argv = [sys.executable, "-c", OPEN, str(path), BOOT]
    done = subprocess.run(
        argv,
        cwd=before,
        env=os.environ | {"PYTHONPATH": str(before)},
        check=False,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    if may_live and "of a pool of" in (before / "ipamd" / "datastore" / "open.py").read_text():
        assert done.stdout.startswith(f"refused {path} is of a pool of ip6, and 1 sandbox of it live")
        assert path.read_bytes() == content
        assert open_at(path, family=IPV6).report.is_sound
        return
    address_count, attachment_count, kept = done.stdout.strip().split(" ", 2)
    assert (address_count, attachment_count) == ("0", "0")
    with closing(sqlite3.connect(kept)) as connection:
        assert connection.execute("SELECT count(*) FROM attachment").fetchone() == (1,)


def lost_ones(store: Datastore) -> dict[str, AddressState]:
    """Lost addresses, with the state that each has."""
    return {str(row.address): row.state for row in store.addresses() if row.is_lost}


def filled(path: Path) -> Datastore:
    """A store of this code with an address lost under its sandbox, two lost while cooling, three free ones, two names owed, and two
    sandboxes with branch ENIs."""
    store = open_at(path, clock=FakeClock()).datastore
    fill(store, addresses=6)
    for number in (1, 2, 3):
        attach(store, a_key(number))
    with store.transaction() as unit:
        for number in (2, 3):
            unit.unassign(a_key(number), cooldown=COOLDOWN, reason="DEL")
        for last in (100, 101, 102):
            unit.lose(ip(f"10.0.0.{last}"), reason="not shown")
        for name in OWED:
            unit.owe(name)
        for vlan in (2, 3):
            unit.attach_branch(a_branch(vlan))
    return store


@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_one_release_back_and_forth(before: Path, tmp_path: Path, ends: str) -> None:
    """The release before opens the file as it is, gives and removes addresses, a lost one too; then this one goes on in it."""
    path = tmp_path / "run" / "state.db"
    store = filled(path)
    if ends == "killed":
        path = crashed_copy(path, tmp_path / "killed")
    store.close()
    told = live(before, path, 7, "10.0.0.101", f"del:{a_branch(2).key.container_id}")
    assert told["states"] == {
        "10.0.0.100": "assigned",
        "10.0.0.102": "cooling",
        "10.0.0.103": "assigned",
        "10.0.0.104": "free",
        "10.0.0.105": "free",
    }
    again = open_at(path)
    assert again.report.is_sound
    assert lost_ones(again.datastore) == {"10.0.0.100": AddressState.ASSIGNED, "10.0.0.102": AddressState.COOLING}
    assert again.datastore.is_tombstoned(a_key(7))
    assert again.datastore.owed().keys() == OWED, "it asks no agent: the next one that does tells it"
    branches = [one for one in again.datastore.attachments() if one.branch]
    assert branches == [a_branch(3)], "the release before knows no branch ENIs, and the DEL of one ends its row all the same"
    attach(again.datastore, a_key(8))
    assert again.datastore.audit() == []
    again.datastore.close()
    live(before, path, 9)


def test_upgrade_of_a_file_of_the_release_before(before: Path, tmp_path: Path) -> None:
    """A file that the release before made is taken forward, and it still opens it afterwards."""
    path = tmp_path / "run" / "state.db"
    assert live(before, path, 5)["states"] == {"10.0.0.100": "assigned", "10.0.0.101": "free"}
    opened = open_at(path)
    assert opened.report.is_sound
    assert opened.datastore.is_tombstoned(a_key(5))
    with opened.datastore.transaction() as unit:
        unit.lose(ip("10.0.0.100"), reason="not shown")
    assert opened.datastore.audit() == []
    opened.datastore.close()
    live(before, path, 6)


def test_downgrade(before: Path, tmp_path: Path) -> None:
    """After the downgrade command the file has nothing that the release before does not know, and it goes on in it."""
    path = tmp_path / "run" / "state.db"
    filled(path).close()
    assert command.main(["datastore", "--file", str(path), "downgrade", "--to", "1"]) == 0
    assert live(before, path, 7)["states"] == {
        "10.0.0.100": "assigned",
        "10.0.0.103": "assigned",
        "10.0.0.104": "free",
        "10.0.0.105": "free",
    }
    again = open_at(path)
    assert again.report.is_sound
    assert lost_ones(again.datastore) == {}
    assert again.datastore.owed() == {}
    assert not any(one.branch for one in again.datastore.attachments())
    again.datastore.close()
