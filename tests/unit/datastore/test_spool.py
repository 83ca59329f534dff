"""The spool: what the plugin left is replayed once, in order, and nothing else is touched (I3)."""

# ruff: noqa: PT012 - the error must come out of the replay block

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.datastore.spool import ENTRY_MAX_BYTES, KEPT_COUNT, LOCK_WAIT_S, SpoolDirectory
from ipamd.model.errors import DatastoreError, TryAgainError
from ipamd.model.failures import FailureCode
from ipamd.model.ids import parse_key
from ipamd.pb import cni_pb2
from tests.errors import failed
from tests.unit.datastore.support import FakeClock


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The run directory."""
    return tmp_path


@pytest.fixture
def spool(run_dir: Path, clock: FakeClock) -> SpoolDirectory:
    """A spool whose waiting is the fake clock's."""
    return SpoolDirectory(run_dir, clock=clock, pause=clock.pause)


def a_del(container_id: str = "a" * 64, *, verb: str = "DEL", ifname: str = "eth0", config: bytes = b"{}") -> bytes:
    """What the plugin spools."""
    return cni_pb2.ExecRequest(verb=verb, container_id=container_id, ifname=ifname, config=config).SerializeToString()


def _write(run_dir: Path, name: str, content: bytes | None = None) -> Path:
    """Leave an entry as the plugin does."""
    directory = run_dir / "spool"
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_bytes(a_del() if content is None else content)
    return path


def _names(spool: SpoolDirectory) -> list[str]:
    with spool.replay() as entries:
        return [entry.name for entry in entries]


