"""The history's files: written behind, bounded in days and bytes, whole after a crash, and never in the way of ADD and DEL."""

from __future__ import annotations

import errno
import json
import os
import stat
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ipamd.answers import history_reply
from ipamd.core import loop as loop_module
from ipamd.core.backoffs import Schedule
from ipamd.core.health import Health
from ipamd.core.loop import Loop
from ipamd.history import writer as writer_module
from ipamd.history.encoding import decode, encode
from ipamd.history.reading import read, read_since
from ipamd.history.segments import DAY_S, listed
from ipamd.history.writer import Boot, HistoryWriter
from ipamd.model.history import HistoryRecord, RecordedHistory
from ipamd.model.history_answer import HistoryQuestion, answer
from tests.errors import refused_by_kernel
from tests.fakes.clock import FakeClock
from tests.loops import running
from tests.rig import wait_until

BYTES_MAX = 256 << 10
ADDRESS = "10.0.0.5"


class Disk:
    """A history in a directory, as daemon after daemon writes it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.held: list[HistoryRecord] = []
        self.node = "i-1"
        self.start()

    def start(self, boot_id: str = "one", *, days: int = 7) -> HistoryWriter:
        """The next daemon."""
        self.writer = HistoryWriter(
            self.directory,
            days=days,
            bytes_max=BYTES_MAX,
            boot=Boot(boot_id, self.clock.now()),
            clock=self.clock,
            current_tenures=lambda: self.held,
            node=lambda: self.node,
            ledger=lambda _: RecordedHistory(),
        )
        return self.writer

    def record(self, event: str = "assigned", *, address: str = ADDRESS, **fields: object) -> HistoryRecord:
        """One record, now."""
        return HistoryRecord(self.clock.now(), event, address=address, container_id="c1", ifname="eth0", **fields)  # type: ignore[arg-type]

    def write(self, *records: HistoryRecord) -> None:
        """Note and write."""
        self.writer.enqueue(records)
        self.writer.write()

    def events(self, subject: str = ADDRESS) -> list[str]:
        """What is told of an address, marks left out."""
        found = sorted(self.writer.read(subject).records, key=lambda one: one.at)
        return [one.event for one in found if one.event not in ("booted", "missed")]

    @property
    def size(self) -> int:
        """Bytes in the directory."""
        return sum(path.stat().st_size for path in self.directory.iterdir())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """An empty one."""
    made = Disk(tmp_path / "history")
    yield made
    made.writer.close()


def test_a_record_is_read_as_it_was_written(disk: Disk) -> None:
    """Every field, and text of any kind."""
    whole = HistoryRecord(
        disk.clock.now(), "refused", "10.0.0.1", "c", "eth0", "eni-1", "why: \u00fc", "ns/pod", disk.clock.now(), count=7, code=11
    )
    assert decode(encode(whole)) == whole == whole.as_kept()
    odd = replace(whole, at=whole.at + timedelta(microseconds=1999), since=None)
    assert decode(encode(odd)) == odd.as_kept()
    nasty = decode(encode(HistoryRecord(disk.clock.now(), "assigned", pod="a\n\x1b[2J\ud800")))
    assert nasty is not None
    assert nasty.pod == "a\\n\\x1b[2J\\ud800"
    assert encode(HistoryRecord(disk.clock.now(), "x", detail="y" * 10**6)).count(b"y") < 2000


def test_a_pods_life_is_a_few_hundred_bytes(disk: Disk) -> None:
    """docs/ipamctl.md says how many fit: a deployment's pod with its ADD and its DEL."""
    names = {"ifname": "eth0", "eni_id": "eni-08133287637ebdcd9", "pod": "default/deployment-7d4b9c6f5-x99000"}
    begun = HistoryRecord(disk.clock.now(), "assigned", "10.0.3.250", f"{99000:064x}", **names)
    ended = HistoryRecord(disk.clock.now(), "unassigned", "10.0.3.250", f"{99000:064x}", since=begun.at, detail="DEL", **names)
    assert 540 <= len(encode(begun) + encode(ended)) <= 560


