"""`ipamctl history` and `explain`: nothing found is said, times are read, and the file answers when the daemon is away."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ipamd.history.encoding import encode
from ipamd.ipamctl import main as ipamctl
from ipamd.ipamctl.verb import moment
from ipamd.model.history import HistoryRecord

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No daemon, and a history in which pod default/a had 10.0.0.5 for an hour, and default/b was refused."""
    monkeypatch.setenv("VPC_IPAMD_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("VPC_IPAMD_HISTORY_DIR", str(tmp_path / "history"))
    (tmp_path / "history").mkdir()
    names = {"address": "10.0.0.5", "container_id": "c" * 64, "ifname": "eth0", "pod": "default/a"}
    records = [
        HistoryRecord(NOW - timedelta(hours=3), "booted", detail="boot"),
        HistoryRecord(NOW - timedelta(hours=2), "assigned", **names),
        HistoryRecord(NOW - timedelta(hours=1), "unassigned", detail="DEL", since=NOW - timedelta(hours=2), **names),
        HistoryRecord(NOW, "refused", pod="default/b", container_id="d" * 64, since=NOW, count=9, code=11, detail="no address"),
    ]
    (tmp_path / "history" / "history-00000001.jsonl").write_bytes(b"".join(map(encode, records)))
    return tmp_path / "history"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    status = ipamctl.main(list(words))
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize("subject", ["10.0.0.5", "default/a", "a", "ccc", "c" * 64, "c" * 64 + "/eth0"])
def test_who_had_it_then_without_a_daemon(away: Path, capsys: pytest.CaptureFixture[str], subject: str) -> None:
    """By address, pod, container ID; the answer says where it comes from."""
    status, out, _ = run(capsys, "history", subject, "--at", "2026-11-22T10:30:00Z")
    assert status == 0
    assert out.startswith("10.0.0.5 was with default/a (sandbox ccc")
    assert "until 2026-11-22T11:00:00.000Z, ended by unassigned (DEL)" in out
    assert f"read from {away}" in out
    status, out, _ = run(capsys, "explain", subject, "-o", "json")
    assert json.loads(out)["source"] == "file"


def test_nothing_found_is_said_with_status_1(away: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And from when on there are records. explain refuses what it does not know, as the daemon does."""
    status, out, _ = run(capsys, "history", "default/nobody")
    assert status == 1
    assert out.startswith("nothing is recorded about default/nobody; the history begins at 2026-11-22T09:00:00.000Z")
    status, out, _ = run(capsys, "history", "10.0.0.5", "--at", "2026-11-22T11:30:00Z")
    assert status == 1
    assert out.count("default/a") == out.count("before: ") == 1, "who had it last is named"
    status, out, err = run(capsys, "explain", "default/nobody")
    assert (status, out) == (4, "")
    assert err.startswith("ipamctl: default/nobody is not known: nothing is recorded")
    assert away.is_dir()


def test_a_refusal_is_told_from_the_file(away: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With count and code."""
    _, out, _ = run(capsys, "history", "default/b")
    assert "9 times since 2026-11-22T12:00:00.000Z, code 11: no address" in out
    _, out, _ = run(capsys, "explain", "b")
    assert out.startswith("ADD of default/b was refused, 9 in all, last at 2026-11-22T12:00:00.000Z: code 11: no address")
    assert away.is_dir()


def test_no_daemon_and_no_file_is_status_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Both are named."""
    status, _, err = run(capsys, "--socket", str(tmp_path / "s"), "history", "a", "--history-dir", str(tmp_path / "none"))
    assert status == 3
    assert "does not answer" in err
    assert f"there is no history in {tmp_path / 'none'}" in err


def test_where_the_history_lies_is_read_from_the_settings_file_too(
    away: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the daemon reads it; another setting that is wrong, which may be why the daemon is away, is no hindrance."""
    monkeypatch.delenv("VPC_IPAMD_HISTORY_DIR")
    (away.parent / "settings").write_text(f"VPC_IPAMD_HISTORY_DIR={away}\nWARM_IP_TARGET=lots\n")
    monkeypatch.setenv("VPC_IPAMD_SETTINGS_FILE", str(away.parent / "settings"))
    status, out, _ = run(capsys, "history", "10.0.0.5")
    assert status == 0
    assert f"read from {away}" in out


@pytest.mark.parametrize(
    "words", [("history", "\udcff"), ("explain", "\udcff"), ("history", "a", "-n", "99999999999999")], ids=str
)
def test_a_question_that_cannot_be_sent_is_told(away: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    """Bytes of a shell that are no UTF-8, and a number that no message holds: a sentence, no traceback."""
    assert away.is_dir()
    status, _, err = run(capsys, *words)
    assert status in {1, 2, 4}
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("90m", 5400),
        ("2h", 7200),
        ("3d", 259200),
        ("1w", 604800),
        ("yesterday", 86400),
        ("2 hours ago", 7200),
        ("now", 0),
    ],
)
def test_durations_count_back_from_now(text: str, seconds: int) -> None:
    """2h is two hours ago."""
    then = datetime.fromisoformat(moment(text))
    ago = datetime.now(UTC) - then
    assert seconds <= ago.total_seconds() < seconds + 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-22T10:00:00Z", "2026-11-22T10:00:00+00:00"),
        ("2026-11-22T10:00:00+02:00", "2026-11-22T10:00:00+02:00"),
        ("2026-11-22 10:00", "2026-11-22T10:00:00+00:00"),
        ("2026-11-22", "2026-11-22T00:00:00+00:00"),
        ("2026-11-22 10:00 UTC", "2026-11-22T10:00:00+00:00"),
        ("yesterday 14:00", "2026-11-24T14:00:00+00:00"),
        ("today 09:00Z", "2026-11-25T09:00:00+00:00"),
        ("09:00", "2026-11-25T09:00:00+00:00"),
        ("14:00", "2026-11-24T14:00:00+00:00"),
        ("Yesterday 14:00+02:00", "2026-11-24T14:00:00+02:00"),
    ],
)
def test_times_are_rfc_3339_or_a_day_and_a_time(text: str, expected: str) -> None:
    """UTC if no zone is named, as all that we print; a time without a day is the latest that has been."""
    assert moment(text, now=datetime(2026, 11, 25, 10, 30, tzinfo=UTC)) == expected


@pytest.mark.parametrize(
    "text", ["", "h", "2x", "-2h", "yesterdays", "tomorrow", "25:00", "99999999999999d", "2026-13-01", "\u0662h"]
)
def test_other_times_are_refused(text: str) -> None:
    """A usage error, no traceback."""
    with pytest.raises(argparse.ArgumentTypeError):
        moment(text)