@pytest.fixture
def plugin_lock(run_dir: Path) -> Iterator[int]:
    """The lock, held shared as a plugin holds it."""
    handle = os.open(run_dir / "spool.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_SH)
    yield handle
    os.close(handle)


def test_nothing_spooled(spool: SpoolDirectory) -> None:
    """Without a spool directory nothing waits and replay yields nothing."""
    assert spool.pending_count() == 0
    assert _names(spool) == []


def test_replay(run_dir: Path, spool: SpoolDirectory) -> None:
    """Entries come as the key of their sandbox; `done` removes one for good, what is not done comes again."""
    _write(run_dir, "del-10-1000000001", a_del("one"))
    _write(run_dir, "del-10-1000000002", a_del("two", ifname="net1"))
    assert spool.pending_count() == 2
    with spool.replay() as entries:
        first, second = entries
        assert (first.key, second.key) == (parse_key("one", "eth0"), parse_key("two", "net1"))
        first.done()
        first.done()
    assert spool.pending_count() == 1
    assert _names(spool) == ["del-10-1000000002"]


def test_oldest_first(run_dir: Path, spool: SpoolDirectory) -> None:
    """Order is by the monotonic time in the names, whatever the pid, the length or the file's own time says."""
    for age, name in enumerate(["del-7-20000000000", "del-99999-3000000000", "del-1-100000000000"]):
        os.utime(_write(run_dir, name), (age, age))
    assert _names(spool) == ["del-99999-3000000000", "del-7-20000000000", "del-1-100000000000"]
    os.utime(_write(run_dir, "del-without-time"), (1, 0.5))
    assert _names(spool) == ["del-7-20000000000", "del-without-time", "del-99999-3000000000", "del-1-100000000000"]


def test_half_written(run_dir: Path, spool: SpoolDirectory, clock: FakeClock) -> None:
    """A half-written entry is not replayed or counted, and goes after an hour; other names are left alone."""
    now = clock.now().timestamp()
    for name, age_s in ((".tmp-1-1000000", 3700), (".tmp-2-2000000", 3500), ("README", 9999)):
        os.utime(_write(run_dir, name), (now - age_s, now - age_s))
    assert spool.pending_count() == 0
    assert _names(spool) == []
    assert sorted(os.listdir(run_dir / "spool")) == [".tmp-2-2000000", "README"]


def test_suspicious_entries(run_dir: Path, spool: SpoolDirectory) -> None:
    """Links, directories, pipes, empty and oversized entries are set aside, not followed; good ones still come."""
    _write(run_dir, "del-1-1000000")
    _write(run_dir, "del-2-2000000", b"")
    _write(run_dir, "del-3-3000000", b"x" * (ENTRY_MAX_BYTES + 1))
    secret = run_dir / "secret"
    secret.write_bytes(b"secret")
    (run_dir / "spool" / "del-4-4000000").symlink_to(secret)
    (run_dir / "spool" / "del-5-5000000").mkdir()
    os.mkfifo(run_dir / "spool" / "del-6-6000000")
    _write(run_dir, "del-7-7000000", a_del(config=b"x" * (ENTRY_MAX_BYTES - len(a_del(config=b"x" * 2_000_000)) + 2_000_000)))
    assert (run_dir / "spool" / "del-7-7000000").stat().st_size == ENTRY_MAX_BYTES
    assert _names(spool) == ["del-1-1000000", "del-7-7000000"]
    assert sorted(os.listdir(run_dir / "spool-bad")) == [f"del-{n}-{n}000000" for n in (2, 3, 4, 5, 6)]
    assert (run_dir / "spool-bad" / "del-4-4000000").is_symlink()
    assert secret.read_bytes() == b"secret"
    assert spool.pending_count() == 2


def test_entry_of_another_user(run_dir: Path, spool: SpoolDirectory) -> None:
    """An entry that is not ours is set aside: only root may ask for a DEL."""
    if os.geteuid() != 0:
        pytest.skip("changing an owner needs root")
    os.chown(_write(run_dir, "del-1-1000000"), 12345, 12345)
    assert _names(spool) == []
    assert os.listdir(run_dir / "spool-bad") == ["del-1-1000000"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xff\xff", "not an ExecRequest"),
        (a_del(verb="ADD"), "only DEL is spooled"),
        (a_del(container_id=""), "container ID"),
        (a_del(container_id="../etc"), "container ID"),
        (a_del(ifname="a/b"), "interface name"),
    ],
)
def test_what_is_no_del_is_set_aside(
    run_dir: Path, spool: SpoolDirectory, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    """An entry that does not decode to the DEL of one sandbox is kept for diagnosis; the entries behind it still come (I3)."""
    _write(run_dir, "del-1-1000000", content)
    _write(run_dir, "del-2-2000000")
    assert _names(spool) == ["del-2-2000000"]
    assert os.listdir(run_dir / "spool-bad") == ["del-1-1000000"]
    assert reason in caplog.text


def test_set_aside_is_capped(run_dir: Path, spool: SpoolDirectory) -> None:
    """Damaged entries of one name do not replace each other, and only the newest are kept."""
    for number in range(KEPT_COUNT + 5):
        _write(run_dir, "del-1-1000000", f"no request {number}".encode())
        assert _names(spool) == []
    kept = run_dir / "spool-bad"
    assert len(os.listdir(kept)) == KEPT_COUNT
    assert f"no request {KEPT_COUNT + 4}" in {path.read_text() for path in kept.iterdir()}
    assert spool.pending_count() == 0


def test_waits_for_plugins_within_a_bound(spool: SpoolDirectory, clock: FakeClock, plugin_lock: int) -> None:
    """While a plugin holds the lock replay waits, then gives up with an error that may be retried."""
    began = clock.monotonic()
    with pytest.raises(TryAgainError, check=failed(FailureCode.SPOOL_LOCKED)), spool.replay():
        pass
    assert LOCK_WAIT_S <= clock.monotonic() - began < LOCK_WAIT_S + 0.1
    fcntl.flock(plugin_lock, fcntl.LOCK_UN)
    assert _names(spool) == []


def test_plugin_that_finishes(run_dir: Path, clock: FakeClock, plugin_lock: int) -> None:
    """An entry that a plugin was just writing when replay began is seen by that replay (I3)."""

    def pause(duration_s: float) -> None:
        clock.pause(duration_s)
        _write(run_dir, "del-1-1000000")
        fcntl.flock(plugin_lock, fcntl.LOCK_UN)

    assert _names(SpoolDirectory(run_dir, clock=clock, pause=pause)) == ["del-1-1000000"]


def test_lock_is_exclusive_and_given_back(run_dir: Path, spool: SpoolDirectory) -> None:
    """During replay no plugin gets the lock; after it, also after an error, it is free."""
    with pytest.raises(RuntimeError), spool.replay():
        handle = os.open(run_dir / "spool.lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        raise RuntimeError
    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(handle)


def test_links_in_place_of_our_files(run_dir: Path, spool: SpoolDirectory) -> None:
    """A link where the lock or the directory should be is refused, not followed."""
    (run_dir / "spool").symlink_to("/etc")
    with pytest.raises(DatastoreError, check=failed(FailureCode.SPOOL_UNREADABLE)), spool.replay() as entries:
        list(entries)
    (run_dir / "spool").unlink()
    (run_dir / "spool.lock").unlink()
    (run_dir / "spool.lock").symlink_to("/etc/passwd")
    with pytest.raises(DatastoreError, check=failed(FailureCode.SPOOL_UNREADABLE)), spool.replay():
        pass
