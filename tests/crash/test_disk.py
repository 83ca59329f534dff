"""The run directory's disk fails: full, damaged, truncated, deleted, from the future. ADD reports it, DEL still works, nothing
is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.node.plugin import PLUGIN_PATH
from lab.vpc.family import IPV6
from tests.families import HEAVY_IPV6, in_both_of_lab, in_ipv4_of_lab, lab_family_for
from tests.patience import PATIENCE_S
from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A node whose run directory is a small disk of its own."""
    with rig(start=False, family=lab_family_for(request)) as one:
        one.node.run(
            ["/bin/sh", "-c", "mkdir -m 700 -p /run/vpc-ipamd && mount -t tmpfs -o size=3m,mode=700 none /run/vpc-ipamd"]
        )
        one.start()
        yield one
        one.assert_sound(expected=0)


@in_both_of_lab("made", HEAVY_IPV6)
def test_a_full_disk_refuses_add_whole_and_heals(made: Rig) -> None:
    """No space: ADD gets a typed error and leaves nothing; with space again it works without a restart (I5)."""
    assert made.add("before").ok
    made.node.run(["/bin/sh", "-c", "dd if=/dev/zero of=/run/vpc-ipamd/filler bs=4k count=1000 2>/dev/null"], check=False)
    refused = None
    for number in range(20):  # the WAL has some room left: it is used up first
        reply = made.add(f"full{number}")
        if not reply.ok:
            refused = reply
            break
    assert refused is not None, "the disk never became full"
    assert refused.code == 107, refused.body
    assert refused.body is not None
    assert "full" in str(refused.body).lower()
    live = set(made.attachments().values())
    assert sorted(str(a) for a in live) == sorted(a for addresses in made.kernel_addresses().values() for a in addresses)
    made.cni("DEL", "before")

    def told() -> list[dict[str, str]]:
        return [one for one in (made.status() or {"conditions": []})["conditions"] if one["subject"] != "cri"]

    wait_until(lambda: "served mark" in str(told()), what="the mark of service cannot be written either")
    assert len(told()) == 1, told()
    (only,) = told()  # one disk is one trouble, whatever fails by it
    assert only["text"].startswith("datastore: the file system of /run/vpc-ipamd is full (")
    assert only["next"].startswith("free space there: `df /run/vpc-ipamd`")
    made.node.run(["rm", "/run/vpc-ipamd/filler"])
    wait_until(lambda: not told(), what="with room again nothing is left of it")
    last = (made.status() or {})["last_error"]
    assert last["resolved_at"], f"no ADD has come since, and the cause is gone: {last}"
    assert made.cni("DEL", "before").ok
    assert made.add("after").ok
    wait_until(lambda: made.pool()["reserved_count"] == 0, what="the refused reservation was taken back")
    for name in list(made.attachments()):
        assert made.cni("DEL", name).ok
    made.assert_sound(expected=0)


@in_both_of_lab("made", HEAVY_IPV6)
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            "dd if=/dev/urandom of=/run/vpc-ipamd/state.db bs=4k count=3 conv=notrunc 2>/dev/null; rm -f /run/vpc-ipamd/state.db-wal",
            "kept as",
        ),
        ("truncate -s 5000 /run/vpc-ipamd/state.db; rm -f /run/vpc-ipamd/state.db-wal", "kept as"),
        ("rm -f /run/vpc-ipamd/state.db*", "did not exist"),
    ],
    ids=["garbage", "truncated", "deleted"],
)
def test_a_damaged_datastore_is_set_aside_and_nothing_live_is_given_again(made: Rig, damage: str, words: str) -> None:
    """The daemon starts over a damaged file, keeps it for diagnosis, and holds back every address that is wired (I1, I2)."""
    label = f"d{len(damage)}"
    live = {name: made.add(name).any_address for name in (f"{label}-live1", f"{label}-live2")}
    await_growth(made)
    made.kill()
    made.node.run(["/bin/sh", "-c", damage])
    made.start()
    status = made.status()
    assert status is not None
    assert words in next(stage["detail"] for stage in status["stages"] if stage["name"] == "datastore")
    assert made.pool()["quarantined_count"] == 2, "CRI is off here: held back, not guessed"
    fresh = {made.add(f"{label}-new{number}").any_address for number in range(5)}
    assert not fresh & set(live.values())
    for name in [*made.attachments(), *live]:
        assert made.cni("DEL", name).ok
    made.restart()
    made.assert_sound(expected=0)


def await_growth(made: Rig) -> None:
    """Wait before the datastore is lost: an ENI whose intent dies with it is found a minute or two later, which is not asked here."""
    wait_until(lambda: _has_grown(made), what="no ENI is under way")


def _has_grown(made: Rig) -> bool:
    """Whether the pool wants no further ENI: one is free, or the node has all that it can carry."""
    pool = made.pool()
    if made.family is IPV6:
        return True  # one /80 is all that it ever wants
    return pool["free_count"] >= pool["slots_per_eni"] or pool["total_count"] == pool["eni_limit"] * pool["slots_per_eni"]


