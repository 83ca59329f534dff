"""One table of the refusals of ADD and STATUS: each code has its class, its sentence with all its fields, and the next step."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter

import pytest

from ipamd.model import pinned_refusals
from ipamd.model.errors import IpamError
from ipamd.model.legs import refusals as leg_refusals
from ipamd.model.legs.refusals import BranchRefusalCode, branch_refusal
from ipamd.model.pinned_refusals import PinnedRefusalCode, pinned_refusal
from ipamd.model.refusals import REFUSALS, RefusalCode, refusal

SOURCES = Path(__file__).parents[3] / "ipamd"


ALL_REFUSALS = {**REFUSALS, **leg_refusals.REFUSALS, **pinned_refusals.REFUSALS}

CODES = {"RefusalCode": RefusalCode, "BranchRefusalCode": BranchRefusalCode, "PinnedRefusalCode": PinnedRefusalCode}

MAKERS = {RefusalCode: refusal, BranchRefusalCode: branch_refusal, PinnedRefusalCode: pinned_refusal}

Code = RefusalCode | BranchRefusalCode | PinnedRefusalCode


def fields_of(code: Code) -> set[str]:
    """The fields that the sentences of a code name."""
    row = ALL_REFUSALS[code]
    return {name for template in (row.message, row.details) for _, name, _, _ in Formatter().parse(template) if name}


@pytest.mark.parametrize("code", [*RefusalCode, *BranchRefusalCode, *PinnedRefusalCode])
def test_each_refusal_is_an_error_with_code_fields_and_sentence(code: Code) -> None:
    """I14: what failed, on which object, and what to do; text of others that has braces stays as it is."""
    fields = {name: f"<{name} {{0}}>" for name in fields_of(code)}
    error = MAKERS[type(code)](code, **fields)  # type: ignore[operator]
    assert (type(error), error.refusal, error.fields) == (ALL_REFUSALS[code].error, code, fields)
    assert error.message
    assert error.details
    assert all(value in str(error) for value in fields.values())


def test_a_refusal_that_may_be_retried_says_so_or_what_helps() -> None:
    """Each class that the runtime retries has a next step; the others say what to do instead."""
    assert all(len(row.details) > 4 for row in ALL_REFUSALS.values())
    assert {code for code, row in ALL_REFUSALS.items() if not row.error.retryable} == {
        RefusalCode.SANDBOX_DELETED,
        RefusalCode.ATTACHED_OTHERWISE,
        RefusalCode.NETNS_REPLACED,
    }


def test_every_refusal_is_made_with_the_fields_of_its_code() -> None:
    """By the source: a field that a sentence needs and nobody gives would answer an ADD with an error of ours."""
    made = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id not in ("refusal", "branch_refusal", "pinned_refusal"):
                continue
            if isinstance(node.args[0], ast.Attribute):
                code = CODES[node.args[0].value.id][node.args[0].attr]
                assert {keyword.arg for keyword in node.keywords} == fields_of(code), path.name
                made.add(node.args[0].attr)
    assert len(made) > 20


def test_an_error_that_is_no_refusal_has_no_code() -> None:
    """Those that adapters make."""
    assert (IpamError("x").refusal, IpamError("x").fields) == ("", {})


@pytest.mark.parametrize(
    ("code", "fields", "text"),
    [
        (
            RefusalCode.SANDBOX_DELETED,
            {"sandbox": "abc/eth0"},
            "sandbox abc/eth0 was deleted: an ADD after its DEL is refused; the runtime makes a new sandbox instead",
        ),
        (
            RefusalCode.NO_ADDRESS,
            {"sandbox": "abc/eth0", "cause": "all ENIs are full", "counts": "0 free", "step": "retry"},
            "no address for sandbox abc/eth0: cause: all ENIs are full; 0 free; next: retry",
        ),
        (
            RefusalCode.DEADLINE_PASSED,
            {"doing": "waiting for an address"},
            "the deadline passed while waiting for an address: the operation was rolled back; a retry is safe",
        ),
    ],
)
def test_the_refusals_that_people_see_most(code: RefusalCode, fields: dict[str, str], text: str) -> None:
    """As in the events of a pod."""
    assert str(refusal(code, **fields)) == text