def test_what_was_noted_is_told_before_and_after_it_is_written(disk: Disk) -> None:
    """Once, wherever it is."""
    disk.writer.enqueue([disk.record()])
    assert disk.events() == ["assigned"]
    assert not disk.directory.exists()
    disk.writer.write()
    assert disk.events() == ["assigned"]
    assert disk.start().read(ADDRESS).problem == ""
    assert disk.events() == ["assigned"]


def test_files_are_roots_own(disk: Disk) -> None:
    """Names of pods are nobody else's business."""
    disk.write(disk.record())
    assert disk.directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in disk.directory.iterdir()} == {0o600}


def test_another_boot_begins_a_segment_with_its_mark(disk: Disk) -> None:
    """A restart in the same boot goes on with the segment it finds."""
    disk.write(disk.record())
    disk.start().write()
    assert len(listed(disk.directory, "history")) == 1
    disk.start("two").write()
    marks = [one.detail for one in read(disk.directory, ADDRESS).records if one.event == "booted"]
    assert marks == ["one", "two"]


def test_each_day_begins_with_who_has_what(disk: Disk) -> None:
    """A pod that lives longer than the history is kept is told all the same."""
    disk.held = [disk.record("held", since=disk.clock.now(), pod="default/a")]
    disk.write(disk.record(pod="default/a"))
    for _ in range(10):
        disk.clock.advance(86_401)
        disk.writer.write()  # as it is woken once an hour, though nothing happens
        _age(disk, 86_401)
    assert 7 <= len(listed(disk.directory, "history")) <= 9
    assert set(disk.events()) == {"held"}


def _age(disk: Disk, seconds: float) -> None:
    """Let the files' times follow the fake clock."""
    now_s = disk.clock.now().timestamp()
    segments = listed(disk.directory, "history")
    for index, segment in enumerate(reversed(segments)):
        os.utime(segment.path, (now_s, now_s - index * seconds))