@in_ipv4_of_lab("made")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("PRAGMA user_version = 99", "newer release"),
        ("UPDATE meta SET value = '7' WHERE name = 'schema_level'", "is of level 7"),
    ],
    ids=["later", "too old"],
)
def test_a_datastore_of_an_unknown_form_is_left_untouched(made: Rig, change: str, words: str) -> None:
    """A newer release, or one before those that are taken over, wrote it: the daemon ends with status 3, and the file is as it was."""
    await_growth(made)
    made.kill()
    path = "/run/vpc-ipamd/state.db"
    script = f'import sqlite3; c = sqlite3.connect("{path}", isolation_level=None); c.execute("{change}"); c.close()'
    made.node.run(["/usr/bin/python3", "-c", script])
    before = made.node.run(["sha256sum", path]).stdout
    made.start(wait=False)
    assert made.daemon is not None
    assert made.daemon.wait(20) == 3
    assert words in made.log_tail()
    assert made.node.run(["sha256sum", path]).stdout == before
    made.node.run(["/bin/sh", "-c", f"rm -f {path}*"])
    made.start()


@in_ipv4_of_lab("made")
def test_a_stale_socket_is_replaced_and_a_file_is_refused(made: Rig) -> None:
    """After kill -9 the socket file stays: the next daemon takes its place; anything else there is not ours to remove."""
    made.kill()
    assert made.node.run(["test", "-S", "/run/vpc-ipamd/ipamd.sock"]).returncode == 0
    made.start()
    made.kill()
    made.node.run(["/bin/sh", "-c", "rm /run/vpc-ipamd/ipamd.sock; echo precious > /run/vpc-ipamd/ipamd.sock"])
    made.start(wait=False)
    assert made.daemon is not None
    assert made.daemon.wait(20) == 2
    assert made.node.run(["cat", "/run/vpc-ipamd/ipamd.sock"]).stdout == "precious\n"
    made.node.run(["rm", "/run/vpc-ipamd/ipamd.sock"])
    made.start()


@in_both_of_lab("made", HEAVY_IPV6)
def test_the_cloud_runtime_and_metadata_all_unreachable(made: Rig) -> None:
    """With an intact datastore DEL is served at once and ADD from confirmed addresses; it says what it lacks (I12)."""
    assert made.add("old").ok
    made.kill()
    made.lab.faults.apply({"unreachable": {"ec2": "refuse", "imds": "refuse"}})
    try:
        # A runtime is expected, so is a plugin that it needs, besides ours: Debian has it.
        made.node.run(["/bin/sh", "-c", f"mkdir /run/cni && ln -s {PLUGIN_PATH} /usr/lib/cni/loopback /run/cni/"])
        made.start(env={"VPC_IPAMD_CRI_SOCKET": "/run/nowhere.sock", "VPC_IPAMD_CNI_BIN_DIR": "/run/cni"})
        assert made.cni("DEL", "old").ok
        added = made.add("new")
        assert added.ok, added.body
        assert made.lab.ping(source="host-a", targets=[added.any_address])[added.any_address]
        for word in ("EC2", "CRI"):
            wait_until(
                lambda w=word: w in " ".join((made.status() or {"degraded": []})["degraded"]),
                what=f"it says that it lacks {word}",
            )
        assert made.cni("DEL", "new").ok
    finally:
        made.lab.faults.apply({"unreachable": {"ec2": None, "imds": None}})
    wait_until(lambda: (made.status() or {"cloud": {}})["cloud"].get("reachable", False), what="EC2 is asked again", timeout_s=40)
    made.restart()


@in_both_of_lab("made", HEAVY_IPV6)
def test_a_datastore_deleted_under_a_running_daemon(made: Rig) -> None:
    """The file is gone while we serve: the process ends by itself and its successor guesses nothing (I1)."""
    address = made.add("survivor").any_address
    await_growth(made)
    made.node.run(["/bin/sh", "-c", "rm -f /run/vpc-ipamd/state.db*"])
    assert made.daemon is not None
    assert made.daemon.wait(PATIENCE_S) == 1
    assert "removed or replaced" in made.log_tail()
    made.start()
    assert made.lab.ping(source="host-a", targets=[address])[address]
    assert made.pool()["quarantined_count"] == 1
    assert made.cni("DEL", "survivor").ok
    made.restart()


@in_ipv4_of_lab("made")
def test_a_read_only_disk_is_said_at_start(made: Rig) -> None:
    """The run directory cannot be written: the daemon ends with a sentence and a status, without a traceback."""
    made.kill()
    made.node.run(["mount", "-o", "remount,ro", "/run/vpc-ipamd"])
    try:
        made.start(wait=False)
        assert made.daemon is not None
        assert made.daemon.wait(20) in (1, 2, 3)
        assert "ead-only" in made.log_tail(5)
        assert "Traceback" not in made.log_tail(5)
    finally:
        made.node.run(["mount", "-o", "remount,rw", "/run/vpc-ipamd"])
    made.start()
