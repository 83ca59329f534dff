"""One table of the sentences of differences: each code has one, with the fields that its writers give it. Nobody else quotes them."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter

import pytest

from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.difference_messages import INSIDE_IS_LEFT, MENDS, MESSAGES
from ipamd.model.repairs import NODE, NODE_ROUTING, RepairCode, RepairReport
from ipamd.model.routing_difference import LOSES_NO_PACKETS, REPAIRED, repair_difference, routing_difference
from ipamd.model.wiring_difference import ABSENCES, INSIDE, advised_texts, difference_texts, wiring_difference

SOURCES = Path(__file__).parents[3] / "ipamd"

MAKERS = ("wiring_difference", "routing_difference")


def fields_of(code: DifferenceCode) -> set[str]:
    """The fields that the sentences of a code name."""
    templates = MESSAGES[code], MENDS.get(code, "")
    return {name for template in templates for _, name, _, _ in Formatter().parse(template) if name}


@pytest.mark.parametrize("code", DifferenceCode)
def test_each_code_has_a_sentence_with_all_its_fields(code: DifferenceCode) -> None:
    """Text of others that has braces stays as it is."""
    fields = {name: f"<{name} {{0}}>" for name in fields_of(code)}
    difference = routing_difference(code, "a subject", **fields)
    assert difference.text
    assert all(value in difference.advised_text for value in fields.values())
    assert ("to mend it: " in difference.advised_text) == (code in MENDS)


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCES)))
def test_every_difference_is_made_with_fields_of_its_code(path: Path) -> None:
    """By the source, for the calls that name code and fields: a field that a sentence needs and nobody gives would be an error."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS):
            continue
        names = {keyword.arg for keyword in node.keywords}
        if node.args and isinstance(node.args[0], ast.Attribute) and None not in names:
            assert names == fields_of(DifferenceCode[node.args[0].attr]), node.lineno


def test_what_a_code_says_besides_its_sentence() -> None:
    """What is repaired needs no command, and what flows cuts nobody off; an absence is of the host's side."""
    assert not REPAIRED & set(MENDS)
    assert set(MENDS) >= LOSES_NO_PACKETS
    assert not ABSENCES & INSIDE
    routed = {code: routing_difference(code, NODE, **dict.fromkeys(fields_of(code), "x")) for code in DifferenceCode}
    assert {code for code, difference in routed.items() if not difference.loses_packets} == LOSES_NO_PACKETS
    assert {code for code, difference in routed.items() if difference.will_be_repaired} == REPAIRED


def test_a_difference_that_a_repair_would_end_has_the_sentence_of_the_repair() -> None:
    """The first half: nothing was done."""
    difference = repair_difference(RepairReport(RepairCode.ADDED, NODE_ROUTING, "rule 1024"), NODE)
    assert (difference.code, difference.will_be_repaired) == (DifferenceCode.NOT_AS_REQUIRED, True)
    assert difference.advised_text == "rule 1024 was missing"


def test_differences_of_a_sandbox_in_one_line() -> None:
    """Those inside are advised about once."""
    down = wiring_difference(DifferenceCode.VETH_DOWN, link="eni1")
    inside = wiring_difference(DifferenceCode.INTERFACE_DOWN, ifname="eth0")
    assert difference_texts([down, inside]) == "host link eni1 is down; interface eth0 is down"
    assert advised_texts([down]) == ["host link eni1 is down"]
    assert advised_texts([inside, down, inside]) == [inside.text, down.text, inside.text, INSIDE_IS_LEFT]


@pytest.mark.parametrize(
    ("code", "fields", "text"),
    [
        (DifferenceCode.VETH_MTU, {"link": "eni1", "actual": 1400, "expected": 9001}, "host link eni1 has MTU 1400, not 9001"),
        (
            DifferenceCode.ROUTE_MISSING,
            {"address": "10.0.0.5", "link": "eni1", "table": ""},
            "the route 10.0.0.5 dev eni1 is missing on the host",
        ),
        (
            DifferenceCode.RULE_ELSEWHERE,
            {"rule": "rule from 10.0.0.5", "actual": 7, "expected": 2},
            "rule from 10.0.0.5 looks up table 7, not 2",
        ),
        (
            DifferenceCode.RULE_REFUSES,
            {"priority": 9},
            "a rule ahead of ours refuses packets; to mend it: ip rule del prio 9",
        ),
    ],
)
def test_the_sentences_that_operators_see_most(code: DifferenceCode, fields: dict[str, object], text: str) -> None:
    """As in `ipamctl audit`, and in the answer of CHECK."""
    assert routing_difference(code, NODE, **fields).advised_text == text
