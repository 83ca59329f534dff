"""The story as a whole, without a lab: its promises, its exit codes, and what it does on a machine that cannot run it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.demo import report
from lab.demo.checks import Checks, Step, Verdict, run_steps
from lab.demo.context import DemoContext, brief
from lab.demo.main import BUILD, story
from lab.demo.progress import Progress
from lab.node.errors import NodeError
from lab.node.node import REPOSITORY


@pytest.fixture
def steps() -> list[Step]:
    """The story on an empty stage."""
    return story(DemoContext(lab_name="never-built", progress=Progress(io.StringIO()), stack=ExitStack()))


def test_promises_are_unique_and_needs_come_earlier(steps: list[Step]) -> None:
    """One name per check, and no step waits for a later one or for a misspelt one."""
    promises = [name for step in steps for name in step.promises]
    assert len(set(promises)) == len(promises)
    for number, step in enumerate(steps):
        assert set(step.needs) <= {earlier.title for earlier in steps[:number]}


def test_a_lab_that_does_not_come_up_fails_every_check(steps: list[Step]) -> None:
    """Nothing holds by default: each promise of the story is in the result, failed, with the cause, and the exit code is 1."""

    def run(_: Verdict) -> None:
        raise NodeError("the lab needs a mounted cgroup v2 hierarchy")

    assert steps[0].title == BUILD
    checks = Checks()
    run_steps([Step(BUILD, steps[0].promises, run), *steps[1:]], checks)
    assert [check.name for check in checks.all] == [name for step in steps for name in step.promises]
    assert not any(check.ok for check in checks.all)
    assert all("cgroup v2" in check.detail for check in checks.all)
    assert report.exit_code(checks.all) == 1


def test_a_stage_without_nodes_proves_nothing(steps: list[Step]) -> None:
    """Should the lab be 'up' without its nodes, no step takes the empty set for success."""
    checks = Checks()
    run_steps([Step(BUILD, (), lambda _: None), *steps[1:]], checks)
    assert [check.name for check in checks.all if check.ok] == []


def test_a_machine_without_the_tools_gets_one_sentence_and_code_1(tmp_path: Path) -> None:
    """No traceback; the JSON says it too, and a former success does not survive."""
    path = tmp_path / "demo.json"
    path.write_text('{"ok": true}')
    done = subprocess.run(
        [sys.executable, "-m", "lab.cli", "demo", "--json", str(path)],
        cwd=REPOSITORY,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("vpc-lab: the lab needs ")
    assert len(done.stderr.splitlines()) == 1
    document = json.loads(path.read_text())
    assert document["ok"] is False
    assert document["checks"][0]["detail"] in done.stderr


def test_many_problems_are_told_in_brief() -> None:
    """The first few, and how many more."""
    assert brief(["a", "b"]) == "a; b"
    assert brief(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"
    assert brief([]) == ""
