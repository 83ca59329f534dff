"""One disk that refuses is one condition, with its cause and what to do, whatever fails by it; what others cause stays apart."""

from __future__ import annotations

import errno
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.model.defects import Defect
from ipamd.model.disk_refusal import disk_refusal
from ipamd.model.errors import CloudError, DatastoreError, IpamError, SettingsError
from ipamd.report.verdict import condition_reports, facts, verdict
from tests.conditions import failed
from tests.fakes.node import SETTINGS, FakeNode


def sqlite_refusal(code: int) -> DatastoreError:
    """As the datastore's adapter makes it of a real error of SQLite."""
    cause = sqlite3.OperationalError("database or disk is full")
    cause.sqlite_errorcode = code
    cause.sqlite_errorname = {sqlite3.SQLITE_FULL: "SQLITE_FULL", sqlite3.SQLITE_READONLY: "SQLITE_READONLY_DIRECTORY"}[code]
    error = DatastoreError(f"committing: {cause}", details=cause.sqlite_errorname)
    error.__cause__ = cause
    return error


def refused(number: int) -> OSError:
    """Of the kernel."""
    return OSError(number, "told by a test", "/somewhere")


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """A ready node, with everything that it writes on one disk."""
    places = replace(
        SETTINGS.daemon, run_dir=tmp_path, history_dir=str(tmp_path / "history"), conflist_path=tmp_path / "10.conflist"
    )
    (tmp_path / "history").mkdir()
    node = FakeNode(tmp_path, shipped=replace(SETTINGS, daemon=places))
    node.bring_up()
    node.health.mark_ready()
    return node


def fail_everywhere(node: FakeNode, error: DatastoreError, number: int) -> None:
    """What a disk that refuses leads to: each part tells what it could not write."""
    node.health.report_refused_change(error)
    node.health.report("cooldown", failed(error), error=error)
    node.health.report("served mark", failed("no"), error=refused(number))
    history = IpamError("nothing can be written")
    history.__cause__ = refused(number)
    node.health.report("history", failed(history), error=history)


@pytest.mark.parametrize(
    ("code", "number", "cause", "step"),
    [
        (sqlite3.SQLITE_FULL, errno.ENOSPC, "is full", "free space there"),
        (sqlite3.SQLITE_FULL, errno.EDQUOT, "is full", "free space there"),
        (sqlite3.SQLITE_READONLY, errno.EROFS, "is read-only", "mount it writable"),
    ],
)
def test_one_disk_is_one_condition(node: FakeNode, code: int, number: int, cause: str, step: str) -> None:
    """Named with the file system, how it refuses, what else fails by it, and what to do; the line has the cause."""
    fail_everywhere(node, sqlite_refusal(code), number)
    known = facts(node.app.introspection.sources)
    (only,) = condition_reports(known)
    assert only.subject == "datastore"
    assert only.text.startswith(f"datastore: the file system of {node.run_dir} {cause}")
    assert "ADD and DEL fail" in only.text
    assert "; the same disk causes: cooldown, history, served mark" in only.text
    assert only.next.startswith(step)
    assert f"with 1 condition: datastore: the file system of {node.run_dir} {cause}"[:100] in verdict(known)
    assert not any(node.health.defects.values()), "a full disk is no defect of ours"


def test_other_disks_and_other_causes_stay_apart(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history's own disk is a second trouble, and so is EC2; what outlasts the disk is told again."""
    monkeypatch.setattr("ipamd.report.disks._device", lambda place: place)
    fail_everywhere(node, sqlite_refusal(sqlite3.SQLITE_FULL), errno.ENOSPC)
    node.health.report("ec2", failed("no"), error=CloudError("no"))
    sources = node.app.introspection.sources
    assert [one.subject for one in condition_reports(facts(sources))] == ["datastore", "ec2", "history"]
    node.health.report("datastore", None)
    assert [one.subject for one in condition_reports(facts(sources))] == ["ec2", "cooldown", "history"]
    assert "; the same disk causes: served mark" in condition_reports(facts(sources))[1].text


def test_a_condition_that_a_disk_caused_once_is_of_what_causes_it_now(node: FakeNode) -> None:
    """Each report tells anew how a disk refused: a loop that now fails for another reason is a condition of its own."""
    fail_everywhere(node, sqlite_refusal(sqlite3.SQLITE_FULL), errno.ENOSPC)
    node.health.report("cooldown", failed("the kernel refused"), error=CloudError("the kernel refused"))
    assert [one.subject for one in condition_reports(facts(node.app.introspection.sources))] == ["datastore", "cooldown"]


def test_inodes_are_told_from_space(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are ENOSPC; what is to be deleted differs."""
    found = type("Found", (), {"f_files": 40, "f_favail": 0, "f_bavail": 9, "f_blocks": 9, "f_frsize": 4096})()
    monkeypatch.setattr("os.statvfs", lambda _: found)
    node.health.report("served mark", failed("no"), error=refused(errno.ENOSPC))
    (only,) = condition_reports(facts(node.app.introspection.sources))
    assert only.text == f"served mark: the file system of {node.run_dir} has no inode left: no; retried"
    assert only.next == f"delete files there: `df -i {node.run_dir}`"


def test_what_is_behind_an_error_is_found_and_other_errors_are_no_disk() -> None:
    """Through each error that was made of another; a defect stays a defect."""
    inner = SettingsError("cannot write")
    inner.__cause__ = refused(errno.EIO)
    outer = IpamError("outer")
    outer.__cause__ = inner
    assert disk_refusal(outer) == "failing"
    assert disk_refusal(refused(errno.EACCES)) == ""
    assert disk_refusal(None) == ""
    assert disk_refusal(ValueError()) == ""


def test_only_a_disk_that_refuses_is_no_defect(node: FakeNode) -> None:
    """Any other error that is none of ours is one."""
    node.health.report("socket", failed("no"), error=refused(errno.ENOSPC))
    assert not any(node.health.defects.values())
    node.health.report("links", failed("no"), error=ValueError())
    assert node.health.defects[Defect.UNEXPECTED] == 1
