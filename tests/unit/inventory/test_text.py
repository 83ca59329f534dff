"""The report as text: each subnet, problem and gap has its line, and a column is as wide as its content."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ipamd.inventory.report import InventoryReport, SubnetForecast, SubnetReport
from ipamd.inventory.text import HEAD, MAP_COLUMNS, maps, table
from ipamd.model.record import replace
from tests.unit.inventory.reports import a_memory


def report() -> InventoryReport:
    """The report of the memory."""
    made = a_memory().report
    assert made is not None
    return made


def with_first(**changes: object) -> InventoryReport:
    """The report with another first subnet."""
    first, *rest = report().subnets
    changed: SubnetReport = replace(first, **changes)  # type: ignore[arg-type]
    return replace(report(), subnets=(changed, *rest))


def cells(text: str, number: int = 1) -> dict[str, str]:
    """The cells of a row of the table, by their head."""
    head, *rows = text.splitlines()
    starts = [head.index(name) for name in HEAD]
    ends = [*starts[1:], None]
    return {name: rows[number - 1][start:end].strip() for name, start, end in zip(HEAD, starts, ends, strict=True)}


def test_each_subnet_has_its_row() -> None:
    """Under the heads, by the columns' places."""
    assert cells(table(report()))["FREE /28"] == "5"
    assert cells(table(report()))["FREE"] == "122 of 123"
    assert cells(table(report()), 2)["CIDR"] == "10.0.1.0/24"


def test_problems_gaps_and_the_summary_follow() -> None:
    """A line for each; the one that was not confirmed says so."""
    _, _, _, *lines = table(report()).splitlines()
    assert [line.partition(" ")[0] for line in lines] == [
        "leaked-eni",
        "address-on-two-enis",
        "eni-of-two-nodes",
        "hidden-eni",
        "not",
        "cluster",
    ]
    assert [line.endswith("seen once") for line in lines[:4]] == [True, False, False, False]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "not known"),
        (float("inf"), "does not fall"),
        (0.0, "now"),
        (1800.0, "in 30 min"),
        (7200.0, "in 2 h"),
        (864000.0, "in 10 days"),
    ],
)
def test_a_forecast_is_a_time(seconds: float | None, shown: str) -> None:
    """In the unit that fits."""
    text = table(with_first(forecast=SubnetForecast(seconds, seconds)))
    assert (cells(text)["ADDRESSES END"], cells(text)["/28 END"]) == (shown, shown)


def test_an_old_reading_has_its_age() -> None:
    """A run that did not read the subnet shows when it was read."""
    assert cells(table(report()))["READ"] == "now"
    assert cells(table(with_first(read_at=report().at - timedelta(hours=5))))["READ"] == "5 h ago"


@pytest.mark.parametrize(
    ("changes", "count"), [({}, 0), ({"unreadable_count": 2}, 1), ({"ec2_free_count": 100}, 1), ({"ec2_free_count": 110}, 0)]
)
def test_what_the_map_cannot_show_is_said(changes: dict[str, object], count: int) -> None:
    """ENIs that could not be read, and addresses of ENIs that EC2 does not show."""
    assert len([line for line in table(with_first(**changes)).splitlines() if line.startswith("subnet-0a: ")]) == count


def test_a_map_has_64_blocks_a_line() -> None:
    """Each line begins with its first address, and lines together are the map."""
    block_map = "." * 100
    capacity = replace(report().subnets[0].capacity, block_map=block_map)
    lines = [line.split() for line in maps(with_first(capacity=capacity)).splitlines() if line.startswith("10.0.")]
    first, second, other = lines
    assert (first[0], second[0], other[0]) == ("10.0.0.0", "10.0.4.0", "10.0.1.0")
    assert (len(first[1]), first[1] + second[1]) == (MAP_COLUMNS, block_map)


def test_foreign_text_is_made_safe() -> None:
    """A tag may hold what a terminal obeys."""
    first = report().subnets[0]
    finding = replace(first.findings[0], detail="made by \x1b[31m")
    assert "\x1b" not in table(with_first(findings=(finding,)))
