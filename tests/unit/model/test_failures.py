"""One table of the failures of adapters: each code has its sentence with all its fields, and is used."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter

import pytest

from ipamd.model.errors import IpamError, WiringError
from ipamd.model.failures import FAILURES, FailureCode, failure

SOURCES = Path(__file__).parents[3] / "ipamd"


def fields_of(code: FailureCode) -> set[str]:
    """The fields that the sentences of a code name."""
    row = FAILURES[code]
    return {name for template in row for _, name, _, _ in Formatter().parse(template) if name}


@pytest.mark.parametrize("code", FailureCode)
def test_each_failure_is_an_error_with_code_fields_and_sentence(code: FailureCode) -> None:
    """I14: what failed, on which object, and what to do; text of others that has braces stays as it is."""
    fields = {name: f"<{name} {{0}}>" for name in fields_of(code)}
    error = failure(WiringError, code, **fields)
    assert (type(error), error.failure, error.fields) == (WiringError, code, fields)
    assert error.message
    assert all(value in str(error) for value in fields.values())


def test_every_failure_is_made_with_the_fields_of_its_code() -> None:
    """By the source: a field that a sentence needs and nobody gives would be an error of its own."""
    named = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "FailureCode":
                named |= {node.attr} if path.name != "failures.py" else set()
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "failure"):
                continue
            if len(node.args) == 2 and isinstance(node.args[1], ast.Attribute):
                given = {keyword.arg for keyword in node.keywords}
                if None not in given:
                    assert given == fields_of(FailureCode[node.args[1].attr]), f"{path.name}:{node.lineno}"
    assert named == {code.name for code in FailureCode}


def test_an_error_without_a_code_has_no_fields() -> None:
    """As those of requests."""
    assert (IpamError("x").failure, IpamError("x").fields) == ("", {})


@pytest.mark.parametrize(
    ("code", "fields", "text"),
    [
        (
            FailureCode.STEP_REFUSED,
            {"work": "wiring of abc/eth0", "step": "add route 10.0.0.5 dev eni1", "cause": "EEXIST"},
            "wiring of abc/eth0: add route 10.0.0.5 dev eni1 failed: EEXIST",
        ),
        (
            FailureCode.RUNTIME_SILENT,
            {"socket": "/run/x.sock", "call": "ListPodSandbox", "cause": "DEADLINE_EXCEEDED"},
            "the container runtime at /run/x.sock did not answer ListPodSandbox: DEADLINE_EXCEEDED; nothing is freed until it answers",
        ),
        (
            FailureCode.EC2_REFUSED,
            {"operation": "CreateTags", "subject": "eni-1", "cause": "UnauthorizedOperation: no", "step": "allow ec2:CreateTags"},
            "EC2 CreateTags failed for eni-1: UnauthorizedOperation: no; allow ec2:CreateTags",
        ),
        (FailureCode.FILE_OUT_OF_USE, {"path": "/run/state.db", "cause": "closed"}, "/run/state.db is out of use: closed"),
        (FailureCode.SETTINGS_WRONG, {"count": 1, "problems": "X: no"}, "wrong settings (1): X: no"),
    ],
)
def test_the_failures_that_people_see_most(code: FailureCode, fields: dict[str, object], text: str) -> None:
    """As in the log, and in `ipamctl status`."""
    assert str(failure(WiringError, code, **fields)) == text
