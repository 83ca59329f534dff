"""One table of the sentences of conditions: each code has one, with the fields that its writers give it. Nobody else quotes them."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter

import pytest

from ipamd.model.condition_messages import MESSAGES, condition_text
from ipamd.model.conditions import ConditionCode, problem, problem_of
from ipamd.model.legs.condition_codes import LegConditionCode

SOURCES = Path(__file__).parents[3] / "ipamd"


CODES = {"ConditionCode": ConditionCode, "LegConditionCode": LegConditionCode}


def fields_of(code: ConditionCode | LegConditionCode) -> set[str]:
    """The fields that the sentence of a code names, the subject left out."""
    return {name for _, name, _, _ in Formatter().parse(MESSAGES[code]) if name} - {"subject"}


@pytest.mark.parametrize("code", [*ConditionCode, *LegConditionCode])
def test_each_code_has_a_sentence_with_all_its_fields(code: ConditionCode | LegConditionCode) -> None:
    """Text of others that has braces stays as it is."""
    fields = {name: f"<{name} {{0}}>" for name in fields_of(code)}
    text = condition_text("a subject", problem(code, **fields))
    assert all(value in text for value in fields.values())


def test_every_problem_is_made_with_the_fields_of_its_code() -> None:
    """By the source: a field that a sentence needs and nobody gives would be an error of the writer's thread."""
    made = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id not in ("problem", "problem_of") or not isinstance(node.args[0], ast.Attribute):
                continue
            names = {keyword.arg for keyword in node.keywords} - {"next_step"}
            names |= {"cause"} if node.func.id == "problem_of" else set()
            assert names == fields_of(CODES[node.args[0].value.id][node.args[0].attr]), f"{path.name}:{node.lineno}"
            made.add(node.args[0].attr)
    assert len(made) > 40


def test_without_a_cause_there_is_no_problem() -> None:
    """What works clears its condition."""
    assert problem_of(ConditionCode.EC2_REFUSED, "") is None
    assert problem_of(ConditionCode.EC2_REFUSED, "no") == problem(ConditionCode.EC2_REFUSED, cause="no")


@pytest.mark.parametrize(
    ("code", "fields", "text"),
    [
        (ConditionCode.DATASTORE_REFUSES, {"cause": "disk full"}, "datastore: ADD and DEL fail: disk full"),
        (ConditionCode.RUNTIME_NOT_BELIEVED, {"cause": "it does not answer"}, "CRI: it does not answer; nothing is reaped"),
        (ConditionCode.ENI_FROZEN, {"eni": "eni-1", "cause": "its link is gone"}, "ENI eni-1 gives no address: its link is gone"),
        (ConditionCode.ADDRESSES_LOST, {"count": "2 addresses"}, "2 addresses lost: EC2 does not show them; see `ipamctl audit`"),
    ],
)
def test_the_sentences_that_operators_see_most(code: ConditionCode, fields: dict[str, str], text: str) -> None:
    """As in `ipamctl status`."""
    assert condition_text("datastore", problem(code, **fields)) == text
