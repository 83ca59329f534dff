"""The summary, the JSON and the exit code tell the same, and one failed check is enough."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.demo import report
from lab.demo.checks import Check

GOOD = Check("40 sandboxes run", True, "node-a 20, node-b 20")
BAD = Check("idle: no EC2 call in 5 s", False, "i-1: DescribeNetworkInterfaces")


@pytest.mark.parametrize(("checks", "code"), [([GOOD], 0), ([GOOD, BAD], 1), ([BAD, GOOD], 1), ([], 1)])
def test_exit_code_and_json_agree(tmp_path: Path, checks: list[Check], code: int) -> None:
    """One failed check, or none made at all, is a failure for make and for programs alike."""
    path = tmp_path / "build" / "demo.json"
    report.write_json(path, checks, duration_s=12.345)
    document = json.loads(path.read_text())
    assert report.exit_code(checks) == code
    assert document["ok"] is (code == 0)


def test_json_has_the_promised_shape(tmp_path: Path) -> None:
    """`{"ok", "duration_s", "checks": [{"name", "ok", "detail"}]}` and nothing else; nothing else is left in the directory."""
    path = tmp_path / "demo.json"
    report.write_json(path, [GOOD, BAD], duration_s=12.345)
    assert json.loads(path.read_text()) == {
        "ok": False,
        "duration_s": 12.3,
        "checks": [
            {"name": GOOD.name, "ok": True, "detail": GOOD.detail},
            {"name": BAD.name, "ok": False, "detail": BAD.detail},
        ],
    }
    assert list(tmp_path.iterdir()) == [path]


def test_summary_names_every_check_the_time_and_the_json(tmp_path: Path) -> None:
    """A reader of the last lines sees what failed, how many hold, how long it took and where the JSON is."""
    text = report.summary([GOOD, BAD], duration_s=50.49, json_path=tmp_path / "demo.json")
    rows = text.splitlines()
    assert rows[0].split() == ["CHECK", "OK", "DETAIL"]
    assert rows[1].split()[-5:] == ["ok", "node-a", "20,", "node-b", "20"]
    assert "FAIL" in rows[2]
    assert BAD.detail in rows[2]
    assert rows[-1].startswith("1 of 2 checks hold, in 50.5 s. It failed.")
    assert str(tmp_path / "demo.json") in rows[-1]


def test_summary_of_success_does_not_say_failed(tmp_path: Path) -> None:
    """The word appears only when it is true."""
    text = report.summary([GOOD], duration_s=1.0, json_path=tmp_path / "demo.json")
    assert "FAIL" not in text.upper()


def test_long_details_wrap_under_their_column_and_are_not_cut_off(tmp_path: Path) -> None:
    """Nothing is lost in the table."""
    words = [f"word{number}" for number in range(60)]
    text = report.summary([Check("long", True, " ".join(words))], duration_s=1.0, json_path=tmp_path / "demo.json")
    assert all(word in text for word in words)
    assert max(map(len, text.splitlines())) < 140
