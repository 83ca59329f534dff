"""The queries of docs/troubleshooting.md#who-had-this-address, as they stand there, run on the log lines of two lab nodes.

Logs Insights is a service, and Loki is not run here: small interpreters of the stages that the page uses stand for both, by their
public documentation. What they find is compared with who had what by the lines' own times, for every address at every moment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.recordings.assignments import LINES
from tests.task_pages import DOCS

Event = dict[str, Any]

LOG: list[str] = LINES.read_text().splitlines()
TENURES = [one for one in map(json.loads, LOG) if one["message"].startswith("address ")]
ADDRESSES = sorted({one["address"] for one in TENURES})
MOVED = "10.0.0.124"


def _queries() -> list[str]:
    """The indented blocks of the section that are no commands of a shell."""
    section = (DOCS / "troubleshooting.md").read_text().partition("## Who had this address\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"(?:^    .*\n)+", section, re.M)
    return [re.sub("^    ", "", block, flags=re.M) for block in blocks if not block.startswith("    $ ")]


QUERIES = _queries()
INSIGHTS, LOKI = [one for one in QUERIES if one[0] != "{"], [one for one in QUERIES if one[0] == "{"]


# CloudWatch Logs Insights: events with the keys of a JSON line, and commands divided by `|`.


def insights(query: str, lines: Iterable[str]) -> list[Event]:
    """Run fields, filter, sort and limit, as the documentation of the query language has them."""
    events = [json.loads(line) for line in lines]
    events = [one | {"@timestamp": one["at"]} for one in events]
    shown: list[str] = []
    for command in (part.strip() for part in re.split(r"(?:^|\n)\s*\|", query)):
        word, _, rest = command.partition(" ")
        match word:
            case "fields":
                shown = [name.strip("` ") for name in rest.split(",")]
            case "filter":
                tests = [_condition(one) for one in rest.split(" and ")]
                events = [one for one in events if all(test(one) for test in tests)]
            case "sort":
                name, order = rest.replace("`", "").split()
                events.sort(key=lambda one: str(one.get(name, "")), reverse=order == "desc")
            case "limit":
                events = events[: int(rest)]
            case other:
                raise AssertionError(f"{other} is not known here")
    return [{name: one[name] for name in shown if name in one} for one in events]


def _condition(text: str) -> Callable[[Event], bool]:
    found = re.fullmatch(r"\s*`?(?P<name>\w+)`?\s*(?P<word>=|<=|like)\s*(?:\"(?P<text>[^\"]*)\"|/(?P<regex>[^/]*)/)\s*", text)
    assert found, text
    name, word, value = found["name"], found["word"], found["text"]
    if word == "like":
        return lambda one: re.search(found["regex"], str(one.get(name, ""))) is not None
    # A field that is not there compares with nothing.
    return lambda one: name in one and (one[name] == value if word == "=" else one[name] <= value)


# Loki: a stream's lines, stages in order; the newest lines come first.


def loki(query: str, lines: Iterable[str], *, limit: int = 100) -> list[Event]:
    """Run a stream selector, line filters, `json` with one expression, `label_format` with a comparison, and a label filter."""
    selector, *stages = re.findall(r"\{.*?\}(?= )|\|=? (?:`[^`]*`|[^`|]+(?:`[^`]*`)?)", query)
    assert selector == '{container="ipamd"}'
    events: list[tuple[str, dict[str, str]]] = [(line, {}) for line in lines]
    for stage in (one.strip() for one in stages):
        if found := re.fullmatch(r"\|= `(.*)`", stage):
            events = [one for one in events if found[1] in one[0]]
        elif found := re.fullmatch(r'\| json (\w+)="(\w+)"', stage):
            events = [(line, labels | {found[1]: str(json.loads(line).get(found[2], ""))}) for line, labels in events]
        elif found := re.fullmatch(r'\| label_format (\w+)=`\{\{ le \.(\w+) "(.*)" \}\}`', stage):
            events = [(line, labels | {found[1]: str(labels[found[2]] <= found[3]).lower()}) for line, labels in events]
        elif found := re.fullmatch(r'\| (\w+)="(\w+)"', stage):
            events = [one for one in events if one[1].get(found[1], "") == found[2]]
        else:
            raise AssertionError(f"{stage} is not known here")
    found_lines = [json.loads(line) for line, _ in events]
    return sorted(found_lines, key=lambda one: str(one["at"]), reverse=True)[:limit]


def asked(query: str, **words: str) -> str:
    """A query with the reader's own words in it."""
    for word, value in words.items():
        assert word in query
        query = query.replace(word, value)
    assert not re.search(r"\b[A-Z]{4,}\b", query)
    return query


