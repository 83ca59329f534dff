"""docs/assumptions.md: every row is whole, its tests exist, and it names the checks of the probe, all and no other."""

from __future__ import annotations

import re
from pathlib import Path

from ipamd.probe.calls import CHECK_CALLS, CLEANUP_CALLS
from ipamd.probe.checks import CHECKS, NOT_PROBED
from tests.table import each_of

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "assumptions.md"
HEADER = ["Assumption", "Source", "If it is false", "Played by"]
PROBED = "Checked by the probe"
"""The section whose rows are those of the probe's table; its first column has the names of the checks."""

TOPICS = (PROBED, "EC2", "Instance metadata", "The container runtime", "The host")

PUBLIC = re.compile(
    r"https://|\[[a-z]+\]|(issue|issues|pull request) \d+|RFC \d+|\w\(\d\)|the kernel's `|\bREADME\.md|\bpkg/[\w/.]+\.go|`manifests/"
)
OPEN = re.compile(r"\bunknown\b|\bours\b|\bmeasured with\b")
"""Where there is no public source the row says so."""


def tables() -> dict[str, list[list[str]]]:
    """Rows by the title of their section; cells without the frame."""
    found = {}
    for section in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]:
        rows = [[cell.strip() for cell in line.strip("| \n").split(" | ")] for line in section.splitlines() if line[:2] == "| "]
        title = section.splitlines()[0]
        if rows:
            assert rows[0] == (["Check", *HEADER] if title == PROBED else HEADER), title
            found[title] = rows[1:]
    return found


TABLES = tables()
ROWS = [row[title == PROBED :] for title, rows in TABLES.items() for row in rows]
"""All rows, without the names of checks."""


def test_each_topic_has_its_table() -> None:
    """EC2, metadata, runtime and host: none was lost, and each has rows."""
    for topic in TOPICS:
        assert any(title.startswith(topic) and len(rows) > 4 for title, rows in TABLES.items()), topic
    assert len(ROWS) > 60


@each_of(ROWS)
def test_each_row_is_whole(row: list[str]) -> None:
    """Assumption, source, consequence and test; none empty."""
    assert len(row) == len(HEADER)
    assert all(row)


@each_of(ROWS)
def test_each_source_can_be_opened_or_is_unknown(row: list[str]) -> None:
    """A URL, a numbered issue, a manual page, a file of the kernel or of a public project; otherwise the row admits it."""
    assert PUBLIC.search(row[1]) or OPEN.search(row[1])


@each_of(ROWS)
def test_each_false_answer_is_played_or_admitted_to_be_missing(row: list[str]) -> None:
    """Files and functions exist (`test_docs.py` looks inside the files); or nobody plays it, or nobody needs to."""
    if row[3] in ("none yet", "none needed"):
        return
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", row[3])
    assert named
    assert re.sub(r"`[^`]+`|[, ]", "", row[3]) == ""
    for path, function in named:
        text = (ROOT / path).read_text()
        assert not function or f"def {function}(" in text


def test_the_page_and_the_probe_have_the_same_checks() -> None:
    """Each check of the code has a row, in the order of a run, and no other row has a name."""
    assert [row[0] for row in TABLES[PROBED]] == [f"`{check.name}`" for check in CHECKS]
    named = {name for row in ROWS for name in re.findall(r"the check `([a-z\d-]+)`", row[1])}
    assert named <= {check.name for check in CHECKS}


def test_what_is_not_probed_is_on_the_page() -> None:
    """With the reasons that the report gives."""
    section = PAGE.read_text().partition("The probe cannot check:")[2].partition("\n## ")[0]
    assert [text for text in NOT_PROBED if f"- {text}\n" not in section] == []
    assert not re.search(r"^@", PAGE.read_text(), re.M), "a line of the template that names no check"


def test_every_label_leads_somewhere() -> None:
    """Labels in brackets have their URL at the end of the page, and no URL is left over."""
    text = PAGE.read_text()
    defined = set(re.findall(r"^\[([a-z]+)\]: https://", text, re.M))
    used = set(re.findall(r"\[([a-z]+)\](?![:(])", text))
    assert used == defined


def test_the_page_says_the_bound_of_the_code() -> None:
    """Who runs the probe is told the number that the code holds."""
    text = " ".join(PAGE.read_text().split())
    assert f"At most {CHECK_CALLS + CLEANUP_CALLS} EC2 calls, {CLEANUP_CALLS} of which are kept for the clean-up" in text
