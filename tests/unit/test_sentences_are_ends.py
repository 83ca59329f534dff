"""No product code searches in a sentence that it has made: it asks for a code or a field, so that sentences can be reworded."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import pytest

from ipamd.model.condition_messages import MESSAGES as CONDITION_MESSAGES
from ipamd.model.conditions import ConditionCode
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.difference_messages import MESSAGES as DIFFERENCE_MESSAGES
from ipamd.model.failures import FAILURES, FailureCode
from ipamd.model.finding_codes import FindingCode
from ipamd.model.legs.condition_codes import LegConditionCode
from ipamd.model.legs.finding_codes import LegFindingCode
from ipamd.model.legs.refusals import REFUSALS as BRANCH_REFUSALS
from ipamd.model.legs.refusals import BranchRefusalCode
from ipamd.model.refusals import REFUSALS, RefusalCode
from ipamd.model.repair_messages import DIFFERENCES, RESULTS
from ipamd.model.repairs import OUTCOMES, RepairCode
from ipamd.model.verdict_reasons import SENTENCES, ReasonCode
from ipamd.report.finding_messages import MESSAGES as FINDING_MESSAGES

SOURCES = Path(__file__).parents[2]

RENDERED = {"message", "details", "sentence", "advised_text", "text", "main_reason"}
"""Attributes of our values that are sentences."""

RENDERERS = {"str", "log_text", "condition_text", "difference_text", "mend_text", "repair_text", "repair_texts", "finding_text"}
"""Functions that make sentences; `str` of an error or a cause."""

ERRORS = {"error", "exc", "cause", "refusal", "problem", "difference", "reason", "report"}
"""How variables are named whose `str` is a sentence."""

SEARCHES = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit"),
    *("find", "rfind", "index", "replace", "count", "search", "match", "fullmatch", "finditer", "findall", "sub"),
}

FOREIGN = {
    "ipamd/cloud/credential_naming.py": "botocore has no other sign than its text",
    "ipamd/probe/calls.py": "EC2 has one code for several refusals",
    "ipamd/probe/expect.py": "EC2 has one code for several refusals",
    "ipamd/history/reading.py": "what a person asked for",
    "ipamd/ipamctl/yaml_files.py": "the parser's words, in one line",
    "ipamd/kernel/nft_changes.py": "nft's listing of a table",
    "ipamd/model/history_subject.py": "what a person asked for",
    "ipamd/report/explain.py": "what a person asked for",
}
"""Where the text that is searched is not ours, with the reason."""


def is_sentence(node: ast.AST) -> bool:
    """Whether an expression is a sentence of ours."""
    if isinstance(node, ast.Attribute):
        return node.attr in RENDERED
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RENDERERS:
        argument = node.args[0] if node.args else None
        return node.func.id != "str" or (isinstance(argument, ast.Name) and argument.id in ERRORS)
    return False


def searches(tree: ast.AST) -> Iterator[int]:
    """The lines that search in a sentence."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            pairs = zip(node.ops, node.comparators, strict=True)
            if any(isinstance(operator, ast.In | ast.NotIn) and is_sentence(text) for operator, text in pairs):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
            texts = (node.func.value, *node.args)
            if any(is_sentence(text) for text in texts):
                yield node.lineno


@pytest.mark.parametrize("room", ["ipamd", "cni_plugin"])
def test_nobody_searches_in_a_sentence(room: str) -> None:
    """By the source; a text of others is named with the reason why there is no other sign."""
    found = dict[str, list[int]]()
    for path in sorted((SOURCES / room).rglob("*.py")):
        lines = list(searches(ast.parse(path.read_text(encoding="utf-8"))))
        name = str(path.relative_to(SOURCES))
        if lines and name not in FOREIGN:
            found[name] = lines
    assert found == {}


@pytest.mark.parametrize("name", FOREIGN)
def test_an_exception_is_one(name: str) -> None:
    """A file that no longer searches leaves the list."""
    assert list(searches(ast.parse((SOURCES / name).read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    "line",
    [
        '"no" in error.message',
        'str(error).startswith("no")',
        'difference.text.partition(": ")',
        're.search("no", condition_text(subject, problem))',
        'log_text(error).replace("no", "")',
    ],
)
def test_a_search_is_seen(line: str) -> None:
    """The check itself."""
    assert list(searches(ast.parse(line))) == [1]


@pytest.mark.parametrize(
    ("codes", "table"),
    [
        ((*ConditionCode, *LegConditionCode), CONDITION_MESSAGES),
        (DifferenceCode, DIFFERENCE_MESSAGES),
        (FailureCode, FAILURES),
        ((*FindingCode, *LegFindingCode), FINDING_MESSAGES),
        (ReasonCode, SENTENCES),
        (RefusalCode, REFUSALS),
        (BranchRefusalCode, BRANCH_REFUSALS),
        (RepairCode, DIFFERENCES),
        (RepairCode, RESULTS),
        (RepairCode, OUTCOMES),
    ],
    ids=["condition", "difference", "failure", "finding", "reason", "refusal", "branch refusal", "repair", "result", "outcome"],
)
def test_every_code_has_its_row(codes: Iterable[StrEnum], table: Mapping[StrEnum, object]) -> None:
    """And no row is of a code that is gone."""
    assert set(table) == set(codes)
