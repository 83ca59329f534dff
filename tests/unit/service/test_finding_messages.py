"""One table of the audit's sentences: each code says how the sources differ and what will be done."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter

import pytest

from ipamd.model.finding_codes import PENDING, VIOLATIONS, FindingCode, Severity, severity_of
from ipamd.model.legs.finding_codes import LEG_PENDING, LEG_VIOLATIONS, LegFindingCode
from ipamd.report.finding import finding
from ipamd.report.finding_messages import MESSAGES

REPORT = Path(__file__).parents[3] / "ipamd" / "report"


CODES = {"FindingCode": FindingCode, "LegFindingCode": LegFindingCode}


def fields_of(code: FindingCode | LegFindingCode) -> set[str]:
    """The fields that the sentences of a code name."""
    return {name for template in MESSAGES[code] for _, name, _, _ in Formatter().parse(template) if name}


@pytest.mark.parametrize("code", [*FindingCode, *LegFindingCode])
def test_each_code_says_what_differs_and_what_follows(code: FindingCode | LegFindingCode) -> None:
    """Both sentences are there, and every field appears in them."""
    fields = {name: f"<{name}>" for name in fields_of(code)}
    reported = finding(code, "10.0.0.5", **fields)
    assert reported.text
    assert reported.next
    assert all(value in f"{reported.text} {reported.next}" for value in fields.values())
    assert "{" not in reported.text + reported.next


def test_each_code_matters_in_one_way() -> None:
    """No code is both a violation and in progress."""
    assert not (VIOLATIONS | LEG_VIOLATIONS) & (PENDING | LEG_PENDING)
    assert {severity_of(code) for code in FindingCode} == set(Severity)


def test_every_finding_is_made_with_the_fields_of_its_code() -> None:
    """By the source: a field that a sentence needs and nobody gives would be an error in the middle of an audit."""
    checked = set()
    for path in (*REPORT.glob("audit*.py"), *REPORT.glob("legs/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "finding"):
                continue
            first = node.args[0]
            names = {keyword.arg for keyword in node.keywords}
            if isinstance(first, ast.Attribute) and None not in names:
                assert names == fields_of(CODES[first.value.id][first.attr]), f"{path.name}:{node.lineno}"
                checked.add(first.attr)
    assert len(checked) > 20


def test_the_sentences_of_the_worst_findings() -> None:
    """As operators read them."""
    lost = finding(
        FindingCode.LOST_ADDRESS, "10.0.0.5", since="NOW", reason="EC2 does not show it", sandbox="abc/eth0 (default/a)"
    )
    assert lost.text == "lost since NOW: EC2 does not show it; sandbox abc/eth0 (default/a) has it and no network (I7)"
    assert lost.next == "delete the pod: its successor gets another address"
    twice = finding(FindingCode.DUPLICATE_ADDRESS, "10.0.0.5", count=2, links="eni1 of a, eni2 of b")
    assert twice.text == "2 host veths carry it: eni1 of a, eni2 of b (I1)"