def test_it_stays_within_its_bytes_and_the_newest_stay(disk: Disk) -> None:
    """Twenty times as much as may be kept."""
    for number in range(20 * BYTES_MAX // 20_000):
        disk.clock.advance(1)
        disk.write(*(disk.record(detail=f"{number} " + "x" * 900) for _ in range(20)))
        assert disk.size <= BYTES_MAX + BYTES_MAX // 8
    last = max(read(disk.directory, ADDRESS).records, key=lambda one: one.at)
    assert last.detail.startswith(f"{20 * BYTES_MAX // 20_000 - 1} ")


def test_refusals_push_out_nothing_else(disk: Disk) -> None:
    """A pod that is refused for days has a share of its own."""
    disk.write(disk.record())
    for number in range(2000):
        disk.clock.advance(1)
        disk.write(disk.record("refused", address="", pod="default/stuck", detail=f"{number} " + "x" * 900))
    assert disk.size <= BYTES_MAX
    assert disk.events() == ["assigned"]
    assert disk.events("default/stuck")


def test_days_are_counted_by_whole_segments(disk: Disk) -> None:
    """What was written last longer ago goes, refusals too."""
    disk.write(disk.record(), disk.record("refused", pod="default/a"))
    for path in disk.directory.iterdir():
        now_s = disk.clock.now().timestamp()
        os.utime(path, (now_s, now_s))
    disk.writer.close()
    disk.start("two")
    disk.clock.advance(8 * DAY_S)
    disk.writer.write()
    assert disk.events() == []
    assert [one.path.name for one in listed(disk.directory, "history")] == ["history-00000002.jsonl"]


def test_a_large_young_segment_keeps_no_old_one(disk: Disk) -> None:
    """A segment that was written under a larger bound comes first, and within the present bound it stays."""
    disk.write(disk.record())
    (old,) = listed(disk.directory, "history")
    now_s = disk.clock.now().timestamp()
    os.utime(old.path, (now_s, now_s))
    disk.writer.close()
    disk.start("two")
    disk.clock.advance(8 * DAY_S)
    large = disk.directory / "history-00000007.jsonl"
    large.write_bytes(encode(disk.record("adopted")) + b"x" * (BYTES_MAX // 2))
    now_s = disk.clock.now().timestamp()
    os.utime(large, (now_s, now_s))
    disk.write(disk.record())
    names = [segment.path.name for segment in listed(disk.directory, "history")]
    assert old.path.name not in names
    assert large.name in names


def test_a_torn_line_costs_itself_only(disk: Disk) -> None:
    """kill -9 or a power cut in the middle of a write: the lines before and after are read."""
    disk.write(disk.record("assigned"))
    (segment,) = listed(disk.directory, "history")
    segment.path.write_bytes(segment.path.read_bytes() + encode(disk.record("unassigned"))[:-20])
    disk.clock.advance(1)
    disk.start().write()
    disk.write(disk.record("adopted"))
    assert disk.events() == ["assigned", "adopted"]


def test_damage_is_skipped(disk: Disk) -> None:
    """Whatever stands in the file."""
    disk.write(disk.record())
    (segment,) = listed(disk.directory, "history")
    with segment.path.open("ab") as file:
        file.write(
            b'\x00\xff{}\n[]\n{"at":1}\n'
            + b'{"at":"0001-01-01T00:00:00+23:59","event":"x","address":"10.0.0.5"}\n'
            + b"[" * 100_000
            + b"\n"
            + ADDRESS.encode()
            + b"\n"
        )
    disk.write(disk.record("unassigned"))
    assert sorted(disk.events()) == ["assigned", "unassigned"]


@pytest.mark.parametrize(
    "odd",
    [
        {"pod": "default/\ud800"},
        {"detail": "\x1b[2J\n"},
        {"event": "\u202e"},
        {"count": 2**40},
        {"code": -1},
        {"count": 1e300},
        {"eni_id": ["x"]},
    ],
    ids=str,
)
def test_what_was_written_by_others_can_be_answered(disk: Disk, odd: dict[str, object]) -> None:
    """A line that is JSON, and which no answer could carry or no terminal should see: it is made safe, or left out."""
    disk.write(disk.record())
    (segment,) = listed(disk.directory, "history")
    line = {"at": "2026-11-22T10:00:00Z", "event": "assigned", "address": ADDRESS} | odd
    with segment.path.open("ab") as file:
        file.write(json.dumps(line).encode() + b"\n")
    question = HistoryQuestion(ADDRESS, limit=10)
    reply = history_reply(answer(question, disk.writer.read(ADDRESS)), question, source="daemon")
    assert "assigned" in [entry.event for entry in reply.entries]
    assert all((one.pod + one.detail + one.event + one.eni_id).isprintable() for one in reply.entries)


def test_a_file_of_another_kind_costs_no_memory(disk: Disk) -> None:
    """One line of 64 MB, all of it a hole: it is read in pieces, by a start and by a question."""
    disk.directory.mkdir()
    with (disk.directory / "history-00000001.jsonl").open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    try:
        assert read(disk.directory, ADDRESS).records == ()
        disk.writer.write()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert disk.size < BYTES_MAX


def test_where_the_history_begins_is_told_though_the_first_line_is_lost(disk: Disk) -> None:
    """By the next segment: "empty" would be wrong."""
    disk.write(disk.record())
    disk.clock.advance(60)
    disk.start("two").write()
    first, second = listed(disk.directory, "history")
    first.path.write_bytes(b"\0" * 100)
    assert read(disk.directory, ADDRESS).begins_at is not None
    second.path.write_bytes(b"")
    assert read(disk.directory, ADDRESS).begins_at is None


FULL: list[tuple[str, Callable[[], OSError]]] = [
    ("full", lambda: OSError(errno.ENOSPC, "No space left on device")),
    ("read-only", lambda: OSError(errno.EROFS, "Read-only file system")),
    ("broken", lambda: OSError(errno.EIO, "Input/output error")),
]


@pytest.mark.parametrize(("_", "make"), FULL, ids=[name for name, _ in FULL])
def test_a_disk_that_refuses_is_a_condition(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, _: str, make: Callable[[], OSError]
) -> None:
    """`note` succeeds, the condition names directory and cause, and all of it is written once the disk works again."""
    disk.write(disk.record("assigned"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", _half(make))
        disk.writer.enqueue([disk.record("unassigned", detail="later")])
        with pytest.raises(OSError, match=r"\w"):
            disk.writer.write()
    assert disk.events() == ["assigned", "unassigned"]
    disk.writer.write()
    assert sorted(one.event for one in read(disk.directory, ADDRESS).records) == ["assigned", "booted", "unassigned"]


def test_a_full_disk_is_not_filled_with_empty_files(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It still makes files: a start that is tried again each minute leaves none behind, and then one with its mark."""
    with monkeypatch.context() as patched:
        for _ in range(5):
            patched.setattr(os, "write", _half(FULL[0][1]))
            with pytest.raises(OSError, check=refused_by_kernel(errno.ENOSPC)):
                disk.writer.write()
            assert list(disk.directory.iterdir()) == []
    disk.write(disk.record())
    assert [one.event for one in read(disk.directory, ADDRESS).records] == ["booted", "assigned"]


def test_a_line_that_cannot_be_cut_off_spoils_no_other(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails altogether keeps half a line; the next begins anew."""
    disk.write(disk.record("adopted"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", _half(FULL[2][1]))
        patched.setattr(os, "ftruncate", _half(FULL[2][1]))
        disk.writer.enqueue([disk.record("assigned")])
        with pytest.raises(OSError, check=refused_by_kernel(errno.EIO)):
            disk.writer.write()
    disk.writer.write()
    assert disk.start().read(ADDRESS).problem == ""
    assert sorted(disk.events()) == ["adopted", "assigned"]


def test_a_long_backlog_is_not_thrown_away_when_the_disk_is_back(disk: Disk) -> None:
    """Three times what may be kept: the newest are, within the bound."""
    records = [disk.record(detail=f"{number} " + "x" * 900) for number in range(3 * BYTES_MAX // 1000)]
    disk.write(disk.record("refused", address="", pod="default/stuck"), *records)
    assert disk.size <= BYTES_MAX
    kept = [int(one.detail.partition(" ")[0]) for one in read(disk.directory, ADDRESS).records if one.event == "assigned"]
    assert kept == list(range(kept[0], len(records)))
    assert len(kept) > len(records) // 5


def _half(make: Callable[[], OSError]) -> Callable[[int, Sequence[int]], int]:
    """A disk that takes some bytes and then no more."""
    is_first = True
    write = os.write

    def refuse(fd: int, data: Sequence[int]) -> int:
        nonlocal is_first
        if is_first:
            is_first = False
            return write(fd, bytes(data)[:10])
        raise make()

    return refuse


def test_the_loop_tells_its_trouble_and_its_end(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each; a directory that cannot be made is one such trouble."""
    monkeypatch.setattr(loop_module, "NODE", Schedule("node", 0.02, 5.0))
    disk.directory.parent.mkdir(exist_ok=True)
    disk.directory.write_text("in the way")
    health = Health(disk.clock, ())
    with running(Loop("history", disk.writer.turn, health=health, clock=disk.clock, changed=disk.writer.noted)):
        disk.writer.enqueue([disk.record()])
        wait_until(lambda: bool(health.conditions()), what="the condition")
        assert health.conditions()[0].startswith(f"history: nothing can be written in {disk.directory} (")
        assert "nothing can be written" in disk.writer.read(ADDRESS).problem
        disk.directory.unlink()
        wait_until(lambda: not health.conditions(), what="the end of the condition")
        wait_until(lambda: "assigned" in [one.event for one in read(disk.directory, ADDRESS).records], what="the record")
        assert disk.writer.read(ADDRESS).problem == ""


def test_what_waits_is_bounded_and_what_is_dropped_is_counted(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go; the file says how many."""
    monkeypatch.setattr(writer_module, "PENDING_MAX", 10)
    disk.start()
    disk.writer.enqueue([disk.record(detail=str(number)) for number in range(25)])
    disk.writer.write()
    found = read(disk.directory, ADDRESS).records
    assert [one.count for one in found if one.event == "missed"] == [15]
    assert sorted(int(one.detail) for one in found if one.event == "assigned") == list(range(15, 25))


def test_what_was_dropped_is_told_once_though_the_disk_fails_again(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the note of it, and before the refusals."""
    monkeypatch.setattr(writer_module, "PENDING_MAX", 10)
    disk.start()
    refused = disk.record("refused", address="", pod="default/stuck")
    disk.writer.enqueue([*(disk.record(detail=str(number)) for number in range(25)), refused])

    def full(_: bytes, *, now_s: float) -> None:
        raise OSError(errno.ENOSPC, f"No space left on device at {now_s}")

    with monkeypatch.context() as patched:
        patched.setattr(disk.writer._appenders["refused"], "append", full)
        with pytest.raises(OSError, check=refused_by_kernel(errno.ENOSPC)):
            disk.writer.write()
    disk.writer.write()
    assert [one.count for one in read(disk.directory, ADDRESS).records if one.event == "missed"] == [16]


def test_a_file_that_somebody_removed_is_made_again(disk: Disk) -> None:
    """The open file would swallow what is written."""
    disk.write(disk.record())
    for segment in listed(disk.directory, "history"):
        segment.path.unlink()
    disk.write(disk.record("unassigned"))
    assert [one.event for one in read(disk.directory, ADDRESS).records] == ["booted", "unassigned"]


def test_a_link_is_not_followed(disk: Disk, tmp_path: Path) -> None:
    """Nobody makes the daemon write elsewhere."""
    disk.directory.mkdir()
    (tmp_path / "elsewhere").write_text("x")
    (disk.directory / "history-00000001.jsonl").symlink_to(tmp_path / "elsewhere")
    disk.writer.enqueue([disk.record()])
    disk.writer.write()
    assert (tmp_path / "elsewhere").read_text() == "x"


def test_an_answer_is_bounded_and_says_so(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question about an ENI fits every record of it: the daemon's memory holds the latest ones."""
    monkeypatch.setattr("ipamd.history.reading._collect.__kwdefaults__", {"written_after_s": 0.0, "most": 5})
    disk.write(*(disk.record(detail=str(number), eni_id="eni-1") for number in range(20)))
    found = read(disk.directory, "eni-1")
    assert [one.detail for one in found.records] == ["15", "16", "17", "18", "19"]
    assert found.problem == "only the latest 5 records were looked at"


def test_the_last_day_is_read_without_the_rest(disk: Disk) -> None:
    """For the support archive."""
    disk.write(disk.record(detail="old"))
    disk.clock.advance(3600)
    disk.write(disk.record(detail="new"))
    found = read_since(disk.directory, disk.clock.now() - timedelta(minutes=5))
    assert [one.detail for one in found.records] == ["new"]
    assert found.begins_at is not None


def test_no_sync_per_event(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's disk is asked to finish at most every ten seconds, and the end of the process waits for none."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    for _ in range(100):
        disk.write(disk.record())
    assert synced == []
    disk.clock.advance(writer_module.SYNC_S)
    disk.writer.write()
    assert len(synced) == 1
    disk.writer.enqueue([disk.record()])
    disk.writer.close()
    assert len(synced) == 1
    assert len(read(disk.directory, ADDRESS).records) == 102


ODD: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "directory": os.mkdir,
    "socket": lambda path: os.mknod(path, 0o600 | stat.S_IFSOCK),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "huge": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40),
}


@pytest.mark.parametrize("number", ["00000000", "00000500", "99999999"], ids=["oldest", "newer", "last"])
@pytest.mark.parametrize("kind", ["history", "refused"])
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_segment_hangs_nobody(disk: Disk, odd: str, kind: str, number: str) -> None:
    """Whatever has a segment's name: questions are answered and name it, the writer goes on beside it, and no record of ours goes."""
    disk.write(disk.record())
    disk.directory.joinpath(f"{kind}-{number}.jsonl")
    ODD[odd](disk.directory / f"{kind}-{number}.jsonl")
    found = read(disk.directory, ADDRESS)
    assert [one.event for one in found.records if one.address] == ["assigned"]
    assert f"{kind}-{number}.jsonl is not read" in found.problem
    assert len(read_since(disk.directory, disk.clock.now() - timedelta(days=1)).records) == 2
    disk.start("two")  # a boot, which begins a segment
    disk.write(disk.record("unassigned"), disk.record("refused"))
    events = [one.event for one in read(disk.directory, ADDRESS).records if one.address]
    assert sorted(events) == ["assigned", "refused", "unassigned"]
