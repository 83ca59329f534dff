"""Each condition has one writer, or its parts have one each: two writers of one sentence end each other's trouble."""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.core.health import Health
from ipamd.process.lifecycle import REPEATED
from tests.conditions import failed
from tests.fakes.clock import FakeClock

ROOT = Path(__file__).parents[2]

BY_OBJECT = {
    ("ipamd/eni/routing.py", "EniRouting"): "one for each ENI",
    ("ipamd/host/repair_backoff.py", "RepairBackoff"): "one for each object that is repaired",
    ("ipamd/http/late_ports.py", "LatePorts"): "one for each port",
    ("ipamd/core/health.py", "Health"): "the datastore's, with the sentences of this class",
}
"""Who may report a subject that is made at run time, and what for."""


@pytest.fixture
def health() -> Health:
    """Nothing is amiss."""
    return Health(FakeClock(), ())


def test_a_condition_is_given_to_one_writer(health: Health) -> None:
    """A second claim is an error of the program, which no test run survives."""
    health.claim("ec2")
    with pytest.raises(ValueError, match="ec2"):
        health.claim("ec2")


def test_no_part_ends_the_trouble_of_another(health: Health) -> None:
    """The condition has the sentences of all parts, and ends with the last of them; its age is that of the first."""
    start, file = health.claim("conflist", part="start"), health.claim("conflist", part="file")
    start.report(failed("the disk is full"))
    since = health.conditions_since()["conflist"].since
    file.report(failed("somebody else writes it"))
    start.report(None)
    condition = health.conditions_since()["conflist"]
    assert (condition.problems, condition.since) == ((failed("somebody else writes it"),), since)
    file.report(None)
    assert health.conditions() == []


def test_two_parts_that_report_the_same_are_one_sentence(health: Health) -> None:
    """The start's step and the file's loop meet the same read-only file system; the disk's refusal is not forgotten."""
    start, file = health.claim("conflist", part="start"), health.claim("conflist", part="file")
    error = OSError(30, "Read-only file system")
    for handle in (start, file):
        handle.report(failed("Read-only file system"), error=error)
    condition = health.conditions_since()["conflist"]
    assert condition.disk == "read-only"
    assert condition.text.count("Read-only file system") == 1


def _classes(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Every class, and what is outside of all, with its name."""
    for node in tree.body:
        yield (node.name if isinstance(node, ast.ClassDef) else ""), node


def _value(node: ast.expr, module: str) -> str | None:
    """The text that an expression has for good; None if it is made at run time."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        value = getattr(importlib.import_module(module), node.id, None)
        return value if isinstance(value, str) else None
    return None


def _subject(call: ast.Call, module: str) -> tuple[bool, str | None] | None:
    """Of a call that reports or claims a condition: whether it claims, and the subject; None for any other call."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in ("report", "claim") and isinstance(call.func, ast.Attribute) and "health" in ast.unparse(call.func.value).lower():
        return name == "claim", _value(call.args[0], module)
    if name in ("Loop", "FailureIsolation"):
        return True, _value(call.args[0] if name == "Loop" else keywords["work"], module)
    return None


def _writers() -> dict[str | None, set[tuple[str, str]]]:
    """For each subject the classes that report it without having claimed it; the claimed ones are checked at run time."""
    found: dict[str | None, set[tuple[str, str]]] = defaultdict(set)
    claimed: set[str | None] = set(REPEATED)
    for path in sorted((ROOT / "ipamd").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for owner, body in _classes(ast.parse(path.read_text())):
            for node in ast.walk(body):
                subject = _subject(node, module) if isinstance(node, ast.Call) else None
                if subject is None:
                    continue
                is_claim, text = subject
                if is_claim:
                    claimed.add(text)
                else:
                    found[text].add((str(path.relative_to(ROOT)), owner))
    both = {text for text in claimed & found.keys() if text is not None}
    assert both == set(), "who claims a condition has a handle, and nobody reports it without"
    return found


def test_each_subject_is_reported_by_one_class() -> None:
    """A condition that several classes find out about is claimed in parts, or one of them owns it and is handed the facts."""
    writers = _writers()
    at_run_time = writers.pop(None, set())
    several = {subject: classes for subject, classes in writers.items() if len(classes) > 1}
    assert several == {}
    assert at_run_time - BY_OBJECT.keys() == set()
    assert len(writers) > 20, "they are found"


def test_a_condition_begins_when_its_call_began() -> None:
    """A call is refused for a minute before it fails. A later report does not move the start."""
    clock = FakeClock()
    health = Health(clock, ())
    handle, began = health.claim("ec2"), clock.now()
    clock.advance(45.0)
    handle.report(failed("refused"), age_s=45.0)
    clock.advance(45.0)
    handle.report(failed("refused again"), age_s=10.0)
    assert health.conditions_since()["ec2"].since == began
