"""The chart's README has a row for each value, with its default and its comment; `tests/unit/docs/test_docs.py` compares the file."""

from __future__ import annotations

import re

import pytest

from tests.unit.manifests.test_chart import VALUES
from tools.chart_readme import chart_readme, tables

VALUES_FILE = """\
# About the names.
name: ""  # of all
group:
  size: 3  # how many
  kind: a|b  # which

other: {x: 1}  # one row
# Both of these.
probe:
  period: 1
  timeout: 2  # not all have a comment
list:
  - item
"""


def test_each_value_has_its_row() -> None:
    """Groups whose values are all explained are opened; others are one row, and the paragraph above explains them."""
    assert re.findall(r"^\| `([\w.]+)` \| `(.+?)` \| (.*) \|$", tables(VALUES_FILE), re.M) == [
        ("name", '""', "of all"),
        ("group.size", "3", "how many"),
        ("group.kind", "a|b", "which"),
        ("other", '{"x": 1}', "one row"),
        ("probe", '{"period": 1, "timeout": 2}', ""),
        ("list", '["item"]', ""),
    ]


def test_a_paragraph_begins_a_table() -> None:
    """It stands above the values that follow it; an empty line begins a table without one."""
    assert tables(VALUES_FILE).count("| Value | Default | Meaning |") == 3
    assert "\nAbout the names.\n\n| Value |" in tables(VALUES_FILE)
    assert "\nBoth of these.\n\n| Value |" in tables(VALUES_FILE)


def test_a_value_without_a_comment_is_an_error() -> None:
    """Neither behind it nor above its table."""
    with pytest.raises(ValueError, match="size"):
        tables("# Above.\nname: 1\n\nsize: 2\n")


def test_no_value_of_the_chart_is_missing() -> None:
    """Each top-level value is a row or opened into rows."""
    rows = re.findall(r"^\| `([\w.]+)` \|", chart_readme(), re.M)
    assert {row.partition(".")[0] for row in rows} == set(VALUES)
    assert len(rows) == len(set(rows))
