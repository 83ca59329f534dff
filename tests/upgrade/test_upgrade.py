"""The code of schema level 8 and this code, one after the other on the same node under running sandboxes, and back after a downgrade.

What they hand over: the datastore, the spool, the aliases of the host veths, the rules and routes, and through the plugin the wire
contract. The code of level 8 is a commit of this repository.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from ipamd.datastore.migrations import LEVEL, OLDEST_LEVEL
from tests.rig import RUN_DIR, CniReply, Rig, rig, wait_until
from tests.upgrade.release import Release, lacks_commit
from tests.upgrade.test_level_8 import COMMIT

COOLDOWN_S = 60

LATER_COLUMNS = {"snat", "kept_s", "kept_for", "kept_until_s", "pool"}
"""Columns that the step from the former level adds, and the step back removes."""
"""Longer than a test, so that what cools when one version dies is still cooling at the end."""

MISSING = lacks_commit(COMMIT)
pytestmark = [pytest.mark.slow, pytest.mark.privileged, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Release]:
    """Two versions by name."""
    directory = tmp_path_factory.mktemp("releases")
    return {"before": Release.at_commit(COMMIT, directory), "after": Release.of_checkout(directory)}


@pytest.fixture
def made() -> Iterator[Rig]:
    """A node without a daemon."""
    with rig(start=False, env={"IP_COOLDOWN_PERIOD": str(COOLDOWN_S)}) as one:
        yield one


@pytest.fixture
def with_containerd() -> Iterator[Rig]:
    """A node with containerd and without a daemon."""
    with rig(start=False, containerd=True) as one:
        yield one


def go_back(made: Rig) -> None:
    """Take the datastore to the level of the code of before, as `manifests/downgrade.yaml` does between two daemons."""
    argv = [sys.executable, "-m", "ipamd.daemon", "datastore", "--file", f"{RUN_DIR}/state.db"]
    made.node.run([*argv, "downgrade", "--to", str(OLDEST_LEVEL)])


@pytest.mark.parametrize("chain", [("before", "after"), ("after", "before")], ids=["upgrade", "one-step-back"])
def test_a_node_is_taken_over(made: Rig, releases: dict[str, Release], tmp_path: Path, chain: tuple[str, ...]) -> None:
    """Every sandbox keeps its address and answers, every DEL is carried out, what cools goes on cooling (I1-I9)."""
    giver, taker = (releases[name] for name in chain)
    replies, told = live_and_die(made, giver)
    given = Disk(made, tmp_path / "given")
    assert len(spooled(made)) == 2, "one DEL broke off, one found nobody"
    doomed = {replies[name].address for name in ("deleted", "broken-off", "spooled")}
    assert set(given.cooling) == {str(replies[name].address) for name in ("deleted", "broken-off")}

    if chain[1] == "before":
        go_back(made)
    daemon = taker.start_daemon(made)
    taken = attachments(made)
    assert taken == {key: row for key, row in told.items() if key != "spooled"}, "the same rows, the DEL carried out"
    assert spooled(made) == []
    pool = made.pool()
    assert (pool["assigned_count"], pool["cooling_count"], pool["quarantined_count"]) == (len(taken), len(doomed), 0)
    assert_intact(made, given)
    assert_answer(made, taken)
    made.assert_sound(expected=len(taken))

    assert made.delete("kept-0").ok, f"{giver.name}'s plugin is understood by {taker.name}'s daemon"
    taker.install_plugin(made)
    assert made.delete("kept-1").ok
    again = made.cni("ADD", "kept-2")
    assert again.body == replies["kept-2"].body, "ADD is repeatable across versions"
    checked = made.cni("CHECK", "kept-2", conf={"prevResult": replies["kept-2"].body})
    assert checked.ok, checked.body
    for name in ("deleted", "broken-off", "spooled"):
        assert made.cni("ADD", name).code == 102, "I4: a late ADD is refused"
    fresh = {made.add(f"fresh-{number}").address for number in range(3)}
    assert not fresh & doomed, "I8: a cooling address is given to nobody"
    assert_answer(made, attachments(made))
    made.assert_sound(expected=len(taken) - 2 + len(fresh))

    daemon.kill()
    left = Disk(made, tmp_path / "left")
    assert left.cooling.items() >= given.cooling.items(), "a cooldown is not begun again"
    assert left.attachments["kept-2"] == given.attachments["kept-2"]
    assert left.ledger[: len(given.ledger)] == given.ledger
    goes_back = chain[1] != "after"
    assert (given.level, left.level) == ((LEVEL, OLDEST_LEVEL) if goes_back else (OLDEST_LEVEL, LEVEL))
    for name, columns in given.columns.items():
        kept = [column for column in columns if not (goes_back and column[1] in LATER_COLUMNS)]
        assert left.columns[name][: len(kept)] == kept, "a step forward only adds; one back takes away what it added"


@pytest.mark.containerd
@pytest.mark.parametrize("chain", [("before", "after"), ("after", "before")], ids=["upgrade", "one-step-back"])
def test_a_lost_datastore_is_rebuilt_from_the_others_aliases(
    with_containerd: Rig, releases: dict[str, Release], chain: tuple[str, str]
) -> None:
    """The datastore is deleted between the versions: kernel and CRI are enough to give every sandbox its row again (I1, I2)."""
    made = with_containerd
    giver, taker = (releases[name] for name in chain)
    giver.install_plugin(made)
    daemon = giver.start_daemon(made)
    wait_until(lambda: made.node.cri.network_problem() == "", what="containerd has loaded the conflist")
    sandboxes = [made.node.cri.run_sandbox(f"pod-{number}") for number in range(3)]
    given = attachments(made)
    assert set(given) == set(sandboxes)
    daemon.kill()
    made.node.run(["/bin/sh", "-c", f"rm {RUN_DIR}/state.db*"])

    taker.install_plugin(made)
    daemon = taker.start_daemon(made)
    taken = attachments(made)
    told_by_kernel = ("address", "eni_id", "ifname", "host_veth", "sandbox_name")
    assert {key: [row[name] for name in told_by_kernel] for key, row in taken.items()} == {
        key: [row[name] for name in told_by_kernel] for key, row in given.items()
    }
    assert {row["origin"] for row in taken.values()} == {"adopt"}
    assert made.pool()["quarantined_count"] == 0
    assert_answer(made, taken)
    made.assert_sound(expected=3)
    made.node.cri.stop(sandboxes[0])
    made.node.cri.run_sandbox("pod-new")
    made.assert_sound(expected=3)
    daemon.kill()


def live_and_die(made: Rig, giver: Release) -> tuple[dict[str, CniReply], dict[str, dict[str, Any]]]:
    """Attach six sandboxes, delete one, die in the DEL of a second, and leave the DEL of a third to the spool.

    Returns: the replies to the ADDs by name, and the attachments as the daemon told them last.
    """
    giver.install_plugin(made)
    daemon = giver.start_daemon(made, failpoint="detach.committed:2=pause")
    replies = {name: made.add(name) for name in ("deleted", "broken-off", "spooled", "kept-0", "kept-1", "kept-2")}
    assert made.delete("deleted").ok
    hold = Path(f"{made.node.root}{RUN_DIR}/failpoint.hold")
    with ThreadPoolExecutor(max_workers=1) as pool:
        broken_off = pool.submit(made.cni, "DEL", "broken-off")
        wait_until(hold.exists, what="the DEL is committed, and its veth not yet deleted")
        told = attachments(made)
        daemon.kill()
        assert broken_off.result().ok, "I3: the plugin spools it"
    hold.unlink()
    assert made.cni("DEL", "spooled").ok
    assert_answer(made, {name: row for name, row in told.items() if name != "spooled"})
    return replies, told


class Disk:
    """What a dead daemon left in the datastore, read from a copy: recovering the original is the next daemon's business."""

    def __init__(self, made: Rig, directory: Path) -> None:
        directory.mkdir()
        for source in Path(made.node.root + RUN_DIR).glob("state.db*"):
            (directory / source.name).write_bytes(source.read_bytes())
        self.inode = Path(f"{made.node.root}{RUN_DIR}/state.db").stat().st_ino
        connection = sqlite3.connect(directory / "state.db")
        connection.row_factory = sqlite3.Row
        ask = connection.execute
        self.level = int(ask("SELECT value FROM meta WHERE name = 'schema_level'").fetchone()[0])
        tables = [row["name"] for row in ask("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
        self.columns = {name: [tuple(row) for row in ask(f"PRAGMA table_info({name})")] for name in tables}
        self.attachments = {
            # Columns without a value may be of a later release.
            row["container_id"]: {name: value for name, value in dict(row).items() if value is not None}
            for row in ask("SELECT * FROM attachment")
        }
        self.cooling = {row["address"]: row["cooling_until"] for row in ask("SELECT * FROM address WHERE state = 'cooling'")}
        self.ledger = [tuple(row) for row in ask("SELECT * FROM ledger ORDER BY sequence")]
        connection.close()


def attachments(made: Rig) -> dict[str, dict[str, Any]]:
    """Container ID -> what the daemon tells of the attachment."""
    answer = made.client(lambda client: client.ask("ListAttachments"))
    assert answer is not None
    return {row["container_id"]: row for row in answer["attachments"]}


def spooled(made: Rig) -> list[str]:
    """Names of the DELs that wait in the spool."""
    return made.node.run(["find", f"{RUN_DIR}/spool", "-name", "del-*"]).stdout.split()


def assert_intact(made: Rig, given: Disk) -> None:
    """The daemon calls the datastore intact: it goes on in the same file and has set no other aside."""
    status = made.status()
    assert status is not None
    detail = next(stage["detail"] for stage in status["stages"] if stage["name"] == "datastore")
    assert detail.startswith(f"{len(given.attachments)} attachments, "), detail
    assert Path(f"{made.node.root}{RUN_DIR}/state.db").stat().st_ino == given.inode
    names = {path.name for path in Path(made.node.root + RUN_DIR).iterdir() if path.name.startswith("state")}
    assert names <= {"state.db", "state.db-wal"}, names


def assert_answer(made: Rig, rows: dict[str, dict[str, Any]]) -> None:
    """Each sandbox answers a host of the VPC."""
    answers = made.lab.ping(source="host-a", targets=[IPv4Address(row["address"]) for row in rows.values()])
    assert len(answers) == len(rows)
    assert all(answers.values()), answers