def _moments() -> list[str]:
    """Before the first, each beginning and each end, and after all."""
    told = sorted({one[key] for one in TENURES for key in ("from", "until") if key in one})
    return [told[0][:-4] + "000Z", *told, "2027-01-01T00:00:00.000Z"]


def _had(address: str, at: str) -> str:
    """Who had it, told by the times of all lines: container, or "" for nobody."""
    begun = [one for one in TENURES if one["address"] == address and one["from"] <= at]
    if not begun:
        return ""
    last = max(one["from"] for one in begun)
    ends = [one for one in begun if one["from"] == last and one.get("until", at + "z") <= at]
    return "" if ends else str(next(one["container"] for one in begun if one["from"] == last))


def test_the_page_has_three_questions_in_both_languages() -> None:
    """Who had an address, where a pod was, what a node gave."""
    assert len(INSIGHTS) == len(LOKI) == 3


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("order", [1, -1], ids=["as written", "ties reversed"])
def test_who_had_an_address_at_any_moment(address: str, order: int) -> None:
    """Two lines at most, read as the page says, whatever comes first of what is of one instant."""
    for at in _moments():
        words = {"ADDRESS": address, "TIME": at}
        for found in (insights(asked(INSIGHTS[0], **words), LOG[::order]), loki(asked(LOKI[0], **words), LOG[::order], limit=2)):
            assert len(found) <= 2
            latest = [one for one in found if one["from"] == max(each["from"] for each in found)]
            held = {one["container"] for one in latest} - {one["container"] for one in latest if one.get("until", at + "z") <= at}
            assert held == ({had} if (had := _had(address, at)) else set()), at


def test_the_address_that_moved_was_on_two_nodes() -> None:
    """With ENI, pod and node of each."""
    first, last = (next(one["from"] for one in order if one["address"] == MOVED) for order in (TENURES, TENURES[::-1]))
    found = [insights(asked(INSIGHTS[0], ADDRESS=MOVED, TIME=at), LOG)[0] for at in (first, last)]
    assert [one["pod"] for one in found] == ["default/web-1", "default/api-1"]
    assert found[0]["node"] != found[1]["node"]
    assert found[0]["eni"] != found[1]["eni"]


@pytest.mark.parametrize("pod", sorted({one["pod"] for one in TENURES}))
def test_where_a_pod_was(pod: str) -> None:
    """All lines about it, in both languages, newest first, and no other: its requests are not among them."""
    expected = sorted((one["from"], one.get("until", "")) for one in TENURES if one["pod"] == pod)
    for found in (
        insights(asked(INSIGHTS[1], **{"NAMESPACE/POD": pod}), LOG),
        loki(asked(LOKI[1], **{"NAMESPACE/POD": pod}), LOG),
    ):
        assert sorted((one["from"], one.get("until", "")) for one in found) == expected
        assert {one["node"] for one in found} == {one["node"] for one in TENURES if one["pod"] == pod}


@pytest.mark.parametrize("node", sorted({one["node"] for one in TENURES}))
def test_what_a_node_gave(node: str) -> None:
    """All lines of it."""
    expected = sorted((one["address"], one["from"], one.get("until", "")) for one in TENURES if one["node"] == node)
    for found in (insights(asked(INSIGHTS[2], INSTANCE=node), LOG), loki(asked(LOKI[2], INSTANCE=node), LOG)):
        assert sorted((one["address"], one["from"], one.get("until", "")) for one in found) == expected


def test_the_recording_holds_each_fact_once() -> None:
    """Lines of every kind are there, each assignment and each release once, also over kill -9 and a lost datastore."""
    facts = [(one["event"], one["container"]) for one in TENURES]
    assert len(facts) == len(set(facts))
    assert {event for event, _ in facts} == {"assigned", "adopted", "unassigned"}
    assert len({one["node"] for one in TENURES}) == 2
    assert {one["other_address"][:6] for one in TENURES} == {"", "fd00::"}
    released = [one for one in TENURES if one["message"] == "address released"]
    begun = {(one["container"], one["from"]) for one in TENURES if one["message"] == "address assigned"}
    assert {(one["container"], one["from"]) for one in released} <= begun
    assert [one["message"] for one in map(json.loads, LOG)].count("request") > len(released)
